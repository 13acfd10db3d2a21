//! Where links are followed: the socket that the service manager made, or one of our own.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::{answer, connection};
use crate::config::Listen;
use crate::host::Host;
use crate::listener::remove_stale;

/// How long answers that go on may take when the daemon ends.
const GOODBYE: Duration = Duration::from_secs(1);
/// How long to wait when a connection can't be accepted: there are no descriptors left, most likely.
const PAUSE: Duration = Duration::from_millis(50);
/// Whoever reaches the socket may use it: what they may have is what they have a link to.
const SOCKET_MODE: u32 = 0o666;

/// Where links are followed.
#[derive(Debug)]
pub struct Listener {
    kind: Kind,
    /// The socket, where it is ours to remove.
    made: Option<PathBuf>,
}

#[derive(Debug)]
enum Kind {
    Address(TcpListener, SocketAddr),
    Path(UnixListener),
}

enum Stream {
    Address(TcpStream),
    Path(UnixStream),
}

impl Listener {
    /// Takes the socket that the service manager made, else makes one; nothing where no links are served.
    pub fn open(listen: &Listen, passed: Option<OwnedFd>) -> io::Result<Option<Self>> {
        let kind = match (listen, passed) {
            (Listen::Nowhere, _) => return Ok(None),
            (Listen::Address(address), None) => {
                let listener = std::net::TcpListener::bind(address).map_err(|error| at_address(&error))?;
                address_of(listener)?
            }
            (Listen::Address(_), Some(socket)) => address_of(socket.into())?,
            (Listen::Path(path), None) => {
                let made = Some(path.clone());
                let kind = Kind::Path(bind(path)?);
                return Ok(Some(Self { kind, made }));
            }
            (Listen::Path(_), Some(socket)) => {
                let socket = std::os::unix::net::UnixListener::from(socket);
                socket.set_nonblocking(true)?;
                Kind::Path(UnixListener::from_std(socket)?)
            }
        };
        Ok(Some(Self { kind, made: None }))
    }

    /// The URL of the address; none of a socket.
    pub(super) fn url(&self) -> Option<String> {
        match &self.kind {
            Kind::Address(_, address) => Some(format!("http://{address}")),
            Kind::Path(_) => None,
        }
    }

    async fn accept(&self) -> io::Result<Stream> {
        match &self.kind {
            Kind::Address(listener, _) => {
                let (stream, _client) = listener.accept().await?;
                // The end of an answer is not to wait for an acknowledgement of what came before.
                stream.set_nodelay(true)?;
                Ok(Stream::Address(stream))
            }
            Kind::Path(listener) => Ok(Stream::Path(listener.accept().await?.0)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            // Somebody may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Answers those who follow links, until `stop` is cancelled.
pub async fn serve(listener: Listener, host: Arc<Host>, stop: CancellationToken) {
    let tasks = TaskTracker::new();
    match &listener.kind {
        Kind::Address(_, address) => info!(%address, "links served"),
        Kind::Path(_) => info!(path = %host.config().links.listen, "links served"),
    }
    stop.run_until_cancelled(accept_all(&listener, &host, &stop, &tasks))
        .await;
    tasks.close();
    // Who reads slowly is cut off.
    let _ = tokio::time::timeout(GOODBYE, tasks.wait()).await;
}

async fn accept_all(listener: &Listener, host: &Arc<Host>, stop: &CancellationToken, tasks: &TaskTracker) {
    let routes = answer::routes(Arc::clone(host));
    loop {
        // Above the limit clients wait in the backlog of the socket.
        let slot = host.links.connections.take().await;
        let (routes, stop) = (routes.clone(), stop.clone());
        match listener.accept().await {
            Ok(Stream::Address(stream)) => tasks.spawn(async move {
                connection::serve(stream, routes, stop).await;
                drop(slot);
            }),
            Ok(Stream::Path(stream)) => tasks.spawn(async move {
                connection::serve(stream, routes, stop).await;
                drop(slot);
            }),
            Err(error) => {
                warn!(%error, "connection of a link not accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
    }
}

fn address_of(listener: std::net::TcpListener) -> io::Result<Kind> {
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok(Kind::Address(TcpListener::from_std(listener)?, address))
}

/// What is told of an address that can't be used.
fn at_address(error: &io::Error) -> io::Error {
    let mend = match error.raw_os_error() {
        Some(errno) if errno == rustix::io::Errno::AFNOSUPPORT.raw_os_error() => {
            "\nhint: the unit of brigd allows it no sockets of the internet; systemd makes this one: systemctl enable \
             brigd-links.socket, systemctl stop brigd, systemctl start brigd-links.socket brigd"
        }
        _ => "",
    };
    io::Error::new(error.kind(), format!("{error}{mend}"))
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    remove_stale(path)?;
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_free_port_is_told_and_a_socket_has_no_url() {
        let any = Listen::Address("127.0.0.1:0".parse().unwrap());
        let listener = Listener::open(&any, None).unwrap().unwrap();
        let url = listener.url().unwrap();
        let address: SocketAddr = url.strip_prefix("http://").unwrap().parse().unwrap();
        assert!(address.ip().is_loopback() && address.port() != 0);
        let taken = Listener::open(&Listen::Address(address), None).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("links.sock");
        let listener = Listener::open(&Listen::Path(path.clone()), None).unwrap().unwrap();
        assert_eq!(listener.url(), None);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o666);
        drop(listener);
        assert!(!path.exists());
        assert!(Listener::open(&Listen::Nowhere, None).unwrap().is_none());
    }
}
