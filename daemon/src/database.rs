//! Databases beside the ledger: how they are opened, and how values lie in them. Nothing of them is chained.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use brig_jailer::ids::Id;
use rusqlite::types::Type;
use rusqlite::{Connection, Row};

use crate::run::inputs::unhex;

/// Why a database can't be used.
#[derive(Debug)]
pub enum OpenError {
    File(io::Error),
    Database(rusqlite::Error),
    /// A newer Brig wrote it.
    Newer {
        found: i64,
        known: i64,
    },
}

/// Opens a database, or makes it with these tables. `schema` is their form, in `user_version`.
pub fn open(path: &Path, schema: i64, tables: &str) -> Result<Connection, OpenError> {
    // SQLite gives the files beside it the same mode.
    let mut options = OpenOptions::new();
    let made = options.create(true).truncate(false).write(true).mode(0o600).open(path);
    made.map_err(OpenError::File)?;
    let mut connection = connect(path).map_err(OpenError::Database)?;
    let version = connection.pragma_query_value(None, "user_version", |row| row.get(0));
    match version.map_err(OpenError::Database)? {
        0 => make_tables(&mut connection, schema, tables).map_err(OpenError::Database)?,
        found if found == schema => {}
        found => return Err(OpenError::Newer { found, known: schema }),
    }
    Ok(connection)
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // Who is told that a file is stored finds it after a crash of the host, too.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "trusted_schema", false)?;
    Ok(connection)
}

fn make_tables(connection: &mut Connection, schema: i64, tables: &str) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(tables)?;
    transaction.pragma_update(None, "user_version", schema)?;
    transaction.commit()
}

/// Reads an id.
pub fn id(row: &Row<'_>, column: &str) -> rusqlite::Result<Id> {
    let text: String = row.get(column)?;
    Id::parse(&text).map_err(unreadable)
}

/// Reads a SHA-256 in hexadecimal digits.
pub fn digest(row: &Row<'_>, column: &str) -> rusqlite::Result<[u8; 32]> {
    let text: String = row.get(column)?;
    let digest = unhex(&text).and_then(|bytes| bytes.try_into().ok());
    digest.ok_or_else(|| unreadable(std::fmt::Error))
}

/// Reads a text that is JSON.
pub fn json<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: &str) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(unreadable)
}

/// What is told of a value that is none of its column's.
pub fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error))
}

/// A size as a database has it.
pub fn to_signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// A size from a database.
pub fn size(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or_default()
}

/// Milliseconds since 1970.
pub fn to_millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The time of so many milliseconds since 1970.
pub fn to_time(millis: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or_default())
}
