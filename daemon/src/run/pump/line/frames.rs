//! The pipe of a context's frames: kept in a file, heard from there, and freed behind.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};

use super::store::{move_position, position, size};
use crate::kernel::Broken;
use crate::kernel::context::{Claim, Reader};
use crate::run::pump::Fault;
use crate::run::pump::tap::{Taken, Tap};

/// How much is heard at a time, in bytes: what one call takes out of a pipe.
const CALL: usize = 64 * 1024;
/// Frames between executions that the next brigd hears again, in bytes. Of more, it hears only the last.
const UNSETTLED: u64 = 2 * 1024 * 1024;
/// Frames that are settled and freed together, in bytes.
const FREED: u64 = 256 * 1024;

/// What comes by the pipe.
#[derive(Debug)]
pub(super) struct Frames {
    tap: Tap,
    reader: Reader,
    scratch: Vec<u8>,
    /// Up to where the reader was given what is in the file.
    given: u64,
    /// Where the next brigd begins, and up to where the file is empty.
    settled: u64,
    freed: u64,
    is_broken: bool,
}

impl Frames {
    /// Goes on where the file stands.
    pub(super) fn new(pipe: OwnedFd, file: &Arc<File>) -> Result<Self, Fault> {
        let settled = position(file).map_err(Fault::file)?;
        let end = size(file).map_err(Fault::file)?;
        Ok(Self {
            tap: Tap::new(pipe, Arc::clone(file), end, u64::MAX)?,
            reader: Reader::default(),
            scratch: Vec::new(),
            given: settled,
            settled,
            freed: settled,
            is_broken: false,
        })
    }

    pub(super) fn pipe(&self) -> BorrowedFd<'_> {
        self.tap.pipe()
    }

    /// Takes what one call gives.
    pub(super) fn take(&mut self) -> Result<Taken, Fault> {
        if self.is_broken {
            self.tap.stop_keeping();
        }
        self.tap.take()
    }

    /// The next claim; nothing while no frame is whole.
    pub(super) fn next(&mut self) -> Result<Option<Claim>, Broken> {
        loop {
            if self.is_broken {
                return Ok(None);
            }
            if let Some(claim) = self.reader.take().inspect_err(|_broken| self.is_broken = true)? {
                return Ok(Some(claim));
            }
            let left = usize::try_from(self.tap.at() - self.given).unwrap_or(usize::MAX);
            if left == 0 {
                return Ok(None);
            }
            self.scratch.resize(left.min(CALL), 0);
            let read = self.tap.file().read_exact_at(&mut self.scratch, self.given);
            if read.is_err() {
                self.is_broken = true;
                return Err(Broken::File);
            }
            self.given += self.scratch.len() as u64;
            self.reader.add(&self.scratch);
        }
    }

    /// Counts the frames of another execution.
    pub(super) fn begin(&mut self) {
        self.reader.begin();
    }

    /// Says that nobody needs to hear again what was heard: the next brigd begins behind it.
    pub(super) fn settle(&mut self) -> Result<(), Fault> {
        let heard = if self.is_broken {
            self.tap.at()
        } else {
            self.given - self.reader.held()
        };
        if heard > self.settled {
            move_position(self.tap.file(), heard).map_err(Fault::file)?;
            self.settled = heard;
        }
        if self.settled - self.freed >= FREED {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let bytes = self.settled - self.freed;
            fallocate(self.tap.file(), flags, self.freed, bytes).map_err(Fault::of("fallocate"))?;
            self.freed = self.settled;
        }
        Ok(())
    }

    /// The same where more was heard than is kept for the next brigd.
    pub(super) fn settle_if_much(&mut self) -> Result<(), Fault> {
        if self.is_broken || self.given - self.settled > UNSETTLED {
            self.settle()?;
        }
        Ok(())
    }
}
