//! The connections of the daemon, which can be closed under it.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt};

/// All connections of a daemon.
#[derive(Debug, Clone, Default)]
pub(super) struct Connections(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    open: Vec<StdStream>,
    refuses: bool,
    refused: usize,
}

impl Connections {
    /// Listens, and gives the connections that are not refused.
    pub(super) fn listen(&self, socket: &Path) -> impl Stream<Item = io::Result<UnixStream>> + use<> {
        let listener = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let connections = self.clone();
        listener.filter_map(move |stream| connections.take(stream.unwrap()).map(Ok))
    }

    fn take(&self, stream: UnixStream) -> Option<UnixStream> {
        let mut state = self.0.lock().unwrap();
        if state.refuses {
            state.refused += 1;
            return None;
        }
        let stream = stream.into_std().unwrap();
        state.open.push(stream.try_clone().unwrap());
        Some(UnixStream::from_std(stream).unwrap())
    }

    /// Closes all of them.
    pub(super) fn hang_up(&self, refuse: bool) {
        let mut state = self.0.lock().unwrap();
        state.refuses = refuse;
        for stream in state.open.drain(..) {
            // The client may have closed it already.
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    pub(super) fn refused(&self) -> usize {
        self.0.lock().unwrap().refused
    }
}
