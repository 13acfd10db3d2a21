//! The frames that brigd exchanges with the Python kernel of an execution (rootfs/kernel/README.md).
//!
//! They travel by two pipes, one each way. A socket would also carry descriptors, and brigd would be the one to close
//! what a guest sends, for as long as the guest wants that to take.
//!
//! A frame is the length of its body, a `u32` in little-endian order, and the body: one JSON object. Guest code runs
//! in the process that writes the frames, so what they say is a claim: [`Frames`] bounds sizes and counts,
//! passes over events it doesn't know, and stops at the first frame that is none. Nothing ever waits for a
//! frame; how a process ended is told by the jailer alone.
//!
//! Both ways pass by a memory file that outlives brigd, so that the next one goes on where this one was ([`Mark`]).

mod claims;
pub mod context;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use claims::Parsed;
pub use claims::{DoneClaim, ErrorClaim, RichResult};

/// The largest body of a frame to the kernel, in bytes: 1 MiB of code fits, however it is escaped.
pub const SENT_MAX: usize = 8 * 1024 * 1024;
/// The largest body of a frame from the kernel, in bytes.
pub const FRAME_MAX: usize = 1024 * 1024;
/// The most rich results of an execution.
pub const RESULTS_MAX: usize = 64;
/// The most bytes of all rich results of an execution.
pub const RESULT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The most bytes that are read of one execution, so that a flood of frames doesn't occupy brigd.
const READ_MAX: u64 = 64 * 1024 * 1024;
/// The most frames that are read of one execution.
const FRAMES_MAX: u64 = 10_000;

/// What the kernel shall run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "op", rename = "run")]
pub struct Run {
    pub code: String,
    /// `sys.argv`; the first is the file's name.
    pub argv: Vec<String>,
    /// The name that tracebacks show.
    pub filename: String,
    /// How many threads numeric libraries may start.
    pub threads: u64,
}

/// What the kernel shall do before it is known what it shall run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "op", rename = "warm")]
pub struct Warm<'a> {
    /// Modules to be imported.
    pub imports: &'a [String],
    /// Code to be run once, in a namespace that is thrown away.
    pub code: Option<&'a str>,
    /// As in [`Run`].
    pub threads: u64,
    /// Whether it shall be forked into sessions then.
    pub zygote: bool,
    /// Whether it will be a context.
    pub context: bool,
}

/// The most that is read of what an interpreter says that was asked to be a zygote, in bytes.
pub const SAID_MAX: usize = 16 * 1024;

/// Reads what an interpreter says that was asked to be a zygote: that it is one, or why not.
pub fn zygote_said(bytes: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Said {
        ev: String,
        message: Option<String>,
    }
    let body = bytes.split_first_chunk().and_then(|(length, rest)| {
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        rest.get(..length)
    });
    let said: Option<Said> = body.and_then(|body| serde_json::from_slice(body).ok());
    match said {
        Some(Said { ev, .. }) if ev == "zygote" => Ok(()),
        Some(Said { message: Some(why), .. }) => Err(crate::output::cut_text(&why, 500).to_owned()),
        _ => Err("it says something else than was asked".to_owned()),
    }
}

/// Writes the request that comes before the one of an execution as its frame.
pub fn warm_request(warm: &Warm<'_>) -> io::Result<Vec<u8>> {
    frame(warm)
}

/// Writes the one request of an execution as its frame.
///
/// Errors: `InvalidInput` when the frame is larger than [`SENT_MAX`].
pub fn request(run: &Run) -> io::Result<Vec<u8>> {
    frame(run)
}

fn frame(body: &impl Serialize) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(body)?;
    let length = u32::try_from(body.len())
        .ok()
        .filter(|_| body.len() <= SENT_MAX)
        .ok_or_else(|| {
            let message = format!("kernel frame of {} bytes: at most {SENT_MAX} are accepted", body.len());
            io::Error::new(io::ErrorKind::InvalidInput, message)
        })?;
    Ok([&length.to_le_bytes()[..], &body].concat())
}

/// A claim of the kernel.
#[derive(Debug, Clone, PartialEq)]
pub enum Claim {
    Result(RichResult),
    /// At most one per execution, the first.
    Error(ErrorClaim),
    /// The code came to its end. The process should exit now.
    Done,
}

