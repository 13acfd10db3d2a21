//! Gives up root, for good, and looks whether that worked.
//!
//! Must run while the process has one thread: each call changes only what the kernel calls a task, and what glibc
//! does to bring the other threads along is not something to depend on.
//!
//! Source: setresuid(2), capabilities(7), prctl(2) `PR_SET_NO_NEW_PRIVS` and `PR_SET_DUMPABLE`.

use std::os::unix::fs::chown;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, User, getgroups, getresgid, getresuid, setgroups, setresgid, setresuid};
use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The user that brigd becomes if the host has it.
pub const USER: &str = "brig";

/// The uid that brigd becomes if the host has no user for it: the first of Brig's range, which no session ever gets.
pub const FALLBACK_UID: u32 = 1_879_048_192;

/// Who brigd is once it has given up root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub uid: Uid,
    pub gid: Gid,
}

/// Says which part of giving up root did not work. Nothing may be served after it.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    #[error("{call}: {errno}")]
    Call { call: &'static str, errno: Errno },
    #[error("root was given up, but {0} can be seen afterwards")]
    NotGone(&'static str),
}

impl Identity {
    /// Who a brigd started as root becomes.
    pub fn of_daemon() -> Self {
        let fallback = Self {
            uid: Uid::from_raw(FALLBACK_UID),
            gid: Gid::from_raw(FALLBACK_UID),
        };
        User::from_name(USER).ok().flatten().map_or(fallback, |user| Self {
            uid: user.uid,
            gid: user.gid,
        })
    }

    /// Hands a directory over, so that it can still be written once root is given up.
    pub fn own(&self, directory: &Path) -> std::io::Result<()> {
        chown(directory, Some(self.uid.as_raw()), Some(self.gid.as_raw()))
    }
}

/// Becomes `identity` if the process is root; in any case no privilege is held or can be gained afterwards.
pub fn give_up_root(identity: Identity) -> Result<(), PrivilegeError> {
    if Uid::effective().is_root() {
        setgroups(&[]).map_err(|errno| PrivilegeError::Call {
            call: "setgroups([])",
            errno,
        })?;
        setresgid(identity.gid, identity.gid, identity.gid).map_err(|errno| PrivilegeError::Call {
            call: "setresgid",
            errno,
        })?;
        setresuid(identity.uid, identity.uid, identity.uid).map_err(|errno| PrivilegeError::Call {
            call: "setresuid",
            errno,
        })?;
        verify_identity(identity)?;
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    call("capset", rustix::thread::set_capabilities(None, none))?;
    call("prctl(PR_SET_NO_NEW_PRIVS)", rustix::thread::set_no_new_privs(true))?;
    call(
        "prctl(PR_SET_DUMPABLE)",
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable),
    )?;
    verify_rest(none)
}

fn verify_identity(identity: Identity) -> Result<(), PrivilegeError> {
    let uids = getresuid().map_err(|errno| PrivilegeError::Call {
        call: "getresuid",
        errno,
    })?;
    let gids = getresgid().map_err(|errno| PrivilegeError::Call {
        call: "getresgid",
        errno,
    })?;
    let groups = getgroups().map_err(|errno| PrivilegeError::Call {
        call: "getgroups",
        errno,
    })?;
    if [uids.real, uids.effective, uids.saved] != [identity.uid; 3] {
        return Err(PrivilegeError::NotGone("another uid"));
    }
    if [gids.real, gids.effective, gids.saved] != [identity.gid; 3] {
        return Err(PrivilegeError::NotGone("another gid"));
    }
    // The C library may list the effective gid among the supplementary ones.
    if groups.iter().any(|group| *group != identity.gid) {
        return Err(PrivilegeError::NotGone("a supplementary group"));
    }
    Ok(())
}

fn verify_rest(none: CapabilitySets) -> Result<(), PrivilegeError> {
    if call("capget", rustix::thread::capabilities(None))? != none {
        return Err(PrivilegeError::NotGone("a capability"));
    }
    if !call("prctl(PR_GET_NO_NEW_PRIVS)", rustix::thread::no_new_privs())? {
        return Err(PrivilegeError::NotGone("a way to new privileges"));
    }
    if call("prctl(PR_GET_DUMPABLE)", rustix::process::dumpable_behavior())? != DumpableBehavior::NotDumpable {
        return Err(PrivilegeError::NotGone("dumpable memory"));
    }
    Ok(())
}

fn call<T>(call: &'static str, result: rustix::io::Result<T>) -> Result<T, PrivilegeError> {
    result.map_err(|errno| PrivilegeError::Call {
        call,
        errno: Errno::from_raw(errno.raw_os_error()),
    })
}
