//! Reads a pipe into an output until nobody holds its other end.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe;

use super::{CHUNK_MAX, Output, Stream};

/// Reads a pipe to its end into an output, as fast as it fills, also past the cap.
///
/// The end comes when every process that holds the writing end is gone; the caller bounds that by killing them, or
/// drops this future. Several pumps may share an output: the caller calls [`Output::finish`] after the last one.
///
/// Errors: the descriptor is not the reading end of a pipe.
pub async fn pump(fd: OwnedFd, stream: Stream, output: &Output) -> io::Result<()> {
    let mut pipe = pipe::Receiver::from_owned_fd(fd)?;
    let mut buffer = vec![0; CHUNK_MAX];
    // tokio makes a busy reader give way to other tasks now and then, so a flood starves nobody.
    while poll_fn(|context| {
        let _pumping = output.pumping();
        let mut read = ReadBuf::new(&mut buffer);
        ready!(Pin::new(&mut pipe).poll_read(context, &mut read))?;
        output.record(stream, read.filled());
        Poll::Ready(io::Result::Ok(!read.filled().is_empty()))
    })
    .await?
    {}
    Ok(())
}
