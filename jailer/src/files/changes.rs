//! What is new or changed in the tree between two looks, or since a time.
//!
//! The guest can set the time of last change to anything, but not the time of last status change (ctime), nor the
//! inode, nor the time at which it was made (btime). A file is the same if path, inode, size and ctime are; since a
//! time it has changed if its ctime is of then or later, and is new if its btime is.
//!
//! A look by time needs no memory of an earlier one, so that several can overlap. What it can't see is a clock of the
//! host that was set back meanwhile.
//!
//! Kernel: since 6.13 a tmpfs gives a change after a look a ctime of its own. Before, the ctime is as coarse as the
//! timer tick (1 to 10 ms): a file that changed in the tick of the snapshot may change again with the same ctime, so
//! it counts as changed; and the snapshot waits for the next tick when a file was just put in its place, because an
//! input would count so otherwise.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec};

use super::connection::Connection;
use super::root::{self, Root, open_in};
use super::transfer::Trouble;
use super::walk::{Entry, walk};
use super::wire::{Change, Collect, Collected, Found, Limit, Response, SKIPPED_MAX, Skip, Time, Walk};

/// The coarsest timer tick of any kernel is 10 ms.
const TICKS_AWAITED: u32 = 30;

/// What was in the tree at one time.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// By a hash of the path, keyed anew for each snapshot: paths themselves could take up 4 KiB each.
    files: HashMap<u64, Seen>,
    hasher: RandomState,
    /// Changes since then may have the ctime of earlier ones; `None` where the kernel tells them apart.
    doubtful_since: Option<(i64, i64)>,
}

/// What tells a file from a changed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    inode: u64,
    size: i64,
    ctime: (i64, i64),
}

impl Snapshot {
    /// Remembers the files of the tree; of one that a limit hides the first change is told as a creation.
    pub(super) fn take(
        root: &Root,
        bounds: Walk,
        last_put: Option<Timespec>,
    ) -> Result<(Self, Option<Limit>), Trouble> {
        let doubtful_since = fine_now(root).is_none().then(|| next_tick(last_put));
        let mut snapshot = Self {
            files: HashMap::new(),
            hasher: RandomState::new(),
            doubtful_since,
        };
        let walked = walk(root, bounds, &mut |path, entry| {
            if let Entry::File(stat) = entry {
                snapshot.files.insert(snapshot.hasher.hash_one(path), Seen::of(stat));
            }
            Ok(())
        })?;
        Ok((snapshot, walked.truncated))
    }

    pub(super) fn len(&self) -> u64 {
        self.files.len() as u64
    }

    fn compare(&self, path: &[u8], stat: &Stat) -> Change {
        let now = Seen::of(stat);
        match self.files.get(&self.hasher.hash_one(path)) {
            None => Change::Created,
            Some(before) if *before != now => Change::Modified,
            Some(_) if self.doubtful_since.is_some_and(|since| now.ctime >= since) => Change::Modified,
            Some(_) => Change::Unchanged,
        }
    }
}

