//! The client of a session's file helper: bytes go in and come out as copies, and nothing is waited for without end.
//!
//! What the helper says was said next to hostile code: sizes are checked against what was asked for, and after a
//! protocol error or a missed deadline the connection is not used again.

mod channel;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use brig_jailer::files::wire::{
    self, Collect, Collected, Failure, Found, Get, HEADER, Inspect, Inspected, Place, Put, Request, Response,
    SKIPPED_MAX, Skip, Sum, Time, Walk, WireError,
};
use brig_jailer::sys::refuse_descriptors;
use brig_proto::Bytes;
use prost::bytes::Buf;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};

use crate::artifacts::{SpoolError, Spooled, Stored};
use crate::inputs::Opened;

pub use channel::Channel;

/// What every request may take, beside the time for its bytes.
const BASE: Duration = Duration::from_secs(10);
/// Bytes per millisecond that must flow at least; a busy host writes far more.
const SLOWEST: u64 = 4 * 1024;

/// A connection to one session's helper.
#[derive(Debug)]
pub struct Files {
    /// `None` once it can't be trusted to be in step.
    stream: Option<UnixStream>,
    /// Whether that was the helper's fault, and not that of who stopped talking to it.
    failed: bool,
}

/// A file of ours that is put in.
#[derive(Debug, Clone, Copy)]
pub enum Source<'s> {
    Spool(&'s Stored),
    Record(&'s Opened),
}

/// What a collection found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    pub found: Vec<Found>,
    pub skipped: Vec<(Vec<u8>, Skip)>,
    pub totals: Collected,
}

/// Why a file could not be put in, found or taken out.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The helper says why.
    #[error("{0}")]
    Refused(Failure),
    /// The helper did not answer in time.
    #[error("the file helper did not answer in time")]
    Silent,
    /// The helper is gone, or was given up before.
    #[error("the file helper is gone")]
    Gone,
    /// The helper does not keep to the protocol.
    #[error("the file helper sent {0}")]
    Protocol(&'static str),
    /// A file on the side of brigd could not be read or written.
    #[error("{0}")]
    Spool(#[from] SpoolError),
    /// The same of an input record.
    #[error("input record: {0}")]
    Record(io::Error),
}

impl Source<'_> {
    /// Size in bytes.
    pub fn size(self) -> u64 {
        match self {
            Self::Spool(stored) => stored.size(),
            Self::Record(opened) => opened.size(),
        }
    }

    /// SHA-256 of the bytes when they were stored.
    pub fn sha256(self) -> [u8; 32] {
        match self {
            Self::Spool(stored) => stored.sha256(),
            Self::Record(opened) => opened.sha256(),
        }
    }

    async fn read(self, offset: u64) -> Result<Vec<u8>, FilesError> {
        match self {
            Self::Spool(stored) => Ok(stored.read(offset).await?),
            Self::Record(opened) => opened.read(offset).await.map_err(FilesError::Record),
        }
    }
}

impl From<WireError> for FilesError {
    fn from(error: WireError) -> Self {
        Self::Protocol(match error {
            WireError::TooLarge(_) => "a frame that is too large",
            WireError::Malformed => "a frame that holds no message",
        })
    }
}

