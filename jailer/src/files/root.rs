//! The working directory, held by descriptor, and the only way to a file below it.
//!
//! The guest owns the tree and may change it at any moment, so nothing is believed that was not seen through the
//! descriptor in hand. A name is first looked at without being opened, since opening a FIFO or a device already does
//! something; then it is opened, and what was opened is looked at again.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags};
use rustix::io::Errno;

use super::wire::{Failure, Op, PATH_MAX, Skip, Space};

/// No name leads out of the directory, through a link or into another mount.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_XDEV);

/// NONBLOCK: a FIFO or a file under a lease must not stop the helper.
const FLAGS: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The working directory of a session.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    device: u64,
}

impl Root {
    /// Takes an open directory; files count as the session's own if they are on its file system.
    pub fn new(fd: OwnedFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        Ok(Self {
            fd,
            device: stat.st_dev,
        })
    }

    /// Opens the directory itself once more, with a read position of its own.
    pub(super) fn reopen(&self) -> Result<OwnedFd, Errno> {
        open_in(self.fd.as_fd(), b".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }

    /// Makes a file without a name, which nobody else can open.
    pub(super) fn nameless(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        open_in(self.fd.as_fd(), b".", flags, Mode::from_raw_mode(0o600))
    }

    /// Tells how full the file system is.
    pub(super) fn space(&self) -> Result<Space, Failure> {
        let stat = rustix::fs::fstatfs(&self.fd).map_err(|errno| failure(Op::List, errno, b"."))?;
        let block = u64::try_from(stat.f_bsize).unwrap_or(0);
        Ok(Space {
            used_bytes: stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(block),
            total_bytes: stat.f_blocks.saturating_mul(block),
            used_inodes: stat.f_files.saturating_sub(stat.f_ffree),
            total_inodes: stat.f_files,
        })
    }

    /// Opens the directory that holds `path`, and gives the last part of the path.
    pub(super) fn parent<'p>(&self, path: &'p [u8]) -> Result<(OwnedFd, &'p [u8]), Failure> {
        check(path)?;
        let (directory, name) = split(path);
        let parent = match directory {
            None => self.reopen(),
            Some(directory) => open_directory(self.fd.as_fd(), directory),
        };
        Ok((parent.map_err(|errno| failure(Op::Open, errno, path))?, name))
    }

    /// Opens a directory by its path; the empty one is the root's own.
    pub(super) fn directory(&self, path: &[u8]) -> Result<OwnedFd, Failure> {
        if path.is_empty() {
            return self.reopen().map_err(|errno| failure(Op::Open, errno, path));
        }
        let (parent, name) = self.parent(path)?;
        self.enter(parent.as_fd(), name)
            .map_err(|errno| failure(Op::Open, errno, path))
    }

    /// Makes the directories above `path` that are not there yet.
    pub(super) fn make_parents(&self, path: &[u8]) -> Result<(), Failure> {
        check(path)?;
        let ends = path
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .map(|(end, _)| end);
        let mut directory = self.reopen().map_err(|errno| failure(Op::Open, errno, path))?;
        let mut start = 0;
        for end in ends {
            let name = &path[start..end];
            match rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failure(Op::MakeDirectory, errno, &path[..end])),
            }
            directory = open_directory(directory.as_fd(), name).map_err(|errno| failure(Op::Open, errno, path))?;
            start = end + 1;
        }
        Ok(())
    }

    /// Opens a regular file for reading, if it is one of the session's with a single name.
    pub(super) fn open_regular(&self, path: &[u8]) -> Result<(OwnedFd, Stat), Failure> {
        let (parent, name) = self.parent(path)?;
        self.open_regular_in(parent.as_fd(), name)
            .map_err(|errno| failure(Op::Open, errno, path))
    }

    /// Opens a regular file by its name in a directory, for reading.
    pub(super) fn open_regular_in(&self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<(OwnedFd, Stat), Errno> {
        self.open_file_in(parent, name, OFlags::RDONLY)
    }

    /// Opens a regular file by its name in a directory.
    pub(super) fn open_file_in(
        &self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        access: OFlags,
    ) -> Result<(OwnedFd, Stat), Errno> {
        let before = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        self.admit(&before).map_err(|_| refusal(&before))?;
        let file = open_in(parent, name, access, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        self.admit(&stat).map_err(|_| refusal(&stat))?;
        Ok((file, stat))
    }

    /// Tells whether this is a file that may be read: regular, with one name, on the session's file system.
    pub(super) fn admit(&self, stat: &Stat) -> Result<(), Skip> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => Err(Skip::Symlink),
            FileType::Fifo => Err(Skip::Fifo),
            FileType::Socket => Err(Skip::Socket),
            FileType::Directory => Err(Skip::Directory),
            FileType::RegularFile if stat.st_dev != self.device => Err(Skip::OtherFileSystem),
            FileType::RegularFile if stat.st_nlink != 1 => Err(Skip::HardLink),
            FileType::RegularFile => Ok(()),
            _ => Err(Skip::Device),
        }
    }

    /// When a file was made, in seconds and nanoseconds: no guest can change that.
    ///
    /// Kernel: tmpfs keeps it since 5.19.
    pub(super) fn made_at(&self, path: &[u8]) -> Option<(i64, i64)> {
        let (parent, name) = self.parent(path).ok()?;
        let stat = rustix::fs::statx(&parent, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME).ok()?;
        let told = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
        told.then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec.into()))
    }

    /// Opens a directory by its name in another, on the same file system.
    pub(super) fn enter(&self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
        let directory = open_directory(parent, name)?;
        let stat = rustix::fs::fstat(&directory)?;
        if stat.st_dev == self.device {
            Ok(directory)
        } else {
            Err(Errno::XDEV)
        }
    }

    /// The descriptor, for rules that hang on it.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a name below a directory.
