//! What an execution writes: kept up to a cap, counted beyond it, read by any number of followers.
//!
//! The kept bytes of a stream lie in a memory file that brig-jailer made and holds too (`Kept`), so that they outlive
//! this process. A thread of the execution moves them there ([`crate::run::pump`]) as fast as the pipe fills; nothing on
//! that path waits for a follower, so a slow or vanished client never holds the code back, and bytes past the cap are
//! counted and dropped.
//!
//! The cap holds for each stream by itself, so that a flood on stdout never costs the traceback on stderr. Since nothing
//! is kept once it is reached, what is kept of a stream is always the beginning of what was produced of it: a stream is
//! one growing byte string, and a chunk is only a [`Range`] of it, which [`crate::run::log`] lists.
//!
//! The output of a command that streams is a window instead ([`Output::window`]): nothing is dropped, the program waits
//! while too much is unread, and what was read long enough ago is freed. Positions stay those of the whole stream.

mod chunks;
mod view;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tracing::error;

use crate::run::clock::{Clock, Mark};
use crate::run::waker::Waker;

pub use chunks::Chunks;
pub use view::{View, cut_text};

/// The largest chunk, in bytes.
pub const CHUNK_MAX: usize = 64 * 1024;

/// What is kept of a stream that has ended is held in memory if it is no more than this, in bytes: many executions are
/// remembered, and none of them shall cost a descriptor but the few that are large.
const MEMORY_MAX: u64 = 8 * 1024 * 1024;

/// How much of a stream may be unread in a window, in bytes: the program waits then.
pub(crate) const WINDOW: u64 = 1024 * 1024;
/// How much that was read is kept beside it, in bytes, for a client whose connection broke with some of it on the way:
/// what fits into the window of an HTTP/2 stream (2 MiB for clients of tonic and hyper), into what hyper holds before it
/// (400 KiB), and as much again.
pub(crate) const WINDOW_READ: u64 = 4 * 1024 * 1024;
/// A window is freed in whole pages.
const PAGE: u64 = 4096;

/// One of the two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A part of a stream that is told as one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    pub stream: Stream,
    /// Position of the first byte among the bytes produced on the stream.
    pub start: u64,
    /// At most [`CHUNK_MAX`].
    pub len: usize,
    /// When the first byte was taken out of the pipe.
    pub time: SystemTime,
}

/// How much a stream produced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Bytes produced.
    pub bytes: u64,
    /// Bytes of these that were dropped because of the cap.
    pub dropped: u64,
}

/// The kept output of one execution.
#[derive(Debug)]
pub struct Output {
    cap: u64,
    is_window: bool,
    /// Wakes the thread that waits for room in a window.
    waker: Waker,
    /// The clock of the limit `idle_time`.
    clock: Clock,
    state: Mutex<State>,
    /// Wakes whoever acts on the cap.
    limited: Notify,
}

#[derive(Debug)]
struct State {
    kept: [Option<Kept>; 2],
    counts: [Count; 2],
    /// Where what is kept begins, and up to where the file is empty.
    starts: [u64; 2],
    freed: [u64; 2],
    /// When something came last.
    last: Mark,
    sealed: bool,
}

/// Where the kept bytes of a stream are.
#[derive(Debug, Clone)]
enum Kept {
    File(Arc<File>),
    /// With the position of its first byte.
    Memory(u64, Arc<Vec<u8>>),
}

impl Kept {
    fn read(&self, start: u64, end: u64) -> io::Result<Vec<u8>> {
        match self {
            Self::File(file) => {
                let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(usize::MAX)];
                file.read_exact_at(&mut bytes, start).map(|()| bytes)
            }
            Self::Memory(first, bytes) => {
                let place = |at: u64| at.checked_sub(*first).and_then(|at| usize::try_from(at).ok());
                let [start, end] = [start, end].map(|at| place(at).unwrap_or(usize::MAX));
                let found = bytes.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
                Ok(found.to_vec())
            }
        }
    }
}

impl Stream {
    pub(crate) const BOTH: [Self; 2] = [Self::Stdout, Self::Stderr];

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Stdout => 0,
            Self::Stderr => 1,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Stdout => Self::Stderr,
            Self::Stderr => Self::Stdout,
        }
    }
}

