//! The socket of brigd: taken from the service manager, or made with its permissions; every connection is named before
//! it is served.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use nix::unistd::{Gid, Group};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;
use tracing::warn;

use crate::clients::Named;
use crate::config::Config;
use crate::host::Host;
use crate::principal::Peer;
use crate::slots::Slot;

/// Connections that are named and wait to be served.
const NAMED: usize = 16;

/// One client's connection.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    /// Who it is; every request of the connection carries it.
    named: Arc<Named>,
    /// Its share of the connections there may be.
    _slot: Slot,
}

/// Takes the socket that the service manager made. Its permissions are the manager's matter; they are told if they are
/// not the configured ones.
pub fn adopt(socket: OwnedFd, config: &Config) -> io::Result<UnixListener> {
    let metadata = std::fs::metadata(&config.socket)?;
    let mode = metadata.permissions().mode() & 0o777;
    let group = Group::from_gid(Gid::from_raw(metadata.gid()))?.map_or(metadata.gid().to_string(), |group| group.name);
    let other_group = !config.socket_group.is_empty() && group != config.socket_group;
    if mode != config.socket_mode.0 || other_group {
        let mode = format!("{mode:04o}");
        warn!(%mode, %group, "socket_mode and socket_group are not those of the socket unit, which count");
    }
    let socket = std::os::unix::net::UnixListener::from(socket);
    socket.set_nonblocking(true)?;
    UnixListener::from_std(socket)
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
    host: Arc<Host>,
    stop: CancellationToken,
) -> ReceiverStream<io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(NAMED);
    tokio::spawn(async move {
        let accepting = accept_all(listener, host, &sender);
        tokio::select! {
            () = accepting => {}
            () = stop.cancelled() => {}
        }
    });
    ReceiverStream::new(receiver)
}

async fn accept_all(listener: UnixListener, host: Arc<Host>, sender: &mpsc::Sender<io::Result<Connection>>) {
    loop {
        // Above the limit clients wait in the backlog of the socket.
        let slot = host.connections.take().await;
        match listener.accept().await {
            Ok((stream, _address)) => {
                // A task of its own: looking up users can take long, and must not hold others up.
                let (host, sender) = (Arc::clone(&host), sender.clone());
                tokio::spawn(async move {
                    match name(stream, host, slot).await {
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

async fn name(stream: UnixStream, host: Arc<Host>, slot: Slot) -> io::Result<Connection> {
    let credentials = stream.peer_cred()?;
    let peer = Peer {
        uid: credentials.uid(),
        gid: credentials.gid(),
    };
    let named = tokio::task::spawn_blocking(move || host.clients.name(peer)).await?;
    Ok(Connection {
        stream,
        named,
        _slot: slot,
    })
}

/// Removes a socket that a dead daemon left behind.
///
/// Errors: it is served, or it is no socket.
pub fn remove_stale(path: &Path) -> io::Result<()> {
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
    type ConnectInfo = Arc<Named>;

    fn connect_info(&self) -> Arc<Named> {
        Arc::clone(&self.named)
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
