//! Host uids for sessions: each session its own block, each running jailer its own region of blocks.
//!
//! The kernel does not keep blocks unique, so this does. Regions are byte locks in one file: they vanish with the
//! process that holds them, also after SIGKILL.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::{AtFlags, Mode, OFlags, unlinkat};

use crate::step::SysError;

/// First uid of Brig's range: above systemd's container range, clear of what /etc/subuid hands out.
pub const UID_BASE: u32 = 1_879_048_192;
/// Uids of one session.
pub const BLOCK: u32 = 4096;
/// Blocks of one jailer. The first one belongs to its daemon where there is no user `brig`.
const REGION_BLOCKS: u32 = 1024;
/// Regions below systemd's foreign range at 2147352576.
pub(super) const REGIONS: u16 = 63;

/// How often a region is looked for, 2 ms apart.
const TRIES: u32 = 100;

/// In a folder that root alone can write: two jailers that see different files would hand out the same uids.
const LOCK_FILE: &str = "/run/brig-uids.lock";

/// A jailer's share of the range.
#[derive(Debug)]
pub(super) struct Region {
    number: u16,
    lock: File,
    /// /run as the host sees it, held open: the jailer hides it from itself.
    run: OwnedFd,
    next: u32,
    taken: BTreeSet<u32>,
}

/// A session's uids; the number is that of its uid 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Block(u32);

impl Block {
    pub(super) fn root(self) -> u32 {
        self.0
    }

    /// The uid map of a session.
    pub(super) fn map(self) -> String {
        format!("0 {} {BLOCK}\n", self.0)
    }
}

impl Region {
    /// The uid map of a keeper, in whose user namespace those of other sessions are made: its own block from 0 on, and the
    /// rest of the region under the numbers of the host.
    pub(super) fn keeper_map(&self, block: Block) -> String {
        // The first block is none of a session.
        let (first, last) = (self.first_uid() + BLOCK, self.first_uid() + REGION_BLOCKS * BLOCK);
        let behind = block.0 + BLOCK;
        [(first, block.0), (behind, last)]
            .into_iter()
            .filter(|(from, to)| from < to)
            .fold(format!("0 {} {BLOCK}\n", block.0), |map, (from, to)| {
                format!("{map}{from} {from} {}\n", to - from)
            })
    }

