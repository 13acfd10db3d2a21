//! Serves the requests of one connection, one after the other.
#![forbid(unsafe_code)]

use std::os::unix::net::UnixStream;

use rustix::time::Timespec;

use crate::faults::{Point, point};

use super::changes::{Collection, Snapshot, coarse_now, dividing_time};
pub use super::connection::Broken;
use super::connection::Connection;
use super::inspect;
use super::root::Root;
use super::transfer::{Trouble, Upload, send_file};
use super::wire::{Failure, Put, Request, Response, Time, Walk};

/// Answers whatever is asked first with a failure, and serves nothing.
pub fn refuse(socket: UnixStream, failure: Failure) -> Result<(), Broken> {
    let mut connection = Connection::new(socket);
    connection.send(&Response::Failed(failure))?;
    connection.flush()
}

/// The helper, with the directory that it serves.
#[derive(Debug)]
pub struct Server {
    connection: Connection,
    root: Root,
    snapshot: Option<Snapshot>,
    /// When the last file was put in its place.
    last_put: Option<Timespec>,
    /// When the files were last listed, or the helper began.
    last_look: Timespec,
}

impl Server {
    /// Serves files below `root` to whoever holds the other end of `socket`.
    pub fn new(socket: UnixStream, root: Root) -> Self {
        Self {
            connection: Connection::new(socket),
            root,
            snapshot: None,
            last_put: None,
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
        match request {
            Request::Put(put) => self.put(&put),
            Request::Data(_) | Request::End => Err(Broken::OutOfOrder.into()),
            Request::Get(get) => {
                point(Point::FilesGet);
                send_file(&self.root, &get, &mut self.connection)
            }
            Request::Snapshot(bounds) => self.take_snapshot(bounds),
            Request::Now => Ok(Response::Now(self.now())),
            Request::Collect(ask) => {
                point(Point::FilesCollect);
                let collected = Collection::run(&self.root, &ask, self.snapshot.as_ref(), &mut self.connection);
                self.last_look = coarse_now();
                collected
            }
            Request::Inspect(ask) => Ok(Response::Inspected(inspect::inspect(&self.root, &ask)?)),
        }
    }

    fn put(&mut self, put: &Put) -> Result<Response, Trouble> {
        let mut upload = Upload::begin(&self.root, put);
        loop {
            match self.connection.receive()?.ok_or(Broken::CutShort)? {
                Request::Data(bytes) => {
                    upload = upload.and_then(|upload| upload.write(&bytes));
                    point(Point::FilesPut);
                }
                Request::End => break,
                _ => return Err(Broken::OutOfOrder.into()),
            }
        }
        let sum = upload.and_then(Upload::finish)?;
        self.last_put = Some(coarse_now());
        Ok(Response::Stored(sum))
    }

    /// A time after all that was put in, and after all that the last look saw.
    fn now(&self) -> Time {
        let order = |time: &Timespec| (time.tv_sec, time.tv_nsec);
        let last = self.last_put.into_iter().chain([self.last_look]).max_by_key(order);
        let (seconds, nanoseconds) = dividing_time(&self.root, last);
        Time {
            seconds,
            nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
        }
    }

    fn take_snapshot(&mut self, bounds: Walk) -> Result<Response, Trouble> {
        let (snapshot, truncated) = Snapshot::take(&self.root, bounds, self.last_put)?;
        let files = snapshot.len();
        self.snapshot = Some(snapshot);
        Ok(Response::Snapshotted { files, truncated })
    }
}
