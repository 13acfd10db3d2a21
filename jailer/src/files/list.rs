//! A page of what is in a directory, in the order of the bytes of the paths.
//!
//! The tree is walked anew for each page, and only as many paths are kept as the page has: whatever the guest builds
//! takes up no more memory. Directories that lie before or behind the page are left out.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, DirEntry, FileType};
use rustix::io::Errno;

use super::connection::Connection;
use super::root::{Root, failure};
use super::transfer::{PARTIAL, Trouble};
use super::tree::look;
use super::wire::{DEPTH_MAX, Failure, List, Op, PAGE_MAX, PATH_MAX, Response};

/// The paths of a page, and one more if there is one.
#[derive(Debug)]
struct Page<'l> {
    after: &'l [u8],
    most: usize,
    paths: BTreeSet<Vec<u8>>,
}

/// A directory that is being read.
#[derive(Debug)]
struct Level {
    directory: Dir,
    /// Length of the directory's own path, with the slash.
    prefix: usize,
}

/// Tells what is on the page.
pub(super) fn list(root: &Root, ask: &List, to: &mut Connection) -> Result<Response, Trouble> {
    let most = usize::try_from(ask.max.min(PAGE_MAX)).unwrap_or(0);
    let mut page = Page {
        after: ask.after.as_deref().unwrap_or_default(),
        most: most + 1,
        paths: BTreeSet::new(),
    };
    let top = root.directory(&ask.path)?;
    walk(root, ask, &mut page)?;
    let more = page.paths.len() > most;
    for path in page.paths.iter().take(most) {
        let at = path.iter().rposition(|byte| *byte == b'/');
        let (parent, name) = match at {
            None => (None, path.as_slice()),
            Some(at) => (Some(root.directory(&join(&ask.path, &path[..at]))), &path[at + 1..]),
        };
        let parent = match &parent {
            None => top.as_fd(),
            Some(Ok(parent)) => parent.as_fd(),
            // It went away since.
            Some(Err(_)) => continue,
        };
        if let Ok(info) = look(parent, name, path) {
            to.send(&Response::Info(info))?;
        }
    }
    Ok(Response::Listed { more })
}

fn walk(root: &Root, ask: &List, page: &mut Page<'_>) -> Result<(), Failure> {
    let failed = |errno| failure(Op::List, errno, &ask.path);
    let deadline = Instant::now() + Duration::from_millis(ask.time_ms.into());
    let depth = usize::try_from(ask.depth.clamp(1, DEPTH_MAX)).unwrap_or(1);
    let directory = Dir::new(root.directory(&ask.path)?).map_err(failed)?;
    let mut levels = vec![Level { directory, prefix: 0 }];
    let mut path = Vec::new();
    loop {
        let may_enter = levels.len() < depth;
        let Some(level) = levels.last_mut() else { return Ok(()) };
        path.truncate(level.prefix);
        // A directory that can't be read on is at its end, as one that was removed meanwhile.
        let Some(Ok(entry)) = level.directory.next() else {
            levels.pop();
            continue;
        };
        if Instant::now() >= deadline {
            return Err(failed(Errno::TIMEDOUT));
        }
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") || name.starts_with(PARTIAL) {
            continue;
        }
        path.extend_from_slice(name);
        if ask.path.len() + path.len() >= PATH_MAX {
            continue;
        }
        page.offer(&path);
        if !may_enter || !is_directory(level, &entry) || !page.wants_below(&path) {
            continue;
        }
        let parent = level.directory.fd().map_err(failed)?;
        // What can't be entered is shown as a name only.
        if let Ok(directory) = root.enter(parent, name).and_then(Dir::new) {
            path.push(b'/');
            let prefix = path.len();
            levels.push(Level { directory, prefix });
        }
    }
}

impl Page<'_> {
    fn offer(&mut self, path: &[u8]) {
        if path <= self.after || (self.is_full() && self.last().is_some_and(|last| path > last)) {
            return;
        }
        self.paths.insert(path.to_vec());
        if self.paths.len() > self.most {
            self.paths.pop_last();
        }
    }

    /// Whether something below a directory may be on the page.
    fn wants_below(&self, directory: &[u8]) -> bool {
        let below = [directory, b"/"].concat();
        let is_before = self.after > below.as_slice() && !self.after.starts_with(&below);
        let is_behind = self.is_full() && self.last().is_some_and(|last| below.as_slice() > last);
        !is_before && !is_behind
    }

    fn is_full(&self) -> bool {
        self.paths.len() >= self.most
    }

    fn last(&self) -> Option<&[u8]> {
        self.paths.last().map(Vec::as_slice)
    }
}

/// Asks the file only where the directory does not tell.
fn is_directory(level: &Level, entry: &DirEntry) -> bool {
    match entry.file_type() {
        FileType::Directory => true,
        FileType::Unknown => level.directory.fd().is_ok_and(|parent| {
            rustix::fs::statat(parent, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
        }),
        _ => false,
    }
}

pub(super) fn join(directory: &[u8], below: &[u8]) -> Vec<u8> {
    if directory.is_empty() {
        below.to_vec()
    } else {
        [directory, b"/", below].concat()
    }
}
