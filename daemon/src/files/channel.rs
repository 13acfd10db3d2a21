//! A conversation with the file helper that belongs to one call of a client, and ends with it.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use brig_jailer::files::wire::{self, Request, Response};
use brig_proto::Bytes;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use super::{Files, FilesError, Part, read, read_part, unexpected, write, write_data};

/// How long the helper may take for one step of a conversation.
const STEP: Duration = Duration::from_secs(30);
/// How long the helper may take to put away what has arrived.
const CLOSE: Duration = Duration::from_secs(5);

/// A conversation of its own.
#[derive(Debug)]
pub struct Channel(Files);

impl Channel {
    pub(super) fn new(files: Files) -> Self {
        Self(files)
    }

    /// The same for requests that are answered one by one.
    pub fn into_files(self) -> Files {
        self.0
    }

    /// Sends a request and takes the first answer.
    pub async fn ask(&mut self, request: Request) -> Result<Response, FilesError> {
        self.send(request).await?;
        self.receive().await
    }

    /// Sends a request.
    pub async fn send(&mut self, request: Request) -> Result<(), FilesError> {
        let sent = tokio::time::timeout(STEP, write(self.stream()?, &request)).await;
        sent.unwrap_or(Err(FilesError::Silent))
    }

    /// Sends bytes of a file.
    pub async fn send_data(&mut self, bytes: Bytes) -> Result<(), FilesError> {
        let sent = tokio::time::timeout(STEP, write_data(self.stream()?, bytes)).await;
        sent.unwrap_or(Err(FilesError::Silent))
    }

    /// Takes the next part of a file; a refusal is an error.
    pub async fn receive_part(&mut self) -> Result<Part, FilesError> {
        let received = tokio::time::timeout(STEP, read_part(self.stream()?)).await;
        match received.unwrap_or(Err(FilesError::Silent))? {
            Part::Other(refused @ Response::Failed(_)) => Err(unexpected(refused)),
            part => Ok(part),
        }
    }

    /// Takes an answer that comes by itself; a refusal is an error.
    pub async fn receive(&mut self) -> Result<Response, FilesError> {
        let received = tokio::time::timeout(STEP, self.next()).await;
        received.unwrap_or(Err(FilesError::Silent))
    }

    /// Waits for an answer, however long it takes. The conversation is over where this is dropped half way.
    pub async fn next(&mut self) -> Result<Response, FilesError> {
        match read(self.stream()?).await? {
            refused @ Response::Failed(_) => Err(unexpected(refused)),
            response => Ok(response),
        }
    }

    /// Hangs up, and waits until the helper has taken notice.
    pub async fn close(mut self) {
        let Ok(stream) = self.stream() else { return };
        let closing = async {
            // It may have hung up before.
            let _ = stream.shutdown().await;
            let mut rest = [0; 4096];
            while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
        };
        let _ = tokio::time::timeout(CLOSE, closing).await;
    }

    fn stream(&mut self) -> Result<&mut UnixStream, FilesError> {
        self.0.stream.as_mut().ok_or(FilesError::Gone)
    }
}

/// Sends a request along with a descriptor.
pub(super) async fn pass(
    stream: &mut UnixStream,
    request: &Request,
    descriptor: BorrowedFd<'_>,
) -> Result<(), FilesError> {
    let frame = wire::encode(request)?;
    let sent = stream
        .async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let descriptors = [descriptor];
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
            Ok(sendmsg(
                stream.as_fd(),
                &[IoSlice::new(&frame)],
                &mut control,
                SendFlags::NOSIGNAL,
            )?)
        })
        .await;
    match sent {
        Ok(sent) if sent == frame.len() => Ok(()),
        _ => Err(FilesError::Gone),
    }
}
