//! Connections that only read: beside the writer, which waits for none of them.
//!
//! Each read takes a batch and ends, so that no client, however slow, holds up the log from being copied into the
//! database.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::Semaphore;

use super::LedgerError;

/// Reads at one time; more wait for their turn.
const READERS: usize = 4;

/// The connections.
#[derive(Debug, Clone)]
pub(super) struct Readers {
    path: PathBuf,
    turns: Arc<Semaphore>,
    /// Those that nobody uses, at most as many as there are turns.
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Readers {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            turns: Arc::new(Semaphore::new(READERS)),
            idle: Arc::default(),
        }
    }

    /// Waits for a turn and reads, in a thread of its own.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.map_err(|_closed| LedgerError::Closed)?;
        let this = self.clone();
        let reading = tokio::task::spawn_blocking(move || {
            // Given back when the read ends, also where nobody waits for it any more.
            let _turn = turn;
            this.take().and_then(|connection| {
                let found = read(&connection);
                this.idle().push(connection);
                found
            })
        });
        let found = reading.await.map_err(|_panicked| LedgerError::Closed)?;
        found.map_err(|source| LedgerError::Unreadable {
            path: self.path.clone(),
            source,
        })
    }

    /// Ends all of them: reads that come later fail.
    pub(super) fn close(&self) {
        self.turns.close();
        self.idle().clear();
    }

    fn take(&self) -> rusqlite::Result<Connection> {
        let idle = self.idle().pop();
        if let Some(connection) = idle {
            return Ok(connection);
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.pragma_update(None, "trusted_schema", false)?;
        Ok(connection)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
