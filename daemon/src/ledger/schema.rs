//! The tables, and how older ones become them.

use std::path::Path;
use std::time::SystemTime;

use rusqlite::{Connection, params};

use super::LedgerError;
use super::record::to_millis;

/// One step from an older database to a newer one. Steps are only added.
struct Migration {
    version: i64,
    name: &'static str,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "entries, bodies and the index of executions",
    sql: "
        -- Append-only. `data` is the entry; the other columns repeat parts of it for searching.
        CREATE TABLE entries (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            kind TEXT NOT NULL CHECK (kind IN ('accept', 'finish', 'refused')),
            execution TEXT,
            tenant TEXT NOT NULL,
            time_ms INTEGER NOT NULL,
            data TEXT NOT NULL
        ) STRICT;
        CREATE INDEX entries_of_tenant ON entries (tenant, time_ms);

        -- What may be erased without breaking the entries, which hold the hashes.
        CREATE TABLE bodies (
            execution TEXT NOT NULL,
            part TEXT NOT NULL CHECK (part IN ('code', 'command', 'stdout', 'stderr')),
            sha256 TEXT NOT NULL,
            content BLOB NOT NULL,
            UNIQUE (execution, part)
        ) STRICT;

        -- The present state, made from the entries.
        CREATE TABLE executions (
            execution TEXT PRIMARY KEY,
            session TEXT NOT NULL,
            tenant TEXT NOT NULL,
            user TEXT NOT NULL,
            request TEXT,
            accept_number INTEGER NOT NULL REFERENCES entries (number),
            finish_number INTEGER REFERENCES entries (number),
            status TEXT,
            accept_time_ms INTEGER NOT NULL,
            finish_time_ms INTEGER
        ) STRICT;
        CREATE INDEX executions_of_tenant ON executions (tenant, accept_time_ms);
        CREATE INDEX executions_by_request ON executions (tenant, request) WHERE request IS NOT NULL;
        CREATE INDEX executions_running ON executions (accept_number) WHERE finish_number IS NULL;
    ",
}];

/// Brings the tables up to date, each step in a transaction of its own.
pub(super) fn migrate(connection: &mut Connection, path: &Path) -> Result<(), LedgerError> {
    let known = MIGRATIONS.last().map_or(0, |last| last.version);
    let found = read_version(connection).map_err(|source| LedgerError::Open {
        path: path.to_owned(),
        source,
    })?;
    if found > known {
        return Err(LedgerError::Newer {
            path: path.to_owned(),
            found,
            known,
        });
    }
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > found) {
        apply(connection, migration).map_err(|source| LedgerError::Unwritable {
            path: path.to_owned(),
            source,
        })?;
    }
    Ok(())
}

fn read_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS migrations (
            version INTEGER PRIMARY KEY, name TEXT NOT NULL, time_ms INTEGER NOT NULL
        ) STRICT",
    )?;
    connection.query_row("SELECT coalesce(max(version), 0) FROM migrations", [], |row| row.get(0))
}

fn apply(connection: &mut Connection, migration: &Migration) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(migration.sql)?;
    transaction.execute(
        "INSERT INTO migrations (version, name, time_ms) VALUES (?1, ?2, ?3)",
        params![migration.version, migration.name, to_millis(SystemTime::now())],
    )?;
    transaction.commit()
}