impl Files {
    /// Takes the helper's socket.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        // The helper is a guest's neighbour: descriptors of its choice would be closed here, in their own time. Kernels
        // before 6.16 can't refuse them.
        let _older_kernel = refuse_descriptors(socket.as_fd());
        let stream = std::os::unix::net::UnixStream::from(socket);
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: Some(UnixStream::from_std(stream)?),
            failed: false,
        })
    }

    /// In the place of a helper that is not there.
    pub fn none() -> Self {
        Self {
            stream: None,
            failed: false,
        }
    }

    /// Whether it can still be asked for something.
    pub fn is_usable(&self) -> bool {
        self.stream.is_some()
    }

    /// Whether the helper did not do its part.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Writes a file of the session from a file of ours.
    pub async fn put(&mut self, put: Put, source: Source<'_>) -> Result<Sum, FilesError> {
        let deadline = deadline(put.size);
        self.exchange(deadline, async |stream| {
            write(stream, &Request::Put(put)).await?;
            send_bytes(stream, source).await?;
            write(stream, &Request::End).await?;
            match read(stream).await? {
                Response::Stored(sum) => Ok(sum),
                other => Err(unexpected(other)),
            }
        })
        .await
    }

    /// Copies a file of the session to a file of ours; `sink` gets at most `max_bytes`.
    pub async fn get(&mut self, path: &[u8], max_bytes: u64, sink: &mut Spooled) -> Result<(), FilesError> {
        let get = Get {
            path: path.to_vec(),
            offset: 0,
            length: None,
            max_bytes,
        };
        self.exchange(deadline(max_bytes), async |stream| {
            write(stream, &Request::Get(get)).await?;
            let mut left = max_bytes;
            loop {
                match read_part(stream).await? {
                    Part::Data(bytes) => {
                        left = left
                            .checked_sub(bytes.len() as u64)
                            .ok_or(FilesError::Protocol("more bytes than were asked for"))?;
                        sink.write(bytes).await?;
                    }
                    Part::Other(Response::End { .. }) => return Ok(()),
                    Part::Other(other) => return Err(unexpected(other)),
                }
            }
        })
        .await
    }

    /// Remembers what is there; gives whether the walk was cut short.
    pub async fn snapshot(&mut self, walk: Walk) -> Result<bool, FilesError> {
        self.exchange(walk_deadline(walk.time_ms), async |stream| {
            write(stream, &Request::Snapshot(walk)).await?;
            match read(stream).await? {
                Response::Snapshotted { truncated, .. } => Ok(truncated.is_some()),
                other => Err(unexpected(other)),
            }
        })
        .await
    }

    /// Asks for a time that divides what is there from what will change.
    pub async fn now(&mut self) -> Result<Time, FilesError> {
        self.exchange(walk_deadline(0), async |stream| {
            write(stream, &Request::Now).await?;
            match read(stream).await? {
                Response::Now(time) => Ok(time),
                other => Err(unexpected(other)),
            }
        })
        .await
    }

    /// Lists what is new or changed since the time that it names, or since the snapshot.
    pub async fn collect(&mut self, collect: Collect) -> Result<Listing, FilesError> {
        let most = u64::from(collect.max_files) + SKIPPED_MAX;
        self.exchange(walk_deadline(collect.walk.time_ms), async |stream| {
            write(stream, &Request::Collect(collect)).await?;
            let mut listing = Listing::default();
            loop {
                match read(stream).await? {
                    Response::Found(found) => listing.found.push(found),
                    Response::Skipped { path, why } => listing.skipped.push((path, why)),
                    Response::Collected(totals) => return Ok(Listing { totals, ..listing }),
                    other => return Err(unexpected(other)),
                }
                if (listing.found.len() + listing.skipped.len()) as u64 > most {
                    return Err(FilesError::Protocol("more files than were asked for"));
                }
            }
        })
        .await
    }

    /// Looks into a file.
    pub async fn inspect(&mut self, inspect: Inspect) -> Result<Inspected, FilesError> {
        self.exchange(walk_deadline(inspect.time_ms), async |stream| {
            write(stream, &Request::Inspect(inspect)).await?;
            match read(stream).await? {
                Response::Inspected(inspected) => Ok(inspected),
                other => Err(unexpected(other)),
            }
        })
        .await
    }

    /// Begins another conversation with the helper, which lasts as long as it takes.
    pub async fn open(&mut self, place: Place) -> Result<Channel, FilesError> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(|_| FilesError::Gone)?;
        self.exchange(walk_deadline(0), async |stream| {
            channel::pass(stream, &Request::Open(place), theirs.as_fd()).await?;
            match read(stream).await? {
                Response::Opened => Ok(()),
                other => Err(unexpected(other)),
            }
        })
        .await?;
        Ok(Channel::new(Self::new(ours.into()).map_err(|_| FilesError::Gone)?))
    }

    /// Runs one request and its answer; keeps the connection only if both were whole.
    async fn exchange<T>(
        &mut self,
        deadline: Instant,
        talk: impl AsyncFnOnce(&mut UnixStream) -> Result<T, FilesError>,
    ) -> Result<T, FilesError> {
        let mut stream = self.stream.take().ok_or(FilesError::Gone)?;
        let result = timeout_at(deadline, talk(&mut stream))
            .await
            .unwrap_or(Err(FilesError::Silent));
        match result {
            Ok(_) | Err(FilesError::Refused(_)) => self.stream = Some(stream),
            Err(FilesError::Silent | FilesError::Gone | FilesError::Protocol(_)) => self.failed = true,
            Err(FilesError::Spool(_) | FilesError::Record(_)) => {}
        }
        result
    }
}

fn deadline(bytes: u64) -> Instant {
    Instant::now() + BASE + Duration::from_millis(bytes / SLOWEST)
}

fn walk_deadline(time_ms: u32) -> Instant {
    Instant::now() + BASE + Duration::from_millis(time_ms.into())
}

async fn send_bytes(stream: &mut UnixStream, source: Source<'_>) -> Result<(), FilesError> {
    let mut offset = 0;
    while offset < source.size() {
        let bytes = source.read(offset).await?;
        offset += bytes.len() as u64;
        write_data(stream, bytes.into()).await?;
    }
    Ok(())
}

/// Writes a `Data` request, whose bytes are not copied for it.
async fn write_data(stream: &mut UnixStream, bytes: Bytes) -> Result<(), FilesError> {
    let head = Bytes::from(wire::data_head(bytes.len())?);
    stream
        .write_all_buf(&mut head.chain(bytes))
        .await
        .map_err(|_broken| FilesError::Gone)
}

async fn write(stream: &mut UnixStream, request: &impl Serialize) -> Result<(), FilesError> {
    stream
        .write_all(&wire::encode(request)?)
        .await
        .map_err(|_broken| FilesError::Gone)
}

async fn read(stream: &mut UnixStream) -> Result<Response, FilesError> {
    Ok(wire::decode(&read_body(stream).await?)?)
}

