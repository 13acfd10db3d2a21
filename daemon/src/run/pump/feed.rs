//! One pipe that is written from a memory file.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};
use tracing::{debug, warn};

use crate::run::clock::{Clock, Mark};

/// How soon a full pipe is looked at again, at the earliest: its clock may stand still.
const LOOK: Duration = Duration::from_millis(100);

/// A pipe, and the file that what goes into it lies in.
#[derive(Debug)]
pub(super) struct Feed {
    pipe: OwnedFd,
    /// Its position is the next byte.
    file: Arc<File>,
    end: u64,
    patience: Option<Patience>,
}

/// How long a pipe may be full.
#[derive(Debug)]
pub(super) struct Patience {
    pub(super) clock: Clock,
    pub(super) from: Mark,
    pub(super) span: Duration,
}

impl Patience {
    fn left(&self) -> Duration {
        self.span.saturating_sub(self.clock.since(self.from))
    }
}

impl Feed {
    /// Feeds what lies between the position of the file and `end`; gives up when its patience is over.
    pub(super) fn new(pipe: OwnedFd, file: Arc<File>, end: u64, patience: Option<Patience>) -> Self {
        Self {
            pipe,
            file,
            end,
            patience,
        }
    }

    pub(super) fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// When to look again, at the latest.
    pub(super) fn until(&self) -> Option<Instant> {
        let left = self.patience.as_ref().map(Patience::left);
        left.map(|left| Instant::now() + left.max(LOOK))
    }

    /// Puts as much into the pipe as it holds. True when all is in it, or when nobody will read the rest.
    pub(super) fn is_over(&mut self) -> bool {
        loop {
            let left = match seek(&*self.file, SeekFrom::Current(0)) {
                Ok(at) => self.end.saturating_sub(at),
                Err(error) => {
                    warn!(%error, "input unreadable");
                    return true;
                }
            };
            if left == 0 {
                return true;
            }
            let len = usize::try_from(left).unwrap_or(usize::MAX);
            match splice(&*self.file, None, &self.pipe, None, len, SpliceFlags::NONBLOCK) {
                Ok(0) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.is_late(),
                // A program that does not read its input is none of our business.
                Err(Errno::PIPE) => return true,
                Err(error) => {
                    warn!(%error, "input not given");
                    return true;
                }
            }
        }
    }

    fn is_late(&self) -> bool {
        let late = self.patience.as_ref().is_some_and(|patience| patience.left().is_zero());
        if late {
            debug!("kernel did not read its request in time");
        }
        late
    }
}
