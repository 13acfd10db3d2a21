//! One name at a time: what is there, and how to make or move it.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::root::{Root, failure, open_in};
use super::wire::{CHUNK_MAX, Failure, Info, Kind, MakeDir, Move, Op, Stat, Time};

/// Tells what a look at a file showed.
pub(super) fn info(path: &[u8], stat: &rustix::fs::Stat) -> Info {
    Info {
        path: path.to_vec(),
        kind: match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::Regular,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            _ => Kind::Other,
        },
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: Time {
            seconds: stat.st_mtime,
            nanoseconds: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        },
        target: None,
        sha256: None,
    }
}

/// Looks at a name without opening it; a symbolic link shows what it says.
pub(super) fn look(parent: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<Info, Errno> {
    let mut seen = info(path, &rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?);
    if seen.kind == Kind::Symlink {
        // Another file may have taken its place by then.
        seen.target = match rustix::fs::readlinkat(parent, name, Vec::new()) {
            Ok(target) => Some(target.into_bytes()),
            Err(Errno::INVAL) => return Err(Errno::STALE),
            Err(errno) => return Err(errno),
        };
    }
    Ok(seen)
}

/// Looks at a path.
pub(super) fn stat(root: &Root, ask: &Stat) -> Result<Info, Failure> {
    let failed = |errno| failure(Op::Open, errno, &ask.path);
    if ask.path.is_empty() {
        let stat = rustix::fs::fstat(root.as_fd()).map_err(failed)?;
        return Ok(info(&ask.path, &stat));
    }
    let (parent, name) = root.parent(&ask.path)?;
    let seen = look(parent.as_fd(), name, &ask.path).map_err(failed)?;
    if !ask.sha256 || seen.kind != Kind::Regular {
        return Ok(seen);
    }
    // All is told of the very file whose bytes were read.
    let (file, stat) = root.open_regular_in(parent.as_fd(), name).map_err(failed)?;
    let sha256 = sha256_of(file.as_fd(), ask.time_ms).map_err(|errno| failure(Op::Read, errno, &ask.path))?;
    Ok(Info {
        sha256: Some(sha256),
        ..info(&ask.path, &stat)
    })
}

fn sha256_of(file: BorrowedFd<'_>, time_ms: u32) -> Result<[u8; 32], Errno> {
    let deadline = Instant::now() + Duration::from_millis(time_ms.into());
    let (mut hash, mut at, mut bytes) = (Sha256::new(), 0, vec![0; CHUNK_MAX]);
    loop {
        match rustix::io::pread(file, &mut bytes[..], at) {
            Ok(0) => return Ok(hash.finalize().into()),
            Ok(read) => {
                hash.update(&bytes[..read]);
                at += read as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        if Instant::now() >= deadline {
            return Err(Errno::TIMEDOUT);
        }
    }
}

/// Makes a directory.
pub(super) fn make_dir(root: &Root, ask: &MakeDir) -> Result<Info, Failure> {
    if ask.make_parents {
        root.make_parents(&ask.path)?;
    }
    let (parent, name) = root.parent(&ask.path)?;
    let make = || {
        rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o700))?;
        // The guest may have put another one there; it may do with its own what it wants.
        let directory = open_in(parent.as_fd(), name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(ask.mode & 0o777))?;
        rustix::fs::fstat(&directory)
    };
    let stat = make().map_err(|errno| failure(Op::MakeDirectory, errno, &ask.path))?;
    Ok(info(&ask.path, &stat))
}

/// Moves what is at a path, whatever it is.
pub(super) fn rename(root: &Root, ask: &Move) -> Result<Info, Failure> {
    let (from, old) = root.parent(&ask.from)?;
    rustix::fs::statat(&from, old, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| failure(Op::Rename, errno, &ask.from))?;
    if ask.make_parents {
        root.make_parents(&ask.to)?;
    }
    let (to, new) = root.parent(&ask.to)?;
    let flags = if ask.overwrite {
        refuse_directory(to.as_fd(), new).map_err(|errno| failure(Op::Rename, errno, &ask.to))?;
        RenameFlags::empty()
    } else {
        RenameFlags::NOREPLACE
    };
    rustix::fs::renameat_with(&from, old, &to, new, flags).map_err(|errno| failure(Op::Rename, errno, &ask.to))?;
    look(to.as_fd(), new, &ask.to).map_err(|errno| failure(Op::Rename, errno, &ask.to))
}

/// A directory, even an empty one, is never replaced.
fn refuse_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => Err(Errno::ISDIR),
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}
