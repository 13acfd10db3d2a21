//! The pipe of a Python kernel's frames: kept in a file, heard from there, and freed behind.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use brig_jailer::policy::Policy;
use rustix::fs::{FallocateFlags, fallocate};

use super::Fault;
use super::tap::{Flow, Tap};
use crate::kernel::{FRAME_MAX, Frames};
use crate::run::listen::Listener;
use crate::run::log::{Log, Past};

/// The most frames that are kept unheard, in bytes: the longest one and what one turn brings.
const UNHEARD: u64 = FRAME_MAX as u64 + 2 * super::TURN;
/// Frames that were heard and are freed together, in bytes.
const FREED: u64 = 256 * 1024;

#[derive(Debug)]
pub(super) struct Ear {
    tap: Tap,
    listener: Listener,
    /// Where the frames begin in their file, and up to where the file is empty.
    base: u64,
    freed: u64,
}

/// What a turn brought.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heard {
    pub taken: u64,
    pub dropped: u64,
    pub flow: Flow,
}

impl Ear {
    pub(super) fn new(
        pipe: OwnedFd,
        file: Arc<File>,
        log: Arc<Log>,
        policy: Arc<Policy>,
        past: &Past,
    ) -> Result<Self, Fault> {
        let base = past.head.frames();
        let at = file.metadata().map_or(base, |data| data.len().max(base));
        let frames = Frames::new(Arc::clone(&file), base, past.mark);
        Ok(Self {
            tap: Tap::new(pipe, file, at, at)?,
            listener: Listener::new(log, policy, frames),
            base,
            freed: base,
        })
    }

    pub(super) fn pipe(&self) -> BorrowedFd<'_> {
        self.tap.pipe()
    }

    /// Takes what is in the pipe, up to a turn's worth. After the last frame that counts everything is dropped.
    pub(super) fn take(&mut self, turn: u64) -> Result<Heard, Fault> {
        if self.listener.is_done() {
            self.tap.stop_keeping();
        } else {
            self.tap.keep_up_to(self.base + self.listener.noted() + UNHEARD);
        }
        let mut heard = Heard {
            taken: 0,
            dropped: 0,
            flow: Flow::More,
        };
        while heard.flow == Flow::More && heard.taken + heard.dropped < turn {
            let taken = self.tap.take()?;
            heard.taken += taken.kept;
            heard.dropped += taken.dropped;
            heard.flow = taken.flow;
        }
        Ok(heard)
    }

    /// Hears what was taken, and frees it; `last` if nothing more comes.
    pub(super) fn hear(&mut self, last: bool) -> Result<(), Fault> {
        let heard = self.base + self.listener.hear(self.tap.at() - self.base, last);
        if heard - self.freed >= FREED {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(self.tap.file(), flags, self.freed, heard - self.freed).map_err(Fault::of("fallocate"))?;
            self.freed = heard;
        }
        Ok(())
    }
}
