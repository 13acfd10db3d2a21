//! The first moments of a jail: a process in new namespaces, mapped to uids of its own, that becomes brig-init.

pub(super) mod nested;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use rustix::thread::{Gid, Uid, UnshareFlags, set_thread_res_gid, set_thread_res_uid};

use super::uids::Block;
use crate::cgroup::{Controllers, SessionGroups};
use crate::faults::{self, Point};
use crate::init::{CONTROL_FD, FILES_FD};
use crate::plan::{FromInit, ToInit};
use crate::step::{At, Step, StepError, SysError};
use crate::sys::{self, Cloned};
use crate::wire;

/// All namespaces but that of cgroups, which must begin at the session's group.
const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

/// Sealed copies of the static programs: nothing in a jail can change what the next one runs.
#[derive(Debug)]
pub(super) struct Programs {
    init: OwnedFd,
    files: OwnedFd,
}

/// Where a session of a dock is made: below the user and the pid namespace of the keeper.
#[derive(Debug)]
pub(super) struct Nest {
    pub(super) user: OwnedFd,
    pub(super) pid: OwnedFd,
    /// The group of the keeper's pid 1, from which who makes the session clones into the session's.
    pub(super) group: OwnedFd,
}

/// Where a session is made.
#[derive(Debug)]
pub(super) enum Place<'p> {
    /// Below the namespaces of the jailer.
    Plain,
    /// The same, but in the cgroup namespace of a dock, so that what the session forks into others can see their groups.
    Keeper(&'p OwnedFd),
    Nested(&'p Nest),
}

/// A process that will be pid 1.
#[derive(Debug)]
pub(super) struct Newborn {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) control: OwnedFd,
}

impl Programs {
    pub(super) fn load(folder: &Path) -> Result<Self, SysError> {
        let load = |name: &str| {
            let path = folder.join(name);
            let failed = |error: std::io::Error| {
                SysError::new(
                    format!("read({})", path.display()),
                    error.raw_os_error().unwrap_or(libc::EIO),
                )
            };
            let bytes = std::fs::read(&path).map_err(failed)?;
            wire::sealed_memfd(name, &bytes).map_err(failed)
        };
        Ok(Self {
            init: load("brig-init")?,
            files: load("brig-files")?,
        })
    }
}

/// Makes the process and its maps. It then waits for its plan.
///
/// The creator of a user namespace is charged for what is counted per user in it, and has every capability over it:
/// the effective uid at that moment is the session's own, so that one session can't use up what belongs to all. In a dock
/// it is the zygote's.
pub(super) fn give_birth(
    programs: &Programs,
    groups: &SessionGroups,
    block: Block,
    map: &str,
    place: &Place<'_>,
) -> Result<Newborn, StepError> {
    let (control, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|e| SysError::new("socketpair(SEQPACKET)", e.raw_os_error()))
        .at(Step::Clone)?;
    let (session_tasks, init_tasks) = groups.birth_tasks().at(Step::Cgroups)?;
    let namespaces = match groups.controllers() {
        Controllers::V2 => NAMESPACES | libc::CLONE_NEWCGROUP,
        Controllers::V1 { .. } => NAMESPACES,
    };
    #[cfg(feature = "faults")]
    super::faults::check(Step::Clone).at(Step::Clone)?;
    faults::point(Point::JailerBeforeClone);
    let cloned = match place {
        Place::Plain => clone_as(block.root(), namespaces, groups.directory()),
        Place::Keeper(namespace) => {
            let from = groups.init_directory().at(Step::Cgroups)?;
            let namespaces = namespaces & !libc::CLONE_NEWCGROUP;
            nested::clone_in(namespace, from.as_fd(), block.root(), namespaces, groups.directory())
        }
        Place::Nested(nest) => nested::clone(nest, namespaces, groups.directory(), map),
    };
    match cloned.at(Step::Clone)? {
        Cloned::Child => {
            // Held here, it would hide the jailer's death from this process, which then would hide it from brigd.
            drop(control);
            become_init(programs, &theirs, &session_tasks, &init_tasks)
        }
        Cloned::Parent { pid, pidfd } => {
            let newborn = Newborn { pid, pidfd, control };
            faults::point(Point::JailerCloned);
            // In a dock they are mapped by then.
            let is_mapped = matches!(place, Place::Nested(_));
            let mapped = if is_mapped { Ok(()) } else { map_ids(pid, map) };
            match mapped.at(Step::IdMaps).and_then(|()| {
                faults::point(Point::JailerMapped);
                go_on(newborn.control.as_fd())
            }) {
                Ok(()) => Ok(newborn),
                Err(error) => {
                    // Our own child, not reaped yet: the number can't be another's.
                    let _gone = rustix::process::pidfd_send_signal(&newborn.pidfd, Signal::KILL);
                    let _reaped = waitid(WaitId::PidFd(newborn.pidfd.as_fd()), WaitIdOptions::EXITED);
                    Err(error)
                }
            }
        }
    }
}

fn clone_as(uid: u32, namespaces: i32, group: BorrowedFd<'_>) -> Result<Cloned, SysError> {
    set_effective_uid(uid)?;
    let cloned = sys::clone3(namespaces, Some(group));
    if !matches!(cloned, Ok(Cloned::Child)) {
        set_effective_uid(0)?;
    }
    cloned
}

