//! The helper against real files: a server in a thread, a client on the other end of its socket.

mod attacks;
mod calls;
mod collect;
mod limits;
mod looks;
mod protocol;
mod transfer;

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::root::Root;
use super::seal::Roots;
use super::server::{Broken, Server};
use super::wire::{
    CHUNK_MAX, Collect, Collected, Failure, Found, Get, HEADER, Put, Request, Response, Skip, Sum, Time, Walk,
    body_length, decode, encode,
};

/// Wide bounds, for tests of something else.
const WALK: Walk = Walk {
    max_entries: 500_000,
    max_depth: 64,
    time_ms: 60_000,
};

/// A directory that plays the working directory of a session.
struct Place {
    /// Keeps the directory, or the file system, alive.
    _held: Held,
    path: PathBuf,
}

enum Held {
    Directory(#[expect(dead_code, reason = "removed when dropped")] tempfile::TempDir),
    Mount(#[expect(dead_code, reason = "unmounted when dropped")] OwnedFd),
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            path: directory.path().to_owned(),
            _held: Held::Directory(directory),
        }
    }

    /// A tmpfs that nobody else sees. Needs root.
    fn tmpfs(size: &str, inodes: &str) -> Self {
        let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).expect("fsopen, as root");
        rustix::mount::fsconfig_set_string(&context, "size", size).unwrap();
        rustix::mount::fsconfig_set_string(&context, "nr_inodes", inodes).unwrap();
        rustix::mount::fsconfig_create(&context).unwrap();
        let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap();
        Self {
            path: format!("/proc/self/fd/{}", mount.as_raw_fd()).into(),
            _held: Held::Mount(mount),
        }
    }

    fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.join(name), bytes).unwrap();
    }

    fn root(&self) -> Root {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Root::new(rustix::fs::open(&self.path, flags, Mode::empty()).unwrap()).unwrap()
    }

    fn serve(&self) -> Client {
        let (near, far) = UnixStream::pair().unwrap();
        let roots = Roots {
            home: self.root(),
            tmp: self.root(),
        };
        let server = Server::new(far, roots);
        Client {
            socket: near,
            server: std::thread::spawn(|| server.serve()),
        }
    }
}

/// What `brigd` does.
struct Client {
    socket: UnixStream,
    server: JoinHandle<Result<(), Broken>>,
}

impl Client {
    fn send(&mut self, request: &impl Serialize) {
        self.socket.write_all(&encode(request).unwrap()).unwrap();
    }

    fn receive(&mut self) -> Response {
        let mut header = [0; HEADER];
        self.socket.read_exact(&mut header).unwrap();
        let mut body = vec![0; body_length(header).unwrap()];
        self.socket.read_exact(&mut body).unwrap();
        decode(&body).unwrap()
    }

    fn put(&mut self, put: Put, bytes: &[u8]) -> Result<Sum, i32> {
        self.send(&Request::Put(put));
        for chunk in bytes.chunks(CHUNK_MAX) {
            self.send(&Request::Data(chunk.to_vec()));
        }
        self.send(&Request::End);
        match self.receive() {
            Response::Stored(sum) => Ok(sum),
            Response::Failed(failure) => Err(failure.errno),
            other => panic!("{other:?}"),
        }
    }

    fn get(&mut self, get: Get) -> Result<Vec<u8>, i32> {
        self.send(&Request::Get(get));
        let mut bytes = Vec::new();
        loop {
            match self.receive() {
                Response::Data(more) => bytes.extend_from_slice(&more),
                Response::End { size } => {
                    assert_eq!(size, bytes.len() as u64);
                    return Ok(bytes);
                }
                Response::Failed(Failure { errno, .. }) => return Err(errno),
                other => panic!("{other:?}"),
            }
        }
    }

    fn snapshot(&mut self) -> u64 {
        self.send(&Request::Snapshot(WALK));
        match self.receive() {
            Response::Snapshotted { files, truncated: None } => files,
            other => panic!("{other:?}"),
        }
    }

    fn now(&mut self) -> Time {
        self.send(&Request::Now);
        match self.receive() {
            Response::Now(time) => time,
            other => panic!("{other:?}"),
        }
    }

    fn collect(&mut self, ask: Collect) -> Collection {
        self.send(&Request::Collect(ask));
        let mut collection = Collection::default();
        loop {
            match self.receive() {
                Response::Found(found) => collection.found.push(found),
                Response::Skipped { path, why } => collection.skipped.push((text(&path), why)),
                Response::Collected(totals) => {
                    collection.totals = totals;
                    collection.found.sort_by(|a, b| a.path.cmp(&b.path));
                    collection.skipped.sort_by(|a, b| a.0.cmp(&b.0));
                    return collection;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Hangs up, and tells how the server ended.
    fn hang_up(self) -> Result<(), Broken> {
        drop(self.socket);
        self.server.join().unwrap()
    }
}

#[derive(Default)]
struct Collection {
    found: Vec<Found>,
    skipped: Vec<(String, Skip)>,
    totals: Collected,
}

impl Collection {
    fn paths(&self) -> Vec<String> {
        self.found.iter().map(|found| text(&found.path)).collect()
    }
}

fn put_of(path: impl AsRef<[u8]>, size: u64) -> Put {
    let path = path.as_ref().to_vec();
    Put {
        path,
        size,
        mode: 0o644,
        mtime: None,
        make_parents: false,
        overwrite: true,
    }
}

fn get_of(path: impl AsRef<[u8]>) -> Get {
    Get {
        path: path.as_ref().to_vec(),
        offset: 0,
        length: None,
        max_bytes: 1 << 30,
    }
}

fn everything() -> Collect {
    Collect {
        walk: WALK,
        since: None,
        max_files: 100_000,
        max_bytes_each: None,
        expected: Vec::new(),
    }
}

fn sum_of(bytes: &[u8]) -> Sum {
    Sum {
        size: bytes.len() as u64,
        sha256: Sha256::digest(bytes).into(),
    }
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
