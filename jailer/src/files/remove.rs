//! Removes names, and trees that somebody hostile built and may be building still.
//!
//! It goes by descriptors, a bounded number of them: a directory that lies deeper is moved up into the one that is
//! being removed, and comes by there. What takes too long is told, and can be gone on with.
#![forbid(unsafe_code)]

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, RenameFlags};
use rustix::io::Errno;

use super::root::{Root, failure};
use super::transfer::random;
use super::wire::{Failure, Op, Remove, Response};

/// Directories that are open at one time.
const LEVELS_MAX: usize = 32;
/// How often a directory that is not empty after all is read again before the guest is said to fill it.
const AGAIN_MAX: u32 = 100;

/// A directory that is being emptied.
#[derive(Debug)]
struct Level {
    directory: Dir,
    name: CString,
    /// How often it was not empty after all, without a name less.
    again: u32,
    /// What was removed when it was not.
    count: u64,
}

/// How far it came.
#[derive(Debug)]
struct Removal<'r> {
    root: &'r Root,
    deadline: Instant,
    count: u64,
}

/// Removes what is at a path.
pub(super) fn remove(root: &Root, ask: &Remove) -> Result<Response, Failure> {
    let (parent, name) = root.parent(&ask.path)?;
    let mut removal = Removal {
        root,
        deadline: Instant::now() + Duration::from_millis(ask.time_ms.into()),
        count: 0,
    };
    let done = removal
        .name(parent.as_fd(), name, ask.recursive)
        .map_err(|errno| failure(Op::Remove, errno, &ask.path))?;
    let count = removal.count;
    Ok(Response::Removed { count, done })
}

impl Removal<'_> {
    fn name(&mut self, parent: BorrowedFd<'_>, name: &[u8], recursive: bool) -> Result<bool, Errno> {
        match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) => {
                self.count += 1;
                return Ok(true);
            }
            Err(Errno::ISDIR) => {}
            Err(errno) => return Err(errno),
        }
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) => {
                self.count += 1;
                Ok(true)
            }
            Err(Errno::NOTEMPTY) if recursive => self.tree(parent, name),
            Err(errno) => Err(errno),
        }
    }

    /// False if the time is over.
    fn tree(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<bool, Errno> {
        let mut levels = vec![self.level(parent, CString::new(name).map_err(|_| Errno::INVAL)?)?];
        while let Some((level, above)) = levels.split_last_mut() {
            if Instant::now() >= self.deadline {
                return Ok(false);
            }
            let Some(entry) = level.directory.next() else {
                self.close(&mut levels, parent)?;
                continue;
            };
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let directory = level.directory.fd()?;
            match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
                Ok(()) => self.count += 1,
                Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) if above.len() + 1 < LEVELS_MAX => match self.level(directory, name.to_owned()) {
                    Ok(next) => levels.push(next),
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno),
                },
                Err(Errno::ISDIR) => {
                    let up = format!(".brig-remove-{:016x}", random()?);
                    let top = above.first().map_or(Ok(directory), |top| top.directory.fd())?;
                    match rustix::fs::renameat_with(directory, name, top, up.as_str(), RenameFlags::NOREPLACE) {
                        Ok(()) | Err(Errno::NOENT) => {}
                        Err(errno) => return Err(errno),
                    }
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(true)
    }

    fn level(&self, parent: BorrowedFd<'_>, name: CString) -> Result<Level, Errno> {
        let directory = Dir::new(self.root.enter(parent, name.to_bytes())?)?;
        Ok(Level {
            directory,
            name,
            again: 0,
            count: self.count,
        })
    }

    /// Removes the directory that was read to its end, or reads it again.
    fn close(&mut self, levels: &mut Vec<Level>, parent: BorrowedFd<'_>) -> Result<(), Errno> {
        let Some((level, above)) = levels.split_last_mut() else {
            return Ok(());
        };
        let parent = above.last().map_or(Ok(parent), |above| above.directory.fd())?;
        match rustix::fs::unlinkat(parent, &level.name, AtFlags::REMOVEDIR) {
            Ok(()) => self.count += 1,
            Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY) if level.again < AGAIN_MAX || self.count > level.count => {
                level.again = if self.count > level.count { 0 } else { level.again + 1 };
                level.count = self.count;
                level.directory.rewind();
                return Ok(());
            }
            Err(errno) => return Err(errno),
        }
        levels.pop();
        Ok(())
    }
}
