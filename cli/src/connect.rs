//! The way to the daemon.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

use crate::exit::Exit;
use crate::failure::Failure;

/// Where the daemon of this host serves.
const DEFAULT: &str = "unix:///run/brig/brigd.sock";
/// The largest frame of HTTP/2, in bytes: a part of a file then comes in one.
const FRAME: u32 = 512 * 1024;

/// Gives the socket that `BRIG_ENDPOINT` names, else that of this host's daemon.
pub(crate) fn socket() -> Result<PathBuf, Failure> {
    let endpoint = std::env::var("BRIG_ENDPOINT").unwrap_or_default();
    parse(if endpoint.is_empty() { DEFAULT } else { &endpoint })
}

/// Makes the runtime of a command that asks the daemon one thing.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Failure::new(Exit::Failed, format!("runtime: {error}")))
}

/// Connects to the socket of a daemon.
pub(crate) async fn connect(socket: &Path) -> Result<Channel, Failure> {
    let path = socket.to_path_buf();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The address is only a name for HTTP/2's authority; the connector knows the way.
    let channel = Endpoint::from_static("http://brigd")
        .max_frame_size(FRAME)
        .connect_with_connector(connector)
        .await;
    channel.map_err(|error| unreachable(socket, &error))
}

fn parse(endpoint: &str) -> Result<PathBuf, Failure> {
    match endpoint.strip_prefix("unix://").map(Path::new) {
        Some(path) if path.is_absolute() => Ok(path.to_path_buf()),
        _ => Err(Failure::usage(
            "BRIG_ENDPOINT",
            format!("{endpoint:?} is not an address; accepted: unix:///PATH"),
        )),
    }
}

fn unreachable(socket: &Path, error: &tonic::transport::Error) -> Failure {
    let cause = io_error(error).map_or_else(|| error.to_string(), ToString::to_string);
    let message = format!("no daemon at {}: {cause}", socket.display());
    if io_error(error).is_some_and(|cause| cause.kind() == io::ErrorKind::PermissionDenied) {
        return Failure::new(Exit::NotPermitted, message)
            .hint("ask for membership in the group brig-clients, then log in again");
    }
    Failure::new(Exit::NoDaemon, message)
        .hint("start it: systemctl start brigd; or, as root, run a private one: brig run --standalone")
}

/// Finds the system's error below the transport's.
fn io_error(error: &tonic::transport::Error) -> Option<&io::Error> {
    let mut source: Option<&(dyn Error + 'static)> = error.source();
    while let Some(cause) = source {
        if let Some(found) = cause.downcast_ref::<io::Error>() {
            return Some(found);
        }
        source = cause.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_absolute_unix_path() {
        assert_eq!(parse(DEFAULT).unwrap(), Path::new("/run/brig/brigd.sock"));
        for wrong in ["/run/x", "http://host:1", "unix://relative", ""] {
            assert_eq!(parse(wrong).unwrap_err().exit, Exit::Usage, "{wrong}");
        }
    }

    #[tokio::test]
    async fn no_daemon_says_how_to_start_one() {
        let failure = connect(Path::new("/nonexistent/brigd.sock")).await.unwrap_err();
        assert_eq!(failure.exit, Exit::NoDaemon);
        assert_eq!(
            failure.message,
            "no daemon at /nonexistent/brigd.sock: No such file or directory (os error 2)"
        );
        assert!(failure.hints[0].contains("systemctl start brigd"));
    }
}
