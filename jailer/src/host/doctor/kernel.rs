//! What the kernel has, and what it lets root do.

use std::os::fd::AsFd;

use caps::{CapSet, Capability};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::{Found, Lack, lack, read};
use crate::sys::{self, Cloned};

/// The oldest kernel that is supported.
const KERNEL: (u32, u32) = (6, 1);
/// The oldest Landlock interface that is enough: renaming across folders (REFER) came with it.
const LANDLOCK: u32 = 2;

/// What the jailer can't do its work without. A test makes a session with these and no other.
pub const CAPABILITIES: [Capability; 9] = [
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_KILL,
    Capability::CAP_MKNOD,
    Capability::CAP_SETGID,
    Capability::CAP_SETPCAP,
    Capability::CAP_SETUID,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_PTRACE,
];

/// What the jailer and brig-init call beside what every program does.
pub const SYSTEM_CALLS: [(&str, libc::c_long); 8] = [
    ("clone3", libc::SYS_clone3),
    ("close_range", libc::SYS_close_range),
    ("execveat", libc::SYS_execveat),
    ("memfd_create", libc::SYS_memfd_create),
    ("move_mount", libc::SYS_move_mount),
    ("open_tree", libc::SYS_open_tree),
    ("openat2", libc::SYS_openat2),
    ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
];

pub(super) fn look() -> Vec<(&'static str, Found)> {
    let tried = try_a_jail();
    vec![
        ("privilege", privilege()),
        ("kernel", kernel()),
        ("system calls", system_calls()),
        ("user namespaces", user_namespaces(&tried)),
        ("/proc", fresh_proc(&tried)),
        ("landlock", landlock()),
        ("seccomp", seccomp()),
    ]
}

fn privilege() -> Found {
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        return Err(lack(format!("uid {}", uid.as_raw()), "run brig-jailer as root"));
    }
    let has = |cap: &Capability| caps::has_cap(None, CapSet::Effective, *cap).unwrap_or(false);
    let missing: Vec<String> = CAPABILITIES
        .iter()
        .filter(|cap| !has(cap))
        .map(ToString::to_string)
        .collect();
    if missing.is_empty() {
        return Ok("root".to_owned());
    }
    let mend = "add them to CapabilityBoundingSet= of brig-jailer.service, or to the container";
    Err(lack(format!("root without {}", missing.join(", ")), mend))
}

fn kernel() -> Found {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut parts = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version >= KERNEL {
        Ok(release)
    } else {
        Err(lack(release, "boot a newer kernel"))
    }
}

fn system_calls() -> Found {
    let missing: Vec<&str> = SYSTEM_CALLS
        .iter()
        .filter(|(_, number)| !sys::call_exists(*number))
        .map(|(name, _)| *name)
        .collect();
    if missing.is_empty() {
        return Ok("all there".to_owned());
    }
    let mend =
        "boot Linux 6.1 or later; in a container or unit, let its seccomp profile (SystemCallFilter=) allow them";
    Err(lack(format!("no {}", missing.join(", no ")), mend))
}

/// What the first moments of a jail come to.
enum Tried {
    Fine,
    NoNamespaces(i32),
    NoProc(i32),
}

/// Makes the namespaces of a jail, mounts /proc in them, and lets go of them. Takes a millisecond.
fn try_a_jail() -> Tried {
    let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID;
    match sys::clone3(namespaces, None) {
        Err(error) => Tried::NoNamespaces(error.errno),
        Ok(Cloned::Child) => {
            let mounted = mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
                .and_then(|()| mount("proc", "/proc", "proc", MountFlags::empty(), None));
            sys::exit_now(mounted.err().map_or(0, rustix::io::Errno::raw_os_error))
        }
        Ok(Cloned::Parent { pidfd, .. }) => match waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {
            Ok(Some(ended)) => match ended.exit_status() {
                Some(0) => Tried::Fine,
                status => Tried::NoProc(status.unwrap_or(libc::EINTR)),
            },
            Ok(None) => Tried::NoProc(libc::EINTR),
            Err(error) => Tried::NoProc(error.raw_os_error()),
        },
    }
}

