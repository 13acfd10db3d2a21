//! The frames of a context: one process that runs one piece of code after the other (rootfs/kernel/README.md).
//!
//! A context does not outlive brigd, so that what it says is read from the pipe and kept nowhere. It is a claim all the
//! same. A body that can't be read costs what it would have said; a length that is none ends the reading, since nothing
//! behind it can be found.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;

use super::claims::{Parsed, parse_said};
use super::{Broken, DoneClaim, ErrorClaim, FRAME_MAX, RichResult, frame};

/// The most frames of one execution, and the most bytes in them: a flood ends the interpreter.
const FRAMES_MAX: u64 = 100_000;
const READ_MAX: u64 = 256 * 1024 * 1024;

/// What a context is asked.
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Request<'r> {
    Start {
        language: &'r str,
        directory: &'r str,
        /// How many threads numeric libraries may start.
        threads: u64,
    },
    Run {
        id: &'r str,
        code: &'r str,
        environment: &'r BTreeMap<String, String>,
    },
    Interrupt {
        id: &'r str,
    },
}

impl Request<'_> {
    /// Writes the request as its frame.
    ///
    /// Errors: `InvalidInput` when the frame is larger than [`super::SENT_MAX`].
    pub fn frame(&self) -> io::Result<Vec<u8>> {
        frame(self)
    }
}

/// A claim of a context.
#[derive(Debug, Clone, PartialEq)]
pub enum Claim {
    Ready,
    Refused(String),
    /// Of the execution that is named, or from a thread.
    Result(Option<String>, RichResult),
    Error(Option<String>, ErrorClaim),
    Done(Option<String>, DoneClaim),
    /// Something was too large or not to be read.
    LeftOut(u64),
}

/// Takes frames out of the bytes of a pipe.
#[derive(Debug, Default)]
pub struct Reader {
    bytes: Vec<u8>,
    /// Where the next frame begins.
    at: usize,
    frames: u64,
    read: u64,
    /// Claims of the last frame that are still to be given.
    left_out: u64,
}

impl Reader {
    /// Counts the frames of another execution.
    pub fn begin(&mut self) {
        (self.frames, self.read) = (0, 0);
    }

    /// Adds what came. Whoever does takes all frames before adding more, which bounds what is held.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// How many bytes it was given that it has not taken a claim of.
    pub fn held(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next claim; nothing while no frame is whole.
    pub fn take(&mut self) -> Result<Option<Claim>, Broken> {
        loop {
            if self.left_out > 0 {
                return Ok(Some(Claim::LeftOut(std::mem::take(&mut self.left_out))));
            }
            let Some(body) = self.body()? else {
                self.shrink();
                return Ok(None);
            };
            let Some(said) = parse_said(&self.bytes[body]) else {
                self.left_out += 1;
                continue;
            };
            let id = said.id;
            return Ok(Some(match said.parsed {
                Parsed::Result { result, dropped } => {
                    self.left_out += dropped;
                    Claim::Result(id, result)
                }
                Parsed::Error(error) => Claim::Error(id, error),
                Parsed::Done(done) => Claim::Done(id, done),
                Parsed::Ready => Claim::Ready,
                Parsed::Refused(message) => Claim::Refused(message),
                Parsed::Unknown => continue,
            }));
        }
    }

    /// Where the next body lies, once it is whole.
    fn body(&mut self) -> Result<Option<std::ops::Range<usize>>, Broken> {
        let there = &self.bytes[self.at..];
        let Some(header) = there.first_chunk::<4>() else {
            return Ok(None);
        };
        let size = usize::try_from(u32::from_le_bytes(*header)).unwrap_or(usize::MAX);
        if size > FRAME_MAX {
            return Err(Broken::TooLarge);
        }
        if self.frames == FRAMES_MAX || self.read + size as u64 > READ_MAX {
            return Err(Broken::TooMany);
        }
        if there.len() - 4 < size {
            return Ok(None);
        }
        self.frames += 1;
        self.read += size as u64;
        let start = self.at + 4;
        self.at = start + size;
        Ok(Some(start..self.at))
    }

    /// Large frames are rare: what they took is given back.
    fn shrink(&mut self) {
        if self.at == self.bytes.len() {
            self.at = 0;
            self.bytes = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(body: &str) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap();
        [&length.to_le_bytes()[..], body.as_bytes()].concat()
    }

    fn all(reader: &mut Reader) -> Vec<Claim> {
        std::iter::from_fn(|| reader.take().unwrap()).collect()
    }

    #[test]
    fn frames_are_read_however_they_are_cut() {
        let bytes = [
            framed(r#"{"ev":"ready","language":"python","version":"3.11.2"}"#),
            framed(r#"{"ev":"news","id":"e1"}"#),
            framed(r#"{"ev":"result","id":"e1","main":true,"data":{"text/plain":"1"}}"#),
            framed(r#"{"ev":"done","id":"e1","exit_code":3,"execution_count":7,"kept":false,"names":null}"#),
        ]
        .concat();
        let mut reader = Reader::default();
        let mut claims = Vec::new();
        for byte in bytes {
            reader.add(&[byte]);
            claims.extend(all(&mut reader));
        }
        let done = DoneClaim {
            exit_code: 3,
            execution_count: 7,
            kept: false,
        };
        let id = || Some("e1".to_owned());
        assert!(matches!(&claims[..2], [Claim::Ready, Claim::Result(found, _)] if *found == id()));
        assert_eq!(claims[2..], [Claim::Done(id(), done)]);
        assert!(reader.bytes.is_empty());
    }

    #[test]
    fn a_body_that_is_none_costs_only_itself() {
        let mut reader = Reader::default();
        reader.add(&[framed("nonsense"), framed("[1]"), framed(r#"{"ev":"ready"}"#)].concat());
        let claims = all(&mut reader);
        assert_eq!(claims, [Claim::LeftOut(1), Claim::LeftOut(1), Claim::Ready]);
    }

    #[test]
    fn a_length_that_is_none_and_a_flood_end_the_reading() {
        let mut reader = Reader::default();
        reader.add(&u32::MAX.to_le_bytes());
        assert_eq!(reader.take(), Err(Broken::TooLarge));
        let mut reader = Reader::default();
        let flood = framed("{\"ev\":\"\"}").repeat(usize::try_from(FRAMES_MAX).unwrap());
        reader.add(&flood);
        assert_eq!(reader.take(), Ok(None));
        reader.add(&framed("{\"ev\":\"ready\"}"));
        assert_eq!(reader.take(), Err(Broken::TooMany));
        reader.begin();
        assert_eq!(reader.take(), Ok(Some(Claim::Ready)));
    }
}
