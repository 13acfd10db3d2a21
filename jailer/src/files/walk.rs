//! A walk over a tree that somebody hostile built, and may be building still.
//!
//! It goes by descriptors, one per level, so that a directory that is moved while it is read leads nowhere else; names
//! are bytes; the number of names, the depth and the time are bounded, and so is the memory: one open directory per
//! level and one path.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Stat};
use rustix::io::Errno;

use super::root::{Root, failure};
use super::transfer::{PARTIAL, Trouble};
use super::wire::{DEPTH_MAX, ENTRIES_MAX, Limit, Op, PATH_MAX, Skip, Walk};

/// Directories that programs make for themselves, at any depth: nobody means them as a result.
const IGNORED_DIRECTORIES: &[&[u8]] = &[
    b"__pycache__",
    b".cache",
    b".config",
    b".ipynb_checkpoints",
    b".ipython",
    b".jupyter",
    b".local",
    b".matplotlib",
    b".mypy_cache",
    b".pytest_cache",
];

/// Files of that kind.
const IGNORED_FILES: &[&[u8]] = &[b".bash_history", b".python_history"];

/// What the walk came by.
#[derive(Debug)]
pub(super) enum Entry<'s> {
    /// A regular file of the session's with one name.
    File(&'s Stat),
    Skipped(Skip),
    Ignored,
}

/// Takes what the walk came by, with its path.
type Visit<'v> = dyn FnMut(&[u8], Entry<'_>) -> Result<(), Trouble> + 'v;

/// How a walk ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Walked {
    pub(super) examined: u64,
    pub(super) truncated: Option<Limit>,
}

/// A directory that is being read.
#[derive(Debug)]
struct Level {
    directory: Dir,
    /// Length of the directory's own path, with the slash.
    prefix: usize,
}

/// Shows everything below the directory to `visit`, with its path.
pub(super) fn walk(root: &Root, bounds: Walk, visit: &mut Visit<'_>) -> Result<Walked, Trouble> {
    let deadline = Instant::now() + Duration::from_millis(bounds.time_ms.into());
    let depth = usize::try_from(bounds.max_depth.min(DEPTH_MAX)).unwrap_or(0);
    let entries = u64::from(bounds.max_entries.min(ENTRIES_MAX));
    let top = root
        .reopen()
        .and_then(Dir::new)
        .map_err(|errno| failure(Op::List, errno, b""))?;
    let mut levels = vec![Level {
        directory: top,
        prefix: 0,
    }];
    let mut path = Vec::new();
    let mut walked = Walked {
        examined: 0,
        truncated: None,
    };
    loop {
        let may_enter = levels.len() < depth;
        let Some(level) = levels.last_mut() else { break };
        path.truncate(level.prefix);
        // A directory that can't be read on is at its end, as one that was removed meanwhile.
        let Some(Ok(entry)) = level.directory.next() else {
            levels.pop();
            continue;
        };
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if walked.examined == entries {
            walked.truncated = Some(Limit::Entries);
            break;
        }
        if Instant::now() >= deadline {
            walked.truncated = Some(Limit::Time);
            break;
        }
        walked.examined += 1;
        path.extend_from_slice(name);
        if let Some(next) = look(root, level, name, &path, may_enter, visit)? {
            path.push(b'/');
            levels.push(Level {
                directory: next,
                prefix: path.len(),
            });
        }
    }
    Ok(walked)
}

/// Shows one name to `visit`, or opens it if the walk goes on below it.
fn look(
    root: &Root,
    level: &Level,
    name: &[u8],
    path: &[u8],
    may_enter: bool,
    visit: &mut Visit<'_>,
) -> Result<Option<Dir>, Trouble> {
    let directory = level.directory.fd().map_err(|errno| failure(Op::List, errno, path))?;
    let stat = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(_) => return visit(path, Entry::Skipped(Skip::Unreadable)).map(|()| None),
    };
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let entry = if is_ignored(name, is_directory) {
        Entry::Ignored
    } else if path.len() > PATH_MAX || (is_directory && !may_enter) {
        Entry::Skipped(Skip::TooDeep)
    } else if is_directory {
        match root.enter(directory, name).and_then(Dir::new) {
            Ok(next) => return Ok(Some(next)),
            Err(Errno::XDEV) => Entry::Skipped(Skip::OtherFileSystem),
            Err(Errno::NOENT) => return Ok(None),
            Err(_) => Entry::Skipped(Skip::Unreadable),
        }
    } else {
        match root.admit(&stat) {
            Ok(()) => Entry::File(&stat),
            Err(skip) => Entry::Skipped(skip),
        }
    };
    visit(path, entry).map(|()| None)
}

fn is_ignored(name: &[u8], is_directory: bool) -> bool {
    if is_directory {
        IGNORED_DIRECTORIES.contains(&name)
    } else {
        IGNORED_FILES.contains(&name) || name.starts_with(PARTIAL)
    }
}
