//! What writes to the database: one thread, and whoever promises an accept while that is at rest.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rusqlite::{Connection, TransactionBehavior};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use brig_jailer::ids::Id;

use super::chain::{self, Head};
use super::database::Lock;
use super::entry::{Entry, Pen, Problem};
use super::promises::Promises;
use super::record::{Accept, Finish, OpenEnds, SessionClosed, hex, to_millis};
use super::removal;
use super::request::{Batch, Look, Removal, Request};
use super::{Answer, LedgerError, Options, database, read, requests, schema};

/// How long a promise waits to be entered with something else.
const SOON: Duration = Duration::from_millis(20);
/// The same after it could not be.
const AGAIN: Duration = Duration::from_secs(1);
/// Requests that are written at one time, at most.
const BATCH: usize = 128;
/// Written bytes after which the log is copied into the database.
const CHECKPOINT_BYTES: usize = 4 * 1024 * 1024;
/// Entries after which the head of the chain is told to the journal.
const HEAD_EVERY: i64 = 1000;

const RUNNING: &str = "SELECT execution FROM executions WHERE finish_number IS NULL ORDER BY accept_number";
const OPEN: &str = "SELECT session FROM sessions WHERE close_number IS NULL ORDER BY open_number";

/// The writer, for its thread and for whoever has something short to be written that can't wait; absent once it has ended.
#[derive(Debug, Clone)]
pub(super) struct Shared(Arc<Mutex<Option<Writer>>>);

#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    connection: Connection,
    /// What a transaction survives now.
    durability: Option<Durability>,
    promises: Promises,
    /// When they are to be entered at the latest; absent where there are none.
    due: Option<Instant>,
    /// Whether they could not be entered, so that no more are given.
    stuck: bool,
    /// Whether there are any, for those who read beside the writer.
    promised: Arc<AtomicBool>,
    reserve_bytes: u64,
    /// Written since the log was last copied into the database.
    written: usize,
    /// Whether the next that is written may begin the log anew, which syncs its head.
    begins_log: bool,
    head: watch::Sender<Head>,
    /// The head that was told to the journal last.
    told: i64,
    /// Whether the database is being written anew, which can take long.
    rewriting: Arc<AtomicBool>,
    /// Held as long as the writer lives.
    _lock: Lock,
}

impl Shared {
    pub(super) fn new(writer: Writer) -> Self {
        Self(Arc::new(Mutex::new(Some(writer))))
    }

    /// Serves requests until the last handle is gone or `Close` comes; what waits then is still done.
    pub(super) fn run(&self, mut inbox: mpsc::Receiver<Request>) {
        let clock = Builder::new_current_thread().enable_time().build();
        let clock = clock.inspect_err(|error| warn!(%error, "ledger: no clock")).ok();
        let mut requests = Vec::new();
        let mut closing = Vec::new();
        while self.wait(&mut inbox, &mut requests, clock.as_ref()) > 0 {
            let batch = Batch::sort(requests.drain(..), &mut closing);
            if !closing.is_empty() {
                inbox.close();
            }
            if let Some(writer) = self.lock().as_mut() {
                writer.go_on(batch, inbox.is_empty());
            }
        }
        if let Some(mut writer) = self.lock().take() {
            // What can't be entered is told, and entered at the next start.
            let _ = writer.enter_promises();
            writer.tell_head();
        }
        for answer in closing {
            let _ = answer.send(Ok(()));
        }
    }

    /// Waits for requests. What was promised is entered when none come; without a clock, at once.
    fn wait(&self, inbox: &mut mpsc::Receiver<Request>, requests: &mut Vec<Request>, clock: Option<&Runtime>) -> usize {
        while let Some(due) = self.due() {
            if let Some(clock) = clock
                && Instant::now() < due
            {
                let next = async { tokio::time::timeout_at(due.into(), inbox.recv_many(requests, BATCH)).await };
                if let Ok(count) = clock.block_on(next) {
                    return count;
                }
            }
            let entered = self.lock().as_mut().map_or(Ok(()), Writer::enter_promises);
            // If that fails, it is told, and done again.
            if entered.is_err() && clock.is_none() {
                break;
            }
        }
        inbox.blocking_recv_many(requests, BATCH)
    }

    /// Promises an accept here and now, if the writer is at rest. The first promise since all were entered gives the time at
    /// which they are to be; what is not promised is given back.
    ///
    /// This writes a page or two, syncs nothing, and waits for no lock: what a task may do whose answer somebody waits for.
    pub(super) fn promise(&self, accept: Box<Accept>) -> Result<Option<Instant>, Box<Accept>> {
        let Ok(mut writer) = self.0.try_lock() else {
            return Err(accept);
        };
        match writer.as_mut() {
            Some(writer) => {
                let before = writer.due;
                if writer.promise_at_once(&accept) {
                    Ok(writer.due.filter(|_| before.is_none()))
                } else {
                    Err(accept)
                }
            }
            None => Err(accept),
        }
    }

