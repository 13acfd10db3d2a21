//! The thread that owns the database.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::mpsc;

use brig_jailer::ids::Id;

use super::entry::{Entry, Problem};
use super::record::{
    Accept, Artifact, Finish, OpenEnds, Record, Refused, Requested, SessionClosed, SessionOpened, to_millis,
};
use super::{Answer, LedgerError, Options, database, read, requests, schema};

/// Requests that are written at one time, at most.
const BATCH: usize = 128;
/// Written bytes after which the log is copied into the database.
const CHECKPOINT_BYTES: usize = 4 * 1024 * 1024;

const RUNNING: &str = "SELECT execution FROM executions WHERE finish_number IS NULL ORDER BY accept_number";
const OPEN: &str = "SELECT session FROM sessions WHERE close_number IS NULL ORDER BY open_number";

pub(super) enum Request {
    Accept(Box<Accept>, Answer<()>),
    Finish(Box<Finish>, Answer<()>),
    Refused(Box<Refused>, Answer<()>),
    Opened(Box<SessionOpened>, Answer<()>),
    Closed(SessionClosed, Answer<()>),
    Settle(OpenEnds, Answer<()>),
    OpenEnds(Answer<OpenEnds>),
    Look(Look),
    Close(Answer<()>),
}

/// A question that changes nothing.
pub(super) enum Look {
    Get(Id, Answer<Option<Record>>),
    /// Of a tenant, a request.
    Requested(String, String, Answer<Option<Requested>>),
    /// Of a session, at most so many.
    Artifacts(Id, usize, Answer<Vec<Artifact>>),
}

#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    connection: Connection,
    reserve_bytes: u64,
    /// Written since the log was last copied into the database.
    written: usize,
    /// Held as long as the writer lives.
    _lock: File,
}

impl Writer {
    pub(super) fn open(path: &Path, options: &Options) -> Result<Self, LedgerError> {
        let lock = database::lock(path)?;
        let connection = database::open(path, options)?;
        let reserve_bytes = options.reserve_bytes;
        let mut writer = Self {
            path: path.to_owned(),
            connection,
            reserve_bytes,
            written: 0,
            _lock: lock,
        };
        schema::migrate(&mut writer.connection, path)?;
        Ok(writer)
    }

    /// Serves requests until the last handle is gone or `Close` comes; what waits then is still done.
    pub(super) fn run(mut self, mut inbox: mpsc::Receiver<Request>) {
        let mut requests = Vec::new();
        let mut closing = Vec::new();
        while inbox.blocking_recv_many(&mut requests, BATCH) > 0 {
            self.serve(Batch::sort(requests.drain(..), &mut closing));
            if !closing.is_empty() {
                inbox.close();
            }
            if self.written >= CHECKPOINT_BYTES && inbox.is_empty() {
                self.checkpoint();
            }
        }
        drop(self);
        for answer in closing {
            let _ = answer.send(Ok(()));
        }
    }

