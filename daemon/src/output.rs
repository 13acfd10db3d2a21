//! What an execution writes: kept up to a cap, counted beyond it, followed by any number of readers.
//!
//! One task per pipe ([`pump`]) reads as fast as the pipe fills and records into one [`Output`]. Nothing on that path
//! waits for a reader, so a slow or vanished client never holds the code back, and bytes past the cap are counted and
//! dropped. Readers copy chunks out at their own pace, from any sequence number on.
//!
//! The cap holds for each stream by itself, so that a flood on stdout never costs the traceback on stderr. Since nothing
//! is kept once it is reached, what is kept of a stream is always the beginning of what was produced of it: a stream is
//! one growing byte string, and a chunk is only a range of it. That range costs 40 bytes, so chunks are joined while nobody has seen them, and a flood of tiny writes gets
//! fewer, larger chunks (`Chunks::may_close`).

mod chunks;
mod pump;
mod view;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::Instant;

use chunks::Chunks;
pub use pump::pump;
pub use view::{View, cut_text};

/// The largest chunk, in bytes.
pub const CHUNK_MAX: usize = 64 * 1024;

/// One of the two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A part of a stream, as it is handed to a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub stream: Stream,
    /// Position of the first byte among the bytes produced on the stream.
    pub offset: u64,
    /// Counts the chunks of both streams, from 0, without gaps.
    pub sequence: u64,
    /// When the first byte was read from the pipe.
    pub time: SystemTime,
    pub data: Vec<u8>,
}

/// How much a stream produced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Bytes produced.
    pub bytes: u64,
    /// Bytes of these that were dropped because of the cap.
    pub dropped: u64,
}

/// The kept output of one execution.
#[derive(Debug)]
pub struct Output {
    state: Mutex<Chunks>,
    /// Read-locked by a pump from before it reads until it has recorded.
    pumping: RwLock<()>,
    /// Wakes readers: a chunk was begun, grew past its bounds, or the end came.
    grown: Notify,
    /// Wakes whoever acts on the cap.
    limited: Notify,
}

impl Output {
    /// Starts an empty output that keeps at most `output_bytes` of each stream.
    pub fn new(output_bytes: u64) -> Arc<Self> {
        let cap = usize::try_from(output_bytes).unwrap_or(usize::MAX);
        Arc::new(Self {
            state: Mutex::new(Chunks::new(cap)),
            pumping: RwLock::new(()),
            grown: Notify::new(),
            limited: Notify::new(),
        })
    }

    /// Takes bytes that were read from a pipe; never waits. After [`Output::finish`] they are ignored.
    pub fn record(&self, stream: Stream, bytes: &[u8]) {
        let first_dropped = self.lock().record(stream, bytes, Instant::now(), SystemTime::now());
        self.grown.notify_waiters();
        if first_dropped {
            self.limited.notify_waiters();
        }
    }

    /// Says that nothing more will come; readers end after what is kept. Asking twice is harmless.
    pub fn finish(&self) {
        self.lock().finish(Instant::now());
        self.grown.notify_waiters();
    }

    /// Closes the chunks that are open and counts all that are closed, for something that is to be told after them.
    ///
    /// What had left the pipes before this call is in them.
    pub fn settle(&self) -> u64 {
        // Waits for pumps that have read and not yet recorded.
        drop(self.pumping.write().unwrap_or_else(PoisonError::into_inner));
        let closed = self.lock().settle(Instant::now());
        self.grown.notify_waiters();
        closed
    }

    /// Whether [`Output::finish`] was called.
    pub fn is_finished(&self) -> bool {
        self.lock().is_finished()
    }

    /// Counts what a stream produced.
    pub fn count(&self, stream: Stream) -> Count {
        self.lock().count(stream)
    }

    /// Waits until a byte had to be dropped; for policies that end an execution then.
    pub async fn limit_reached(&self) {
        loop {
            let waiting = self.limited.notified();
            tokio::pin!(waiting);
            waiting.as_mut().enable();
            if self.lock().is_limited() {
                return;
            }
            waiting.await;
        }
    }

    /// Follows the output from a sequence number on; 0 is the beginning.
    pub fn follow(self: &Arc<Self>, sequence: u64) -> Reader {
        Reader {
            output: Arc::clone(self),
            next: sequence,
        }
    }

    /// Cuts what is kept of a stream down to `result_output_bytes`: see [`View`].
    pub fn view(&self, stream: Stream, result_output_bytes: u64) -> View {
        let state = self.lock();
        View::new(state.kept(stream), state.count(stream), result_output_bytes)
    }

    fn pumping(&self) -> RwLockReadGuard<'_, ()> {
        self.pumping.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Chunks> {
        // No code that can panic half way through a change runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One follower of an output. Dropping it is all there is to do about a client that went away.
#[derive(Debug)]
pub struct Reader {
    output: Arc<Output>,
    next: u64,
}

impl Reader {
    /// Waits for the next chunk; `None` when the output is finished and all of it was read. Safe to cancel.
    pub async fn next(&mut self) -> Option<Chunk> {
        loop {
            let waiting = self.output.grown.notified();
            tokio::pin!(waiting);
            waiting.as_mut().enable();
            let step = self.output.lock().take(self.next, Instant::now());
            match step {
                Taken::Chunk(chunk) => {
                    self.next += 1;
                    return Some(chunk);
                }
                Taken::End => return None,
                Taken::Nothing => waiting.await,
                Taken::Soon(delay) => {
                    // The open chunk may be closed then; more bytes may close it sooner.
                    let _ = tokio::time::timeout(delay, waiting).await;
                }
            }
        }
    }
}

/// What there is for a reader.
#[derive(Debug)]
enum Taken {
    Chunk(Chunk),
    /// Bytes are there, but their chunk stays open for this long.
    Soon(Duration),
    Nothing,
    End,
}

#[cfg(test)]
mod tests;
