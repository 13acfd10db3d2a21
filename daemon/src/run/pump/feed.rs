//! One way into a program that is written from a memory file: a pipe, or its terminal.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};
use tracing::{debug, warn};

use super::TURN;
use super::terminal::Keyboard;
use crate::run::clock::{Clock, Mark};
use crate::run::stdin::{Progress, Stdin, progress};

/// How soon a full pipe is looked at again, at the earliest: its clock may stand still.
const LOOK: Duration = Duration::from_millis(100);

/// A way into a program, and the file that what goes into it lies in.
#[derive(Debug)]
pub(super) struct Feed {
    way: Way,
    /// Its position is the next byte.
    file: Arc<File>,
    end: End,
    patience: Option<Patience>,
    /// Whether something waits for room.
    wants_room: bool,
}

#[derive(Debug)]
pub(super) enum Way {
    Pipe(OwnedFd),
    Terminal(Keyboard),
}

/// Where what is given ends.
#[derive(Debug)]
enum End {
    At(u64),
    /// Where callers say.
    Open(Arc<Stdin>),
}

/// How long a pipe may be full.
#[derive(Debug)]
pub(super) struct Patience {
    pub(super) clock: Clock,
    pub(super) from: Mark,
    pub(super) span: Duration,
}

impl Patience {
    fn left(&self) -> Duration {
        self.span.saturating_sub(self.clock.since(self.from))
    }
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing ever: all is in it, or nobody will read the rest.
    Over,
    /// Nothing until there is room, or until a caller brings more.
    Waits,
    /// The others have their turn.
    More,
}

impl Feed {
    /// Feeds what lies between the position of the file and `end`; gives up when its patience is over.
    pub(super) fn bounded(pipe: OwnedFd, file: Arc<File>, end: u64, patience: Patience) -> Self {
        Self {
            way: Way::Pipe(pipe),
            file,
            end: End::At(end),
            patience: Some(patience),
            wants_room: true,
        }
    }

    /// Feeds what callers bring, if they can bring anything.
    pub(super) fn open(way: Way, stdin: Arc<Stdin>) -> Option<Self> {
        Some(Self {
            way,
            file: stdin.file()?,
            end: End::Open(stdin),
            patience: None,
            wants_room: true,
        })
    }

    /// What to wait for.
    pub(super) fn poll(&self) -> PollFd<'_> {
        let flags = if self.wants_room {
            PollFlags::OUT
        } else {
            PollFlags::empty()
        };
        PollFd::from_borrowed_fd(self.way.fd(), flags)
    }

    /// When to look again, at the latest.
    pub(super) fn until(&self) -> Option<Instant> {
        let left = self.patience.as_ref().map(Patience::left);
        left.map(|left| Instant::now() + left.max(LOOK))
    }

    /// Puts as much into it as it holds.
    pub(super) fn go_on(&mut self) -> Next {
        let mut turn = 0;
        while turn < TURN {
            let Progress { total, given, closed } = match self.progress() {
                Ok(progress) => progress,
                Err(error) => return self.give_up(error),
            };
            let left = total.saturating_sub(given);
            if left == 0 && !self.way.holds_some() {
                self.wants_room = false;
                if !closed {
                    return if self.way.is_deaf() { Next::Over } else { Next::Waits };
                }
                match self.tell_end(total, given) {
                    Ok(false) => return Next::Over,
                    Ok(true) => continue,
                    Err(error) => return self.give_up(error),
                }
            }
            match self.way.give(&self.file, left) {
                Ok(moved) => {
                    turn += moved as u64;
                    self.told_given();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.full(),
                // A program that does not read its input is none of our business.
                Err(Errno::PIPE | Errno::IO) => return Next::Over,
                Err(error) => return self.give_up(error),
            }
        }
        Next::More
    }

    /// Says that nobody will read the rest.
    pub(super) fn end(&self) {
        if let End::Open(stdin) = &self.end {
            stdin.end();
        }
    }

    fn progress(&self) -> Result<Progress, Errno> {
        match &self.end {
            End::At(end) => Ok(Progress {
                total: *end,
                given: seek(&*self.file, SeekFrom::Current(0))?,
                closed: true,
            }),
            End::Open(_) => progress(&self.file),
        }
    }

    /// Tells a terminal the end of what is typed; the position says that it was. A pipe is told by closing it.
    fn tell_end(&self, total: u64, given: u64) -> Result<bool, Errno> {
        let Way::Terminal(keyboard) = &self.way else {
            return Ok(false);
        };
        if given > total {
            return Ok(false);
        }
        keyboard.type_end()?;
        seek(&*self.file, SeekFrom::Start(total + 1)).map(|_| true)
    }

    fn told_given(&self) {
        if let End::Open(stdin) = &self.end {
            stdin.was_given();
        }
    }

    fn full(&mut self) -> Next {
        self.wants_room = true;
        let late = self.patience.as_ref().is_some_and(|patience| patience.left().is_zero());
        if late {
            debug!("kernel did not read its request in time");
        }
        if late || self.way.is_deaf() {
            Next::Over
        } else {
            Next::Waits
        }
    }

    fn give_up(&self, error: Errno) -> Next {
        warn!(%error, "input not given");
        Next::Over
    }
}

impl Way {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Pipe(pipe) => pipe.as_fd(),
            Self::Terminal(keyboard) => keyboard.terminal(),
        }
    }

    /// Whether something left the file and is not in the program's hands.
    fn holds_some(&self) -> bool {
        match self {
            Self::Pipe(_) => false,
            Self::Terminal(keyboard) => keyboard.holds_some(),
        }
    }

    /// Whether nobody is left who could read.
    fn is_deaf(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.fd(), PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let polled = poll(&mut fds, Some(&now));
        polled.is_ok() && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
    }

    /// Moves up to so many bytes out of the file.
    fn give(&self, file: &File, left: u64) -> Result<usize, Errno> {
        let len = usize::try_from(left).unwrap_or(usize::MAX);
        match self {
            Self::Pipe(pipe) => splice(file, None, pipe, None, len, SpliceFlags::NONBLOCK),
            Self::Terminal(keyboard) => keyboard.give(file, len),
        }
    }
}