impl Range {
    /// Position behind the last byte.
    pub fn end(&self) -> u64 {
        self.start + self.len as u64
    }

    /// Cuts a part of a stream into ranges.
    pub fn cut(stream: Stream, start: u64, end: u64, time: SystemTime) -> Vec<Self> {
        let range = |start: u64| Self {
            stream,
            start,
            len: usize::try_from(end - start).map_or(CHUNK_MAX, |left| left.min(CHUNK_MAX)),
            time,
        };
        (start..end).step_by(CHUNK_MAX).map(range).collect()
    }
}

impl Count {
    /// Bytes that are kept.
    pub fn kept(&self) -> u64 {
        self.bytes - self.dropped
    }
}

impl Output {
    /// Starts an empty output that keeps at most `output_bytes` of each stream.
    pub fn new(output_bytes: u64) -> Arc<Self> {
        Self::timed(output_bytes, Clock::default())
    }

    /// The same for what runs by a clock that may stand still.
    pub fn timed(output_bytes: u64, clock: Clock) -> Arc<Self> {
        Self::start(output_bytes, false, clock)
    }

    /// Starts an empty output of which a window is kept, however long it gets.
    pub fn window(clock: Clock) -> Arc<Self> {
        Self::start(u64::MAX, true, clock)
    }

    fn start(cap: u64, is_window: bool, clock: Clock) -> Arc<Self> {
        let state = State {
            kept: [None, None],
            counts: [Count::default(); 2],
            starts: [0; 2],
            freed: [0; 2],
            last: clock.mark(),
            sealed: false,
        };
        Arc::new(Self {
            cap,
            is_window,
            waker: Waker::default(),
            clock,
            state: Mutex::new(state),
            limited: Notify::new(),
        })
    }

    /// Takes the files of the streams, with what is in them already; `last` is how long ago something came.
    pub(crate) fn restore(&self, files: [Option<Arc<File>>; 2], counts: [Count; 2], last: Duration) {
        let mut state = self.lock();
        state.kept = files.map(|file| file.map(Kept::File));
        state.counts = counts;
        state.last = self.clock.mark().before(last);
    }

    /// How many bytes of each stream are kept.
    pub fn cap(&self) -> u64 {
        self.cap
    }

    /// The clock of what writes it.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Whether a window of it is kept.
    pub fn is_window(&self) -> bool {
        self.is_window
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Frees what lies before these positions.
    pub(crate) fn free_before(&self, starts: [u64; 2]) -> io::Result<()> {
        let mut state = self.lock();
        state.starts = starts;
        for (index, start) in starts.into_iter().enumerate() {
            let (from, end) = (state.freed[index], start / PAGE * PAGE);
            if let Some(Kept::File(file)) = &state.kept[index]
                && end > from
            {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&**file, flags, from, end - from)?;
                state.freed[index] = end;
            }
        }
        Ok(())
    }

    /// How many bytes of a stream are held.
    pub(crate) fn held(&self, stream: Stream) -> u64 {
        let (state, index) = (self.lock(), stream.index());
        state.counts[index].kept() - state.starts[index]
    }

    /// The file of a stream that has not ended.
    pub(crate) fn file(&self, stream: Stream) -> Option<Arc<File>> {
        match &self.lock().kept[stream.index()] {
            Some(Kept::File(file)) => Some(Arc::clone(file)),
            Some(Kept::Memory(..)) | None => None,
        }
    }

    /// Counts bytes that were taken out of a pipe; false once the output is sealed.
    pub(crate) fn took(&self, stream: Stream, kept: u64, dropped: u64) -> bool {
        let mut state = self.lock();
        if state.sealed {
            return false;
        }
        state.last = self.clock.mark();
        let count = &mut state.counts[stream.index()];
        count.bytes += kept + dropped;
        count.dropped += dropped;
        drop(state);
        if dropped > 0 {
            self.limited.notify_waiters();
        }
        true
    }

    /// Notes that something came that belongs to neither stream.
    pub(crate) fn touch(&self) {
        self.lock().last = self.clock.mark();
    }

