//! The terminal of an execution, and the size that callers want it to have.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use tokio::sync::watch;

use super::waker::Waker;

/// Our side of a terminal, and the pipes that what passes it goes through, of each first the end for reading.
#[derive(Debug)]
pub struct Terminal {
    pub ours: OwnedFd,
    pub out: (OwnedFd, OwnedFd),
    pub input: (OwnedFd, OwnedFd),
}

/// The size that a terminal is to have. The last one that was asked for counts.
#[derive(Debug)]
pub struct Size {
    wanted: Mutex<Wanted>,
    /// The last request that was done, and how.
    done: watch::Sender<(u64, Result<(), Errno>)>,
    pub(super) waker: Waker,
}

#[derive(Debug, Default, Clone, Copy)]
struct Wanted {
    /// Counts requests.
    asked: u64,
    size: Option<(u16, u16)>,
}

impl Default for Size {
    fn default() -> Self {
        Self {
            wanted: Mutex::default(),
            done: watch::Sender::new((0, Ok(()))),
            waker: Waker::default(),
        }
    }
}

impl Size {
    /// Asks for a size and waits until the terminal has it, or a later one. The caller bounds that.
    pub async fn set(&self, columns: u16, rows: u16) -> Result<(), Errno> {
        let mut done = self.done.subscribe();
        let asked = {
            let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            wanted.asked += 1;
            wanted.size = Some((columns, rows));
            wanted.asked
        };
        self.waker.wake();
        let reached = done.wait_for(|(last, _)| *last >= asked).await;
        // The sender lives as long as this.
        reached.map_or(Ok(()), |reached| reached.1)
    }

    /// Takes what was asked for last, if that is new: which request, columns and rows.
    pub(super) fn asked(&self) -> Option<(u64, u16, u16)> {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let (columns, rows) = wanted.size.take()?;
        Some((wanted.asked, columns, rows))
    }

    /// Says what became of a request.
    pub(super) fn done(&self, asked: u64, result: Result<(), Errno>) {
        let _before = self.done.send_replace((asked, result));
    }
}
