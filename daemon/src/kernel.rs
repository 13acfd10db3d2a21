//! The frames that brigd exchanges with the Python kernel of an execution (rootfs/kernel/README.md).
//!
//! They travel by two pipes, one each way. A socket would also carry descriptors, and brigd would be the one to close
//! what a guest sends, for as long as the guest wants that to take.
//!
//! A frame is the length of its body, a `u32` in little-endian order, and the body: one JSON object. Guest code runs
//! in the process that writes the frames, so what they say is a claim: [`KernelReader`] bounds sizes and counts,
//! passes over events it doesn't know, and stops at the first frame that is none. Nothing ever waits for a
//! frame; how a process ended is told by the jailer alone.

mod claims;

use std::io;

use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use claims::Parsed;
pub use claims::{ErrorClaim, RichResult};

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
    pub threads: u32,
}

/// Sends the one request of an execution. It is done once the kernel has read all but what the pipe holds: the caller
/// bounds that.
///
/// Errors: `InvalidInput` when the frame is larger than [`SENT_MAX`]; `BrokenPipe` when the kernel is gone already.
pub async fn send_run<W: AsyncWrite + Unpin>(pipe: &mut W, run: &Run) -> io::Result<()> {
    let body = serde_json::to_vec(run)?;
    let length = u32::try_from(body.len())
        .ok()
        .filter(|_| body.len() <= SENT_MAX)
        .ok_or_else(|| {
            let message = format!("kernel frame of {} bytes: at most {SENT_MAX} are accepted", body.len());
            io::Error::new(io::ErrorKind::InvalidInput, message)
        })?;
    pipe.write_all(&length.to_le_bytes()).await?;
    pipe.write_all(&body).await
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
    #[error("pipe failed")]
    Pipe,
}

/// Reads the claims of one execution.
#[derive(Debug)]
pub struct KernelReader<R> {
    pipe: R,
    body: Vec<u8>,
    frames: u64,
    read: u64,
    results: usize,
    result_bytes: usize,
    error_seen: bool,
    ended: bool,
    /// Results, and parts of results, that were left out because they were too large or too many.
    pub dropped: u64,
    /// Why reading ended early.
    pub broken: Option<Broken>,
}

impl<R: AsyncRead + Unpin> KernelReader<R> {
    /// Starts to read.
    pub fn new(pipe: R) -> Self {
        Self {
            pipe,
            body: Vec::new(),
            frames: 0,
            read: 0,
            results: 0,
            result_bytes: 0,
            error_seen: false,
            ended: false,
            dropped: 0,
            broken: None,
        }
    }

    /// Waits for the next claim; `None` at the end of the pipe, after [`Claim::Done`], and after the first bad frame.
    ///
    /// A call that was dropped half way may have taken a part of a frame; the reader must not be used after that.
    pub async fn next(&mut self) -> Option<Claim> {
        while !self.ended {
            match self.frame().await {
                Ok(true) => {}
                Ok(false) => self.ended = true,
                Err(broken) => {
                    self.broken = Some(broken);
                    self.ended = true;
                }
            }
            if self.ended {
                break;
            }
            match claims::parse(&self.body) {
                Some(parsed) => {
                    if let Some(claim) = self.accept(parsed) {
                        return Some(claim);
                    }
                }
                None => {
                    self.broken = Some(Broken::Malformed);
                    self.ended = true;
                }
            }
        }
        None
    }

    /// Reads one body; false at an end between frames.
    async fn frame(&mut self) -> Result<bool, Broken> {
        let mut header = [0; 4];
        match self.fill(&mut header).await? {
            0 => return Ok(false),
            4 => {}
            _ => return Err(Broken::CutShort),
        }
        let length = u32::from_le_bytes(header);
        let size = usize::try_from(length).unwrap_or(usize::MAX);
        if size > FRAME_MAX {
            return Err(Broken::TooLarge);
        }
        self.frames += 1;
        self.read += u64::from(length);
        if self.frames > FRAMES_MAX || self.read > READ_MAX {
            return Err(Broken::TooMany);
        }
        self.body.clear();
        // Memory grows with what really comes, not with what the header promises.
        let mut limited = (&mut self.pipe).take(u64::from(length));
        limited.read_to_end(&mut self.body).await.map_err(|_| Broken::Pipe)?;
        if self.body.len() == size {
            Ok(true)
        } else {
            Err(Broken::CutShort)
        }
    }

    async fn fill(&mut self, bytes: &mut [u8]) -> Result<usize, Broken> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.pipe.read(&mut bytes[filled..]).await {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(_) => return Err(Broken::Pipe),
            }
        }
        Ok(filled)
    }

    fn accept(&mut self, parsed: Parsed) -> Option<Claim> {
        match parsed {
            Parsed::Result { result, dropped } => {
                self.dropped += dropped;
                let size = result.size();
                if self.results == RESULTS_MAX || self.result_bytes + size > RESULT_BYTES_MAX {
                    self.dropped += 1;
                    return None;
                }
                self.results += 1;
                self.result_bytes += size;
                Some(Claim::Result(result))
            }
            Parsed::Error(_) if self.error_seen => None,
            Parsed::Error(error) => {
                self.error_seen = true;
                Some(Claim::Error(error))
            }
            Parsed::Done => {
                self.ended = true;
                Some(Claim::Done)
            }
            Parsed::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests;