fn said(errno: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno)
}

fn user_namespaces(tried: &Tried) -> Found {
    let count = read("/proc/sys/user/max_user_namespaces").unwrap_or_else(|| "not built in".to_owned());
    let raise = "sysctl user.max_user_namespaces=65536";
    match tried {
        Tried::NoNamespaces(errno) => {
            let found = format!("clone3(CLONE_NEWUSER): {}; at most {count}", said(*errno));
            Err(lack(found, namespaces_mend(*errno)))
        }
        _ if count == "0" => Err(lack("at most 0", raise)),
        _ => Ok(format!("at most {count}")),
    }
}

fn namespaces_mend(errno: i32) -> &'static str {
    let apparmor = read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").is_some_and(|value| value == "1");
    let debian = read("/proc/sys/kernel/unprivileged_userns_clone").is_some_and(|value| value == "0");
    match errno {
        libc::ENOSPC => "sysctl user.max_user_namespaces=65536",
        libc::EINVAL => "a kernel with CONFIG_USER_NS",
        libc::ENOSYS => "let the seccomp profile of the container or unit allow clone3",
        _ if apparmor => {
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile with userns for brig-jailer"
        }
        _ if debian => "sysctl kernel.unprivileged_userns_clone=1",
        _ => "let the seccomp profile, RestrictNamespaces= or security module that forbids it allow it to brig-jailer",
    }
}

/// A fresh /proc can only be mounted in a user namespace where nothing is hidden of the one that is seen.
fn fresh_proc(tried: &Tried) -> Found {
    let errno = match tried {
        Tried::Fine => return Ok("can be mounted".to_owned()),
        Tried::NoNamespaces(_) => return Err(lack("not known without a user namespace", "see user namespaces")),
        Tried::NoProc(errno) => *errno,
    };
    let mounts = read("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let covered: Vec<&str> = points
        .filter(|point| point.starts_with("/proc/") && *point != "/proc/sys/fs/binfmt_misc")
        .collect();
    let covered = if covered.is_empty() {
        "nothing covered".to_owned()
    } else {
        format!("covered: {}", covered.join(" "))
    };
    Err(lack(
        format!("mount(\"proc\"): {}; {covered}", said(errno)),
        "run outside the container, or with an unmasked /proc (--security-opt systempaths=unconfined, procMount: \
         Unmasked); in a unit without ProtectKernelTunables= and ProtectProc=",
    ))
}

fn landlock() -> Found {
    #[cfg(feature = "faults")]
    let abi = crate::host::faults::landlock_abi().map_or_else(sys::landlock_abi, Ok);
    #[cfg(not(feature = "faults"))]
    let abi = sys::landlock_abi();
    match abi {
        Ok(abi) if abi >= LANDLOCK => Ok(format!("version {abi}")),
        Ok(abi) => Err(lack(format!("version {abi}"), "boot Linux 5.19 or later")),
        Err(error) => Err(landlock_lack(error.errno)),
    }
}

fn landlock_lack(errno: i32) -> Lack {
    match errno {
        libc::EOPNOTSUPP => lack(
            "built in, but not enabled",
            "add landlock to lsm= on the kernel's command line",
        ),
        libc::ENOSYS => lack(
            "not there",
            "a kernel with CONFIG_SECURITY_LANDLOCK; in a container, let its seccomp profile allow it",
        ),
        errno => lack(said(errno).to_string(), "a kernel with CONFIG_SECURITY_LANDLOCK"),
    }
}

fn seccomp() -> Found {
    match sys::seccomp_available() {
        Ok(()) => Ok("filters".to_owned()),
        Err(error) => Err(lack(error.to_string(), "a kernel with CONFIG_SECCOMP_FILTER")),
    }
}
