//! What can go wrong with the ledger.

use std::path::PathBuf;

use brig_jailer::ids::Id;
use rusqlite::ErrorCode;

use super::record::Requested;

/// What can go wrong with the ledger. Whoever gets it must not start an execution.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("ledger {path}: can't be opened: {source}")]
    Open { path: PathBuf, source: rusqlite::Error },
    #[error("ledger {path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    /// Another process has it.
    #[error("ledger {path}: in use by another brigd")]
    InUse { path: PathBuf },
    /// A newer Brig wrote it.
    #[error("ledger {path}: written by a newer brigd (schema {found}, this one knows up to {known})")]
    Newer { path: PathBuf, found: i64, known: i64 },
    /// Full disk, read-only file system, failing disk.
    #[error("ledger {path}: can't be written: {source}")]
    Unwritable { path: PathBuf, source: rusqlite::Error },
    /// An entry or the database is damaged.
    #[error("ledger {path}: can't be read: {source}")]
    Unreadable { path: PathBuf, source: rusqlite::Error },
    /// So little space is left that only running executions are still recorded.
    #[error("ledger {path}: {free_bytes} bytes are free on its file system, {needed_bytes} are needed to accept work")]
    NoSpace {
        path: PathBuf,
        free_bytes: u64,
        needed_bytes: u64,
    },
    /// The id was used before.
    #[error("{0}: the ledger has it already")]
    Exists(Id),
    /// The same request came before, with this payload or another.
    #[error("the request came before")]
    Repeated(Requested),
    /// An end without a beginning, or a second one.
    #[error("{0}: not begun, or ended already")]
    NotRunning(Id),
    /// The writer's thread ended.
    #[error("ledger: closed")]
    Closed,
}

impl LedgerError {
    /// Whether there is no space, so that the same may work later.
    pub fn is_full(&self) -> bool {
        // Source: sqlite.org/rescode.html; the file of shared memory says it in another way.
        match self {
            Self::NoSpace { .. } => true,
            Self::Unwritable { source, .. } => source.sqlite_error().is_some_and(|error| {
                error.code == ErrorCode::DiskFull || error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE
            }),
            _ => false,
        }
    }

    /// Whether the file is not what it was when it was written.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Unreadable {
                source: rusqlite::Error::FromSqlConversionFailure(..),
                ..
            } => true,
            Self::Unreadable { source, .. } => source
                .sqlite_error_code()
                .is_some_and(|code| matches!(code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)),
            _ => false,
        }
    }
}
