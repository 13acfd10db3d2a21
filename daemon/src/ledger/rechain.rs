//! The step from entries without a chain to entries with one.
//!
//! The old entries are read in the order of their numbers, their names are taken out, and the chain begins over them. A
//! big ledger takes a while, in many transactions; interrupted, it goes on where it was.

use rusqlite::types::Type;
use rusqlite::{Connection, Row, Transaction, params};
use serde_json::{Map, Value, json};

use super::chain::{Hash, Link};
use super::entry::span;
use super::names::part;
use super::record::Keep;

/// Entries of one transaction.
const BATCH: i64 = 1000;

const TABLES: &str = "
        CREATE TABLE IF NOT EXISTS entries_chained (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            kind TEXT NOT NULL CHECK (kind IN (
                'accept', 'finish', 'refused', 'open', 'close', 'erased', 'reviewed', 'downloaded', 'installed'
            )),
            execution TEXT,
            session TEXT,
            tenant TEXT NOT NULL,
            time_ms INTEGER NOT NULL,
            data TEXT NOT NULL,
            -- Over the entry before and all columns above.
            hash BLOB NOT NULL CHECK (length(hash) = 32)
        ) STRICT;

        -- What names people, apart from the entries, which hold its hash.
        CREATE TABLE IF NOT EXISTS names (
            number INTEGER PRIMARY KEY REFERENCES entries (number),
            -- Repeated from the content, for searching.
            user TEXT NOT NULL,
            origin_user TEXT NOT NULL,
            keep_until_ms INTEGER NOT NULL,
            content TEXT NOT NULL
        ) STRICT;
    ";

const AFTERWARDS: &str = "
        DROP TABLE entries;
        ALTER TABLE entries_chained RENAME TO entries;
        CREATE INDEX entries_of_tenant ON entries (tenant);
        CREATE INDEX entries_of_execution ON entries (execution) WHERE execution IS NOT NULL;
        CREATE INDEX entries_of_session ON entries (session) WHERE session IS NOT NULL;
        CREATE INDEX names_of_user ON names (user) WHERE user <> '';
        CREATE INDEX names_of_origin_user ON names (origin_user) WHERE origin_user <> '';
        CREATE INDEX names_due ON names (keep_until_ms);

        ALTER TABLE bodies ADD COLUMN keep_until_ms INTEGER NOT NULL DEFAULT 0;
        CREATE INDEX bodies_due ON bodies (keep_until_ms);

        -- Who asked lies with the names alone.
        ALTER TABLE executions DROP COLUMN user;
        ALTER TABLE executions ADD COLUMN keep_names_ms INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE executions ADD COLUMN keep_outputs_ms INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE sessions DROP COLUMN user;
        ALTER TABLE sessions ADD COLUMN keep_names_ms INTEGER NOT NULL DEFAULT 0;
    ";

/// Makes a chain over the old entries.
pub(super) fn prepare(connection: &mut Connection) -> rusqlite::Result<()> {
    while begin(connection)? {}
    Ok(())
}

/// Makes some of it; false once nothing is left.
pub(super) fn begin(connection: &mut Connection) -> rusqlite::Result<bool> {
    connection.execute_batch(TABLES)?;
    rechain(connection)
}

/// Puts the new entries in the place of the old ones.
pub(super) fn apply(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(AFTERWARDS)?;
    // What the policies said then was not written down: their defaults hold.
    let keep = Keep::default();
    let (names, work, outputs) = (span(keep.names_ms), span(keep.work_ms), span(keep.outputs_ms));
    transaction.execute(
        "UPDATE executions SET keep_names_ms = ?1, keep_outputs_ms = ?2",
        params![names, outputs],
    )?;
    transaction.execute("UPDATE sessions SET keep_names_ms = ?1", params![names])?;
    transaction.execute(
        "UPDATE bodies SET keep_until_ms = (
             SELECT CASE WHEN part IN ('code', 'command') THEN accept_time_ms + ?1
                         ELSE coalesce(finish_time_ms, accept_time_ms) + ?2 END
             FROM executions WHERE executions.execution = bodies.execution)
         WHERE execution IN (SELECT execution FROM executions)",
        params![work, outputs],
    )?;
    Ok(())
}

/// An entry without a chain.
struct Old {
    number: i64,
    kind: String,
    execution: Option<String>,
    session: Option<String>,
    tenant: String,
    time_ms: i64,
    data: String,
    /// Who asked for what it belongs to.
    user: Option<String>,
    origin_user: Option<String>,
}

/// Takes over some more entries; false once there are none.
fn rechain(connection: &mut Connection) -> rusqlite::Result<bool> {
    let transaction = connection.transaction()?;
    let last = "SELECT number, hash FROM entries_chained ORDER BY number DESC LIMIT 1";
    let (number, mut hash): (i64, Hash) = transaction
        .prepare(last)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .next()
        .transpose()?
        .unwrap_or_default();
    let old = old(&transaction, number)?;
    for old in &old {
        hash = take_over(&transaction, old, &hash)?;
    }
    transaction.commit()?;
    Ok(!old.is_empty())
}

fn old(transaction: &Transaction<'_>, after: i64) -> rusqlite::Result<Vec<Old>> {
    let sql = "SELECT number, kind, entries.execution, coalesce(entries.session, executions.session), entries.tenant,
                      time_ms, data, coalesce(executions.user, sessions.user),
                      (SELECT json_extract(first.data, '$.origin.user') FROM entries AS first
                       WHERE first.number = coalesce(accept_number, open_number))
               FROM entries LEFT JOIN executions ON executions.execution = entries.execution
                            LEFT JOIN sessions ON sessions.session = entries.session
               WHERE number > ?1 ORDER BY number LIMIT ?2";
    let read = |row: &Row<'_>| {
        Ok(Old {
            number: row.get(0)?,
            kind: row.get(1)?,
            execution: row.get(2)?,
            session: row.get(3)?,
            tenant: row.get(4)?,
            time_ms: row.get(5)?,
            data: row.get(6)?,
            user: row.get(7)?,
            origin_user: row.get(8)?,
        })
    };
    let mut statement = transaction.prepare_cached(sql)?;
    statement.query_map(params![after, BATCH], read)?.collect()
}

fn take_over(transaction: &Transaction<'_>, old: &Old, previous: &Hash) -> rusqlite::Result<Hash> {
    let mut entry: Map<String, Value> = serde_json::from_str(&old.data)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(6, Type::Text, Box::new(error)))?;
    if let Some(user) = &old.user {
        entry.insert("user".to_owned(), json!(user));
    }
    if let Some(user) = &old.origin_user {
        entry.entry("origin").or_insert_with(|| json!({"user": user}));
    }
    let parts = part(&old.kind, entry);
    let link = Link {
        number: old.number,
        kind: &old.kind,
        execution: old.execution.as_deref(),
        session: old.session.as_deref(),
        tenant: &old.tenant,
        time_ms: old.time_ms,
        data: &parts.data,
    };
    let hash = link.hash(previous);
    transaction
        .prepare_cached(
            "INSERT INTO entries_chained (number, kind, execution, session, tenant, time_ms, data, hash)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            link.number,
            link.kind,
            link.execution,
            link.session,
            link.tenant,
            link.time_ms,
            link.data,
            hash
        ])?;
    if let Some(names) = parts.names {
        transaction
            .prepare_cached(
                "INSERT INTO names (number, user, origin_user, keep_until_ms, content) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![
                old.number,
                names.user,
                names.origin_user,
                old.time_ms.saturating_add(span(Keep::default().names_ms)),
                names.text
            ])?;
    }
    Ok(hash)
}
