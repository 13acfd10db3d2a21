//! Tells of changes below a directory, until the client hangs up.
//!
//! A directory that comes into being is watched first and read then, so that nothing made in it meanwhile is missed;
//! what is then told by both is told once. Events wait in the kernel for a client that is slow; where they are more than
//! it keeps, or there are more directories than may be watched, that is told as an overflow.
//!
//! Kernel: instances are counted per user, and the helper's is not the guest's; inotify(7).
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use super::connection::{Broken, Connection};
use super::list::join;
use super::root::{Root, failure};
use super::transfer::{PARTIAL, Trouble};
use super::tree::look;
use super::wire::{Changed, DEPTH_MAX, Info, Op, PATH_MAX, Response, WATCHED_MAX, Watch, What};

/// Bytes of events that are read at one time.
const BATCH: usize = 16 * 1024;
/// The most names of new directories that are remembered as told.
const TOLD_MAX: usize = 1024;

const EVENTS: WatchFlags = WatchFlags::ONLYDIR
    .union(WatchFlags::EXCL_UNLINK)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);

/// What is watched.
struct Watched<'w> {
    root: &'w Root,
    ask: &'w Watch,
    inotify: OwnedFd,
    /// Paths below the watched directory by the kernel's number; the directory's own is empty.
    paths: HashMap<i32, Vec<u8>>,
    top: i32,
    /// Names that were told when their directory was read; their creation may be told by the kernel too.
    told: HashSet<Vec<u8>>,
    to: &'w mut Connection,
    /// What was told last.
    last: Option<(What, Vec<u8>)>,
}

/// Watches until the client hangs up or the directory goes away.
pub(super) fn watch(root: &Root, ask: &Watch, to: &mut Connection) -> Result<Response, Trouble> {
    let mut watched = Watched::begin(root, ask, to)?;
    watched.to.send(&Response::Watching)?;
    let mut space = [MaybeUninit::uninit(); BATCH];
    loop {
        watched.to.flush()?;
        watched.last = None;
        wait(&watched.inotify, watched.to)?;
        watched.read(&mut space)?;
    }
}

/// Waits for events; a client that hangs up, or says anything, ends that.
fn wait(inotify: &OwnedFd, client: &Connection) -> Result<(), Trouble> {
    let client = client.as_fd();
    let mut both = [
        PollFd::new(inotify, PollFlags::IN),
        PollFd::from_borrowed_fd(client, PollFlags::IN),
    ];
    loop {
        match poll(&mut both, None) {
            Ok(_) if !both[1].revents().is_empty() => return Err(Broken::CutShort.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Broken::Socket(errno.into()).into()),
        }
    }
}

impl<'w> Watched<'w> {
    fn begin(root: &'w Root, ask: &'w Watch, to: &'w mut Connection) -> Result<Self, Trouble> {
        let failed = |errno| failure(Op::Watch, errno, &ask.path);
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(|errno| match errno {
            Errno::MFILE => failed(Errno::USERS),
            errno => failed(errno),
        })?;
        let directory = root.directory(&ask.path)?;
        let mut watched = Self {
            root,
            ask,
            inotify,
            paths: HashMap::new(),
            top: 0,
            told: HashSet::new(),
            to,
            last: None,
        };
        watched.top = watched.add(&directory, Vec::new()).map_err(failed)?;
        if ask.recursive {
            watched.descend(directory, &[], false)?;
        }
        Ok(watched)
    }

    /// Begins to look at a directory.
    fn add(&mut self, directory: &OwnedFd, path: Vec<u8>) -> Result<i32, Errno> {
        if self.paths.len() >= WATCHED_MAX {
            return Err(Errno::USERS);
        }
        // The descriptor and nothing else says which directory it is.
        let name = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let number = inotify::add_watch(&self.inotify, name, EVENTS).map_err(|errno| match errno {
            Errno::NOSPC => Errno::USERS,
            errno => errno,
        })?;
        self.paths.insert(number, path);
        Ok(number)
    }