    /// Takes the first region that nobody holds.
    ///
    /// The last jailer to end removes the file with all its bytes locked; who comes just then tries again.
    pub(super) fn take() -> Result<Self, SysError> {
        for _ in 0..TRIES {
            if let Some(region) = Self::try_take()? {
                return Ok(region);
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let call = "fcntl(/run/brig-uids.lock, F_OFD_SETLK): all uid regions are in use";
        Err(SysError::new(call, libc::EAGAIN))
    }

    fn try_take() -> Result<Option<Self>, SysError> {
        let failed = |call: &str, error: &io::Error| SysError::new(call, error.raw_os_error().unwrap_or(libc::EIO));
        let mut options = File::options();
        let lock = match options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(LOCK_FILE)
        {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|error| failed("open(/run/brig-uids.lock)", &error))?,
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let run = rustix::fs::open("/run", flags, Mode::empty())
            .map_err(|error| SysError::new("open(/run)", error.raw_os_error()))?;
        let number = (0..REGIONS).find(|number| lock_bytes(&lock, *number, 1));
        Ok(number.filter(|_| is_current(&lock)).map(|number| Self {
            number,
            lock,
            run,
            next: 1,
            taken: BTreeSet::new(),
        }))
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// Names of the groups and folders of a region's jailer.
    pub(super) fn name_of(number: u16) -> String {
        format!("brig-{number:02}")
    }

    /// Does something about another region, if no jailer has it; none can take it meanwhile.
    pub(super) fn while_free(&self, number: u16, work: impl FnOnce()) {
        if number != self.number && lock_bytes(&self.lock, number, 1) {
            work();
            unlock_byte(&self.lock, number);
        }
    }

    fn first_uid(&self) -> u32 {
        UID_BASE + u32::from(self.number) * REGION_BLOCKS * BLOCK
    }

    /// Hands out a block, the one that was free longest.
    pub(super) fn allocate(&mut self) -> Option<Block> {
        let index = (0..REGION_BLOCKS - 1)
            .map(|step| 1 + (self.next - 1 + step) % (REGION_BLOCKS - 1))
            .find(|index| !self.taken.contains(index))?;
        self.taken.insert(index);
        self.next = 1 + index % (REGION_BLOCKS - 1);
        Some(Block(self.first_uid() + index * BLOCK))
    }

    /// Keeps a block from being handed out, by its uid 0; nothing if it is none of this region.
    pub(super) fn reserve(&mut self, root: u32) -> Option<Block> {
        let offset = root.checked_sub(self.first_uid())?;
        let index = offset / BLOCK;
        let is_block = offset % BLOCK == 0 && (1..REGION_BLOCKS).contains(&index);
        is_block.then(|| {
            self.taken.insert(index);
            Block(root)
        })
    }

    /// Takes a block back; only when no process and no file of it can exist any more.
    pub(super) fn release(&mut self, block: Block) {
        self.taken.remove(&((block.0 - self.first_uid()) / BLOCK));
    }
}

impl Drop for Region {
    /// The last one removes the file. Who has opened it meanwhile sees that it is no longer current, and starts over.
    fn drop(&mut self) {
        if lock_bytes(&self.lock, 0, REGIONS) {
            let _left_behind = unlinkat(&self.run, "brig-uids.lock", AtFlags::empty());
        }
    }
}

fn is_current(lock: &File) -> bool {
    match (lock.metadata(), Path::new(LOCK_FILE).metadata()) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// Whether the bytes were free, or this one's already.
fn lock_bytes(file: &File, first: u16, count: u16) -> bool {
    set_lock(file, 1, first, count) // F_WRLCK
}

fn unlock_byte(file: &File, byte: u16) {
    let _own = set_lock(file, 2, byte, 1); // F_UNLCK
}

fn set_lock(file: &File, kind: libc::c_short, first: u16, count: u16) -> bool {
    let range = libc::flock {
        l_type: kind,
        l_whence: 0, // SEEK_SET
        l_start: first.into(),
        l_len: count.into(),
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&range)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_unique_and_reused_last() {
        let mut region = Region {
            number: 2,
            lock: tempfile(),
            run: tempfile().into(),
            next: 1,
            taken: BTreeSet::new(),
        };
        let all: Vec<Block> = std::iter::from_fn(|| region.allocate()).collect();
        assert_eq!(all.len(), 1023);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 1023);
        assert_eq!(all[0].root(), UID_BASE + 2 * 1024 * 4096 + 4096);
        region.release(all[5]);
        region.release(all[3]);
        assert_eq!(region.allocate(), Some(all[3]));
        region.release(all[3]);
        assert_eq!(region.allocate(), Some(all[5]));
    }

    #[test]
    fn a_reserved_block_is_not_handed_out() {
        let mut region = Region {
            number: 2,
            lock: tempfile(),
            run: tempfile().into(),
            next: 1,
            taken: BTreeSet::new(),
        };
        let first = region.first_uid();
        for other in [0, first, first + 1, first - BLOCK, first + REGION_BLOCKS * BLOCK] {
            assert_eq!(region.reserve(other), None, "{other}");
        }
        let reserved = region.reserve(first + BLOCK).unwrap();
        assert_eq!(region.allocate(), Some(Block(first + 2 * BLOCK)));
        region.release(reserved);
        assert_eq!(std::iter::from_fn(|| region.allocate()).last(), Some(reserved));
    }

    #[test]
    fn the_range_ends_below_the_foreign_range_of_systemd() {
        assert!(UID_BASE + u32::from(REGIONS) * REGION_BLOCKS * BLOCK <= 2_147_352_576);
    }

    fn tempfile() -> File {
        File::open("/dev/null").unwrap()
    }
}
