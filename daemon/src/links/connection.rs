//! One connection of somebody who follows links: what it may cost.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// The head of a request, in bytes; more is answered with 431.
const HEAD_MAX: usize = 16 * 1024;
/// How long the head of a request may take to come, and how long a connection may stay without one.
const HEAD_TAKES: Duration = Duration::from_secs(10);
/// How long a client may take nothing of what is sent.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a connection may last.
const CONNECTION_LASTS: Duration = Duration::from_secs(3600);

/// Serves a connection until it ends, or takes too long; on `stop`, what goes on comes to its end.
pub(super) async fn serve<S>(stream: S, routes: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TAKES)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(Patient::new(stream)), TowerToHyperService::new(routes));
    let mut connection = pin!(connection);
    let served = async {
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    };
    match tokio::time::timeout(CONNECTION_LASTS, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "connection of a link broken"),
        Err(_) => debug!("connection of a link cut off"),
    }
}

/// A stream that breaks when its other end takes nothing for [`PATIENCE`].
struct Patient<S> {
    stream: S,
    /// Set while something waits to be taken.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    fn new(stream: S) -> Self {
        Self { stream, deadline: None }
    }

    fn wait<T>(&mut self, cx: &mut Context<'_>, taken: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if taken.is_ready() {
            self.deadline = None;
            return taken;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        ready!(deadline.as_mut().poll(cx));
        let message = format!("nothing was read for {} s", PATIENCE.as_secs());
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let taken = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wait(cx, taken)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let taken = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wait(cx, taken)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::Instant;

    use super::*;

    /// A connection to a server that has more to send than anybody takes.
    fn connect() -> (DuplexStream, tokio::task::JoinHandle<()>) {
        let (ours, theirs) = duplex(4096);
        let endless = || async {
            let piece = || Ok::<_, Infallible>(vec![b'x'; 4096]);
            Body::from_stream(tokio_stream::iter(std::iter::repeat_with(piece)))
        };
        let routes = Router::new().route("/", get(endless));
        (ours, tokio::spawn(serve(theirs, routes, CancellationToken::new())))
    }

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_or_never_comes_to_an_end_is_cut_off() {
        for said in [&b""[..], b"GET / HTTP/1.1\r\nHost"] {
            let start = Instant::now();
            let (mut client, served) = connect();
            client.write_all(said).await.unwrap();
            served.await.unwrap();
            assert_eq!(start.elapsed().as_secs(), HEAD_TAKES.as_secs());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_cut_off_and_who_is_slow_is_not() {
        let start = Instant::now();
        let (mut client, served) = connect();
        client.write_all(REQUEST).await.unwrap();
        let mut taken = vec![0; 4096];
        for _ in 0..4 {
            tokio::time::sleep(PATIENCE - Duration::from_secs(1)).await;
            client.read_exact(&mut taken).await.unwrap();
        }
        let last = start.elapsed();
        served.await.unwrap();
        assert_eq!((start.elapsed() - last).as_secs(), PATIENCE.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_stays_for_ever() {
        let start = Instant::now();
        let (mut client, served) = connect();
        client.write_all(REQUEST).await.unwrap();
        let mut taken = vec![0; 4096];
        while client.read_exact(&mut taken).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
        served.await.unwrap();
        assert!(start.elapsed() <= CONNECTION_LASTS + Duration::from_secs(60));
    }

    #[tokio::test]
    async fn a_head_that_is_too_large_is_refused() {
        let (mut client, _served) = connect();
        let head = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(2 * HEAD_MAX));
        let (mut read, mut write) = tokio::io::split(&mut client);
        let (_broken_off, answer) = tokio::join!(write.write_all(head.as_bytes()), async {
            let mut answer = vec![0; 12];
            read.read_exact(&mut answer).await.map(|_| answer)
        });
        assert_eq!(answer.unwrap(), b"HTTP/1.1 431");
    }
}
