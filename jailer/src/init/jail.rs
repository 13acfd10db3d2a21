//! The stages of a jail, each with the steps that are possible in it.
//!
//! `Privileged` (all capabilities over the session's namespaces) becomes `Rooted` (the old root is gone) becomes
//! `Shed` (three capabilities, a filter), which becomes the serving `Jail`. A program's child goes from there through
//! `Unprivileged` to `Sealed`, the only stage that can exec (see `program.rs`). The types are consumed, so that a
//! skipped stage does not compile.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};

use caps::{CapSet, Capability, CapsHashSet};
use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr,
};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::{DumpableBehavior, chdir, pivot_root, set_dumpable_behavior};

use super::{mounts, program};
use crate::plan::{Access, Guest, MountOp, PathRule, ROOT};
use crate::step::{StepError, SysError};
use crate::sys;

/// Root of the session's namespaces, on the mounts that the jailer had.
#[derive(Debug)]
pub(super) struct Privileged(());

/// In the session's own root.
#[derive(Debug)]
pub(super) struct Rooted(());

/// With what pid 1 needs for its life, and no more.
#[derive(Debug)]
pub(super) struct Shed(());

/// A jail that can run programs.
#[derive(Debug)]
pub(super) struct Jail {
    pub(super) guest: Guest,
    /// The memory file of the file helper's program.
    pub(super) files_program: OwnedFd,
}

fn failed(call: impl Into<String>, error: Errno) -> SysError {
    SysError::new(call, error.raw_os_error())
}

impl Privileged {
    pub(super) fn new() -> Self {
        Self(())
    }

    /// Writes /proc/sys/user, which shows the values of the reader's own user namespace.
    pub(super) fn lower_user_limits(&self, limits: &[(String, u64)]) -> Result<(), SysError> {
        for (name, value) in limits {
            let path = format!("/proc/sys/user/{name}");
            match std::fs::write(&path, value.to_string()) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {} // Not counted by this kernel.
                Err(error) => return Err(super::from_io(&format!("write({path:?}, {value})"), &error)),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    pub(super) fn make_mounts_private(&self) -> Result<(), SysError> {
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .map_err(|error| failed("mount(\"/\", MS_REC|MS_PRIVATE)", error))
    }

    pub(super) fn mount_all(&self, list: &[MountOp]) -> Result<(), SysError> {
        list.iter().try_for_each(mounts::apply)
    }

    /// Makes the assembled root the root, and lets go of the old one.
    ///
    /// Source: pivot_root(2), "pivot_root(".", ".")".
    pub(super) fn pivot_into_root(self) -> Result<Rooted, SysError> {
        chdir(ROOT).map_err(|error| failed(format!("chdir({ROOT:?})"), error))?;
        pivot_root(".", ".").map_err(|error| failed("pivot_root(\".\", \".\")", error))?;
        unmount(".", UnmountFlags::DETACH).map_err(|error| failed("umount2(\".\", MNT_DETACH)", error))?;
        chdir("/").map_err(|error| failed("chdir(\"/\")", error))?;
        Ok(Rooted(()))
    }
}

impl Rooted {
    pub(super) fn set_hostname(&self, name: &str) -> Result<(), SysError> {
        rustix::system::sethostname(name.as_bytes()).map_err(|error| failed(format!("sethostname({name:?})"), error))
    }

    pub(super) fn bring_loopback_up(&self) -> Result<(), SysError> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| failed("socket(AF_INET, SOCK_DGRAM)", error))?;
        sys::loopback_up(socket.as_fd())
    }

    /// Keeps SETUID, SETGID and KILL; SETUID and SETGID stay inheritable for the file helper's start.
    ///
    /// The bounding set goes whole: pid 1 gains nothing by exec, and its children shall not either. Being dumpable
    /// would let the guest's user look at /proc/1.
    pub(super) fn shed(self, filter: &[Vec<u8>]) -> Result<Shed, SysError> {
        let kept = CapsHashSet::from([Capability::CAP_SETUID, Capability::CAP_SETGID, Capability::CAP_KILL]);
        let passed_on = CapsHashSet::from([Capability::CAP_SETUID, Capability::CAP_SETGID]);
        set_caps(CapSet::Inheritable, &passed_on)?;
        caps::clear(None, CapSet::Bounding).map_err(|_| SysError::new("prctl(PR_CAPBSET_DROP)", libc::EPERM))?;
        set_caps(CapSet::Effective, &kept)?;
        set_caps(CapSet::Permitted, &kept)?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(|error| failed("prctl(PR_SET_DUMPABLE, 0)", error))?;
        rustix::thread::set_no_new_privs(true).map_err(|error| failed("prctl(PR_SET_NO_NEW_PRIVS)", error))?;
        filter.iter().try_for_each(|program| sys::seccomp(program))?;
        Ok(Shed(()))
    }
}

impl Shed {
    /// Starts the file helper.
    pub(super) fn start_files_helper(
        self,
        files_program: OwnedFd,
        leaf: Vec<OwnedFd>,
        guest: Guest,
    ) -> Result<(Jail, OwnedFd), StepError> {
        let socket = program::start_files_helper(&files_program, &leaf)?;
        let jail = Jail { guest, files_program };
        Ok((jail, socket))
    }
}

fn set_caps(set: CapSet, value: &CapsHashSet) -> Result<(), SysError> {
    caps::set(None, set, value).map_err(|error| SysError::new(format!("capset({set:?}): {error}"), libc::EPERM))
}

/// Builds the Landlock rules: version 2 of the interface is the floor, what the kernel has beyond is used.
///
/// Scopes (signals, abstract sockets) are left out on purpose: they would part two programs of one session, and the
/// pid and network namespaces bound both already.
pub(super) fn ruleset(rules: &[PathRule]) -> Result<RulesetCreated, SysError> {
    let refused = |error: landlock::RulesetError| SysError::new(format!("landlock: {error}"), libc::EOPNOTSUPP);
    let mut created = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V2))
        .map_err(refused)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V7))
        .map_err(refused)?
        .create()
        .map_err(refused)?;
    for rule in rules {
        let path = PathFd::new(&rule.path)
            .map_err(|error| SysError::new(format!("landlock: open({:?}): {error}", rule.path), libc::ENOENT))?;
        created = created
            .add_rule(PathBeneath::new(path, bits(rule.access)))
            .map_err(refused)?;
    }
    Ok(created)
}

fn bits(access: Access) -> BitFlags<AccessFs> {
    let read = AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir;
    match access {
        Access::Read => read,
        Access::Use => read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev,
        Access::Write => AccessFs::from_all(ABI::V7),
    }
}
