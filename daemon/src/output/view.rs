//! The short form of a stream that a result carries: its beginning and its end.

use std::io;

use super::Count;

/// A character begins at most so many bytes before a place inside of it.
const REACH: u64 = 3;

/// What a result shows of a stream: the head, and the tail where something between had to be left out.
///
/// Three quarters of the limit go to the head, one to the tail, both taken from what was kept. Cuts fall between
/// characters, so that a cut never makes valid text invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    pub head: Vec<u8>,
    /// Empty unless `left_out` is above 0.
    pub tail: Vec<u8>,
    /// Bytes between head and tail. Those that were kept can be had by following the output.
    pub left_out: u64,
    pub count: Count,
}

impl View {
    /// Makes the view of a stream that is there from `start` on, of which `read(start, end)` gives a part; only what is
    /// shown is read.
    pub(super) fn new(
        read: impl Fn(u64, u64) -> io::Result<Vec<u8>>,
        start: u64,
        count: Count,
        limit: u64,
    ) -> io::Result<Self> {
        if start > 0 {
            return Self::tail(read, start, count, limit);
        }
        let mut len = count.kept();
        // The cap may have cut the last character in two.
        if count.dropped > 0 {
            let from = len.saturating_sub(REACH);
            let last = read(from, len)?;
            len = from + boundary_before(&last, last.len()) as u64;
        }
        if len <= limit {
            return Ok(Self {
                head: read(0, len)?,
                ..Self::nothing(count)
            });
        }
        let tail_len = limit / 4;
        let mut head = read(0, limit - tail_len)?;
        head.truncate(boundary_before(&head, head.len()));
        // The cut is seen from what is around it.
        let cut = len - tail_len;
        let from = cut.saturating_sub(REACH);
        let around = read(from, len)?;
        let before = usize::try_from(cut - from).unwrap_or(0);
        let tail = around[boundary_after(&around, before)..].to_vec();
        let left_out = len - head.len() as u64 - tail.len() as u64;
        Ok(Self {
            head,
            tail,
            left_out,
            count,
        })
    }

    /// The view of a stream whose beginning is gone: its end alone.
    fn tail(read: impl Fn(u64, u64) -> io::Result<Vec<u8>>, start: u64, count: Count, limit: u64) -> io::Result<Self> {
        let cut = start.max(count.kept().saturating_sub(limit));
        let from = cut.saturating_sub(REACH).max(start);
        let around = read(from, count.kept())?;
        let before = usize::try_from(cut - from).unwrap_or(0);
        let tail = around[boundary_after(&around, before)..].to_vec();
        Ok(Self {
            left_out: count.kept() - tail.len() as u64,
            tail,
            ..Self::nothing(count)
        })
    }

    /// The view of a stream of which nothing is shown.
    pub(super) fn nothing(count: Count) -> Self {
        Self {
            head: Vec::new(),
            tail: Vec::new(),
            left_out: 0,
            count,
        }
    }

    /// Whether this is not all that the stream produced.
    pub fn is_truncated(&self) -> bool {
        self.left_out > 0 || self.count.dropped > 0
    }

    /// Whether [`View::text`] had to replace bytes that are not UTF-8.
    pub fn is_lossy(&self) -> bool {
        std::str::from_utf8(&self.head).is_err() || std::str::from_utf8(&self.tail).is_err()
    }

    /// Gives the bytes as a result carries them; a line between head and tail says how much is left out.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.clone();
        if self.left_out > 0 {
            bytes.extend_from_slice(self.marker().as_bytes());
            bytes.extend_from_slice(&self.tail);
        }
        bytes
    }

    /// Gives the text as a result carries it: like [`View::bytes`], with U+FFFD for what is not UTF-8.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    fn marker(&self) -> String {
        format!("\n[... {} bytes left out ...]\n", self.left_out)
    }
}

/// Cuts a text to at most `max` bytes, between characters.
pub fn cut_text(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The last place at or before `at` that isn't inside a character; `at` itself if the bytes there are not UTF-8.
fn boundary_before(bytes: &[u8], at: usize) -> usize {
    let from = at.saturating_sub(3);
    let Some(start) = (from..at).rev().find(|&i| !is_continuation(bytes[i])) else {
        return at;
    };
    if start + char_len(bytes[start]) > at { start } else { at }
}

/// The first place at or after `at` that isn't inside a character; `at` itself if the bytes there are not UTF-8.
fn boundary_after(bytes: &[u8], at: usize) -> usize {
    let start = boundary_before(bytes, at);
    let end = start + char_len(bytes.get(start).copied().unwrap_or(0));
    let whole = bytes
        .get(start..end)
        .is_some_and(|slice| std::str::from_utf8(slice).is_ok());
    if start < at && whole { end } else { at }
}

fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// How long the character is that begins with this byte; 1 for bytes that begin none.
fn char_len(first: u8) -> usize {
    match first {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    }
}