impl Seen {
    fn of(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino,
            size: stat.st_size,
            ctime: pair(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// Tells what changed, in the order of the tree, expected paths first.
#[derive(Debug)]
pub(super) struct Collection<'c> {
    root: &'c Root,
    ask: &'c Collect,
    before: Option<&'c Snapshot>,
    to: &'c mut Connection,
    told: u32,
    totals: Collected,
}

impl<'c> Collection<'c> {
    pub(super) fn run(
        root: &'c Root,
        ask: &'c Collect,
        before: Option<&'c Snapshot>,
        to: &'c mut Connection,
    ) -> Result<Response, Trouble> {
        let mut collection = Self {
            root,
            ask,
            before,
            to,
            told: 0,
            totals: Collected::default(),
        };
        let mut expected = HashSet::new();
        for path in &ask.expected {
            root::check(path)?;
            if expected.insert(path.as_slice()) {
                collection.expected(path)?;
            }
        }
        let walked = walk(root, ask.walk, &mut |path, entry| match entry {
            _ if expected.contains(path) => Ok(()),
            Entry::File(stat) => collection.file(path, stat),
            Entry::Skipped(why) => collection.skip(path, why),
            Entry::Ignored => {
                collection.totals.ignored += 1;
                Ok(())
            }
        })?;
        collection.totals.examined = walked.examined;
        collection.totals.truncated = walked.truncated;
        collection.totals.space = root.space()?;
        Ok(Response::Collected(collection.totals))
    }

    fn expected(&mut self, path: &[u8]) -> Result<(), Trouble> {
        let (parent, name) = match self.root.parent(path) {
            Ok(found) => found,
            Err(failure) if failure.errno == Errno::LOOP.raw_os_error() => return self.skip(path, Skip::Symlink),
            Err(failure) if failure.errno == Errno::XDEV.raw_os_error() => {
                return self.skip(path, Skip::OtherFileSystem);
            }
            Err(_) => return Ok(()),
        };
        match rustix::fs::statat(&parent, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => match self.root.admit(&stat) {
                Ok(()) => self.tell(path, self.change(path, &stat)),
                Err(why) => self.skip(path, why),
            },
            Err(_) => Ok(()),
        }
    }

    fn file(&mut self, path: &[u8], stat: &Stat) -> Result<(), Trouble> {
        match self.change(path, stat) {
            Change::Unchanged => Ok(()),
            change => self.tell(path, change),
        }
    }

    fn change(&self, path: &[u8], stat: &Stat) -> Change {
        match (self.ask.since, self.before) {
            (Some(since), _) => self.change_since(since, path, stat),
            (None, Some(before)) => before.compare(path, stat),
            (None, None) => Change::Created,
        }
    }

    fn change_since(&self, since: Time, path: &[u8], stat: &Stat) -> Change {
        let since = (since.seconds, i64::from(since.nanoseconds));
        if pair(stat.st_ctime, stat.st_ctime_nsec) < since {
            Change::Unchanged
        } else if self.root.made_at(path).is_some_and(|made| made < since) {
            Change::Modified
        } else {
            Change::Created
        }
    }

    fn tell(&mut self, path: &[u8], change: Change) -> Result<(), Trouble> {
        if change != Change::Unchanged {
            self.totals.changed += 1;
        }
        if self.told >= self.ask.max_files {
            return self.skip(path, Skip::TooMany);
        }
        // Opened to be sure that it can be read, and to tell of the very file that a `Get` would open.
        let Ok((_, stat)) = self.root.open_regular(path) else {
            return self.skip(path, Skip::Unreadable);
        };
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if self.ask.max_bytes_each.is_some_and(|max| size > max) {
            return self.skip(path, Skip::TooLarge);
        }
        self.told += 1;
        let (seconds, nanoseconds) = pair(stat.st_mtime, stat.st_mtime_nsec);
        self.to.send(&Response::Found(Found {
            path: path.to_vec(),
            size,
            allocated: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
            mode: stat.st_mode & 0o7777,
            mtime: Time {
                seconds,
                nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
            },
            change,
        }))?;
        Ok(())
    }

    fn skip(&mut self, path: &[u8], why: Skip) -> Result<(), Trouble> {
        self.totals.skipped += 1;
        if self.totals.skipped <= SKIPPED_MAX {
            self.to.send(&Response::Skipped {
                path: path.to_vec(),
                why,
            })?;
        }
        Ok(())
    }
}

/// The clock that files get their ctime from, where it is coarse.
pub(super) fn coarse_now() -> Timespec {
    rustix::time::clock_gettime(ClockId::RealtimeCoarse)
}

/// A time that everything before lies before, and that nothing later lies before.
///
/// Where the kernel tells changes apart it is that of a change made for it; else the next tick after `last`.
pub(super) fn dividing_time(root: &Root, last: Option<Timespec>) -> (i64, i64) {
    fine_now(root).unwrap_or_else(|| next_tick(last))
}

/// Tries whether two changes in a row, looked at in between, have two ctimes; a coarse clock would have to tick thrice.
/// Gives the last one.
///
/// The coarse clock is no measure of those times: it may lag behind by more than a tick.
fn fine_now(root: &Root) -> Option<(i64, i64)> {
    let file = open_in(
        root.as_fd(),
        b".",
        OFlags::TMPFILE | OFlags::WRONLY,
        Mode::from_raw_mode(0o600),
    )
    .ok()?;
    let ctime_after_change = || {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o600)).ok()?;
        rustix::fs::fstat(file.as_fd())
            .ok()
            .map(|stat| pair(stat.st_ctime, stat.st_ctime_nsec))
    };
    let times = [(); 4].map(|()| ctime_after_change());
    let apart = times.iter().all(Option::is_some) && times.windows(2).all(|two| two[0] != two[1]);
    times[3].filter(|_| apart)
}

/// Waits until the tick of the last put, or of whatever else must lie before, is over, and gives the time.
fn next_tick(last: Option<Timespec>) -> (i64, i64) {
    for _ in 0..TICKS_AWAITED {
        let now = coarse_now();
        if last.is_none_or(|last| (last.tv_sec, last.tv_nsec) < (now.tv_sec, now.tv_nsec)) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let now = coarse_now();
    (now.tv_sec, now.tv_nsec)
}

fn pair(seconds: i64, nanoseconds: u64) -> (i64, i64) {
    (seconds, i64::try_from(nanoseconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_times_are_coarse_a_change_in_the_tick_of_the_snapshot_is_not_missed() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "x").unwrap();
        let file = std::fs::File::open(directory.path().join("file")).unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let ctime = Seen::of(&stat).ctime;
        let change_if_doubtful_since = |doubtful_since| {
            let mut snapshot = Snapshot {
                files: HashMap::new(),
                hasher: RandomState::new(),
                doubtful_since,
            };
            snapshot
                .files
                .insert(snapshot.hasher.hash_one(&b"file"[..]), Seen::of(&stat));
            snapshot.compare(b"file", &stat)
        };
        assert_eq!(change_if_doubtful_since(None), Change::Unchanged);
        assert_eq!(
            change_if_doubtful_since(Some((ctime.0, ctime.1 + 1))),
            Change::Unchanged
        );
        assert_eq!(change_if_doubtful_since(Some(ctime)), Change::Modified);
    }

    #[test]
    fn the_tick_of_a_put_is_waited_out_and_no_longer() {
        let put = coarse_now();
        let started = std::time::Instant::now();
        assert!(next_tick(Some(put)) > (put.tv_sec, put.tv_nsec));
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}
