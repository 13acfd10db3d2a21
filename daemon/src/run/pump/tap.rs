//! One pipe, or what comes out of a terminal, that is read into its memory file.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};

use super::Fault;
use super::terminal::Screen;

/// The most that one call takes, in bytes.
const CALL: usize = 64 * 1024;

/// A pipe, and the file that what comes out of it is kept in.
#[derive(Debug)]
pub(super) struct Tap {
    source: Source,
    file: Arc<File>,
    /// Where the next byte goes: the size of the file.
    at: u64,
    /// Where nothing more is kept.
    cap: u64,
    /// For bytes that are dropped.
    scratch: Vec<u8>,
}

#[derive(Debug)]
enum Source {
    Pipe(OwnedFd),
    Screen(Screen),
}

/// What the next call will find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// Maybe more.
    More,
    /// Nothing, until something is written.
    Empty,
    /// Nothing ever: nobody holds the other end.
    End,
}

/// What came out of a pipe.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub kept: u64,
    pub dropped: u64,
    pub flow: Flow,
}

impl Tap {
    pub(super) fn new(pipe: OwnedFd, file: Arc<File>, at: u64, cap: u64) -> Result<Self, Fault> {
        // Changes a flag of our end, and takes no lock of the pipe.
        let flags = fcntl_getfl(&pipe).map_err(Fault::of("fcntl"))?;
        fcntl_setfl(&pipe, flags | OFlags::NONBLOCK).map_err(Fault::of("fcntl"))?;
        Ok(Self::of(Source::Pipe(pipe), file, at, cap))
    }

    /// One of a terminal.
    pub(super) fn screen(screen: Screen, file: Arc<File>, at: u64, cap: u64) -> Self {
        Self::of(Source::Screen(screen), file, at, cap)
    }

    fn of(source: Source, file: Arc<File>, at: u64, cap: u64) -> Self {
        Self {
            source,
            file,
            at,
            cap,
            scratch: Vec::new(),
        }
    }

    /// What can be read when there is something to take.
    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        match &self.source {
            Source::Pipe(pipe) => pipe.as_fd(),
            Source::Screen(screen) => screen.terminal(),
        }
    }

    /// Whether nothing more is kept as it is now.
    pub(super) fn is_full(&self) -> bool {
        self.at >= self.cap
    }

    /// What bytes are taken from.
    pub(super) fn pipe(&self) -> BorrowedFd<'_> {
        match &self.source {
            Source::Pipe(pipe) => pipe.as_fd(),
            Source::Screen(screen) => screen.pipe(),
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Where the next byte goes.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Keeps nothing more.
    pub(super) fn stop_keeping(&mut self) {
        self.cap = self.at;
    }

    /// Keeps as much again as there may be at one time.
    pub(super) fn keep_up_to(&mut self, cap: u64) {
        self.cap = cap;
    }

    /// Goes on in another file.
    pub(super) fn move_to(&mut self, file: Arc<File>, at: u64, cap: u64) {
        (self.file, self.at, self.cap) = (file, at, cap);
    }

    /// Takes what one call gives; never waits for the writer.
    pub(super) fn take(&mut self) -> Result<Taken, Fault> {
        self.take_at_most(CALL)
    }

    /// The same, of no more than so many bytes.
    pub(super) fn take_at_most(&mut self, most: usize) -> Result<Taken, Fault> {
        let was_last = match &self.source {
            Source::Pipe(_) => false,
            Source::Screen(screen) => screen.draw().map_err(Fault::of("splice"))?,
        };
        let mut taken = self.take_out(most)?;
        if was_last && taken.flow == Flow::Empty {
            taken.flow = Flow::End;
        }
        Ok(taken)
    }

    fn take_out(&mut self, most: usize) -> Result<Taken, Fault> {
        let room = usize::try_from(self.cap.saturating_sub(self.at)).unwrap_or(usize::MAX);
        if room == 0 {
            return self.drop_some(most.min(CALL));
        }
        let mut offset = self.at;
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let len = room.min(CALL).min(most);
        let moved = splice(self.pipe(), None, &*self.file, Some(&mut offset), len, flags);
        let (bytes, flow) = flow(moved, "splice")?;
        self.at += bytes;
        Ok(Taken {
            kept: bytes,
            dropped: 0,
            flow,
        })
    }

    fn drop_some(&mut self, most: usize) -> Result<Taken, Fault> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(most, 0);
        let (bytes, flow) = flow(rustix::io::read(self.pipe(), &mut scratch), "read")?;
        self.scratch = scratch;
        Ok(Taken {
            kept: 0,
            dropped: bytes,
            flow,
        })
    }
}

fn flow(moved: Result<usize, Errno>, call: &'static str) -> Result<(u64, Flow), Fault> {
    match moved {
        Ok(0) => Ok((0, Flow::End)),
        Ok(bytes) => Ok((bytes as u64, Flow::More)),
        Err(Errno::AGAIN) => Ok((0, Flow::Empty)),
        Err(Errno::INTR) => Ok((0, Flow::More)),
        Err(error) => Err(Fault::of(call)(error)),
    }
}
