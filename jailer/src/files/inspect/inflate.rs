//! Unpacks piece by piece, and keeps nothing of it.
#![forbid(unsafe_code)]

use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZError, MZFlush, MZStatus};

use super::Stop;

/// What is unpacked at one time, in bytes.
const PIECE: usize = 64 * 1024;

/// A stream that is being unpacked.
pub(super) struct Inflater {
    state: Box<InflateState>,
    out: Vec<u8>,
    total: u64,
}

/// Where a stream stands after a piece of input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// All of the input was taken, and more is needed.
    Hungry,
    /// The stream ended after so many bytes of the input.
    Ended(usize),
    /// Whoever looks has seen enough.
    Enough,
}

impl Inflater {
    pub(super) fn new(format: DataFormat) -> Self {
        Self {
            state: InflateState::new_boxed(format),
            out: vec![0; PIECE],
            total: 0,
        }
    }

    /// Bytes that came out so far.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Takes input and shows what comes out to `look`, which says whether to go on.
    pub(super) fn feed(&mut self, input: &[u8], mut look: impl FnMut(&[u8]) -> bool) -> Result<Progress, Stop> {
        let mut rest = input;
        loop {
            let step = inflate(&mut self.state, rest, &mut self.out, MZFlush::None);
            rest = &rest[step.bytes_consumed..];
            self.total = self.total.saturating_add(step.bytes_written as u64);
            let goes_on = step.bytes_written == 0 || look(&self.out[..step.bytes_written]);
            match step.status {
                _ if !goes_on => return Ok(Progress::Enough),
                Ok(MZStatus::StreamEnd) => return Ok(Progress::Ended(input.len() - rest.len())),
                Ok(_) if step.bytes_written > 0 || !rest.is_empty() => {}
                Ok(_) | Err(MZError::Buf) => return Ok(Progress::Hungry),
                Err(_) => return Err(Stop::Invalid("what can't be unpacked")),
            }
        }
    }
}
