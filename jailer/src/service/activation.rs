//! Listening sockets that the service manager made: sd_listen_fds(3).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, sockopt};

use crate::step::SysError;
use crate::sys;

/// Why what the service manager passed is not what the daemon serves.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    #[error("LISTEN_FDS, LISTEN_FDNAMES: {0}")]
    Environment(io::Error),
    /// A name that nobody asked for, or the same one twice.
    #[error("descriptor {number} {name:?} of the service manager: only one is expected, named {expected:?}")]
    Surplus {
        number: i32,
        name: String,
        expected: &'static str,
    },
    #[error("descriptor {name:?} of the service manager: {what}")]
    Unfit { name: &'static str, what: String },
    #[error(transparent)]
    Sys(#[from] SysError),
}

/// What a daemon listens on.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'p> {
    /// Name of the descriptor: `FileDescriptorName=` of the socket unit.
    pub name: &'static str,
    pub kind: SocketType,
    /// Where it must be bound, so that those who are told this path find it.
    pub path: &'p Path,
}

/// Takes the socket that the service manager made; `None` if the daemon has to make it itself.
///
/// To be called once, at the start of the program, before it opens anything.
pub fn take(wanted: Wanted<'_>) -> Result<Option<OwnedFd>, ActivationError> {
    let passed = sd_notify::listen_fds_with_names().map_err(ActivationError::Environment)?;
    let mut taken = None;
    for (number, name) in passed {
        if name != wanted.name || taken.is_some() {
            let expected = wanted.name;
            return Err(ActivationError::Surplus { number, name, expected });
        }
        taken = Some(sys::inherited(number)?);
    }
    taken.map(|socket| check(socket, wanted)).transpose()
}

fn check(socket: OwnedFd, wanted: Wanted<'_>) -> Result<OwnedFd, ActivationError> {
    let name = wanted.name;
    let unfit = |what: String| ActivationError::Unfit { name, what };
    let failed = |error: rustix::io::Errno| unfit(error.to_string());
    if sockopt::socket_domain(&socket).map_err(failed)? != AddressFamily::UNIX {
        return Err(unfit("is no Unix socket".to_owned()));
    }
    let kind = sockopt::socket_type(&socket).map_err(failed)?;
    if kind != wanted.kind {
        return Err(unfit(format!("is {}, needed is {}", shown(kind), shown(wanted.kind))));
    }
    if !sockopt::socket_acceptconn(&socket).map_err(failed)? {
        return Err(unfit("does not listen".to_owned()));
    }
    let path = bound(&socket).map_err(failed)?;
    if path.as_deref() != Some(wanted.path) {
        let path = path.map_or("an abstract name".to_owned(), |path| path.display().to_string());
        let configured = wanted.path.display();
        return Err(unfit(format!(
            "listens on {path}, configured is {configured}: both must be the same"
        )));
    }
    Ok(socket)
}

/// The path that a socket is bound to, if it is a path.
fn bound(socket: impl AsFd) -> rustix::io::Result<Option<PathBuf>> {
    let address = SocketAddrUnix::try_from(rustix::net::getsockname(socket)?)?;
    let path = address.path().and_then(|path| path.to_str().map(PathBuf::from).ok());
    Ok(path)
}

fn shown(kind: SocketType) -> String {
    match kind {
        SocketType::STREAM => "SOCK_STREAM".to_owned(),
        SocketType::SEQPACKET => "SOCK_SEQPACKET".to_owned(),
        SocketType::DGRAM => "SOCK_DGRAM".to_owned(),
        other => format!("a socket of type {}", other.as_raw()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    use super::*;

    fn refused(socket: impl Into<OwnedFd>, path: &Path) -> String {
        let wanted = Wanted {
            name: "brigd",
            kind: SocketType::STREAM,
            path,
        };
        check(socket.into(), wanted).unwrap_err().to_string()
    }

    #[test]
    fn a_socket_that_is_not_what_was_asked_for_is_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let prefix = "descriptor \"brigd\" of the service manager: ";
        let datagram = UnixDatagram::unbound().unwrap();
        let expected = format!("{prefix}is SOCK_DGRAM, needed is SOCK_STREAM");
        assert_eq!(refused(datagram, &path), expected);
        let (connected, _other) = UnixStream::pair().unwrap();
        assert_eq!(refused(connected, &path), format!("{prefix}does not listen"));
        let internet = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(refused(internet, &path), format!("{prefix}is no Unix socket"));
        let elsewhere = directory.path().join("t");
        let listener = UnixListener::bind(&elsewhere).unwrap();
        let (elsewhere, path) = (elsewhere.display(), path.display());
        let expected = format!("{prefix}listens on {elsewhere}, configured is {path}: both must be the same");
        assert_eq!(refused(listener, Path::new(&path.to_string())), expected);
    }

    #[test]
    fn a_socket_that_fits_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let wanted = Wanted {
            name: "brigd",
            kind: SocketType::STREAM,
            path: &path,
        };
        assert!(check(listener.into(), wanted).is_ok());
    }
}