/// What went wrong with the frames, for the log; it changes nothing about how an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("frame larger than {FRAME_MAX} bytes")]
    TooLarge,
    #[error("frame cut short")]
    CutShort,
    #[error("frame that is not a JSON object of the protocol")]
    Malformed,
    #[error("more frames than an execution may send")]
    TooMany,
    #[error("kept frames can't be read")]
    File,
}

/// How far the frames of an execution were read, and what was counted on the way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Where the next frame begins, among all bytes of frames.
    pub at: u64,
    frames: u64,
    read: u64,
    results: usize,
    result_bytes: usize,
    error_seen: bool,
    /// Whether nothing more is listened to.
    pub ended: bool,
    /// Results, and parts of results, that were left out because they were too large or too many.
    pub dropped: u64,
}

/// Reads the claims of one execution from the file in which its frames are kept.
#[derive(Debug)]
pub struct Frames {
    file: Arc<File>,
    /// Where the frames begin in the file.
    base: u64,
    pub mark: Mark,
    /// Why reading ended early.
    pub broken: Option<Broken>,
}

impl Frames {
    /// Goes on reading at a mark; the first one is the default.
    pub fn new(file: Arc<File>, base: u64, mark: Mark) -> Self {
        Self {
            file,
            base,
            mark,
            broken: None,
        }
    }

    /// Takes the next claim out of the frames that are there: `end` bytes so far, which are all if `last`.
    ///
    /// `None` where the next frame is not whole yet, after [`Claim::Done`], and after the first bad frame.
    pub fn next(&mut self, end: u64, last: bool) -> Option<Claim> {
        while !self.mark.ended {
            let parsed = match self.frame(end, last) {
                Ok(Some(body)) => claims::parse(&body).ok_or(Broken::Malformed),
                Ok(None) if last => {
                    self.mark.ended = true;
                    return None;
                }
                Ok(None) => return None,
                Err(broken) => Err(broken),
            };
            match parsed.map(|parsed| self.accept(parsed)) {
                Ok(Some(claim)) => return Some(claim),
                Ok(None) => {}
                Err(broken) => {
                    self.broken = Some(broken);
                    self.mark.ended = true;
                }
            }
        }
        None
    }

    /// Reads one body; nothing while it isn't there as a whole, and at an end between frames.
    fn frame(&mut self, end: u64, last: bool) -> Result<Option<Vec<u8>>, Broken> {
        let incomplete = |there: u64| {
            if last && there > 0 {
                Err(Broken::CutShort)
            } else {
                Ok(None)
            }
        };
        let there = end - self.mark.at;
        let mut header = [0; 4];
        if there < 4 {
            return incomplete(there);
        }
        self.read(&mut header, self.mark.at)?;
        let length = u32::from_le_bytes(header);
        let size = usize::try_from(length).unwrap_or(usize::MAX);
        if size > FRAME_MAX {
            return Err(Broken::TooLarge);
        }
        if self.mark.frames == FRAMES_MAX || self.mark.read + u64::from(length) > READ_MAX {
            return Err(Broken::TooMany);
        }
        if there - 4 < u64::from(length) {
            return incomplete(there);
        }
        let mut body = vec![0; size];
        self.read(&mut body, self.mark.at + 4)?;
        self.mark.frames += 1;
        self.mark.read += u64::from(length);
        self.mark.at += 4 + u64::from(length);
        Ok(Some(body))
    }

    fn read(&self, bytes: &mut [u8], at: u64) -> Result<(), Broken> {
        self.file
            .read_exact_at(bytes, self.base + at)
            .map_err(|_failed| Broken::File)
    }

    fn accept(&mut self, parsed: Parsed) -> Option<Claim> {
        let mark = &mut self.mark;
        match parsed {
            Parsed::Result { result, dropped } => {
                mark.dropped += dropped;
                let size = result.size();
                if mark.results == RESULTS_MAX || mark.result_bytes + size > RESULT_BYTES_MAX {
                    mark.dropped += 1;
                    return None;
                }
                mark.results += 1;
                mark.result_bytes += size;
                Some(Claim::Result(result))
            }
            Parsed::Error(_) if mark.error_seen => None,
            Parsed::Error(error) => {
                mark.error_seen = true;
                Some(Claim::Error(error))
            }
            Parsed::Done(_) => {
                mark.ended = true;
                Some(Claim::Done)
            }
            Parsed::Ready | Parsed::Refused(_) | Parsed::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests;