/// Takes leave of a dead pid 1.
pub(super) fn reap(pidfd: BorrowedFd<'_>) -> bool {
    !matches!(
        waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED | WaitIdOptions::NOHANG),
        Ok(None)
    )
}

/// The securebit NO_SETUID_FIXUP keeps the capabilities across this.
fn set_effective_uid(uid: u32) -> Result<(), SysError> {
    set_thread_res_uid(None, Uid::from_raw(uid), None)
        .map_err(|e| SysError::new(format!("setresuid(-1, {uid}, -1)"), e.raw_os_error()))
}

fn map_ids(pid: i32, map: &str) -> Result<(), SysError> {
    #[cfg(feature = "faults")]
    super::faults::check(Step::IdMaps)?;
    for (name, value) in [("setgroups", "deny"), ("gid_map", map), ("uid_map", map)] {
        let path = format!("/proc/{pid}/{name}");
        std::fs::write(&path, value).map_err(|error| {
            SysError::new(
                format!("write({path:?}, {value:?})"),
                error.raw_os_error().unwrap_or(libc::EIO),
            )
        })?;
    }
    Ok(())
}

fn read(path: &str) -> Result<String, SysError> {
    std::fs::read_to_string(path)
        .map_err(|error| SysError::new(format!("read({path:?})"), error.raw_os_error().unwrap_or(libc::EIO)))
}

fn go_on(control: BorrowedFd<'_>) -> Result<(), StepError> {
    wire::send(control, &ToInit::Mapped, &[])
        .map_err(|error| SysError::new("sendmsg(mapped)", error.raw_os_error().unwrap_or(libc::EIO)))
        .at(Step::IdMaps)
}

/// The child: joins its groups, becomes root of its user namespace, and runs brig-init.
fn become_init(programs: &Programs, control: &OwnedFd, session_tasks: &[OwnedFd], init_tasks: &[OwnedFd]) -> ! {
    let Err(error) = prepare_init(programs, control, session_tasks, init_tasks);
    let _jailer_gone = wire::send(control.as_fd(), &FromInit::Failed(error), &[]);
    sys::exit_now(1)
}

fn prepare_init(
    programs: &Programs,
    control: &OwnedFd,
    session_tasks: &[OwnedFd],
    init_tasks: &[OwnedFd],
) -> Result<std::convert::Infallible, StepError> {
    let _checked_again_by_init = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    wait_for_maps(control).at(Step::IdMaps)?;
    become_root().at(Step::IdMaps)?;
    #[cfg(feature = "faults")]
    for step in [Step::JoinCgroups, Step::CgroupNamespace] {
        super::faults::check(step).at(step)?;
    }
    join(session_tasks).at(Step::JoinCgroups)?;
    if !session_tasks.is_empty() {
        sys::unshare(UnshareFlags::NEWCGROUP).at(Step::CgroupNamespace)?;
        join(init_tasks).at(Step::JoinCgroups)?;
    }
    #[cfg(feature = "faults")]
    super::faults::filter_early().at(Step::Exec)?;
    Err(execute(programs, control)).at(Step::Exec)
}

fn wait_for_maps(control: &OwnedFd) -> Result<(), SysError> {
    match wire::receive::<ToInit>(control.as_fd()) {
        Ok(Some((ToInit::Mapped, _))) => Ok(()),
        Ok(_) => Err(SysError::new("recvmsg(mapped): another message", libc::EPROTO)),
        Err(error) => Err(SysError::new(
            "recvmsg(mapped)",
            error.raw_os_error().unwrap_or(libc::EIO),
        )),
    }
}

fn become_root() -> Result<(), SysError> {
    let (uid, gid) = (Uid::ROOT, Gid::ROOT);
    set_thread_res_gid(gid, gid, gid).map_err(|e| SysError::new("setresgid(0, 0, 0)", e.raw_os_error()))?;
    set_thread_res_uid(uid, uid, uid).map_err(|e| SysError::new("setresuid(0, 0, 0)", e.raw_os_error()))
}

/// A process that writes its own 0 enters a version 1 group in microseconds; one whose number another writes waits for
/// a grace period.
fn join(tasks: &[OwnedFd]) -> Result<(), SysError> {
    for file in tasks {
        rustix::io::write(file, b"0").map_err(|e| SysError::new("write(tasks, 0)", e.raw_os_error()))?;
    }
    Ok(())
}

/// The numbers are moved out of the way first: a source may lie at a number that is a target.
fn execute(programs: &Programs, control: &OwnedFd) -> SysError {
    let place = || -> Result<OwnedFd, SysError> {
        let high = |fd: &OwnedFd| {
            rustix::io::fcntl_dupfd_cloexec(fd, 16).map_err(|e| SysError::new("fcntl(F_DUPFD)", e.raw_os_error()))
        };
        let (init, files, control) = (high(&programs.init)?, high(&programs.files)?, high(control)?);
        let null = rustix::fs::open(
            "/run/dev/null",
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .map_err(|e| SysError::new("open(\"/run/dev/null\")", e.raw_os_error()))?;
        for number in faults::SILENCED {
            sys::place(null.as_fd(), number)?;
        }
        sys::place(control.as_fd(), CONTROL_FD)?;
        sys::place(files.as_fd(), FILES_FD)?;
        sys::cloexec_from(FILES_FD + 1)?;
        Ok(init)
    };
    match place() {
        Ok(init) => sys::execute_descriptor(init.as_fd(), &faults::arguments(c"brig-init"), &[]),
        Err(error) => error,
    }
}
