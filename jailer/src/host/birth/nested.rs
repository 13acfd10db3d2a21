//! A session below the namespaces of a keeper. The jailer stays outside, and its child all the same: two processes of ours
//! are on the way, each a sibling of the next one.
//!
//! The first enters the keeper's user namespace, where it alone can map ids, and sees the host's /proc; the second is in the
//! keeper's pid namespace too, has the zygote's uid, and makes pid 1 of the session.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use rustix::thread::{Gid, LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_thread_res_gid};
use serde::{Deserialize, Serialize};

use super::{Nest, map_ids, set_effective_uid};
use crate::plan::ZYGOTE_UID;
use crate::step::SysError;
use crate::sys::{self, Cloned};
use crate::wire;

/// How long each of those on the way may take, which is well below the time of the watchdog.
const LIMIT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// How often is looked for what is left of a birth that failed.
const LOOKS: usize = 16;

/// What those on the way and the jailer tell each other.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    /// pid 1 is there. Descriptors: its pidfd.
    Born,
    /// The number of pid 1 on the host.
    Number(i32),
    /// The ids are mapped. The second process has this number on the host.
    Mapped(i32),
    Failed(SysError),
}

/// Makes pid 1 and maps its ids. It returns in pid 1 too.
pub(super) fn clone(nest: &Nest, namespaces: i32, group: BorrowedFd<'_>, map: &str) -> Result<Cloned, SysError> {
    let before = children();
    let (ours, theirs) = talk()?;
    match sys::clone3(0, Some(nest.group.as_fd()))? {
        Cloned::Child => {
            drop(ours);
            match enter(nest, namespaces, group, map, &theirs) {
                Ok(Side::Born) => Ok(Cloned::Child),
                Ok(Side::OnTheWay) => sys::exit_now(0),
                Err(error) => {
                    drop(wire::send(theirs.as_fd(), &Word::Failed(error), &[]));
                    sys::exit_now(1)
                }
            }
        }
        Cloned::Parent { pidfd: first, .. } => {
            drop(theirs);
            let made = follow(&ours);
            drop(ours);
            end(made, &first, &before)
        }
    }
}

/// What the jailer does meanwhile.
fn follow(ours: &OwnedFd) -> Result<Cloned, SysError> {
    let (pid, pidfd) = match hear(ours)? {
        (Word::Born, Some(pidfd)) => (number_of(&pidfd)?, pidfd),
        (word, _) => return Err(unexpected(word)),
    };
    say(ours, &Word::Number(pid), &[])?;
    match hear(ours)? {
        (Word::Mapped(second), _) => {
            let _reaped = Pid::from_raw(second).map(|second| waitid(WaitId::Pid(second), WaitIdOptions::EXITED));
            Ok(Cloned::Parent { pid, pidfd })
        }
        (word, _) => Err(unexpected(word)),
    }
}

/// A cgroup namespace that begins at a group, in which there can be a process.
pub(in crate::host) fn cgroup_namespace(group: BorrowedFd<'_>) -> Result<OwnedFd, SysError> {
    let before = children();
    let (ours, theirs) = talk()?;
    match sys::clone3(0, Some(group))? {
        Cloned::Child => {
            drop(ours);
            let word = match sys::unshare(UnshareFlags::NEWCGROUP) {
                Ok(()) => Word::Born,
                Err(error) => Word::Failed(error),
            };
            // The namespace is opened before the answer comes.
            let _gone = say(&theirs, &word, &[]).and_then(|()| hear(&theirs));
            sys::exit_now(0)
        }
        Cloned::Parent { pid, pidfd } => {
            drop(theirs);
            let path = format!("/proc/{pid}/ns/cgroup");
            let opened = match hear(&ours) {
                Ok((Word::Born, _)) => rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                    .map_err(|e| SysError::new(format!("open({path:?})"), e.raw_os_error())),
                Ok((word, _)) => Err(unexpected(word)),
                Err(error) => Err(error),
            };
            drop(ours);
            end(opened, &pidfd, &before)
        }
    }
}

/// Makes pid 1 of a keeper in a cgroup namespace that exists, out of a group that can be seen in it.
pub(super) fn clone_in(
    namespace: &OwnedFd,
    from: BorrowedFd<'_>,
    uid: u32,
    namespaces: i32,
    group: BorrowedFd<'_>,
) -> Result<Cloned, SysError> {
    let before = children();
    let (ours, theirs) = talk()?;
    match sys::clone3(0, Some(from))? {
        Cloned::Child => {
            drop(ours);
            let made = join(namespace, LinkNameSpaceType::ControlGroup)
                .and_then(|()| set_effective_uid(uid))
                .and_then(|()| sys::clone3(namespaces | libc::CLONE_PARENT, Some(group)));
            let word = match made {
                Ok(Cloned::Child) => return Ok(Cloned::Child),
                Ok(Cloned::Parent { pidfd, .. }) => say(&theirs, &Word::Born, &[pidfd.as_fd()]),
                Err(error) => say(&theirs, &Word::Failed(error), &[]),
            };
            sys::exit_now(i32::from(word.is_err()))
        }
        Cloned::Parent { pidfd: first, .. } => {
            drop(theirs);
            let made = match hear(&ours) {
                Ok((Word::Born, Some(pidfd))) => number_of(&pidfd).map(|pid| Cloned::Parent { pid, pidfd }),
                Ok((word, _)) => Err(unexpected(word)),
                Err(error) => Err(error),
            };
            drop(ours);
            end(made, &first, &before)
        }
    }
}