pub(super) fn open_in(parent: BorrowedFd<'_>, name: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    // NOFOLLOW says no more than NO_SYMLINKS, but for a directory: there it would turn ELOOP into ENOTDIR.
    let follow = if flags.contains(OFlags::DIRECTORY) {
        OFlags::empty()
    } else {
        OFlags::NOFOLLOW
    };
    rustix::fs::openat2(parent, name, flags | follow | FLAGS, mode, RESOLVE)
}

/// Joins what a failure tells.
pub(super) fn failure(op: Op, errno: Errno, path: &[u8]) -> Failure {
    Failure {
        op,
        errno: errno.raw_os_error(),
        path: path.to_vec(),
    }
}

fn open_directory(parent: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    open_in(parent, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// Refuses what is not a path to something below the directory.
pub(super) fn check(path: &[u8]) -> Result<(), Failure> {
    let part_is_bad = |part: &[u8]| matches!(part, b"" | b"." | b"..");
    if path.len() > PATH_MAX {
        return Err(failure(Op::CheckPath, Errno::NAMETOOLONG, &path[..PATH_MAX]));
    }
    if path.contains(&0) || path.split(|byte| *byte == b'/').any(part_is_bad) {
        return Err(failure(Op::CheckPath, Errno::INVAL, path));
    }
    Ok(())
}

fn split(path: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (Some(&path[..at]), &path[at + 1..]),
        None => (None, path),
    }
}

/// The error number for a file that is not admitted.
fn refusal(stat: &Stat) -> Errno {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_nlink != 1 => Errno::MLINK,
        FileType::RegularFile => Errno::XDEV,
        FileType::Directory => Errno::ISDIR,
        FileType::Symlink => Errno::LOOP,
        _ => Errno::OPNOTSUPP,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_directory_or_name_nothing_are_refused() {
        for bad in [
            "",
            "/",
            "/etc/passwd",
            "..",
            "a/..",
            "../a",
            "a/../b",
            ".",
            "a//b",
            "a/",
            "./a",
            "a\0b",
        ] {
            assert_eq!(
                check(bad.as_bytes()).unwrap_err().errno,
                Errno::INVAL.raw_os_error(),
                "{bad:?}"
            );
        }
        assert_eq!(
            check(&[b'a'; PATH_MAX + 1]).unwrap_err().errno,
            Errno::NAMETOOLONG.raw_os_error()
        );
        for good in ["a", "a/b", "..a", "a..", "...", ".hidden", "a b\n\x1b[31m"] {
            assert_eq!(check(good.as_bytes()), Ok(()));
        }
    }
}
