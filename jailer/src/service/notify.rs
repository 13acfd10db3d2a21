//! Tells the service manager how the daemon is: sd_notify(3).
//!
//! The words are those of the crate `sd-notify`; the socket is our own. The crate finds the socket by its path for
//! every message, which a jailer can't once its mount namespace hides /run, and it would wait without end for a manager
//! that does not read.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

pub use sd_notify::NotifyState;

use crate::service::log::clean;

/// How long the manager may take to make room for a message.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest status, in characters.
const STATUS_MAX: usize = 400;

/// The way to the service manager, if there is one.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<UnixDatagram>,
}

impl Notifier {
    /// Connects to the socket that `NOTIFY_SOCKET` names; without it there is nobody to tell.
    ///
    /// Errors: the socket can't be reached, so that the manager would wait in vain.
    pub fn from_environment() -> io::Result<Self> {
        match std::env::var_os("NOTIFY_SOCKET") {
            Some(name) => Self::connect(&name).map_err(|error| {
                let name = name.display();
                io::Error::new(error.kind(), format!("NOTIFY_SOCKET={name}: {error}"))
            }),
            None => Ok(Self::default()),
        }
    }

    fn connect(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { socket: Some(socket) })
    }

    /// Whether somebody listens.
    pub fn is_heard(&self) -> bool {
        self.socket.is_some()
    }

    /// Tells the manager something, in one message.
    pub fn tell(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else { return };
        let message: String = states.iter().map(|state| format!("{state}\n")).collect();
        if let Err(error) = socket.send(message.as_bytes()) {
            tracing::warn!(%error, "service manager not told");
        }
    }

    /// Tells what `systemctl status` shows.
    pub fn status(&self, text: &str) {
        self.tell(&[NotifyState::Status(&status(text))]);
    }
}

/// A text that fits one line of a message.
pub fn status(text: &str) -> String {
    clean(text, STATUS_MAX)
}

/// How often the manager wants a sign of life, by `WATCHDOG_USEC`; `None` if it wants none.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(manager: &UnixDatagram) -> String {
        let mut buffer = [0; 4096];
        let length = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_message_arrives_whole_and_a_status_stays_on_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::connect(path.as_os_str()).unwrap();
        notifier.tell(&[NotifyState::Ready, NotifyState::Status("1 running")]);
        assert_eq!(heard(&manager), "READY=1\nSTATUS=1 running\n");
        notifier.status("a\nREADY=1\u{1b}[2J");
        assert_eq!(heard(&manager), "STATUS=a\\nREADY=1\\u{1b}[2J\n");
    }

    #[test]
    fn the_way_stays_open_when_the_path_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::connect(path.as_os_str()).unwrap();
        std::fs::remove_file(&path).unwrap();
        notifier.tell(&[NotifyState::Watchdog]);
        assert_eq!(heard(&manager), "WATCHDOG=1\n");
    }

    #[test]
    fn an_abstract_name_is_reached_and_a_dead_one_is_an_error() {
        let name = format!("brig-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let name = format!("@{name}");
        Notifier::connect(OsStr::new(&name))
            .unwrap()
            .tell(&[NotifyState::Stopping]);
        assert_eq!(heard(&manager), "STOPPING=1\n");
        drop(manager);
        assert!(Notifier::connect(OsStr::new(&name)).is_err());
    }

    #[test]
    fn without_a_manager_nothing_is_told() {
        let nobody = Notifier::default();
        nobody.tell(&[NotifyState::Ready]);
        assert!(!nobody.is_heard());
    }
}