    fn due(&self) -> Option<Instant> {
        self.lock().as_ref().and_then(|writer| writer.due)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Writer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    pub(super) fn open(path: &Path, options: &Options) -> Result<Self, LedgerError> {
        let lock = database::lock(path)?;
        let mut connection = database::open(path, options)?;
        schema::migrate(&mut connection, path)?;
        let unreadable = |source| LedgerError::Unreadable {
            path: path.to_owned(),
            source,
        };
        let head = chain::head(&connection).map_err(unreadable)?;
        let promises = Promises::read(&connection).map_err(unreadable)?;
        let mut writer = Self {
            path: path.to_owned(),
            connection,
            durability: None,
            promised: Arc::new(AtomicBool::new(!promises.is_empty())),
            // What a former one left, before anything else.
            due: (!promises.is_empty()).then(Instant::now),
            stuck: false,
            promises,
            reserve_bytes: options.reserve_bytes,
            written: 0,
            begins_log: true,
            head: watch::Sender::new(head),
            told: 0,
            rewriting: Arc::default(),
            _lock: lock,
        };
        writer.tell_head();
        Ok(writer)
    }

    /// The head of the chain, as it is from time to time.
    pub(super) fn head(&self) -> watch::Receiver<Head> {
        self.head.subscribe()
    }

    /// Whether the database is being written anew.
    pub(super) fn rewriting(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.rewriting)
    }

