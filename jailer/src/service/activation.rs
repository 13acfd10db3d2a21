//! Listening sockets that the service manager made: sd_listen_fds(3).

use std::fmt;
use std::io;
use std::net::SocketAddr;
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
    #[error("descriptor {number} {name:?} of the service manager: only one is expected, named {expected}")]
    Surplus {
        number: i32,
        name: String,
        expected: String,
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
    pub place: Place<'p>,
}

/// Where a socket must be bound, so that those who are told of it find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'p> {
    /// Nothing is served there: a socket is a mistake.
    Nowhere,
    Path(&'p Path),
    Address(SocketAddr),
}

/// Takes the sockets that the service manager made; `None` for one that the daemon has to make itself.
///
/// To be called once, at the start of the program, before it opens anything.
pub fn take<const N: usize>(wanted: [Wanted<'_>; N]) -> Result<[Option<OwnedFd>; N], ActivationError> {
    let passed = sd_notify::listen_fds_with_names().map_err(ActivationError::Environment)?;
    let mut taken = [const { None }; N];
    for (number, name) in passed {
        let found = wanted.iter().position(|wanted| wanted.name == name);
        let Some(index) = found.filter(|index| taken[*index].is_none()) else {
            let names = wanted.map(|wanted| format!("{:?}", wanted.name));
            let expected = names.join(", another one ");
            return Err(ActivationError::Surplus { number, name, expected });
        };
        taken[index] = Some(check(sys::inherited(number)?, wanted[index])?);
    }
    Ok(taken)
}

fn check(socket: OwnedFd, wanted: Wanted<'_>) -> Result<OwnedFd, ActivationError> {
    let name = wanted.name;
    let unfit = |what: String| ActivationError::Unfit { name, what };
    let failed = |error: rustix::io::Errno| unfit(error.to_string());
    let family = sockopt::socket_domain(&socket).map_err(failed)?;
    match (wanted.place, family) {
        (Place::Nowhere, _)
        | (Place::Path(_), AddressFamily::UNIX)
        | (Place::Address(_), AddressFamily::INET | AddressFamily::INET6) => {}
        (Place::Path(_), _) => return Err(unfit("is no Unix socket".to_owned())),
        (Place::Address(_), _) => return Err(unfit("is no socket of the internet".to_owned())),
    }
    let kind = sockopt::socket_type(&socket).map_err(failed)?;
    if kind != wanted.kind {
        return Err(unfit(format!("is {}, needed is {}", shown(kind), shown(wanted.kind))));
    }
    if !sockopt::socket_acceptconn(&socket).map_err(failed)? {
        return Err(unfit("does not listen".to_owned()));
    }
    let bound = Bound::of(&socket, family).map_err(failed)?;
    if !bound.is(wanted.place) {
        let configured = wanted.place;
        return Err(unfit(format!(
            "listens on {bound}, configured is {configured}: both must be the same"
        )));
    }
    Ok(socket)
}

/// Where a socket is bound.
enum Bound {
    Path(PathBuf),
    Address(SocketAddr),
    /// A name that no file has.
    Abstract,
}

impl Bound {
    fn of(socket: impl AsFd, family: AddressFamily) -> rustix::io::Result<Self> {
        let address = rustix::net::getsockname(socket)?;
        if family != AddressFamily::UNIX {
            return SocketAddr::try_from(address).map(Self::Address);
        }
        let address = SocketAddrUnix::try_from(address)?;
        let path = address.path().and_then(|path| path.to_str().map(PathBuf::from).ok());
        Ok(path.map_or(Self::Abstract, Self::Path))
    }

    fn is(&self, place: Place<'_>) -> bool {
        match (self, place) {
            (Self::Path(path), Place::Path(wanted)) => path == wanted,
            (Self::Address(address), Place::Address(wanted)) => *address == wanted,
            _ => false,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Address(address) => address.fmt(f),
            Self::Abstract => f.write_str("an abstract name"),
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => f.write_str("nothing"),
            Self::Path(path) => path.display().fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
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

    fn wanted(place: Place<'_>) -> Wanted<'_> {
        Wanted {
            name: "brigd",
            kind: SocketType::STREAM,
            place,
        }
    }

    fn refused(socket: impl Into<OwnedFd>, path: &Path) -> String {
        refused_at(socket, Place::Path(path))
    }

    fn refused_at(socket: impl Into<OwnedFd>, place: Place<'_>) -> String {
        check(socket.into(), wanted(place)).unwrap_err().to_string()
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
        assert!(check(listener.into(), wanted(Place::Path(&path))).is_ok());
    }

    #[test]
    fn an_address_must_be_the_configured_one_and_none_is_wanted_where_nothing_is_served() {
        let prefix = "descriptor \"brigd\" of the service manager: ";
        let listener = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = listener();
        let address = socket.local_addr().unwrap();
        assert!(check(socket.into(), wanted(Place::Address(address))).is_ok());
        let (socket, place) = (listener(), Place::Address("127.0.0.1:1".parse().unwrap()));
        let address = socket.local_addr().unwrap();
        let expected = format!("{prefix}listens on {address}, configured is 127.0.0.1:1: both must be the same");
        assert_eq!(refused_at(socket, place), expected);
        let socket = listener();
        let address = socket.local_addr().unwrap();
        let expected = format!("{prefix}listens on {address}, configured is nothing: both must be the same");
        assert_eq!(refused_at(socket, Place::Nowhere), expected);
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("s")).unwrap();
        assert_eq!(
            refused_at(listener, place),
            format!("{prefix}is no socket of the internet")
        );
    }
}
