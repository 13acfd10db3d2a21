//! The durable record: who asked, what ran, what came out.
//!
//! One thread owns the SQLite database and takes requests from a bounded channel. An `accept` is committed before its
//! answer but not synced (a crash of the host may lose it, a crash of brigd can't); a `finish` is synced, and all that
//! wait at one time share one transaction. Accepts are written first, so that they don't wait for that sync.
//!
//! `entries` is append-only: every entry is one JSON text, never changed, in the order of its number, so a hash chain
//! can run over the texts. Code and output lie in `bodies`, and an entry holds only their hashes: a body can be
//! erased and the entries still prove what it was. `executions` is an index of the present state, made from the entries.
//!
//! Whoever opens it must [`Ledger::settle`] it: executions that were accepted and never finished, and sessions that were
//! opened and never closed, are `lost` unless they were adopted. A lock file keeps a second brigd from doing that to a
//! living one.

mod database;
mod entry;
mod read;
mod record;
mod requests;
mod schema;
mod writer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use brig_jailer::ids::Id;

pub use record::{
    Accept, Artifact, Body, Finish, Input, Kind, Limits, Made, OpenEnds, Origin, Record, Refused, Requested,
    SessionClosed, SessionOpened, Usage, Work,
};
use writer::{Look, Request, Writer};

/// How long a request is remembered from its acceptance on, and a result from the end on.
pub const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

/// Requests that may wait for the writer; more make callers wait.
const QUEUE: usize = 256;

/// What can go wrong with the ledger. Whoever gets it must not start an execution.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("ledger {path}: can't be opened: {source}")]
    Open { path: PathBuf, source: rusqlite::Error },
    #[error("ledger {path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    /// Another process has it.
    #[error("ledger {path}: in use by another brigd")]
    InUse { path: PathBuf },
    /// A newer Brig wrote it.
    #[error("ledger {path}: written by a newer brigd (schema {found}, this one knows up to {known})")]
    Newer { path: PathBuf, found: i64, known: i64 },
    /// Full disk, read-only file system, failing disk.
    #[error("ledger {path}: can't be written: {source}")]
    Unwritable { path: PathBuf, source: rusqlite::Error },
    /// An entry or the database is damaged.
    #[error("ledger {path}: can't be read: {source}")]
    Unreadable { path: PathBuf, source: rusqlite::Error },
    /// So little space is left that only running executions are still recorded.
    #[error("ledger {path}: {free_bytes} bytes are free on its file system, {needed_bytes} are needed to accept work")]
    NoSpace {
        path: PathBuf,
        free_bytes: u64,
        needed_bytes: u64,
    },
    /// The id was used before.
    #[error("{0}: the ledger has it already")]
    Exists(Id),
    /// The same request came before, with this payload or another.
    #[error("the request came before")]
    Repeated(Requested),
    /// An end without a beginning, or a second one.
    #[error("{0}: not begun, or ended already")]
    NotRunning(Id),
    /// The writer's thread ended.
    #[error("ledger: closed")]
    Closed,
}

/// How to open a ledger.
#[derive(Debug, Clone)]
pub struct Options {
    /// Free space below which no execution is accepted, in bytes, so that those that run can still be finished.
    pub reserve_bytes: u64,
    /// The database's largest size, in bytes; absent is as large as the file system allows.
    pub max_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            reserve_bytes: 32 * 1024 * 1024,
            max_bytes: None,
        }
    }
}

/// A handle to the ledger; copies share the writer, which ends after the last one.
#[derive(Debug, Clone)]
pub struct Ledger {
    requests: mpsc::Sender<Request>,
}

impl Ledger {
    /// Opens or makes the ledger, and brings it up to date.
    ///
    /// Blocks for a short time: meant for start-up. The file gets mode 0600, since code and output are in it.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        Self::open_with(path, &Options::default())
    }

    /// Opens the ledger with limits of its own.
    pub fn open_with(path: &Path, options: &Options) -> Result<Self, LedgerError> {
        let writer = Writer::open(path, options)?;
        let (requests, inbox) = mpsc::channel(QUEUE);
        std::thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || writer.run(inbox))
            .map_err(|source| LedgerError::File {
                path: path.to_owned(),
                source,
            })?;
        Ok(Self { requests })
    }

    /// Records that an execution will run; it must not start before this returned.
    pub async fn accept(&self, accept: Accept) -> Result<(), LedgerError> {
        self.ask(|answer| Request::Accept(Box::new(accept), answer)).await
    }

    /// Records how an execution ended, durably; `finished` must not be told before this returned.
    pub async fn finish(&self, finish: Finish) -> Result<(), LedgerError> {
        self.ask(|answer| Request::Finish(Box::new(finish), answer)).await
    }

    /// Records that something was asked for and not done.
    pub async fn refused(&self, refused: Refused) -> Result<(), LedgerError> {
        self.ask(|answer| Request::Refused(Box::new(refused), answer)).await
    }

    /// Records that a session will be made; it must not be made before this returned.
    pub async fn session_opened(&self, opened: SessionOpened) -> Result<(), LedgerError> {
        self.ask(|answer| Request::Opened(Box::new(opened), answer)).await
    }

    /// Records that nothing is left of a session, durably.
    pub async fn session_closed(&self, closed: SessionClosed) -> Result<(), LedgerError> {
        self.ask(|answer| Request::Closed(closed, answer)).await
    }

    /// Marks what a former brigd left running as lost, but for what goes on.
    pub async fn settle(&self, adopted: OpenEnds) -> Result<(), LedgerError> {
        self.ask(|answer| Request::Settle(adopted, answer)).await
    }

    /// What has begun and not ended, as far as it is recorded.
    pub async fn open_ends(&self) -> Result<OpenEnds, LedgerError> {
        self.ask(Request::OpenEnds).await
    }

    /// Looks an execution up.
    pub async fn get(&self, execution: &Id) -> Result<Option<Record>, LedgerError> {
        self.look(|answer| Look::Get(execution.clone(), answer)).await
    }

    /// What a request of a tenant made, if it came within [`REMEMBERED`].
    pub async fn requested(&self, tenant: &str, request: &Id) -> Result<Option<Requested>, LedgerError> {
        self.look(|answer| Look::Requested(tenant.to_owned(), request.to_string(), answer))
            .await
    }

    /// The artifacts of a session, those of the newest executions first, at most so many.
    pub async fn artifacts(&self, session: &Id, most: usize) -> Result<Vec<Artifact>, LedgerError> {
        self.look(|answer| Look::Artifacts(session.clone(), most, answer)).await
    }

    /// Waits until all that was asked before is done, and ends the writer. Other handles get `Closed` from then on.
    pub async fn close(self) -> Result<(), LedgerError> {
        self.ask(Request::Close).await
    }

    async fn look<T>(&self, look: impl FnOnce(Answer<T>) -> Look) -> Result<T, LedgerError> {
        self.ask(|answer| Request::Look(look(answer))).await
    }

    async fn ask<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Result<T, LedgerError> {
        let (answer, answered) = oneshot::channel();
        self.requests
            .send(request(answer))
            .await
            .map_err(|_| LedgerError::Closed)?;
        answered.await.map_err(|_| LedgerError::Closed)?
    }
}

/// Where the answer to a request goes.
type Answer<T> = oneshot::Sender<Result<T, LedgerError>>;

#[cfg(test)]
mod tests;
