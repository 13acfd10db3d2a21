//! The tables, and how older ones become them.

use std::path::Path;
use std::time::SystemTime;

use rusqlite::{Connection, Transaction, params};

use super::record::to_millis;
use super::{LedgerError, promises, rechain};

/// One step from an older database to a newer one. Steps are only added.
struct Migration {
    version: i64,
    name: &'static str,
    /// What must be done first, in transactions of its own; done again if it was interrupted.
    prepare: fn(&mut Connection) -> rusqlite::Result<()>,
    /// What is done in the transaction that makes the step count.
    apply: fn(&Transaction<'_>) -> rusqlite::Result<()>,
}

const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "entries, bodies and the index of executions",
        prepare: nothing,
        apply: |transaction| transaction.execute_batch(FIRST),
    },
    Migration {
        version: 2,
        name: "kept sessions",
        prepare: nothing,
        apply: |transaction| transaction.execute_batch(SESSIONS),
    },
    Migration {
        version: 11,
        name: "requests, and what was told",
        prepare: nothing,
        apply: |transaction| transaction.execute_batch(REQUESTS),
    },
    Migration {
        version: 20,
        name: "the chain of hashes, and names apart from the entries",
        prepare: rechain::prepare,
        apply: rechain::apply,
    },
    Migration {
        version: 30,
        name: "which artifacts were reviewed",
        prepare: nothing,
        apply: |transaction| transaction.execute_batch(REVIEWS),
    },
    Migration {
        version: 40,
        name: "what is accepted and not entered yet",
        prepare: nothing,
        apply: |transaction| transaction.execute_batch(promises::TABLE),
    },
];

fn nothing(_: &mut Connection) -> rusqlite::Result<()> {
    Ok(())
}

pub(super) const FIRST: &str = "
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
    ";

pub(super) const SESSIONS: &str = "
        -- Another list of kinds needs another table. The numbers stay.
        CREATE TABLE entries_with_sessions (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            kind TEXT NOT NULL CHECK (kind IN ('accept', 'finish', 'refused', 'open', 'close')),
            execution TEXT,
            session TEXT,
            tenant TEXT NOT NULL,
            time_ms INTEGER NOT NULL,
            data TEXT NOT NULL
        ) STRICT;
        INSERT INTO entries_with_sessions (number, kind, execution, tenant, time_ms, data)
            SELECT number, kind, execution, tenant, time_ms, data FROM entries ORDER BY number;
        DROP TABLE entries;
        ALTER TABLE entries_with_sessions RENAME TO entries;
        CREATE INDEX entries_of_tenant ON entries (tenant, time_ms);

        -- The present state of kept sessions, made from the entries.
        CREATE TABLE sessions (
            session TEXT PRIMARY KEY,
            tenant TEXT NOT NULL,
            user TEXT NOT NULL,
            request TEXT,
            open_number INTEGER NOT NULL REFERENCES entries (number),
            close_number INTEGER REFERENCES entries (number),
            reason TEXT,
            open_time_ms INTEGER NOT NULL,
            close_time_ms INTEGER
        ) STRICT;
        CREATE INDEX sessions_of_tenant ON sessions (tenant, open_time_ms);
        CREATE INDEX sessions_open ON sessions (open_number) WHERE close_number IS NULL;
    ";

const REQUESTS: &str = "
        -- What requests made, for as long as that is remembered, from the entries.
        CREATE TABLE requests (
            tenant TEXT NOT NULL,
            request TEXT NOT NULL,
            sha256 TEXT NOT NULL,
            kind TEXT NOT NULL CHECK (kind IN ('execution', 'session')),
            made TEXT NOT NULL,
            time_ms INTEGER NOT NULL,
            PRIMARY KEY (tenant, request)
        ) STRICT;
        CREATE INDEX requests_by_time ON requests (time_ms);

        -- Results, without what is in `bodies`, for as long as they are remembered.
        CREATE TABLE told (
            execution TEXT PRIMARY KEY,
            result BLOB NOT NULL,
            time_ms INTEGER NOT NULL
        ) STRICT;
        CREATE INDEX told_by_time ON told (time_ms);

        CREATE INDEX executions_of_session ON executions (session, accept_number);
    ";

const REVIEWS: &str = "
        -- The entry that has the decision about an artifact.
        CREATE TABLE reviews (
            artifact TEXT PRIMARY KEY,
            number INTEGER NOT NULL REFERENCES entries (number)
        ) STRICT;
    ";

/// Brings the tables up to date, each step in a transaction of its own; a long one begins with several.
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
    let steps = MIGRATIONS.iter().filter(|migration| migration.version > found);
    take(connection, steps).map_err(|source| LedgerError::Unwritable {
        path: path.to_owned(),
        source,
    })
}

/// Takes the steps. A table that others refer to can be replaced only while nobody looks after references, and that
/// can't be changed within a transaction.
fn take<'m>(connection: &mut Connection, steps: impl Iterator<Item = &'m Migration>) -> rusqlite::Result<()> {
    connection.pragma_update(None, "foreign_keys", false)?;
    for migration in steps {
        apply(connection, migration)?;
    }
    connection.pragma_update(None, "foreign_keys", true)
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
    (migration.prepare)(connection)?;
    let transaction = connection.transaction()?;
    (migration.apply)(&transaction)?;
    transaction.execute(
        "INSERT INTO migrations (version, name, time_ms) VALUES (?1, ?2, ?3)",
        params![migration.version, migration.name, to_millis(SystemTime::now())],
    )?;
    transaction.commit()
}
