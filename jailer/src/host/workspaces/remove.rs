//! Removing what a session has left, however it is nested: in a child of the jailer, which may take its time.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, openat, renameat_with, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::thread::{Uid, set_thread_res_uid};

use crate::sys;

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The child: removes a folder and ends with 0, or with the number of the error.
///
/// It holds nothing of the jailer's: pipes and sockets that stay open here would hide the end of their other owners.
pub(super) fn remove_and_exit(parent: BorrowedFd<'_>, name: &str, owner: u32) -> ! {
    let _dies_with_the_jailer = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let status = removed(parent, name, owner).map_or_else(Errno::raw_os_error, |()| 0);
    sys::exit_now(status)
}

fn removed(parent: BorrowedFd<'_>, name: &str, owner: u32) -> Result<(), Errno> {
    let only = rustix::io::fcntl_dupfd_cloexec(parent, 16)?;
    let errno = |error: crate::step::SysError| Errno::from_raw_os_error(error.errno);
    sys::close_range(0, 15).map_err(errno)?;
    sys::place(only.as_fd(), 0).map_err(errno)?;
    let _closed_with_the_rest = only.into_raw_fd();
    sys::close_from(1).map_err(errno)?;
    // In a sticky folder only its owner removes what is another's, without a capability that the jailer need not have.
    set_thread_res_uid(None, Uid::from_raw(owner), None)?;
    remove(rustix::stdio::stdin(), name)
}

/// Removes a folder with all that is in it; nothing if it is not there.
///
/// Folders are moved to the top before they are emptied, so that neither descriptors nor the stack grow with the depth
/// that a guest has chosen. Nobody else may change the tree meanwhile.
fn remove(parent: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    let top = match openat(parent, name, FOLDER, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let mut number = 0;
    while has_entries(&top)? {
        for_each(&top, |entry, kind| {
            if kind == FileType::Directory {
                let folder = openat(&top, entry, FOLDER, Mode::empty())?;
                for_each(&folder, |entry, kind| {
                    if kind == FileType::Directory {
                        move_to(&top, &folder, entry, &mut number)
                    } else {
                        unlinkat(&folder, entry, AtFlags::empty())
                    }
                })?;
                match unlinkat(&top, entry, AtFlags::REMOVEDIR) {
                    // Not all of it was listed; the next round does it.
                    Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
                    other => other,
                }
            } else {
                unlinkat(&top, entry, AtFlags::empty())
            }
        })?;
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Moves a folder to the top, under a name that nothing has there.
fn move_to(top: &OwnedFd, from: &OwnedFd, name: &CStr, number: &mut u64) -> Result<(), Errno> {
    loop {
        *number += 1;
        match renameat_with(from, name, top, number.to_string(), RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return other,
        }
    }
}

fn is_own(name: &CStr) -> bool {
    name == c"." || name == c".."
}

fn has_entries(folder: &OwnedFd) -> Result<bool, Errno> {
    for entry in Dir::read_from(folder)? {
        if !is_own(entry?.file_name()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn for_each(folder: &OwnedFd, mut act: impl FnMut(&CStr, FileType) -> Result<(), Errno>) -> Result<(), Errno> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_own(name) {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => FileType::from_raw_mode(statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode),
            known => known,
        };
        act(name, kind)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn parent() -> (tempfile::TempDir, OwnedFd) {
        let folder = tempfile::tempdir().unwrap();
        let fd = rustix::fs::open(folder.path(), FOLDER, Mode::empty()).unwrap();
        (folder, fd)
    }

    #[test]
    fn a_tree_of_any_depth_goes() {
        let (folder, parent) = parent();
        fs::create_dir(folder.path().join("7")).unwrap();
        let mut deepest = openat(&parent, "7", FOLDER, Mode::empty()).unwrap();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&deepest, "d", Mode::RWXU).unwrap();
            deepest = openat(&deepest, "d", FOLDER, Mode::empty()).unwrap();
        }
        drop(deepest);
        remove(parent.as_fd(), "7").unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn whatever_a_guest_can_make_goes_and_nothing_outside_does() {
        let (folder, parent) = parent();
        let (inside, outside) = (folder.path().join("7"), folder.path().join("outside"));
        fs::create_dir_all(inside.join("closed/below")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("kept"), "kept").unwrap();
        symlink(&outside, inside.join("link")).unwrap();
        symlink(&outside, inside.join("closed/below/link")).unwrap();
        for number in 1..300 {
            // Names that folders get when they are moved: files, empty folders and full ones.
            let path = inside.join(number.to_string());
            match number % 3 {
                0 => fs::write(path, "x").unwrap(),
                1 => fs::create_dir(path).unwrap(),
                _ => fs::create_dir_all(path.join(number.to_string()).join("1")).unwrap(),
            }
        }
        nix::unistd::mkfifo(&inside.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::hard_link(inside.join("3"), inside.join("closed/hard")).unwrap();
        fs::set_permissions(inside.join("closed"), fs::Permissions::from_mode(0o1700)).unwrap();
        remove(parent.as_fd(), "7").unwrap();
        assert!(!inside.exists());
        assert_eq!(fs::read_to_string(outside.join("kept")).unwrap(), "kept");
        remove(parent.as_fd(), "7").unwrap();
    }
}