    fn serve(&mut self, batch: Batch) {
        self.write_group(Durability::Committed, batch.accepts);
        self.write_group(Durability::Synced, batch.finishes);
        for (adopted, answer) in batch.settles {
            let settled = self.settle(&adopted);
            let _ = answer.send(settled.map_err(|source| self.unwritable(source)));
        }
        for look in batch.looks {
            self.look(look);
        }
        for answer in batch.open_ends {
            let _ = answer.send(self.open_ends().map_err(|source| self.unreadable(source)));
        }
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
        let room = self.room();
        self.transact(durability, |transaction, written| {
            let mut results = Vec::new();
            for entry in entries {
                results.push(match (entry, &room) {
                    (Entry::Accept(_) | Entry::Refused(_) | Entry::Opened(_), Err((free_bytes, needed_bytes))) => {
                        Err(Problem::NoSpace(*free_bytes, *needed_bytes))
                    }
                    _ => entry.insert(transaction, written)?,
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

    pub(super) fn transact<T>(
        &mut self,
        durability: Durability,
        write: impl FnOnce(&Transaction<'_>, &mut usize) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.connection
            .pragma_update(None, "synchronous", durability.pragma())?;
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut written = 0;
        let result = write(&transaction, &mut written)?;
        transaction.commit()?;
        self.written += written;
        Ok(result)
    }

    /// Ends what a former brigd left running, but for what was adopted.
    fn settle(&mut self, adopted: &OpenEnds) -> rusqlite::Result<()> {
        let (executions, sessions) = (self.ids(RUNNING)?, self.ids(OPEN)?);
        let time = SystemTime::now();
        let lost = executions.into_iter().filter(|id| !adopted.executions.contains(id));
        let lost = lost.map(|id| Entry::Finish(Box::new(Finish::lost(id, time))));
        let closed = sessions.into_iter().filter(|id| !adopted.sessions.contains(id));
        let closed = closed.map(|session| {
            Entry::Closed(SessionClosed {
                session,
                reason: "lost".to_owned(),
                time,
            })
        });
        let entries: Vec<Entry> = lost.chain(closed).collect();
        if entries.is_empty() {
            return Ok(());
        }
        tracing::warn!(count = entries.len(), "executions or sessions lost");
        self.transact(Durability::Synced, |transaction, written| {
            entries
                .iter()
                .try_for_each(|entry| entry.insert(transaction, written).map(|_| ()))
        })
    }

    fn open_ends(&self) -> rusqlite::Result<OpenEnds> {
        Ok(OpenEnds {
            executions: self.ids(RUNNING)?.into_iter().collect(),
            sessions: self.ids(OPEN)?.into_iter().collect(),
        })
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
    fn look(&self, look: Look) {
        match look {
            Look::Get(execution, answer) => {
                let found = read::record(&self.connection, &execution);
                let _ = answer.send(found.map_err(|source| self.unreadable(source)));
            }
            Look::Requested(tenant, request, answer) => {
                let now = to_millis(SystemTime::now());
                let found = requests::find(&self.connection, &tenant, &request, now);
                let _ = answer.send(found.map_err(|source| self.unreadable(source)));
            }
            Look::Artifacts(session, most, answer) => {
                let found = read::artifacts(&self.connection, &session, most);
                let _ = answer.send(found.map_err(|source| self.unreadable(source)));
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
            tracing::warn!(path = %self.path.display(), %error, "ledger checkpoint");
        }
        self.written = 0;
    }

    /// Whether there is space to accept work; else how much there is and should be.
    fn room(&self) -> Result<(), (u64, u64)> {
        let Ok(stat) = rustix::fs::statvfs(&self.path) else {
            return Ok(());
        };
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < self.reserve_bytes {
            Err((free, self.reserve_bytes))
        } else {
            Ok(())
        }
    }

    fn explain(&self, problem: Problem) -> LedgerError {
        match problem {
            Problem::Exists(id) => LedgerError::Exists(id),
            Problem::Repeated(requested) => LedgerError::Repeated(requested),
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

/// Waiting requests by what they need.
#[derive(Default)]
struct Batch {
    accepts: Vec<(Entry, Answer<()>)>,
    finishes: Vec<(Entry, Answer<()>)>,
    settles: Vec<(OpenEnds, Answer<()>)>,
    looks: Vec<Look>,
    open_ends: Vec<Answer<OpenEnds>>,
}

impl Batch {
    fn sort(requests: impl Iterator<Item = Request>, closing: &mut Vec<Answer<()>>) -> Self {
        let mut batch = Self::default();
        for request in requests {
            match request {
                Request::Accept(accept, answer) => batch.accepts.push((Entry::Accept(accept), answer)),
                Request::Refused(refused, answer) => batch.accepts.push((Entry::Refused(refused), answer)),
                Request::Finish(finish, answer) => batch.finishes.push((Entry::Finish(finish), answer)),
                Request::Opened(opened, answer) => batch.accepts.push((Entry::Opened(opened), answer)),
                Request::Closed(closed, answer) => batch.finishes.push((Entry::Closed(closed), answer)),
                Request::Settle(adopted, answer) => batch.settles.push((adopted, answer)),
                Request::OpenEnds(answer) => batch.open_ends.push(answer),
                Request::Look(look) => batch.looks.push(look),
                Request::Close(answer) => closing.push(answer),
            }
        }
        batch
    }
}

/// What a transaction must survive.
#[derive(Debug, Clone, Copy)]
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