    /// Looks at the directories below one that is looked at already; with `tell` all that is there counts as new.
    fn descend(&mut self, directory: OwnedFd, path: &[u8], tell: bool) -> Result<(), Trouble> {
        let failed = |errno| failure(Op::Watch, errno, path);
        let mut levels = vec![(Dir::new(directory).map_err(failed)?, path.to_vec())];
        while let Some((directory, path)) = levels.last_mut() {
            // A directory that can't be read on is at its end, as one that was removed meanwhile.
            let Some(Ok(entry)) = directory.next() else {
                levels.pop();
                continue;
            };
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") || name.starts_with(PARTIAL) {
                continue;
            }
            let parent = directory.fd().map_err(failed)?;
            let Ok(stat) = rustix::fs::statat(parent, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let below = join(path, name);
            if self.ask.path.len() + below.len() >= PATH_MAX {
                continue;
            }
            if tell {
                self.remember(&below);
                self.tell(What::Created, &below)?;
            }
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                continue;
            }
            let Ok(next) = self.root.enter(parent, name) else {
                continue;
            };
            if levels.len() >= usize::try_from(DEPTH_MAX).unwrap_or(usize::MAX) {
                return Err(failed(Errno::USERS).into());
            }
            self.add(&next, below.clone()).map_err(failed)?;
            levels.push((Dir::new(next).map_err(failed)?, below));
        }
        Ok(())
    }

    /// Reads what has happened, as much as fits.
    fn read(&mut self, space: &mut [MaybeUninit<u8>]) -> Result<(), Trouble> {
        let inotify = self.inotify.try_clone();
        let inotify = inotify.map_err(|_| failure(Op::Watch, Errno::MFILE, &self.ask.path))?;
        let mut reader = inotify::Reader::new(inotify.as_fd(), space);
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(std::ffi::CStr::to_bytes).unwrap_or_default();
                    self.event(event.wd(), event.events(), name)?;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(failure(Op::Watch, errno, &self.ask.path).into()),
            }
            if reader.is_buffer_empty() {
                return Ok(());
            }
        }
    }

    fn event(&mut self, number: i32, what: ReadFlags, name: &[u8]) -> Result<(), Trouble> {
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            return Ok(self.to.send(&Response::Overflow)?);
        }
        let Some(directory) = self.paths.get(&number) else {
            return Ok(());
        };
        if what.contains(ReadFlags::IGNORED) {
            self.paths.remove(&number);
        } else if what.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
            if number == self.top {
                return Err(failure(Op::Watch, Errno::NOENT, &self.ask.path).into());
            }
        } else if !name.is_empty() && !name.starts_with(PARTIAL) {
            let path = join(directory, name);
            self.changed(what, &path)?;
        }
        Ok(())
    }

    fn changed(&mut self, what: ReadFlags, path: &[u8]) -> Result<(), Trouble> {
        let is_directory = what.contains(ReadFlags::ISDIR);
        if what.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
            self.told.remove(path);
            if is_directory {
                self.forget(path);
            }
            let is_deleted = what.contains(ReadFlags::DELETE);
            self.tell(if is_deleted { What::Removed } else { What::Renamed }, path)
        } else if what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            if what.contains(ReadFlags::CREATE) && self.told.remove(path) {
                return Ok(());
            }
            self.tell(What::Created, path)?;
            if is_directory && self.ask.recursive {
                self.enter(path)?;
            }
            Ok(())
        } else if what.contains(ReadFlags::MODIFY) {
            self.tell(What::Written, path)
        } else if what.contains(ReadFlags::ATTRIB) {
            self.tell(What::Attributes, path)
        } else {
            Ok(())
        }
    }

    /// Looks at a directory that is new here.
    fn enter(&mut self, path: &[u8]) -> Result<(), Trouble> {
        let entered = self.root.directory(&join(&self.ask.path, path));
        // It may be gone again, or have become something else.
        let Ok(directory) = entered else { return Ok(()) };
        let added = self.add(&directory, path.to_vec());
        let looked = match added {
            Ok(_) => self.descend(directory, path, true),
            Err(errno) => Err(failure(Op::Watch, errno, path).into()),
        };
        match looked {
            Err(Trouble::Failed(_)) => Ok(self.to.send(&Response::Overflow)?),
            told => told,
        }
    }

    /// No longer looks at a directory that went away, nor below it.
    fn forget(&mut self, path: &[u8]) {
        let below = [path, b"/"].concat();
        let is_gone = |watched: &[u8]| watched == path || watched.starts_with(&below);
        let inotify = &self.inotify;
        self.paths.retain(|number, watched| {
            let gone = is_gone(watched);
            if gone {
                // The kernel may have done so itself.
                let _gone_already = inotify::remove_watch(inotify, *number);
            }
            !gone
        });
        self.told.retain(|told| !is_gone(told));
    }

    fn remember(&mut self, path: &[u8]) {
        if self.told.len() >= TOLD_MAX {
            // Then some are told twice.
            self.told.clear();
        }
        self.told.insert(path.to_vec());
    }

    /// What repeats the last one says nothing new.
    fn tell(&mut self, what: What, path: &[u8]) -> Result<(), Trouble> {
        if self.last.as_ref().is_some_and(|last| last.0 == what && last.1 == path) {
            return Ok(());
        }
        self.last = Some((what, path.to_vec()));
        let info = self.ask.info.then(|| self.info(path)).flatten();
        let path = path.to_vec();
        Ok(self.to.send(&Response::Changed(Changed { what, path, info }))?)
    }

    fn info(&self, path: &[u8]) -> Option<Info> {
        let whole = join(&self.ask.path, path);
        let (parent, name) = self.root.parent(&whole).ok()?;
        look(parent.as_fd(), name, path).ok()
    }
}
