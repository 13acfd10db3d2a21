//! How a stream is cut into chunks: at most 64 KiB each, and not too many of them.
//!
//! A chunk is joined from what comes while it is open. It is closed when it is full, when the other stream writes, or
//! when the pipes are empty, if one more chunk can be afforded: each costs memory and a record of the journal, and a
//! guest that alternates one-byte writes between its streams would else get a chunk for each byte.

use std::time::{Duration, Instant, SystemTime};

use super::{CHUNK_MAX, Range, Stream};

/// Chunks that every execution may have, however short they are.
const FREE_CHUNKS: u64 = 1024;
/// Kept bytes that pay for one more chunk.
const BYTES_PER_CHUNK: u64 = 256;
/// However short chunks are, one may be closed after this time since the last one.
const CLOSE_AFTER: Duration = Duration::from_millis(50);

/// The chunks of an execution that are open, and when they may be closed.
#[derive(Debug)]
pub struct Chunks {
    /// Bytes kept of each stream.
    kept: [u64; 2],
    open: [Option<Range>; 2],
    closed: u64,
    last_close: Option<Instant>,
    /// Closed, and not yet taken.
    ready: Vec<Range>,
}

impl Chunks {
    /// Goes on after `closed` chunks with so many kept bytes of each stream.
    pub fn new(closed: u64, kept: [u64; 2]) -> Self {
        Self {
            kept,
            open: [None, None],
            closed,
            last_close: None,
            ready: Vec::new(),
        }
    }

    /// Takes bytes that were added to what is kept of a stream.
    pub fn record(&mut self, stream: Stream, mut len: usize, now: Instant, time: SystemTime) {
        // Order between the streams: what the other one wrote before ends here, if chunks can be afforded.
        if len > 0 && self.open[stream.other().index()].is_some() && self.may_close(now) {
            self.close(stream.other(), now);
        }
        while len > 0 {
            let start = self.kept[stream.index()];
            let range = self.open[stream.index()].get_or_insert(Range {
                stream,
                start,
                len: 0,
                time,
            });
            let take = len.min(CHUNK_MAX - range.len);
            range.len += take;
            let full = range.len == CHUNK_MAX;
            self.kept[stream.index()] += take as u64;
            len -= take;
            if full {
                self.close(stream, now);
            }
        }
    }

    /// Closes what is open, if it can be afforded; else says when it can.
    pub fn close_due(&mut self, now: Instant) -> Option<Duration> {
        if self.open.iter().all(Option::is_none) {
            return None;
        }
        if self.may_close(now) {
            self.close_all(now);
            return None;
        }
        Some(self.closable_in(now))
    }

    /// Closes both streams' chunks, the one that was begun first before the other.
    pub fn close_all(&mut self, now: Instant) {
        let started = |stream: Stream| self.open[stream.index()].map(|range| range.time);
        let first = if started(Stream::Stderr) < started(Stream::Stdout) {
            Stream::Stderr
        } else {
            Stream::Stdout
        };
        self.close(first, now);
        self.close(first.other(), now);
    }

    /// Gives the chunks that were closed since the last call.
    pub fn take(&mut self) -> Vec<Range> {
        std::mem::take(&mut self.ready)
    }

    fn may_close(&self, now: Instant) -> bool {
        let kept: u64 = self.kept.iter().sum();
        self.closed < FREE_CHUNKS + kept / BYTES_PER_CHUNK || self.closable_in(now).is_zero()
    }

    fn closable_in(&self, now: Instant) -> Duration {
        self.last_close.map_or(Duration::ZERO, |last| {
            CLOSE_AFTER.saturating_sub(now.duration_since(last))
        })
    }

    fn close(&mut self, stream: Stream, now: Instant) {
        if let Some(range) = self.open[stream.index()].take() {
            self.ready.push(range);
            self.closed += 1;
            self.last_close = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Stream::{Stderr, Stdout};

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn sizes(chunks: &mut Chunks) -> Vec<(Stream, u64, usize)> {
        let ranges = chunks.take();
        ranges
            .iter()
            .map(|range| (range.stream, range.start, range.len))
            .collect()
    }

    #[test]
    fn large_writes_are_cut_into_chunks_of_64_kib() {
        let mut chunks = Chunks::new(0, [0, 0]);
        let now = Instant::now();
        chunks.record(Stdout, 200_000, now, NOW);
        assert_eq!(chunks.close_due(now), None);
        let expected = [(0, 65_536), (65_536, 65_536), (131_072, 65_536), (196_608, 3_392)];
        assert_eq!(sizes(&mut chunks), expected.map(|(start, len)| (Stdout, start, len)));
    }

    #[test]
    fn small_writes_are_joined_while_the_chunk_is_open() {
        let mut chunks = Chunks::new(0, [0, 0]);
        let now = Instant::now();
        (0..100_000).for_each(|_| chunks.record(Stdout, 1, now, NOW));
        chunks.close_all(now);
        assert_eq!(sizes(&mut chunks), [(Stdout, 0, 65_536), (Stdout, 65_536, 34_464)]);
    }

    #[test]
    fn order_between_the_streams_is_that_of_reading() {
        let mut chunks = Chunks::new(0, [0, 0]);
        let now = Instant::now();
        for _ in 0..50 {
            chunks.record(Stdout, 1, now, NOW);
            chunks.record(Stderr, 2, now, NOW);
        }
        chunks.close_all(now);
        let order: Vec<Stream> = chunks.take().iter().map(|chunk| chunk.stream).collect();
        assert_eq!(order, [Stdout, Stderr].repeat(50));
    }

    #[test]
    fn a_flood_of_tiny_alternating_writes_gets_few_chunks() {
        let mut chunks = Chunks::new(0, [0, 0]);
        let (mut now, mut count) = (Instant::now(), 0);
        for _ in 0..200_000 {
            for stream in [Stdout, Stderr] {
                chunks.record(stream, 1, now, NOW);
                chunks.close_due(now);
                count += chunks.take().len();
            }
            now += Duration::from_micros(5);
        }
        // 1,024 free ones, one per 256 bytes, and one per 50 ms of that second.
        assert!((2_000..2_700).contains(&count), "{count} chunks");
    }

    #[test]
    fn a_chunk_that_can_not_be_afforded_is_closed_soon() {
        let mut chunks = Chunks::new(FREE_CHUNKS, [0, 0]);
        let now = Instant::now();
        chunks.record(Stdout, 1, now, NOW);
        assert_eq!(chunks.close_due(now), None, "the first one after a start is free");
        chunks.record(Stdout, 1, now, NOW);
        let later = now + Duration::from_millis(20);
        assert_eq!(chunks.close_due(later), Some(Duration::from_millis(30)));
        assert_eq!(chunks.close_due(later + Duration::from_millis(30)), None);
        assert_eq!(sizes(&mut chunks), [(Stdout, 0, 1), (Stdout, 1, 1)]);
    }

    #[test]
    fn a_start_in_the_middle_goes_on_where_the_stream_was() {
        let mut chunks = Chunks::new(3, [10, 7]);
        chunks.record(Stderr, 5, Instant::now(), NOW);
        chunks.close_all(Instant::now());
        assert_eq!(sizes(&mut chunks), [(Stderr, 7, 5)]);
    }
}
