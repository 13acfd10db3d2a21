//! Serves the requests of one connection, one after the other.
#![forbid(unsafe_code)]

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::time::Timespec;

use crate::faults::{Point, point};

use super::changes::{Collection, Snapshot, coarse_now, dividing_time};
pub use super::connection::Broken;
use super::connection::{Connection, Part};
use super::root::{Root, failure};
use super::seal::Roots;
use super::transfer::{Trouble, Upload, arrived, send_file};
use super::wire::{self, CHANNELS_MAX, Failure, Op, Place, Put, Request, Response, Time, Walk};
use super::{inspect, list, remove, tree, watch};

/// What the stack of a conversation's thread takes up at most, in bytes.
const STACK: usize = 512 * 1024;

/// Answers whatever is asked first with a failure, and serves nothing.
pub fn refuse(socket: UnixStream, failure: Failure) -> Result<(), Broken> {
    let mut connection = Connection::new(socket);
    connection.send(&Response::Failed(failure))?;
    connection.flush()
}

/// A conversation, with the directory that it is about. Each has a thread of its own: nobody waits for another's client.
#[derive(Debug)]
pub struct Server {
    connection: Connection,
    shared: Arc<Shared>,
    /// There are as many conversations as references to it.
    counted: Arc<()>,
    place: Place,
    snapshot: Option<Snapshot>,
    /// When the files were last listed, or the helper began.
    last_look: Timespec,
}

/// What all conversations of a helper share.
#[derive(Debug)]
struct Shared {
    roots: Roots,
    /// When the last file was put in its place.
    last_put: Mutex<Option<Timespec>>,
}

impl Server {
    /// Serves files below `roots` to whoever holds the other end of `socket`.
    pub fn new(socket: UnixStream, roots: Roots) -> Self {
        let shared = Shared {
            roots,
            last_put: Mutex::new(None),
        };
        Self::begin(socket, Arc::new(shared), Arc::default(), Place::Home)
    }

    fn begin(socket: UnixStream, shared: Arc<Shared>, counted: Arc<()>, place: Place) -> Self {
        Self {
            connection: Connection::new(socket),
            shared,
            counted,
            place,
            snapshot: None,
            last_look: coarse_now(),
        }
    }

    /// Answers until the other end is gone.
    ///
    /// Errors: what broke the connection. A request that fails is an answer, not an error.
    pub fn serve(mut self) -> Result<(), Broken> {
        while let Some(request) = self.connection.receive()? {
            let last = match self.answer(request) {
                Ok(response) => response,
                Err(Trouble::Failed(failure)) => Response::Failed(failure),
                Err(Trouble::Broken(broken)) => return Err(broken),
            };
            self.connection.send(&last)?;
            self.connection.flush()?;
        }
        Ok(())
    }

    fn answer(&mut self, request: Request) -> Result<Response, Trouble> {
        let shared = Arc::clone(&self.shared);
        let root = shared.root(self.place);
        match request {
            Request::Put(put) => self.upload(&as_upload(put)),
            Request::Upload(ask) => self.upload(&ask),
            Request::Data(_) | Request::End => Err(Broken::OutOfOrder.into()),
            Request::Get(get) => {
                point(Point::FilesGet);
                send_file(root, &get, false, &mut self.connection)
            }
            Request::Read(get) => send_file(root, &get, true, &mut self.connection),
            Request::Snapshot(bounds) => self.take_snapshot(bounds),
            Request::Now => Ok(Response::Now(self.now())),
            Request::Collect(ask) => {
                point(Point::FilesCollect);
                let collected = Collection::run(root, &ask, self.snapshot.as_ref(), &mut self.connection);
                self.last_look = coarse_now();
                collected
            }
            Request::Inspect(ask) => Ok(Response::Inspected(inspect::inspect(root, &ask)?)),
            Request::Open(place) => self.open(place),
            Request::Arrived(ask) => Ok(arrived(root, &ask)?),
            Request::Stat(ask) => Ok(Response::Info(tree::stat(root, &ask)?)),
            Request::MakeDir(ask) => Ok(Response::Info(tree::make_dir(root, &ask)?)),
            Request::Move(ask) => Ok(Response::Info(tree::rename(root, &ask)?)),
            Request::List(ask) => list::list(root, &ask, &mut self.connection),
            Request::Remove(ask) => Ok(remove::remove(root, &ask)?),
            Request::Space => Ok(Response::Space(root.space()?)),
            Request::Watch(ask) => watch::watch(root, &ask, &mut self.connection),
        }
    }

    /// Begins a conversation in a thread of its own.
    fn open(&mut self, place: Place) -> Result<Response, Trouble> {
        let socket = self.connection.passed().ok_or(Broken::OutOfOrder)?;
        if Arc::strong_count(&self.counted) > CHANNELS_MAX {
            return Err(failure(Op::Begin, Errno::USERS, b"").into());
        }
        let server = Self::begin(
            socket.into(),
            Arc::clone(&self.shared),
            Arc::clone(&self.counted),
            place,
        );
        // What broke it is its client's to see.
        let thread = std::thread::Builder::new().stack_size(STACK);
        match thread.spawn(move || drop(server.serve())) {
            Ok(_runs) => Ok(Response::Opened),
            Err(_) => Err(failure(Op::Begin, Errno::AGAIN, b"").into()),
        }
    }

    fn upload(&mut self, ask: &wire::Upload) -> Result<Response, Trouble> {
        let shared = Arc::clone(&self.shared);
        let mut upload = Upload::begin(shared.root(self.place), ask);
        loop {
            match self.connection.receive_part() {
                Ok(Part::Data(bytes)) => {
                    upload = upload.and_then(|upload| upload.write(bytes));
                    point(Point::FilesPut);
                }
                Ok(Part::End) => break,
                Err(Broken::OutOfOrder) => return Err(Broken::OutOfOrder.into()),
                Err(cut) => {
                    drop(upload.map(Upload::break_off));
                    return Err(cut.into());
                }
            }
        }
        let sum = upload.and_then(Upload::finish)?;
        self.shared.was_put();
        Ok(Response::Stored(sum))
    }

    /// A time after all that was put in, and after all that the last look saw.
    fn now(&self) -> Time {
        let order = |time: &Timespec| (time.tv_sec, time.tv_nsec);
        let last = self.shared.last_put().into_iter().chain([self.last_look]);
        let (seconds, nanoseconds) = dividing_time(self.shared.root(self.place), last.max_by_key(order));
        Time {
            seconds,
            nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
        }
    }

    fn take_snapshot(&mut self, bounds: Walk) -> Result<Response, Trouble> {
        let (snapshot, truncated) = Snapshot::take(self.shared.root(self.place), bounds, self.shared.last_put())?;
        let files = snapshot.len();
        self.snapshot = Some(snapshot);
        Ok(Response::Snapshotted { files, truncated })
    }
}

impl Shared {
    fn root(&self, place: Place) -> &Root {
        match place {
            Place::Home => &self.roots.home,
            Place::Tmp => &self.roots.tmp,
        }
    }

    fn last_put(&self) -> Option<Timespec> {
        *self.last_put.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn was_put(&self) {
        *self.last_put.lock().unwrap_or_else(PoisonError::into_inner) = Some(coarse_now());
    }
}

fn as_upload(put: Put) -> wire::Upload {
    wire::Upload {
        put,
        exact: true,
        sha256: None,
        partial: None,
    }
}
