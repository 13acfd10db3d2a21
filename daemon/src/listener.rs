//! The socket of brigd: made with its permissions, and every connection named before it is served.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use nix::unistd::Group;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;
use tracing::warn;

use crate::config::{Client, Config};
use crate::principal::{self, Peer, Principal};

/// Connections that are named and wait to be served.
const NAMED: usize = 16;

/// One client's connection.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    info: ConnectionInfo,
    /// Its share of the connections there may be.
    _permit: OwnedSemaphorePermit,
}

/// What is known of a client; every request of the connection carries it.
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    pub peer: Peer,
    /// `None` for a peer that the configuration does not name.
    pub principal: Option<Arc<Principal>>,
}

/// Makes the socket. One that a dead daemon left behind is replaced, a live one is not.
pub fn bind(config: &Config) -> io::Result<UnixListener> {
    remove_stale(&config.socket)?;
    // Nobody may connect before the permissions are right: the umask of the process is not to be trusted for that,
    // so the socket is made under a name of its own directory's and renamed.
    let draft = config.socket.with_extension("new");
    remove_stale(&draft)?;
    let listener = UnixListener::bind(&draft)?;
    if !config.socket_group.is_empty() {
        let group = Group::from_name(&config.socket_group)?.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("socket_group: no group {:?} on this host", config.socket_group),
            )
        })?;
        chown(&draft, None, Some(group.gid.as_raw()))?;
    }
    std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(config.socket_mode.0))?;
    std::fs::rename(&draft, &config.socket)?;
    Ok(listener)
}

/// Takes connections, names their peers and passes them on, until `stop` is cancelled.
pub fn connections(
    listener: UnixListener,
    clients: Vec<Client>,
    limit: usize,
    stop: CancellationToken,
) -> ReceiverStream<io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(NAMED);
    tokio::spawn(async move {
        let accepting = accept_all(listener, clients.into(), limit, &sender);
        tokio::select! {
            () = accepting => {}
            () = stop.cancelled() => {}
        }
    });
    ReceiverStream::new(receiver)
}

async fn accept_all(
    listener: UnixListener,
    clients: Arc<[Client]>,
    limit: usize,
    sender: &mpsc::Sender<io::Result<Connection>>,
) {
    let slots = Arc::new(Semaphore::new(limit));
    loop {
        // Above the limit clients wait in the backlog of the socket.
        let Ok(permit) = Arc::clone(&slots).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _address)) => {
                // A task of its own: looking up users can take long, and must not hold others up.
                let (clients, sender) = (Arc::clone(&clients), sender.clone());
                tokio::spawn(async move {
                    match name(stream, clients, permit).await {
                        // Nobody takes it when the server has ended.
                        Ok(connection) => drop(sender.send(Ok(connection)).await),
                        Err(error) => warn!(%error, "connection not named"),
                    }
                });
            }
            Err(error) => {
                warn!(%error, "connection not accepted");
                // Out of descriptors, most likely: give those that run a moment to end.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
}

async fn name(stream: UnixStream, clients: Arc<[Client]>, permit: OwnedSemaphorePermit) -> io::Result<Connection> {
    let credentials = stream.peer_cred()?;
    let peer = Peer {
        uid: credentials.uid(),
        gid: credentials.gid(),
    };
    let principal = tokio::task::spawn_blocking(move || principal::find(&clients, peer)).await?;
    Ok(Connection {
        stream,
        info: ConnectionInfo { peer, principal },
        _permit: permit,
    })
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let metadata = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the path is taken by something that is no socket",
        ));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another brigd serves this socket",
        )),
        Err(error) => Err(error),
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        self.info.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(directory: &Path) -> Config {
        Config {
            socket: directory.join("s"),
            socket_group: String::new(),
            ..Config::default()
        }
    }

    #[tokio::test]
    async fn the_socket_has_its_permissions_and_replaces_one_left_behind() {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path());
        drop(bind(&config).unwrap());
        let _listener = bind(&config).unwrap();
        let mode = std::fs::metadata(&config.socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
    }

    #[tokio::test]
    async fn a_socket_that_is_served_or_no_socket_at_all_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path());
        let _listener = bind(&config).unwrap();
        assert_eq!(bind(&config).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let file = Config {
            socket: directory.path().join("file"),
            ..config
        };
        std::fs::write(&file.socket, "").unwrap();
        assert_eq!(bind(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[tokio::test]
    async fn a_missing_socket_group_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            socket_group: "no-such-group".to_owned(),
            ..config(directory.path())
        };
        assert!(bind(&config).unwrap_err().to_string().contains("no-such-group"));
    }
}
