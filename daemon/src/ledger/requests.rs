//! What requests made, and what was told of it: remembered for a day, so that a repeated request finds the first one.

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use brig_jailer::ids::Id;

use super::REMEMBERED;
use super::record::{Made, Requested};

/// How many rows that are too old are removed with each that is added.
const REMOVED: i64 = 4;

/// A request that makes something.
pub(super) struct New<'a> {
    pub tenant: &'a str,
    pub request: Option<&'a str>,
    pub sha256: Option<&'a str>,
    pub made: Made,
    pub time_ms: i64,
}

/// Finds what a request made, if it came in the time before.
pub(super) fn find(
    connection: &Connection,
    tenant: &str,
    request: &str,
    now_ms: i64,
) -> rusqlite::Result<Option<Requested>> {
    connection
        .prepare_cached("SELECT sha256, kind, made FROM requests WHERE tenant = ?1 AND request = ?2 AND time_ms > ?3")?
        .query_row(params![tenant, request, oldest(now_ms)], |row| {
            let made = Id::parse(&row.get::<_, String>(2)?)
                .map_err(|error| rusqlite::Error::FromSqlConversionFailure(2, Type::Text, Box::new(error)))?;
            let is_session = row.get::<_, String>(1)? == "session";
            Ok(Requested {
                sha256: row.get(0)?,
                made: if is_session {
                    Made::Session(made)
                } else {
                    Made::Execution(made)
                },
            })
        })
        .optional()
}

/// Remembers what a request makes.
pub(super) fn remember(transaction: &Transaction<'_>, new: &New<'_>) -> rusqlite::Result<()> {
    let (Some(request), Some(sha256)) = (new.request, new.sha256) else {
        return Ok(());
    };
    let (kind, made) = match &new.made {
        Made::Execution(id) => ("execution", id),
        Made::Session(id) => ("session", id),
    };
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO requests (tenant, request, sha256, kind, made, time_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![new.tenant, request, sha256, kind, made.as_str(), new.time_ms])?;
    remove_old(transaction, "requests", new.time_ms)
}

/// Keeps what was told at the end of an execution.
pub(super) fn tell(
    transaction: &Transaction<'_>,
    execution: &str,
    result: &[u8],
    time_ms: i64,
    written: &mut usize,
) -> rusqlite::Result<()> {
    if result.is_empty() {
        return Ok(());
    }
    *written += result.len();
    transaction
        .prepare_cached("INSERT OR REPLACE INTO told (execution, result, time_ms) VALUES (?1, ?2, ?3)")?
        .execute(params![execution, result, time_ms])?;
    remove_old(transaction, "told", time_ms)
}

/// Reads what was told at the end of an execution; empty if that is not kept.
pub(super) fn told(connection: &Connection, execution: &str) -> rusqlite::Result<Vec<u8>> {
    let told = connection
        .prepare_cached("SELECT result FROM told WHERE execution = ?1")?
        .query_row(params![execution], |row| row.get(0))
        .optional()?;
    Ok(told.unwrap_or_default())
}

fn remove_old(transaction: &Transaction<'_>, table: &'static str, now_ms: i64) -> rusqlite::Result<()> {
    let sql = format!(
        "DELETE FROM {table} WHERE rowid IN
         (SELECT rowid FROM {table} WHERE time_ms <= ?1 ORDER BY time_ms LIMIT ?2)"
    );
    transaction
        .prepare_cached(&sql)?
        .execute(params![oldest(now_ms), REMOVED])
        .map(|_| ())
}

/// What is of this time or older is not remembered.
fn oldest(now_ms: i64) -> i64 {
    now_ms.saturating_sub(i64::try_from(REMEMBERED.as_millis()).unwrap_or(i64::MAX))
}
