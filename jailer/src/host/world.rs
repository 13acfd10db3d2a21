//! The mount namespace of the jailer, which each jail starts with a copy of.
//!
//! A tmpfs hides /run, for this process alone, and holds
//!
//! ```text
//! /run/root       where a jail's root is put together
//! /run/stage      where a jail's tmpfs is prepared
//! /run/dev        device nodes and links, read-only
//! /run/images/ID  the rootfs of a template, read-only, nosuid, nodev
//! /run/kernel     the kernel layer, likewise
//! /run/workspaces the jailer's folder of workspaces on disk, if a session has one; writable, nosuid, nodev
//! ```
//!
//! The jail's copies of these mounts are locked: its user namespace is not the one in which they were made, so that
//! nobody in it can make them writable, or drop a flag. Nothing of this is visible on the host, and all of it is gone
//! when the last process in it is.

use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dev, FileType, Mode, OFlags, makedev, mknodat};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change, mount_remount, move_mount,
    open_tree,
};
use rustix::thread::UnshareFlags;

use super::Places;
use super::workspaces::{self, Unfit};
use crate::plan::WORKSPACES;
use crate::step::SysError;

/// The jailer's mounts.
#[derive(Debug)]
pub(super) struct World {
    /// The image store, held open: its path may be hidden.
    images: OwnedFd,
    mounted: HashSet<String>,
    has_workspaces: bool,
}

/// Neither set-user-id programs nor devices.
const HARDENED: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
/// Read-only, and good for nothing but reading and executing.
const SEALED: MountFlags = MountFlags::RDONLY.union(HARDENED);

/// name, major, minor; see Documentation/admin-guide/devices.txt.
const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

impl World {
    /// Leaves the host's mount namespace for one of the jailer's own; gives the place of workspaces, opened in it.
    pub(super) fn enter(places: &Places) -> Result<(Self, Result<OwnedFd, Unfit>), SysError> {
        // CLONE_FS goes with it; there is one thread.
        unshare_mounts()?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .map_err(|e| failed("mount(\"/\", MS_REC|MS_PRIVATE)", e))?;
        // Opened here, because a mount of the namespace that was left can't be cloned, and before /run is hidden.
        let images = open_folder(&places.images)?;
        let workspaces = workspaces::open(&places.workspaces);
        let kernel_tree = clone_tree(CWD, &places.kernel)?;
        // Root's own files: whoever is in a jail has another uid and must be able to walk through.
        rustix::process::umask(Mode::empty());
        tmpfs("/run", "size=1m,mode=0755")?;
        for folder in ["/run/root", "/run/stage", "/run/dev", "/run/images", "/run/kernel"] {
            make_dir(folder)?;
        }
        make_devices()?;
        attach(kernel_tree, "/run/kernel", SEALED)?;
        let world = Self {
            images,
            mounted: HashSet::new(),
            has_workspaces: false,
        };
        Ok((world, workspaces))
    }

    /// Mounts the rootfs of a template, if it isn't yet. `folder` is the image's name in the store.
    pub(super) fn image(&mut self, folder: &str) -> Result<PathBuf, SysError> {
        let target = PathBuf::from(format!("/run/images/{folder}"));
        if !self.mounted.contains(folder) {
            let tree = clone_tree(self.images.as_fd(), &Path::new(folder).join("tree"))?;
            make_dir(&target.to_string_lossy())?;
            attach(tree, &target.to_string_lossy(), SEALED)?;
            self.mounted.insert(folder.to_owned());
        }
        Ok(target)
    }

    /// Mounts the jailer's folder of workspaces, if it isn't yet.
    pub(super) fn workspaces(&mut self, place: BorrowedFd<'_>, name: &str) -> Result<(), SysError> {
        if !self.has_workspaces {
            let tree = clone_tree(place, Path::new(name))?;
            make_dir(WORKSPACES)?;
            attach(tree, WORKSPACES, HARDENED)?;
            self.has_workspaces = true;
        }
        Ok(())
    }
}

fn failed(call: impl Into<String>, error: Errno) -> SysError {
    SysError::new(call, error.raw_os_error())
}

fn unshare_mounts() -> Result<(), SysError> {
    crate::sys::unshare(UnshareFlags::NEWNS)
}

fn open_folder(path: &Path) -> Result<OwnedFd, SysError> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| failed(format!("open({})", path.display()), e))
}

fn clone_tree(base: impl AsFd, path: &Path) -> Result<OwnedFd, SysError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(base, path, flags).map_err(|e| failed(format!("open_tree({})", path.display()), e))
}

fn attach(tree: OwnedFd, target: &str, flags: MountFlags) -> Result<(), SysError> {
    let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(tree, "", CWD, target, empty).map_err(|e| failed(format!("move_mount({target:?})"), e))?;
    mount_change(target, MountPropagationFlags::PRIVATE).map_err(|e| failed(format!("mount({target:?})"), e))?;
    let flags = MountFlags::BIND | flags;
    mount_remount(target, flags, "").map_err(|e| failed(format!("mount({target:?}, MS_REMOUNT|{flags:?})"), e))
}

fn tmpfs(target: &str, options: &str) -> Result<(), SysError> {
    let text = CString::new(options).map_err(|_| SysError::new("mount(tmpfs)", libc::EINVAL))?;
    mount("tmpfs", target, "tmpfs", MountFlags::NOSUID, text.as_c_str())
        .map_err(|e| failed(format!("mount(\"tmpfs\", {target:?}, {options:?})"), e))
}

fn make_dir(path: &str) -> Result<(), SysError> {
    rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)).map_err(|e| failed(format!("mkdir({path:?})"), e))
}

/// One /dev for all sessions: device nodes have no content, and the folder is read-only.
fn make_devices() -> Result<(), SysError> {
    tmpfs("/run/dev", "size=64k,nr_inodes=32,mode=0755")?;
    for (name, major, minor) in DEVICES {
        let (path, device): (String, Dev) = (format!("/run/dev/{name}"), makedev(major, minor));
        mknodat(
            CWD,
            &path,
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o666),
            device,
        )
        .map_err(|e| failed(format!("mknod({path:?})"), e))?;
    }
    for (name, target) in LINKS {
        let path = format!("/run/dev/{name}");
        symlink(target, &path)
            .map_err(|e| SysError::new(format!("symlink({path:?})"), e.raw_os_error().unwrap_or(libc::EIO)))?;
    }
    make_dir("/run/dev/pts")?;
    make_dir("/run/dev/shm")?;
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC;
    mount_remount("/run/dev", flags, "").map_err(|e| failed("mount(\"/run/dev\", MS_REMOUNT)", e))
}
