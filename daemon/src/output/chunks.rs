//! The state behind [`Output`](super::Output): two byte strings and the list of chunks that cut them up.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::{CHUNK_MAX, Chunk, Count, Stream, Taken};

/// Chunks that every execution may have, however short they are.
const FREE_CHUNKS: usize = 1024;
/// Kept bytes that pay for one more chunk.
const BYTES_PER_CHUNK: usize = 256;
/// However short chunks are, one may be closed after this time since the last one.
const CLOSE_AFTER: Duration = Duration::from_millis(50);

/// A range of a stream that has its sequence number, or will get it when it is closed.
#[derive(Debug, Clone, Copy)]
struct Range {
    stream: Stream,
    start: usize,
    len: usize,
    time: SystemTime,
}

/// One stream: the kept beginning, and how much came.
#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    produced: u64,
    open: Option<Range>,
}

#[derive(Debug)]
pub(super) struct Chunks {
    cap: usize,
    stdout: Kept,
    stderr: Kept,
    /// The index in this list is the sequence number.
    closed: Vec<Range>,
    last_close: Option<Instant>,
    limited: bool,
    finished: bool,
}

impl Chunks {
    pub(super) fn new(cap: usize) -> Self {
        Self {
            cap,
            stdout: Kept::default(),
            stderr: Kept::default(),
            closed: Vec::new(),
            last_close: None,
            limited: false,
            finished: false,
        }
    }

    /// Adds bytes; true when this is the first time that some had to be dropped.
    pub(super) fn record(&mut self, stream: Stream, bytes: &[u8], now: Instant, time: SystemTime) -> bool {
        if self.finished || bytes.is_empty() {
            return false;
        }
        let room = self.cap - self.stream(stream).bytes.len();
        let keep = bytes.len().min(room);
        self.stream_mut(stream).produced += bytes.len() as u64;
        if keep > 0 {
            // Exact order between the streams: what the other one wrote before ends here, if chunks can be afforded.
            if self.stream(stream.other()).open.is_some() && self.may_close(now) {
                self.close(stream.other(), now);
            }
            self.keep(stream, &bytes[..keep], now, time);
        }
        let first_dropped = keep < bytes.len() && !self.limited;
        self.limited |= first_dropped;
        first_dropped
    }

    fn keep(&mut self, stream: Stream, mut bytes: &[u8], now: Instant, time: SystemTime) {
        let cap = self.cap;
        self.stream_mut(stream).reserve(bytes.len(), cap);
        while !bytes.is_empty() {
            let kept = self.stream_mut(stream);
            let start = kept.bytes.len();
            let range = kept.open.get_or_insert(Range {
                stream,
                start,
                len: 0,
                time,
            });
            let take = bytes.len().min(CHUNK_MAX - range.len);
            range.len += take;
            let full = range.len == CHUNK_MAX;
            kept.bytes.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if full {
                self.close(stream, now);
            }
        }
    }

    pub(super) fn finish(&mut self, now: Instant) {
        self.finished = true;
        self.close_all(now);
    }

    /// Closes what is open and counts what is closed.
    pub(super) fn settle(&mut self, now: Instant) -> u64 {
        self.close_all(now);
        self.closed.len() as u64
    }

    /// Finds the chunk with this sequence number; closes an open one for it if that can be afforded.
    pub(super) fn take(&mut self, sequence: u64, now: Instant) -> Taken {
        let index = usize::try_from(sequence).unwrap_or(usize::MAX);
        if index >= self.closed.len() {
            if self.finished {
                return Taken::End;
            }
            if self.stdout.open.is_none() && self.stderr.open.is_none() {
                return Taken::Nothing;
            }
            if !self.may_close(now) {
                return Taken::Soon(self.closable_in(now));
            }
            self.close_all(now);
        }
        match self.closed.get(index) {
            Some(range) => Taken::Chunk(self.chunk(*range, sequence)),
            None => Taken::Nothing,
        }
    }

    pub(super) fn count(&self, stream: Stream) -> Count {
        let kept = self.stream(stream);
        Count {
            bytes: kept.produced,
            dropped: kept.produced - kept.bytes.len() as u64,
        }
    }

    pub(super) fn kept(&self, stream: Stream) -> &[u8] {
        &self.stream(stream).bytes
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    pub(super) fn is_limited(&self) -> bool {
        self.limited
    }

    /// Counts the bytes that are allocated.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let ranges = self.closed.capacity() * size_of::<Range>();
        self.stdout.bytes.capacity() + self.stderr.bytes.capacity() + ranges
    }

    /// Whether one more chunk that isn't full can be afforded.
    ///
    /// Bounds the list: a guest that alternates one-byte writes between its streams, watched by a quick reader, would
    /// else get a chunk for each byte.
    fn may_close(&self, now: Instant) -> bool {
        let kept = self.stdout.bytes.len() + self.stderr.bytes.len();
        self.closed.len() < FREE_CHUNKS + kept / BYTES_PER_CHUNK || self.closable_in(now).is_zero()
    }

    fn closable_in(&self, now: Instant) -> Duration {
        self.last_close.map_or(Duration::ZERO, |last| {
            CLOSE_AFTER.saturating_sub(now.duration_since(last))
        })
    }

    /// Closes both streams' chunks, the one that was begun first before the other.
    fn close_all(&mut self, now: Instant) {
        let started = |kept: &Kept| kept.open.map(|range| range.time);
        let first = if started(&self.stderr) < started(&self.stdout) {
            Stream::Stderr
        } else {
            Stream::Stdout
        };
        self.close(first, now);
        self.close(first.other(), now);
    }

    fn close(&mut self, stream: Stream, now: Instant) {
        if let Some(range) = self.stream_mut(stream).open.take() {
            self.closed.push(range);
            self.last_close = Some(now);
        }
    }

    fn chunk(&self, range: Range, sequence: u64) -> Chunk {
        let data = self.stream(range.stream).bytes[range.start..range.start + range.len].to_vec();
        Chunk {
            stream: range.stream,
            offset: range.start as u64,
            sequence,
            time: range.time,
            data,
        }
    }

    fn stream(&self, stream: Stream) -> &Kept {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }

    fn stream_mut(&mut self, stream: Stream) -> &mut Kept {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

impl Kept {
    /// Grows by doubling like any vector, but never past the cap.
    fn reserve(&mut self, more: usize, cap: usize) {
        let needed = self.bytes.len() + more;
        if needed > self.bytes.capacity() {
            let target = (self.bytes.capacity() * 2).clamp(needed, cap.max(needed));
            self.bytes.reserve_exact(target - self.bytes.len());
        }
    }
}

impl Stream {
    fn other(self) -> Self {
        match self {
            Self::Stdout => Self::Stderr,
            Self::Stderr => Self::Stdout,
        }
    }
}