    /// Whether something is promised and not entered, which readers must ask for first.
    pub(super) fn promised(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.promised)
    }

    /// Does what came, and what is due besides.
    fn go_on(&mut self, batch: Batch, is_quiet: bool) {
        self.serve(batch);
        if self.head.borrow().number >= self.told + HEAD_EVERY {
            self.tell_head();
        }
        if self.written >= CHECKPOINT_BYTES && is_quiet {
            self.checkpoint();
        }
    }

    /// Notes the head of the chain where whoever writes to the ledger's file can't change it.
    fn tell_head(&mut self) {
        let head = *self.head.borrow();
        self.told = head.number;
        info!(ledger_head = %hex(&head.hash), ledger_sequence = head.number, "ledger head");
    }

    pub(super) fn serve(&mut self, mut batch: Batch) {
        if let Some((accept, answer)) = batch.take_single_accept() {
            if self.promise(&accept) {
                // Nobody waits any more: the promise stands all the same.
                let _ = answer.send(Ok(()));
                return;
            }
            batch.accepts.push((Entry::Accept(accept), answer));
        }
        self.write_group(Durability::Committed, batch.accepts);
        self.write_group(Durability::Synced, batch.finishes);
        for (adopted, answer) in batch.settles {
            let settled = self.settle(&adopted);
            let _ = answer.send(settled.map_err(|source| self.unwritable(source)));
        }
        for removal in batch.removals {
            self.remove(removal);
        }
        for look in batch.looks {
            self.look(look);
        }
        for answer in batch.open_ends {
            let _ = answer.send(self.open_ends().map_err(|source| self.unreadable(source)));
        }
    }

    /// Commits an accept that is entered later; false if it has to be entered now.
    fn promise(&mut self, accept: &Accept) -> bool {
        if self.stuck || self.room(self.reserve_bytes).is_err() || self.survive(Durability::Committed).is_err() {
            return false;
        }
        match self.promises.give(&mut self.connection, accept) {
            Ok(given) => {
                self.promised.store(!self.promises.is_empty(), Ordering::Release);
                if given {
                    self.begins_log = false;
                    self.due.get_or_insert_with(|| Instant::now() + SOON);
                }
                given
            }
            // What is entered now says what is wrong.
            Err(_) => false,
        }
    }

    /// The same, but not where that would sync, or wait for somebody else who has the database just now.
    fn promise_at_once(&mut self, accept: &Accept) -> bool {
        if self.begins_log || self.connection.busy_timeout(Duration::ZERO).is_err() {
            return false;
        }
        let given = self.promise(accept);
        // A limit of time that is lost makes requests fail that could have waited, and nothing else.
        let _ = self.connection.busy_timeout(database::BUSY);
        given
    }

    /// Enters what was promised.
    fn enter_promises(&mut self) -> rusqlite::Result<()> {
        if self.promises.is_empty() {
            return Ok(());
        }
        self.transact(Durability::Committed, |_| Ok(()))
    }

    /// Sets what the next transactions survive.
    fn survive(&mut self, durability: Durability) -> rusqlite::Result<()> {
        if self.durability != Some(durability) {
            self.connection
                .pragma_update(None, "synchronous", durability.pragma())?;
            self.durability = Some(durability);
        }
        Ok(())
    }

    /// Writes a group in one transaction; if that fails, each alone, so that none fails for another's sake.
    fn write_group(&mut self, durability: Durability, group: Vec<(Entry, Answer<()>)>) {
        let results = match self.write(durability, group.iter().map(|(entry, _)| entry)) {
            Ok(results) => results,
            Err(_) if group.len() > 1 => {
                let alone = |(entry, _): &(Entry, _)| self.write(durability, std::iter::once(entry));
                group.iter().map(alone).map(|result| result.and_then(first)).collect()
            }
            Err(error) => vec![Err(error)],
        };
        for ((_, answer), result) in group.into_iter().zip(results) {
            // Nobody waits any more: the entry is written all the same.
            let _ = answer.send(result);
        }
    }

    /// Writes entries in one transaction; an entry that doesn't fit the others has an error of its own.
    fn write<'a>(
        &mut self,
        durability: Durability,
        entries: impl Iterator<Item = &'a Entry>,
    ) -> Result<Vec<Result<(), LedgerError>>, LedgerError> {
        let mut entries = entries.peekable();
        if entries.peek().is_none() {
            return Ok(Vec::new());
        }
        let room = self.room(self.reserve_bytes);
        self.transact(durability, |pen| {
            let mut results = Vec::new();
            for entry in entries {
                results.push(match &room {
                    Err(problem) if entry.needs_room() => Err(problem.clone()),
                    _ => entry.insert(pen)?,
                });
            }
            Ok(results)
        })
        .map(|results| {
            results
                .into_iter()
                .map(|result| result.map_err(|problem| self.explain(problem)))
                .collect()
        })
        .map_err(|source| self.unwritable(source))
    }

    /// Writes, after what was promised, in one transaction.
    pub(super) fn transact<T>(
        &mut self,
        durability: Durability,
        write: impl FnOnce(&mut Pen<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let result = self.try_to_transact(durability, write);
        let Err(error) = &result else { return result };
        if self.promises.is_empty() {
            return result;
        }
        self.due = Some(Instant::now() + AGAIN);
        if !std::mem::replace(&mut self.stuck, true) {
            warn!(path = %self.path.display(), %error, "ledger: promised executions can't be entered");
        }
        result
    }

    fn try_to_transact<T>(
        &mut self,
        durability: Durability,
        write: impl FnOnce(&mut Pen<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.survive(durability)?;
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let before = *self.head.borrow();
        let mut pen = Pen {
            transaction: &transaction,
            head: before,
            written: 0,
        };
        self.promises.keep(&mut pen)?;
        let result = write(&mut pen)?;
        let (head, written) = (pen.head, pen.written);
        transaction.commit()?;
        self.promises.clear();
        (self.due, self.stuck) = (None, false);
        self.written += written;
        self.begins_log = false;
        self.head
            .send_if_modified(|known| std::mem::replace(known, head) != head);
        // Who finds that there are none looks at the head next.
        self.promised.store(false, Ordering::Release);
        Ok(result)
    }

    fn remove(&mut self, removal: Removal) {
        match removal {
            Removal::Erase(filter, after, last, answer) => {
                let erased = self.transact(Durability::Synced, |pen| {
                    removal::erase(pen.transaction, &filter, after, last)
                });
                let _ = answer.send(erased.map_err(|source| self.unwritable(source)));
            }
            Removal::Sweep(now_ms, answer) => {
                let swept = self.transact(Durability::Committed, |pen| removal::sweep(pen.transaction, now_ms));
                let _ = answer.send(swept.map_err(|source| self.unwritable(source)));
            }
            Removal::Rewrite(answer) => {
                let _ = answer.send(self.rewrite());
            }
            Removal::Scrub(answer) => {
                self.begins_log = true;
                let cut = self
                    .connection
                    .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0));
                let _ = answer.send(cut.map(|busy| !busy).map_err(|source| self.unwritable(source)));
            }
        }
    }

    /// Ends what a former brigd left running, but for what was adopted.
    fn settle(&mut self, adopted: &OpenEnds) -> rusqlite::Result<()> {
        let (executions, sessions) = (self.running()?, self.ids(OPEN)?);
        let time = SystemTime::now();
        let lost = executions.into_iter().filter(|id| !adopted.executions.contains(id));
        let lost = lost.map(|id| Entry::Finish(Arc::new(Finish::lost(id, time))));
        let closed = sessions.into_iter().filter(|id| !adopted.sessions.contains(id));
        let closed = closed.map(|session| {
            Entry::Closed(Arc::new(SessionClosed {
                session,
                reason: "lost".to_owned(),
                time,
            }))
        });
        let entries: Vec<Entry> = lost.chain(closed).collect();
        if entries.is_empty() {
            return Ok(());
        }
        warn!(count = entries.len(), "executions or sessions lost");
        self.transact(Durability::Synced, |pen| {
            entries.iter().try_for_each(|entry| entry.insert(pen).map(|_| ()))
        })
    }

    fn open_ends(&self) -> rusqlite::Result<OpenEnds> {
        Ok(OpenEnds {
            executions: self.running()?.into_iter().collect(),
            sessions: self.ids(OPEN)?.into_iter().collect(),
        })
    }

    fn running(&self) -> rusqlite::Result<Vec<Id>> {
        let mut executions = self.ids(RUNNING)?;
        executions.extend(self.promises.executions());
        Ok(executions)
    }

    fn ids(&self, sql: &str) -> rusqlite::Result<Vec<Id>> {
        let found: Vec<String> = self
            .connection
            .prepare(sql)?
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        Ok(found.iter().filter_map(|id| Id::parse(id).ok()).collect())
    }

    /// Looks something up.
    fn look(&mut self, look: Look) {
        match look {
            Look::Get(execution, answer) => {
                let entered = read::record(&self.connection, &execution);
                let found = entered.map(|entered| entered.or_else(|| self.promises.record(&execution)));
                let _ = answer.send(found.map_err(|source| self.unreadable(source)));
            }
            Look::Requested(tenant, request, answer) => {
                let now = SystemTime::now();
                let entered = requests::find(&self.connection, &tenant, &request, to_millis(now));
                let promised = || self.promises.requested(&tenant, &request, now);
                let found = entered.map(|entered| entered.or_else(promised));
                let _ = answer.send(found.map_err(|source| self.unreadable(source)));
            }
            Look::Entered(answer) => {
                let entered = self.enter_promises();
                let _ = answer.send(entered.map_err(|source| self.unwritable(source)));
            }
        }
    }

    fn unreadable(&self, source: rusqlite::Error) -> LedgerError {
        LedgerError::Unreadable {
            path: self.path.clone(),
            source,
        }
    }

    /// Copies the log into the database; done between batches, so that no commit has to.
    fn checkpoint(&mut self) {
        let copied = self
            .connection
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = copied {
            warn!(path = %self.path.display(), %error, "ledger checkpoint");
        }
        self.written = 0;
        self.begins_log = true;
    }

    /// SQLite moves rows from page to page and leaves copies in what is free there; only a new file has none.
    ///
    /// Nothing else is written meanwhile. The log and the temporary file each become as large as the database.
    fn rewrite(&mut self) -> Result<(), LedgerError> {
        let size = std::fs::metadata(&self.path).map_err(|source| LedgerError::File {
            path: self.path.clone(),
            source,
        })?;
        self.enter_promises().map_err(|source| self.unwritable(source))?;
        let needed = size.len().saturating_mul(2).saturating_add(self.reserve_bytes);
        self.room(needed).map_err(|problem| self.explain(problem))?;
        self.rewriting.store(true, Ordering::Relaxed);
        let rewritten = self.connection.execute_batch("VACUUM");
        self.rewriting.store(false, Ordering::Relaxed);
        self.begins_log = true;
        rewritten.map_err(|source| self.unwritable(source))
    }

    /// Whether so many bytes are free.
    fn room(&self, needed: u64) -> Result<(), Problem> {
        let Ok(stat) = rustix::fs::statvfs(&self.path) else {
            return Ok(());
        };
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < needed {
            Err(Problem::NoSpace(free, needed))
        } else {
            Ok(())
        }
    }

    fn explain(&self, problem: Problem) -> LedgerError {
        match problem {
            Problem::Exists(id) => LedgerError::Exists(id),
            Problem::Repeated(known) => LedgerError::Repeated(known),
            Problem::NotRunning(id) => LedgerError::NotRunning(id),
            Problem::NoSpace(free_bytes, needed_bytes) => LedgerError::NoSpace {
                path: self.path.clone(),
                free_bytes,
                needed_bytes,
            },
        }
    }

    fn unwritable(&self, source: rusqlite::Error) -> LedgerError {
        LedgerError::Unwritable {
            path: self.path.clone(),
            source,
        }
    }
}

/// What a transaction must survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// A crash of brigd.
    Committed,
    /// A crash of the host.
    Synced,
}

impl Durability {
    fn pragma(self) -> &'static str {
        match self {
            Self::Committed => "NORMAL",
            Self::Synced => "FULL",
        }
    }
}

fn first(results: Vec<Result<(), LedgerError>>) -> Result<(), LedgerError> {
    results.into_iter().next().unwrap_or(Ok(()))
}
