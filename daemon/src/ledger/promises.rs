//! Executions that were accepted a moment ago.
//!
//! An accept changes some twenty pages of the database, and code waits for it. One that comes alone is therefore first
//! committed as one row, which is one page or two, and answered: it is promised. It is entered with the next transaction,
//! mostly that of its own end, or after a moment, or at the next start. Until then the writer answers for it from memory,
//! and who reads entries beside the writer asks for them to be entered first.

use std::time::SystemTime;

use rusqlite::types::Type;
use rusqlite::{Connection, Row, TransactionBehavior, params};
use tracing::error;

use brig_jailer::ids::Id;

use super::REMEMBERED;
use super::entry::{self, Pen};
use super::record::{Accept, Made, Record, Requested};

pub(super) const TABLE: &str = "
        -- Accepts that are not among the entries yet, in their order.
        CREATE TABLE promises (
            number INTEGER PRIMARY KEY,
            data TEXT NOT NULL,
            -- Code or arguments.
            content BLOB NOT NULL
        ) STRICT;
    ";

/// The most bytes of one: what fits a page beside its head.
const BYTES: usize = 3800;
/// The most at one time, so that none makes the transaction that enters them long.
const MOST: usize = 32;

/// What was promised and not entered: the rows of the table that can be read.
#[derive(Debug, Default)]
pub(super) struct Promises(Vec<(i64, Accept)>);

impl Promises {
    /// Reads what a former writer left. What can't be read is told and removed: nobody could erase it.
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mut statement = connection.prepare("SELECT number, data, content FROM promises ORDER BY number")?;
        let (mut rows, mut promises) = (statement.query([])?, Vec::new());
        while let Some(row) = rows.next()? {
            let number: i64 = row.get(0)?;
            match accept(row) {
                Ok(accept) => promises.push((number, accept)),
                Err(error) => {
                    error!(number, %error, "ledger: a promised execution can't be read, and is lost");
                    connection.execute("DELETE FROM promises WHERE number = ?1", [number])?;
                }
            }
        }
        Ok(Self(promises))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Commits a promise. False if it must be entered at once: it is large, there are many, or it may not be accepted.
    pub(super) fn give(&mut self, connection: &mut Connection, accept: &Accept) -> rusqlite::Result<bool> {
        let Ok(data) = serde_json::to_string(accept) else {
            return Ok(false);
        };
        let content = &accept.work.body.content;
        if self.0.len() == MOST
            || data.len() + content.len() > BYTES
            || self.all().any(|given| is_in_the_way(given, accept))
        {
            return Ok(false);
        }
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if entry::accept_problem(&transaction, accept)?.is_some() {
            return Ok(false);
        }
        let number = transaction
            .prepare_cached("INSERT INTO promises (data, content) VALUES (?1, ?2)")?
            .insert(params![data, content])?;
        transaction.commit()?;
        self.0.push((number, accept.clone()));
        Ok(true)
    }

    /// Enters all of them, in the transaction of whatever comes next.
    pub(super) fn keep(&self, pen: &mut Pen<'_>) -> rusqlite::Result<()> {
        for (number, accept) in &self.0 {
            if let Err(problem) = pen.accept(accept)? {
                // It was looked for before; only another hand in the file can do that.
                error!(execution = %accept.execution, ?problem, "ledger: a promised execution can't be entered");
            }
            pen.transaction
                .prepare_cached("DELETE FROM promises WHERE number = ?1")?
                .execute([number])?;
        }
        Ok(())
    }

    /// What was entered is promised no more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The executions, none of which has ended.
    pub(super) fn executions(&self) -> impl Iterator<Item = Id> {
        self.all().map(|accept| accept.execution.clone())
    }

    /// An execution as the ledger has it.
    pub(super) fn record(&self, execution: &Id) -> Option<Record> {
        let accept = self.all().find(|accept| accept.execution == *execution)?;
        Some(Record {
            accept: accept.clone(),
            finish: None,
        })
    }

    /// What a request of a tenant makes.
    pub(super) fn requested(&self, tenant: &str, request: &str, now: SystemTime) -> Option<Requested> {
        let is_it = |accept: &&Accept| accept.tenant == tenant && accept.request.as_deref() == Some(request);
        let accept = self.all().find(is_it)?;
        let age = now.duration_since(accept.time).unwrap_or_default();
        Some(Requested {
            made: Made::Execution(accept.execution.clone()),
            sha256: accept.request_sha256.clone().filter(|_| age < REMEMBERED)?,
        })
    }

    fn all(&self) -> impl Iterator<Item = &Accept> {
        self.0.iter().map(|(_, accept)| accept)
    }
}

fn accept(row: &Row<'_>) -> rusqlite::Result<Accept> {
    let mut accept: Accept = serde_json::from_str(&row.get::<_, String>(1)?)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(1, Type::Text, error.into()))?;
    accept.work.body.content = row.get(2)?;
    Ok(accept)
}

/// Whether one has an id or a request of the other, which the tables do not show yet.
fn is_in_the_way(given: &Accept, accept: &Accept) -> bool {
    given.execution == accept.execution
        || (!accept.kept && given.session == accept.session)
        || (accept.request.is_some() && given.request == accept.request && given.tenant == accept.tenant)
}
