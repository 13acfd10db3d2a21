//! The database's files.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::{LedgerError, Options};

/// Size to which the log file is cut when it was copied into the database.
const LOG_BYTES_KEPT: i64 = 16 * 1024 * 1024;

/// The ledger, taken for this process. Given back when it is dropped, also where a child that was just forked shares the
/// file until it executes its program.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing gives it back too, only later.
        let _ = self.0.unlock();
    }
}

/// Takes the ledger for this process.
pub(super) fn lock(path: &Path) -> Result<Lock, LedgerError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let failed = |source| LedgerError::File {
        path: path.to_owned(),
        source,
    };
    let file = open_private(Path::new(&name)).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(Lock(file)),
        Err(TryLockError::WouldBlock) => Err(LedgerError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// Opens the database, or makes it so that only its owner can read it.
pub(super) fn open(path: &Path, options: &Options) -> Result<Connection, LedgerError> {
    let failed = |source| LedgerError::File {
        path: path.to_owned(),
        source,
    };
    // SQLite gives the files beside it the same mode.
    drop(open_private(path).map_err(failed)?);
    let opened = connect(path, options);
    let connection = opened.map_err(|source| LedgerError::Open {
        path: path.to_owned(),
        source,
    })?;
    // The names of the files must survive a crash of the host as well as what is in them.
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(failed)?;
    Ok(connection)
}

fn open_private(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(path)
}

/// How long is waited for whoever else has the database: an administrator's tool.
pub(super) const BUSY: Duration = Duration::from_secs(5);

fn connect(path: &Path, options: &Options) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    // All that an execution takes are more than the 16 of rusqlite.
    connection.set_prepared_statement_cache_capacity(64);
    // Else statements on tables with partial indexes are compiled again for each value.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // Copying the log into the database syncs both; that must not happen within a commit that code waits for.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES_KEPT)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    // What is erased is overwritten.
    connection.pragma_update(None, "secure_delete", true)?;
    if let Some(max_bytes) = options.max_bytes {
        let page: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let pages = i64::try_from(max_bytes).unwrap_or(i64::MAX) / page;
        connection.pragma_update(None, "max_page_count", pages)?;
    }
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_file_in_a_child_does_not_keep_the_ledger() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.db");
        let held = lock(&path).unwrap();
        let copy = held.0.try_clone().unwrap();
        assert!(matches!(lock(&path), Err(LedgerError::InUse { .. })));
        drop(held);
        lock(&path).unwrap();
        drop(copy);
    }
}
