//! The helper's end of the socket: frames in, frames out.
#![forbid(unsafe_code)]

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::wire::{self, HEADER, Request, Response, WireError};

/// Answers are gathered up to this many bytes before they are sent.
const GATHERED: usize = 64 * 1024;

/// Why the helper can't go on.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("the stream ended within a frame or a file")]
    CutShort,
    #[error("a request where data was due, or data where a request was due")]
    OutOfOrder,
    #[error("socket: {0}")]
    Socket(#[from] io::Error),
}

/// What comes while a file is written.
#[derive(Debug)]
pub(super) enum Part<'c> {
    Data(&'c [u8]),
    End,
}

/// A socket to `brigd`, blocking.
#[derive(Debug)]
pub(super) struct Connection {
    socket: UnixStream,
    body: Vec<u8>,
    out: Vec<u8>,
    /// The descriptor that came with the last request.
    passed: Option<OwnedFd>,
}

impl Connection {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            body: Vec::new(),
            out: Vec::new(),
            passed: None,
        }
    }

    /// The descriptor that came with the last request.
    pub(super) fn passed(&mut self) -> Option<OwnedFd> {
        self.passed.take()
    }

    /// The socket, to wait for.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Waits for the next request; `None` when the other end is gone.
    pub(super) fn receive(&mut self) -> Result<Option<Request>, Broken> {
        if !self.fill_body()? {
            return Ok(None);
        }
        Ok(Some(wire::decode(&self.body)?))
    }

    /// Waits for the next part of a file.
    pub(super) fn receive_part(&mut self) -> Result<Part<'_>, Broken> {
        if !self.fill_body()? {
            return Err(Broken::CutShort);
        }
        match wire::data_start(&self.body)? {
            Some(start) => Ok(Part::Data(&self.body[start..])),
            None if wire::decode::<Request>(&self.body)? == Request::End => Ok(Part::End),
            None => Err(Broken::OutOfOrder),
        }
    }

    /// Sends an answer, now or with the next ones.
    pub(super) fn send(&mut self, response: &Response) -> Result<(), Broken> {
        self.out.extend_from_slice(&wire::encode(response)?);
        if self.out.len() >= GATHERED {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Sends bytes of a file, after what was gathered.
    pub(super) fn send_data(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        self.flush()?;
        let head = wire::data_head(bytes.len())?;
        let mut parts = [IoSlice::new(&head), IoSlice::new(bytes)];
        let mut left = &mut parts[..];
        while !left.is_empty() {
            match self.socket.write_vectored(left) {
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends what was gathered.
    pub(super) fn flush(&mut self) -> Result<(), Broken> {
        self.socket.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Reads the next body; false at the end of the stream.
    fn fill_body(&mut self) -> Result<bool, Broken> {
        let mut header = [0; HEADER];
        if !self.fill_header(&mut header)? {
            return Ok(false);
        }
        self.body.resize(wire::body_length(header)?, 0);
        self.socket.read_exact(&mut self.body).map_err(cut_short)?;
        Ok(true)
    }

    /// Reads a header, and the descriptor that came with it; false at the end of the stream.
    fn fill_header(&mut self, header: &mut [u8; HEADER]) -> Result<bool, Broken> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        self.passed = None;
        loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut first = [IoSliceMut::new(&mut header[..1])];
            match recvmsg(&self.socket, &mut first, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) if message.bytes == 0 => return Ok(false),
                Ok(_) => {
                    self.passed = control.drain().find_map(|message| match message {
                        RecvAncillaryMessage::ScmRights(mut passed) => passed.next(),
                        _ => None,
                    });
                    break;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        self.socket.read_exact(&mut header[1..]).map_err(cut_short)?;
        Ok(true)
    }
}

fn cut_short(error: io::Error) -> Broken {
    if error.kind() == ErrorKind::UnexpectedEof {
        Broken::CutShort
    } else {
        error.into()
    }
}
