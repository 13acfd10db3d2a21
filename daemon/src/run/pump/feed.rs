//! One pipe that is written from a memory file.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};
use tracing::{debug, warn};

/// A pipe, and the file that what goes into it lies in.
#[derive(Debug)]
pub(super) struct Feed {
    pipe: OwnedFd,
    /// Its position is the next byte.
    file: Arc<File>,
    end: u64,
    until: Option<Instant>,
}

impl Feed {
    /// Feeds what lies between the position of the file and `end`; gives up at `until`.
    pub(super) fn new(pipe: OwnedFd, file: Arc<File>, end: u64, until: Option<Instant>) -> Self {
        Self { pipe, file, end, until }
    }

    pub(super) fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.until
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
        let late = self.until.is_some_and(|until| Instant::now() >= until);
        if late {
            debug!("kernel did not read its request in time");
        }
        late
    }
}