    /// Says that nothing more comes. Files are given up, but for large ones.
    pub(crate) fn seal(&self) -> [Count; 2] {
        let mut state = self.lock();
        state.sealed = true;
        for stream in Stream::BOTH {
            let (start, end) = (state.starts[stream.index()], state.counts[stream.index()].kept());
            let kept = &mut state.kept[stream.index()];
            if end - start <= MEMORY_MAX
                && let Some(Ok(bytes)) = kept.as_ref().map(|kept| kept.read(start, end))
            {
                *kept = Some(Kept::Memory(start, Arc::new(bytes)));
            }
        }
        state.counts
    }

    /// Counts what a stream produced.
    pub fn count(&self, stream: Stream) -> Count {
        self.lock().counts[stream.index()]
    }

    /// Counts the files that are held open.
    pub(crate) fn open_files(&self) -> u64 {
        let state = self.lock();
        let open = state.kept.iter().filter(|kept| matches!(kept, Some(Kept::File(_))));
        open.count() as u64
    }

    /// Whether a byte had to be dropped.
    pub fn is_limited(&self) -> bool {
        self.lock().counts.iter().any(|count| count.dropped > 0)
    }

    /// Waits until a byte had to be dropped; for policies that end an execution then.
    pub async fn limit_reached(&self) {
        loop {
            let waiting = self.limited.notified();
            tokio::pin!(waiting);
            waiting.as_mut().enable();
            if self.is_limited() {
                return;
            }
            waiting.await;
        }
    }

    /// Waits until nothing came for that long: the clock of the limit `idle_time`.
    pub async fn idle_for(&self, limit: Duration) {
        while self.quiet() < limit {
            let last = self.lock().last;
            self.clock.reached(last, limit).await;
        }
    }

    fn quiet(&self) -> Duration {
        let last = self.lock().last;
        self.clock.since(last)
    }

    /// Takes it that something came so long ago, unless something came later.
    pub(crate) fn came(&self, ago: Duration) {
        if self.quiet() > ago {
            self.lock().last = self.clock.mark().before(ago);
        }
    }

    /// Reads the bytes of a range.
    pub fn read(&self, range: &Range) -> io::Result<Vec<u8>> {
        let kept = self.lock().kept[range.stream.index()].clone();
        kept.ok_or(io::ErrorKind::NotFound)?.read(range.start, range.end())
    }

    /// Cuts what is kept of a stream down to `result_output_bytes`: see [`View`].
    pub fn view(&self, stream: Stream, result_output_bytes: u64) -> View {
        let (kept, count, start) = {
            let (state, index) = (self.lock(), stream.index());
            (state.kept[index].clone(), state.counts[index], state.starts[index])
        };
        let read = |start: u64, end: u64| kept.as_ref().map_or(Ok(Vec::new()), |kept| kept.read(start, end));
        View::new(read, start, count, result_output_bytes).unwrap_or_else(|error| {
            error!(%error, ?stream, "kept output unreadable");
            View {
                left_out: count.kept(),
                ..View::nothing(count)
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic half way through a change runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Outputs whose bytes come from a test.

    use super::*;

    /// A memory file as brig-jailer makes them.
    pub(crate) fn memory_file() -> File {
        rustix::fs::memfd_create("kept", rustix::fs::MemfdFlags::CLOEXEC)
            .unwrap()
            .into()
    }

    /// An output with files.
    pub(crate) fn output(cap: u64) -> Arc<Output> {
        let output = Output::new(cap);
        let file = || Some(Arc::new(memory_file()));
        output.restore([file(), file()], [Count::default(); 2], Duration::ZERO);
        output
    }

    /// Puts bytes into a stream, as far as they fit.
    pub(crate) fn write(output: &Output, stream: Stream, bytes: &[u8]) {
        let count = output.count(stream);
        let keep = bytes.len().min(usize::try_from(output.cap() - count.kept()).unwrap());
        let file = output.file(stream).unwrap();
        file.write_all_at(&bytes[..keep], count.kept()).unwrap();
        assert!(output.took(stream, keep as u64, (bytes.len() - keep) as u64));
    }
}

#[cfg(test)]
mod tests;