/// Takes leave of the first process on the way, and, where the birth has failed, of all that came of it: what nobody reaps
/// would keep the keeper's pid namespace from ending.
fn end<T>(made: Result<T, SysError>, first: &OwnedFd, before: &BTreeSet<i32>) -> Result<T, SysError> {
    if made.is_ok() {
        let _reaped = waitid(WaitId::PidFd(first.as_fd()), WaitIdOptions::EXITED);
        return made;
    }
    for _ in 0..LOOKS {
        let left: Vec<Pid> = children()
            .difference(before)
            .filter_map(|pid| Pid::from_raw(*pid))
            .collect();
        if left.is_empty() {
            break;
        }
        // Children that are not reaped keep their numbers.
        for pid in &left {
            let _dead_already = kill_process(*pid, Signal::KILL);
        }
        for pid in left {
            let _reaped = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
        }
    }
    made
}

/// The children of this process, which has one thread. Source: proc_pid_task(5), `children`.
fn children() -> BTreeSet<i32> {
    let text = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn talk() -> Result<(OwnedFd, OwnedFd), SysError> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|e| SysError::new("socketpair(SEQPACKET)", e.raw_os_error()))
}

fn join(namespace: &OwnedFd, kind: LinkNameSpaceType) -> Result<(), SysError> {
    move_into_link_name_space(namespace.as_fd(), Some(kind))
        .map_err(|e| SysError::new(format!("setns({kind:?})"), e.raw_os_error()))
}

enum Side {
    Born,
    OnTheWay,
}

fn enter(nest: &Nest, namespaces: i32, group: BorrowedFd<'_>, map: &str, theirs: &OwnedFd) -> Result<Side, SysError> {
    for (namespace, kind) in [
        (&nest.user, LinkNameSpaceType::User),
        (&nest.pid, LinkNameSpaceType::ProcessID),
    ] {
        join(namespace, kind)?;
    }
    match sys::clone3(libc::CLONE_PARENT, None)? {
        Cloned::Child => {
            // The effective ids alone: the zygote, which has the others too, can't send this process a signal.
            let id = ZYGOTE_UID;
            set_thread_res_gid(None, Gid::from_raw(id), None)
                .map_err(|e| SysError::new(format!("setresgid(-1, {id}, -1)"), e.raw_os_error()))?;
            set_effective_uid(id)?;
            match sys::clone3(namespaces | libc::CLONE_PARENT, Some(group))? {
                Cloned::Child => Ok(Side::Born),
                Cloned::Parent { pidfd, .. } => say(theirs, &Word::Born, &[pidfd.as_fd()]).map(|()| Side::OnTheWay),
            }
        }
        Cloned::Parent { pid: second, .. } => {
            match hear(theirs)? {
                (Word::Number(pid), _) => map_ids(pid, map)?,
                (word, _) => return Err(unexpected(word)),
            }
            say(theirs, &Word::Mapped(second), &[]).map(|()| Side::OnTheWay)
        }
    }
}

fn say(socket: &OwnedFd, word: &Word, fds: &[BorrowedFd<'_>]) -> Result<(), SysError> {
    wire::send(socket.as_fd(), word, fds)
        .map_err(|error| SysError::new("sendmsg(nest)", error.raw_os_error().unwrap_or(libc::EIO)))
}

/// Waits for a word, but not for ever: what is on the way can be stopped or killed by its groups.
fn hear(socket: &OwnedFd) -> Result<(Word, Option<OwnedFd>), SysError> {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    match retry_on_intr(|| poll(&mut fds, Some(&LIMIT))) {
        Ok(0) => return Err(SysError::new("poll(nest)", libc::ETIMEDOUT)),
        Ok(_) => {}
        Err(error) => return Err(SysError::new("poll(nest)", error.raw_os_error())),
    }
    match wire::receive(socket.as_fd()) {
        Ok(Some((word, mut fds))) => Ok((word, fds.pop())),
        Ok(None) => Err(SysError::new("recvmsg(nest): it is gone", libc::ESRCH)),
        Err(error) => Err(SysError::new(
            "recvmsg(nest)",
            error.raw_os_error().unwrap_or(libc::EIO),
        )),
    }
}

fn unexpected(word: Word) -> SysError {
    match word {
        Word::Failed(error) => error,
        word => SysError::new(format!("recvmsg(nest): {word:?}"), libc::EPROTO),
    }
}

/// The number of a process on the host. Source: pidfd_open(2), proc(5).
fn number_of(pidfd: &OwnedFd) -> Result<i32, SysError> {
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
    let text = super::read(&path)?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pid:"));
    line.and_then(|pid| pid.trim().parse().ok())
        .filter(|pid| *pid > 0)
        .ok_or_else(|| SysError::new(format!("read({path:?}): no such process"), libc::ESRCH))
}
