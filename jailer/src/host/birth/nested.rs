//! A session below the namespaces of a keeper. The jailer stays outside, and its child all the same: two processes of ours
//! are on the way, each a sibling of the next one.
//!
//! The first enters the keeper's user namespace, where it alone can map ids, and sees the host's /proc; the second is in the
//! keeper's pid namespace too, has the zygote's uid, and makes pid 1 of the session.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::thread::{
    Gid, LinkNameSpaceType, Uid, UnshareFlags, move_into_link_name_space, set_thread_res_gid, set_thread_res_uid,
};
use serde::{Deserialize, Serialize};

use super::{Nest, map_ids, set_effective_uid};
use crate::plan::ZYGOTE_UID;
use crate::step::SysError;
use crate::sys::{self, Cloned};
use crate::wire;

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
            let _reaped = waitid(WaitId::PidFd(first.as_fd()), WaitIdOptions::EXITED);
            made
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
            let _reaped = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
            opened
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
            let _reaped = waitid(WaitId::PidFd(first.as_fd()), WaitIdOptions::EXITED);
            made
        }
    }
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
            let id = ZYGOTE_UID;
            let (gid, uid) = (Gid::from_raw(id), Uid::from_raw(id));
            set_thread_res_gid(gid, gid, gid)
                .map_err(|e| SysError::new(format!("setresgid({id})"), e.raw_os_error()))?;
            set_thread_res_uid(uid, uid, uid)
                .map_err(|e| SysError::new(format!("setresuid({id})"), e.raw_os_error()))?;
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

fn hear(socket: &OwnedFd) -> Result<(Word, Option<OwnedFd>), SysError> {
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
