//! The terminal of a program, as the thread that moves its bytes has it.
//!
//! What comes out and what goes in passes a pipe of our own each, which brig-jailer holds too: the kernel moves bytes
//! between two things in one call only if one of them is a pipe, and what is in a pipe when brigd is killed is there for
//! the next one. No guest has an end of these pipes. The terminal never blocks: [`Screen::new`] sees to it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};
use rustix::termios::{Winsize, tcsetwinsize};

use super::Fault;
use crate::run::terminal::{Size, Terminal};

/// The most that one call moves, in bytes.
const CALL: usize = 64 * 1024;
/// Ctrl-D, which a terminal in line mode makes an end of file of.
const END: u8 = 4;

/// What comes out of a terminal.
#[derive(Debug)]
pub(super) struct Screen {
    terminal: Arc<OwnedFd>,
    pipe: OwnedFd,
    pipe_in: OwnedFd,
}

/// What goes into a terminal.
#[derive(Debug)]
pub(super) struct Keyboard {
    terminal: Arc<OwnedFd>,
    pipe: OwnedFd,
    pipe_in: OwnedFd,
}

/// The edge of a terminal: its size.
#[derive(Debug)]
pub(super) struct Frame {
    terminal: Arc<OwnedFd>,
    size: Arc<Size>,
}

/// Takes a terminal apart.
pub(super) fn parts(terminal: Terminal, size: Arc<Size>) -> Result<(Screen, Keyboard, Frame), Fault> {
    let Terminal { ours, out, input } = terminal;
    let flags = fcntl_getfl(&ours).map_err(Fault::of("fcntl"))?;
    fcntl_setfl(&ours, flags | OFlags::NONBLOCK).map_err(Fault::of("fcntl"))?;
    let ours = Arc::new(ours);
    let screen = Screen {
        terminal: Arc::clone(&ours),
        pipe: out.0,
        pipe_in: out.1,
    };
    let keyboard = Keyboard {
        terminal: Arc::clone(&ours),
        pipe: input.0,
        pipe_in: input.1,
    };
    Ok((screen, keyboard, Frame { terminal: ours, size }))
}

impl Screen {
    pub(super) fn terminal(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }

    /// Where what was drawn can be taken.
    pub(super) fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Puts what came out of the terminal into the pipe; whether that was the last. Nobody holding the other side is EIO.
    pub(super) fn draw(&self) -> Result<bool, Errno> {
        match splice(&*self.terminal, None, &self.pipe_in, None, CALL, SpliceFlags::NONBLOCK) {
            Ok(0) | Err(Errno::IO) => Ok(true),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Keyboard {
    pub(super) fn terminal(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }

    /// Whether something is in the pipe.
    pub(super) fn holds_some(&self) -> bool {
        rustix::io::ioctl_fionread(&self.pipe).is_ok_and(|bytes| bytes > 0)
    }

    /// Moves up to so many bytes on: from the file into the pipe if that is empty, from there into the terminal.
    pub(super) fn give(&self, file: &File, len: usize) -> Result<usize, Errno> {
        if len > 0 && !self.holds_some() {
            splice(file, None, &self.pipe_in, None, len.min(CALL), SpliceFlags::NONBLOCK)?;
        }
        splice(&self.pipe, None, &*self.terminal, None, CALL, SpliceFlags::NONBLOCK)
    }

    /// Types the end of file.
    pub(super) fn type_end(&self) -> Result<(), Errno> {
        rustix::io::write(&self.pipe_in, &[END]).map(drop)
    }
}

impl Frame {
    /// Gives the terminal the size that was asked for last; its programs are told by SIGWINCH.
    pub(super) fn fit(&self) {
        if let Some((asked, columns, rows)) = self.size.asked() {
            let size = Winsize {
                ws_row: rows,
                ws_col: columns,
                ws_xpixel: 0,
                ws_ypixel: 0,
            };
            self.size.done(asked, tcsetwinsize(&*self.terminal, size));
        }
    }
}
