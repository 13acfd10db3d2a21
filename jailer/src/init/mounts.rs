//! Applies the list of mounts.
#![forbid(unsafe_code)]

use std::ffi::CString;

use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};

use crate::plan::MountOp;
use crate::step::SysError;

/// Nothing that a guest can reach may carry set-user-id programs or devices.
const HARDENED: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Does one action.
pub(super) fn apply(op: &MountOp) -> Result<(), SysError> {
    match op {
        MountOp::Bind { source, target } => bind(source, target),
        MountOp::Tmpfs {
            target,
            size_bytes,
            inodes,
        } => tmpfs(target, *size_bytes, *inodes),
        MountOp::Directory { path, mode, owner } => directory(path, *mode, *owner),
        MountOp::Proc { target } => mounted("proc", target, "proc", HARDENED | MountFlags::NOEXEC, ""),
        MountOp::Devpts { target } => {
            // The kernel counts pseudo terminals for all of the host; a session gets a few of them.
            let options = "newinstance,ptmxmode=0666,mode=0620,max=32";
            mounted(
                "devpts",
                target,
                "devpts",
                MountFlags::NOSUID | MountFlags::NOEXEC,
                options,
            )
        }
        MountOp::ReadOnly { target } => if_there(read_only(target)),
        MountOp::Mask { target } => if_there(mask(target)),
    }
}

fn bind(source: &str, target: &str) -> Result<(), SysError> {
    mount_bind(source, target).map_err(|error| failed(format!("mount({source:?}, {target:?}, MS_BIND)"), error))
}

fn tmpfs(target: &str, size: u64, inodes: u64) -> Result<(), SysError> {
    mounted(
        "tmpfs",
        target,
        "tmpfs",
        HARDENED,
        &format!("size={size},nr_inodes={inodes},mode=0755"),
    )
}

fn mounted(source: &str, target: &str, kind: &str, flags: MountFlags, options: &str) -> Result<(), SysError> {
    let call = || format!("mount({source:?}, {target:?}, {kind:?}, {flags:?}, {options:?})");
    let options = CString::new(options).map_err(|_| SysError::new(call(), libc::EINVAL))?;
    mount(source, target, kind, flags, options.as_c_str()).map_err(|error| failed(call(), error))
}

fn directory(path: &str, mode: u32, owner: u32) -> Result<(), SysError> {
    let call = |what: &str| format!("{what}({path:?}, {mode:#o}, {owner})");
    rustix::fs::mkdir(path, Mode::from_raw_mode(0o700)).map_err(|error| failed(call("mkdir"), error))?;
    rustix::fs::chown(path, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))
        .map_err(|error| failed(call("chown"), error))?;
    rustix::fs::chmod(path, Mode::from_raw_mode(mode)).map_err(|error| failed(call("chmod"), error))
}

/// A bind of a part of /proc on itself, which alone can be made read-only.
fn read_only(target: &str) -> Result<(), SysError> {
    bind(target, target)?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOEXEC | HARDENED;
    mount_remount(target, flags, "").map_err(|error| failed(format!("mount({target:?}, MS_REMOUNT|{flags:?})"), error))
}

/// An empty read-only folder, or /dev/null, over something that guests have no business with.
fn mask(target: &str) -> Result<(), SysError> {
    let stat = rustix::fs::lstat(target).map_err(|error| failed(format!("lstat({target:?})"), error))?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
        let flags = HARDENED | MountFlags::NOEXEC | MountFlags::RDONLY;
        mounted("tmpfs", target, "tmpfs", flags, "size=0,nr_inodes=2,mode=0555")
    } else {
        bind("/run/dev/null", target)
    }
}

/// What this kernel does not have needs no mask.
fn if_there(result: Result<(), SysError>) -> Result<(), SysError> {
    match result {
        Err(error) if error.errno == libc::ENOENT => Ok(()),
        other => other,
    }
}

fn failed(call: String, error: Errno) -> SysError {
    SysError::new(call, error.raw_os_error())
}
