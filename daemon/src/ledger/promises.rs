//! Executions that were accepted a moment ago.
//!
//! An accept changes some twenty pages of the database, and code waits for it. One that comes alone is therefore first
//! committed as it is, which is one page, and answered: it is promised. It is entered with the next transaction, mostly
//! that of its own end, or after a moment, or at the next start. Nobody who asks the ledger sees one that is not entered.

use rusqlite::types::Type;
use rusqlite::{Connection, Row, TransactionBehavior, params};
use tracing::error;

use super::entry::{self, Pen};
use super::record::Accept;

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

/// What was promised and not entered: the rows of the table.
#[derive(Debug, Default)]
pub(super) struct Promises(Vec<Accept>);

impl Promises {
    /// Reads what a former writer left.
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let read = |row: &Row<'_>| {
            let mut accept: Accept = serde_json::from_str(&row.get::<_, String>(0)?)
                .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, error.into()))?;
            accept.work.body.content = row.get(1)?;
            Ok(accept)
        };
        let mut statement = connection.prepare("SELECT data, content FROM promises ORDER BY number")?;
        let promises = statement.query_map([], read)?.collect::<rusqlite::Result<_>>()?;
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
            || self.0.iter().any(|given| is_in_the_way(given, accept))
        {
            return Ok(false);
        }
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if entry::accept_problem(&transaction, accept)?.is_some() {
            return Ok(false);
        }
        transaction
            .prepare_cached("INSERT INTO promises (data, content) VALUES (?1, ?2)")?
            .execute(params![data, content])?;
        transaction.commit()?;
        self.0.push(accept.clone());
        Ok(true)
    }

    /// Enters all of them, in the transaction of whatever comes next.
    pub(super) fn keep(&self, pen: &mut Pen<'_>) -> rusqlite::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        for accept in &self.0 {
            if let Err(problem) = pen.accept(accept)? {
                // It was looked for before; only another hand in the file can do that.
                error!(execution = %accept.execution, ?problem, "ledger: a promised execution can't be entered");
            }
        }
        pen.transaction.prepare_cached("DELETE FROM promises")?.execute([])?;
        Ok(())
    }

    /// What was entered is promised no more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Whether one has an id or a request of the other, which the tables do not show yet.
fn is_in_the_way(given: &Accept, accept: &Accept) -> bool {
    given.execution == accept.execution
        || (!accept.kept && given.session == accept.session)
        || (accept.request.is_some() && given.request == accept.request && given.tenant == accept.tenant)
}
