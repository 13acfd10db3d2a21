//! The durable record: who asked, what ran, what came out.
//!
//! One thread writes to the SQLite database and takes requests from a bounded channel. An `accept` is committed before its
//! answer but not synced (a crash of the host may lose it, a crash of brigd can't), in short if it comes alone
//! (`promises`), then by whoever asks where that thread is at rest; a `finish` is synced, and all that wait at one time
//! share one transaction. Accepts are written first, so that they don't wait for that sync.
//!
//! `entries` is append-only: every entry is one JSON text, never changed, in the order of its number, and a chain of
//! hashes (`chain`) runs over them. Code and output lie in `bodies`, what names people in `names`, and an entry holds only
//! their hashes: they can be erased and the entries still prove what they were. `executions` and `sessions` are an index
//! of the present state, made from the entries.
//!
//! Entries are read by connections of their own (`readers`), in batches. An end that there is no space for waits with
//! whoever has it until there is some; nothing new is accepted meanwhile, so that there are never more of them than
//! executions that may run.
//!
//! Whoever opens it must [`Ledger::settle`] it: executions that were accepted and never finished, and sessions that were
//! opened and never closed, are `lost` unless they were adopted. A lock file keeps a second brigd from doing that to a
//! living one.

mod chain;
mod database;
mod entry;
mod error;
mod names;
mod promises;
mod query;
mod read;
mod readers;
mod rechain;
mod record;
mod refusals;
mod removal;
mod request;
mod requests;
mod schema;
mod verify;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep_until;
use tracing::{info, warn};

use brig_jailer::ids::Id;

pub use chain::{Hash, Head};
pub use error::LedgerError;
pub use query::{Batch, Content, Filter, Found, Most, Start};
use readers::Readers;
pub use record::{
    Accept, Artifact, ArtifactReviewed, Body, Downloaded, Erased, Finish, Input, Keep, Kind, Limits, Made, OpenEnds,
    Origin, Record, Refused, Requested, Reviewed, SessionClosed, SessionOpened, Usage, Work,
};
pub(crate) use record::{hex, to_millis};
use refusals::Refusals;
pub use removal::Swept;
use request::{Look, Request};
pub use verify::{Range, Verdict};
use writer::{Shared, Writer};

/// How long a request is remembered from its acceptance on, and a result from the end on.
pub const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

