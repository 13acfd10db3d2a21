//! Removes bodies and names, never entries: on request, and when their time has run out.
//!
//! What is deleted is overwritten with zeros (`secure_delete`); the log, which still has it, is then cut. After a removal
//! on request the database is also written anew: pages keep copies of rows that were moved.

use rusqlite::types::{ToSql, Value as Sql};
use rusqlite::{Connection, Row, Transaction, params, params_from_iter};

use super::query::Filter;

/// Bodies, and entries with names, that are removed in one transaction.
const BATCH: i64 = 200;

/// What was removed because its time had run out, or would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Code and arguments.
    pub works: u64,
    pub outputs: u64,
    /// Entries that lost their names.
    pub names: u64,
    pub bytes: u64,
}

/// Where a removal on request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    /// The last entry that was looked at.
    pub(super) number: i64,
    /// Entries of this batch that lost something.
    pub(super) removed: u64,
    pub(super) done: bool,
}

impl Swept {
    pub(super) fn is_empty(self) -> bool {
        self.works + self.outputs + self.names == 0
    }

    pub(super) fn add(&mut self, more: Self) {
        self.works += more.works;
        self.outputs += more.outputs;
        self.names += more.names;
        self.bytes += more.bytes;
    }

    fn body(&mut self, part: &str, bytes: u64) {
        match part {
            "code" | "command" => self.works += 1,
            _ => self.outputs += 1,
        }
        self.bytes += bytes;
    }
}

/// Removes some of what may go at this time.
pub(super) fn sweep(transaction: &Transaction<'_>, now_ms: i64) -> rusqlite::Result<Swept> {
    let mut swept = Swept::default();
    let mut bodies = transaction.prepare_cached(
        "DELETE FROM bodies WHERE rowid IN (SELECT rowid FROM bodies WHERE keep_until_ms <= ?1 LIMIT ?2)
         RETURNING part, length(content)",
    )?;
    let mut rows = bodies.query(params![now_ms, BATCH])?;
    while let Some(row) = rows.next()? {
        swept.body(&row.get::<_, String>(0)?, count_in(row, 1)?);
    }
    let mut names = transaction.prepare_cached(
        "DELETE FROM names WHERE number IN (SELECT number FROM names WHERE keep_until_ms <= ?1 LIMIT ?2)
         RETURNING length(content)",
    )?;
    let mut rows = names.query(params![now_ms, BATCH])?;
    while let Some(row) = rows.next()? {
        swept.names += 1;
        swept.bytes += count_in(row, 0)?;
    }
    Ok(swept)
}

/// Counts what may go at this time.
pub(super) fn count_due(connection: &Connection, now_ms: i64) -> rusqlite::Result<Swept> {
    let mut swept = Swept::default();
    let sql = "SELECT coalesce(sum(part IN ('code', 'command')), 0),
                      coalesce(sum(part NOT IN ('code', 'command')), 0), coalesce(sum(length(content)), 0)
               FROM bodies WHERE keep_until_ms <= ?1";
    let read = |row: &Row<'_>| Ok((count_in(row, 0)?, count_in(row, 1)?, count_in(row, 2)?));
    (swept.works, swept.outputs, swept.bytes) = connection.query_row(sql, [now_ms], read)?;
    let sql = "SELECT count(*), coalesce(sum(length(content)), 0) FROM names WHERE keep_until_ms <= ?1";
    let names = connection.query_row(sql, [now_ms], |row| Ok((count_in(row, 0)?, count_in(row, 1)?)))?;
    swept.names = names.0;
    swept.bytes += names.1;
    Ok(swept)
}

/// Removes what belongs to the next entries that a filter finds, up to the entry `last`.
///
/// What is said of a removal stays: entries of the kind `erased` are left out.
pub(super) fn erase(
    transaction: &Transaction<'_>,
    filter: &Filter,
    after: i64,
    last: i64,
) -> rusqlite::Result<Progress> {
    let (conditions, mut parameters) = filter.conditions();
    parameters.extend([after, last, BATCH].map(Sql::from));
    let sql = format!(
        "SELECT number, kind, execution FROM entries
         WHERE {conditions} AND kind <> 'erased' AND number > ? AND number <= ? ORDER BY number LIMIT ?"
    );
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let found: Vec<(i64, String, Option<String>)> = transaction
        .prepare_cached(&sql)?
        .query_map(
            params_from_iter(parameters.iter().map(|value| value as &dyn ToSql)),
            read,
        )?
        .collect::<rusqlite::Result<_>>()?;
    let mut progress = Progress {
        number: found.last().map_or(last, |(number, ..)| *number),
        removed: 0,
        done: found.is_empty(),
    };
    for (number, kind, execution) in found {
        let names = transaction
            .prepare_cached("DELETE FROM names WHERE number = ?1")?
            .execute([number])?;
        let bodies = match kind.as_str() {
            "accept" => "DELETE FROM bodies WHERE execution = ?1 AND part IN ('code', 'command')",
            "finish" => "DELETE FROM bodies WHERE execution = ?1 AND part IN ('stdout', 'stderr')",
            _ => "DELETE FROM bodies WHERE FALSE AND execution = ?1",
        };
        let bodies = transaction.prepare_cached(bodies)?.execute([&execution])?;
        // The result that is kept for requests that come again.
        transaction
            .prepare_cached("DELETE FROM told WHERE execution = ?1")?
            .execute([&execution])?;
        progress.removed += u64::from(names + bodies > 0);
    }
    Ok(progress)
}

/// Counts the entries up to `last` that would lose something.
pub(super) fn count(connection: &Connection, filter: &Filter, last: i64) -> rusqlite::Result<u64> {
    let (conditions, mut parameters) = filter.conditions();
    parameters.push(last.into());
    let sql = format!(
        "SELECT count(*) FROM entries WHERE {conditions} AND kind <> 'erased' AND number <= ?
         AND (EXISTS (SELECT 1 FROM names WHERE names.number = entries.number)
              OR EXISTS (SELECT 1 FROM bodies WHERE bodies.execution = entries.execution
                         AND (part IN ('code', 'command')) = (kind = 'accept') AND kind IN ('accept', 'finish')))"
    );
    connection.prepare_cached(&sql)?.query_row(
        params_from_iter(parameters.iter().map(|value| value as &dyn ToSql)),
        |row| count_in(row, 0),
    )
}

/// A number of a row that is never negative.
fn count_in(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_negative| rusqlite::Error::IntegralValueOutOfRange(column, number))
}
