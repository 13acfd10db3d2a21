//! A command at a terminal, as somebody at a keyboard has it.

use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::DEADLINE;

/// A command that runs at a terminal of its own.
#[derive(Debug)]
pub struct Pty {
    ours: OwnedFd,
    child: Child,
    shown: String,
    /// How much of that was waited for.
    seen: usize,
}

impl Pty {
    /// Starts a command at a terminal of this size, which is its controlling terminal.
    pub fn start(command: &Command, columns: u16, rows: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = rustix::pty::openpt(flags).unwrap();
        rustix::pty::unlockpt(&ours).unwrap();
        set_size(&ours, columns, rows);
        let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags).unwrap();
        // Makes the terminal the controlling one, which only the process itself can do.
        let mut started = Command::new("setsid");
        started
            .arg("--ctty")
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => started.env(name, value),
                None => started.env_remove(name),
            };
        }
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let child = started.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        Self {
            ours,
            child,
            shown: String::new(),
            seen: 0,
        }
    }

    /// Process id of the command.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the terminal has shown this, behind what was waited for before.
    pub fn expect(&mut self, text: &str) {
        let deadline = Instant::now() + *DEADLINE;
        let mut goes_on = true;
        loop {
            if let Some(place) = self.shown[self.seen..].find(text) {
                self.seen += place + text.len();
                return;
            }
            assert!(Instant::now() < deadline, "{text:?} was not shown: {:?}", self.shown);
            assert!(goes_on, "{text:?} was not shown before the end: {:?}", self.shown);
            goes_on = self.read();
        }
    }

    /// All that it has shown.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Types.
    pub fn keys(&self, keys: &str) {
        let mut left = keys.as_bytes();
        while !left.is_empty() {
            left = &left[rustix::io::write(&self.ours, left).unwrap()..];
        }
    }

    /// Changes the size of the terminal.
    pub fn resize(&self, columns: u16, rows: u16) {
        set_size(&self.ours, columns, rows);
    }

    /// Whether the terminal is as shells have it: it echoes, and makes lines and signals of keys.
    pub fn is_cooked(&self) -> bool {
        let modes = tcgetattr(&self.ours).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }

    /// Waits for the end of the command; what else it shows is kept.
    pub fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + *DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                while self.read_for(0) {}
                return status;
            }
            assert!(Instant::now() < deadline, "it did not end: {:?}", self.shown);
            self.read_for(20);
        }
    }

    /// Reads what comes; false at the end.
    fn read(&mut self) -> bool {
        self.read_for(1000);
        self.child.try_wait().unwrap().is_none() || self.read_for(0)
    }

    fn read_for(&mut self, millis: i64) -> bool {
        let mut fds = [PollFd::new(&self.ours, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: millis / 1000,
            tv_nsec: millis % 1000 * 1_000_000,
        };
        if poll(&mut fds, Some(&timeout)).unwrap() == 0 || !fds[0].revents().contains(PollFlags::IN) {
            return false;
        }
        let mut bytes = [0; 4096];
        // Its end is EIO.
        let read = rustix::io::read(&self.ours, &mut bytes).unwrap_or(0);
        self.shown.push_str(&String::from_utf8_lossy(&bytes[..read]));
        read > 0
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}

fn set_size(terminal: &OwnedFd, columns: u16, rows: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).unwrap();
}