/// Requests that may wait for the writer; more make callers wait.
const QUEUE: usize = 256;
/// After this time an end that there was no space for is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often what was erased is tried to be cut off the log, where readers are in the way.
const SCRUBS: usize = 5;

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
    readers: Readers,
    refusals: Arc<Refusals>,
    /// The head of the chain.
    head: watch::Receiver<Head>,
    /// Whether there are accepts that are not among the entries yet.
    promised: Arc<AtomicBool>,
    rewriting: Arc<AtomicBool>,
    writer: Shared,
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
        let (head, promised, rewriting) = (writer.head(), writer.promised(), writer.rewriting());
        let writer = Shared::new(writer);
        let served = writer.clone();
        std::thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || served.run(inbox))
            .map_err(|source| LedgerError::File {
                path: path.to_owned(),
                source,
            })?;
        Ok(Self {
            requests,
            readers: Readers::new(path.to_owned()),
            refusals: Arc::default(),
            head,
            promised,
            rewriting,
            writer,
        })
    }

    /// Whether the writer is busy for long after an erasure, and nothing is wrong with that.
    pub fn is_rewriting(&self) -> bool {
        self.rewriting.load(Ordering::Relaxed)
    }

    /// Records that an execution will run; it must not start before this returned.
    pub async fn accept(&self, accept: Accept) -> Result<(), LedgerError> {
        match self.promise(Box::new(accept)) {
            Ok(()) => Ok(()),
            Err(accept) => self.ask(|answer| Request::Accept(accept, answer)).await,
        }
    }

    /// Promises an accept if nothing was asked of the writer that is not done: the way to its thread and back takes longer.
    /// What is promised is entered in time by whoever was the first since all was.
    fn promise(&self, accept: Box<Accept>) -> Result<(), Box<Accept>> {
        if self.requests.capacity() < self.requests.max_capacity() {
            return Err(accept);
        }
        if let Some(due) = self.writer.promise(accept)? {
            // The writer's thread sleeps; at its end it enters them by itself.
            let requests = self.requests.downgrade();
            tokio::spawn(async move {
                sleep_until(due.into()).await;
                if let Some(requests) = requests.upgrade() {
                    let (answer, _nobody_waits) = oneshot::channel();
                    let _ = requests.send(Request::Look(Look::Entered(answer))).await;
                }
            });
        }
        Ok(())
    }

    /// Records how an execution ended, durably; `finished` must not be told before this returned.
    ///
    /// Where there is no space, it waits until there is some.
    pub async fn finish(&self, finish: Finish) -> Result<(), LedgerError> {
        let finish = Arc::new(finish);
        self.insist(|answer| Request::Finish(Arc::clone(&finish), answer)).await
    }

    /// Records that something was asked for and not done; in short where that happens often.
    pub async fn refused(&self, refused: Refused) -> Result<(), LedgerError> {
        match self.refusals.admit(refused, Instant::now()) {
            Some(refused) => self.write_refused(refused).await,
            None => Ok(()),
        }
    }

    /// The same for who can't wait. What there is no room for in the queue is counted.
    pub fn note_refused(&self, refused: Refused) {
        let Some(refused) = self.refusals.admit(refused, Instant::now()) else {
            return;
        };
        let (tenant, reason, count) = (refused.tenant.clone(), refused.reason.clone(), refused.count);
        let (answer, _nobody_waits) = oneshot::channel();
        let request = Request::Refused(Box::new(refused), answer);
        if self.requests.try_send(request).is_err() {
            self.refusals.count(&tenant, &reason, count, Instant::now());
        }
    }

    /// Records how many refusals were only counted; to be called every minute.
    pub async fn tell_counted(&self) -> Result<(), LedgerError> {
        for refused in self.refusals.counted(Instant::now(), SystemTime::now()) {
            self.write_refused(refused).await?;
        }
        Ok(())
    }

    async fn write_refused(&self, refused: Refused) -> Result<(), LedgerError> {
        let (tenant, reason, count) = (refused.tenant.clone(), refused.reason.clone(), refused.count);
        self.ask(|answer| Request::Refused(Box::new(refused), answer))
            .await
            .inspect_err(|_| self.refusals.count(&tenant, &reason, count, Instant::now()))
    }

    /// Records that a session will be made; it must not be made before this returned.
    pub async fn session_opened(&self, opened: SessionOpened) -> Result<(), LedgerError> {
        self.ask(|answer| Request::Opened(Box::new(opened), answer)).await
    }

    /// Records that nothing is left of a session, durably. Where there is no space, it waits until there is some.
    pub async fn session_closed(&self, closed: SessionClosed) -> Result<(), LedgerError> {
        let closed = Arc::new(closed);
        self.insist(|answer| Request::Closed(Arc::clone(&closed), answer)).await
    }

    /// Records what was decided about an execution that waits, durably; it must not be told before this returned.
    pub async fn reviewed(&self, reviewed: Reviewed) -> Result<(), LedgerError> {
        self.ask(|answer| Request::Reviewed(Box::new(reviewed), answer)).await
    }

    /// Records a decision about an artifact, durably; it does not count before this returned. One that was recorded
    /// before is not again.
    pub async fn artifact_reviewed(&self, reviewed: ArtifactReviewed) -> Result<(), LedgerError> {
        let reviewed = Arc::new(reviewed);
        self.ask(|answer| Request::ArtifactReviewed(reviewed, answer)).await
    }

    /// Records that an artifact may leave to others than the caller, durably; it must not before this returned.
    pub async fn downloaded(&self, downloaded: Downloaded) -> Result<(), LedgerError> {
        self.ask(|answer| Request::Downloaded(Box::new(downloaded), answer))
            .await
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

    /// The head of the chain, which changes with every entry.
    pub fn head(&self) -> watch::Receiver<Head> {
        self.head.clone()
    }

    /// Reads some entries.
    pub async fn batch(&self, filter: Filter, start: Start, most: Most) -> Result<Batch, LedgerError> {
        self.try_to_enter().await;
        self.readers
            .read(move |connection| query::batch(connection, &filter, start, most))
            .await
    }

    /// Computes the chain again, in batches: other reads come between.
    pub async fn verify(&self, range: Range) -> Result<Verdict, LedgerError> {
        self.try_to_enter().await;
        let begin = move |connection: &rusqlite::Connection| verify::Verification::begin(connection, range);
        let mut verification = self.readers.read(begin).await?;
        while !verification.done {
            let go_on = |connection: &rusqlite::Connection| {
                verification.go_on(connection)?;
                Ok(verification)
            };
            verification = self.readers.read(go_on).await?;
        }
        Ok(verification.verdict())
    }

    /// Counts the entries that [`Ledger::erase`] would take something from.
    pub async fn count(&self, filter: Filter) -> Result<u64, LedgerError> {
        self.entered().await?;
        let last = self.head.borrow().number;
        self.count_to(filter, last).await
    }

    async fn count_to(&self, filter: Filter, last: i64) -> Result<u64, LedgerError> {
        self.readers
            .read(move |connection| removal::count(connection, &filter, last))
            .await
    }

    /// Removes the bodies and names of the entries that a filter finds, and records that before. Gives how many
    /// entries lost something.
    ///
    /// Ends with the database written anew, which takes its time if it is big; nothing is accepted meanwhile.
    pub async fn erase(&self, filter: Filter, mut record: Erased) -> Result<u64, LedgerError> {
        self.entered().await?;
        let last = self.head.borrow().number;
        record.entries = self.count_to(filter.clone(), last).await?;
        let entries = record.entries;
        self.ask(|answer| Request::Erased(Box::new(record), answer)).await?;
        let mut after = 0;
        loop {
            let filter = filter.clone();
            let progress = self
                .ask(|answer| Request::Erase(Box::new(filter), after, last, answer))
                .await?;
            if progress.done {
                break;
            }
            after = progress.number;
        }
        self.ask(Request::Rewrite).await?;
        self.scrub().await;
        info!(entries, "ledger bodies erased");
        Ok(entries)
    }

    /// Counts what [`Ledger::sweep`] would remove.
    pub async fn count_due(&self) -> Result<Swept, LedgerError> {
        self.try_to_enter().await;
        let now_ms = to_millis(SystemTime::now());
        self.readers
            .read(move |connection| removal::count_due(connection, now_ms))
            .await
    }

    /// Removes the bodies and names whose time has run out.
    pub async fn sweep(&self) -> Result<Swept, LedgerError> {
        let now_ms = to_millis(SystemTime::now());
        let mut all = Swept::default();
        loop {
            let swept = self.ask(|answer| Request::Sweep(now_ms, answer)).await?;
            if swept.is_empty() {
                break;
            }
            all.add(swept);
        }
        if !all.is_empty() {
            self.scrub().await;
            let Swept {
                works,
                outputs,
                names,
                bytes,
            } = all;
            info!(works, outputs, names, bytes, "ledger swept");
        }
        Ok(all)
    }

    /// Cuts what was removed off the log.
    async fn scrub(&self) {
        for _ in 0..SCRUBS {
            match self.ask(Request::Scrub).await {
                Ok(true) => return,
                Ok(false) => tokio::time::sleep(AGAIN).await,
                Err(error) => return warn!(%error, "ledger log not cut"),
            }
        }
        warn!("ledger log not cut, as it is being read: what was removed is in it until it is written over");
    }

    /// Waits until all that was asked before is done, and ends the writer. Other handles get `Closed` from then on.
    pub async fn close(self) -> Result<(), LedgerError> {
        let told = self.tell_counted().await;
        self.readers.close();
        self.ask(Request::Close).await.and(told)
    }

    /// Asks again as long as there is no space.
    async fn insist<T>(&self, request: impl Fn(Answer<T>) -> Request) -> Result<T, LedgerError> {
        let mut waits = false;
        loop {
            match self.ask(&request).await {
                Err(error) if error.is_full() => {
                    if !std::mem::replace(&mut waits, true) {
                        warn!(%error, "an end waits until it can be recorded");
                    }
                    tokio::time::sleep(AGAIN).await;
                }
                answer => return answer,
            }
        }
    }

    /// The same for who reads: where that can't be, all else is found.
    async fn try_to_enter(&self) {
        let _ = self.entered().await;
    }

    /// Waits until all that was accepted is among the entries.
    async fn entered(&self) -> Result<(), LedgerError> {
        if self.promised.load(Ordering::Acquire) {
            self.look(Look::Entered).await?;
        }
        Ok(())
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