/// What comes while a file is read.
#[derive(Debug)]
pub enum Part {
    Data(Bytes),
    Other(Response),
}

/// Reads an answer; the bytes of `Data` stay where they were read.
async fn read_part(stream: &mut UnixStream) -> Result<Part, FilesError> {
    let body = read_body(stream).await?;
    Ok(match wire::data_start(&body)? {
        Some(start) => Part::Data(Bytes::from(body).slice(start..)),
        None => Part::Other(wire::decode(&body)?),
    })
}

async fn read_body(stream: &mut UnixStream) -> Result<Vec<u8>, FilesError> {
    let mut header = [0; HEADER];
    stream
        .read_exact(&mut header)
        .await
        .map_err(|_broken| FilesError::Gone)?;
    let length = wire::body_length(header)?;
    let mut body = Vec::with_capacity(length);
    let mut rest = stream.take(length as u64);
    while body.len() < length {
        let read = rest.read_buf(&mut body).await;
        if read.map_err(|_broken| FilesError::Gone)? == 0 {
            return Err(FilesError::Gone);
        }
    }
    Ok(body)
}

fn unexpected(response: Response) -> FilesError {
    match response {
        Response::Failed(failure) => FilesError::Refused(failure),
        _ => FilesError::Protocol("an answer to something else"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;

    use crate::artifacts::Spool;

    use super::*;

    /// A helper that answers each request of a script, and the client that talks to it.
    fn scripted(answers: Vec<Response>, requests: usize) -> (Files, JoinHandle<(Vec<Request>, UnixStream)>) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut theirs = UnixStream::from_std(theirs).unwrap();
        let helper = tokio::spawn(async move {
            let mut got = Vec::new();
            for _ in 0..requests {
                let mut header = [0; HEADER];
                theirs.read_exact(&mut header).await.unwrap();
                let mut body = vec![0; wire::body_length(header).unwrap()];
                theirs.read_exact(&mut body).await.unwrap();
                got.push(wire::decode(&body).unwrap());
            }
            for answer in answers {
                theirs.write_all(&wire::encode(&answer).unwrap()).await.unwrap();
            }
            // Kept open, so that nothing but the answers ends a call.
            (got, theirs)
        });
        (Files::new(ours.into()).unwrap(), helper)
    }

    async fn spooled(bytes: &[u8]) -> Spooled {
        let mut file = Spool::new(&std::env::temp_dir(), 1024, 8).create(1024).await.unwrap();
        file.write(bytes.to_vec().into()).await.unwrap();
        file
    }

    fn put(size: u64) -> Put {
        Put {
            path: b"a".to_vec(),
            size,
            mode: 0o644,
            mtime: None,
            make_parents: true,
            overwrite: true,
        }
    }

    #[tokio::test]
    async fn a_file_goes_in_by_chunks_and_its_sum_comes_back() {
        let sum = Sum {
            size: 3,
            sha256: [7; 32],
        };
        let (mut files, helper) = scripted(vec![Response::Stored(sum)], 3);
        assert_eq!(
            files
                .put(put(3), Source::Spool(&spooled(b"abc").await.finish().unwrap()))
                .await
                .unwrap(),
            sum
        );
        let (requests, _open) = helper.await.unwrap();
        assert_eq!(
            requests,
            [Request::Put(put(3)), Request::Data(b"abc".to_vec()), Request::End]
        );
    }

    #[tokio::test]
    async fn a_refusal_keeps_the_connection_and_nonsense_ends_it() {
        let failure = Failure {
            op: wire::Op::Open,
            errno: 2,
            path: b"a".to_vec(),
        };
        let sum = Sum {
            size: 0,
            sha256: [0; 32],
        };
        let (mut files, _helper) = scripted(vec![Response::Failed(failure), Response::Stored(sum)], 1);
        let refused = files.get(b"a", 10, &mut spooled(b"").await).await;
        assert!(matches!(refused, Err(FilesError::Refused(_))));
        let confused = files.get(b"a", 10, &mut spooled(b"").await).await;
        assert!(matches!(confused, Err(FilesError::Protocol(_))), "{confused:?}");
        assert!(matches!(
            files.get(b"a", 10, &mut spooled(b"").await).await,
            Err(FilesError::Gone)
        ));
    }

    #[tokio::test]
    async fn more_bytes_than_asked_for_are_a_protocol_error() {
        let (mut files, _helper) = scripted(vec![Response::Data(vec![0; 11])], 1);
        let result = files.get(b"a", 10, &mut spooled(b"").await).await;
        assert!(matches!(
            result,
            Err(FilesError::Protocol("more bytes than were asked for"))
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn a_helper_that_says_nothing_is_given_up() {
        let (_theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut files = Files::new(ours.into()).unwrap();
        let walk = Walk {
            max_entries: 1,
            max_depth: 1,
            time_ms: 1,
        };
        assert!(matches!(files.snapshot(walk).await, Err(FilesError::Silent)));
        assert!(matches!(files.snapshot(walk).await, Err(FilesError::Gone)));
    }
}
