//! What can go wrong with input records.

use std::io;
use std::path::{Path, PathBuf};

use brig_proto::v1::Reason;

use crate::disk::is_full;

/// Why an input was not stored, found or read.
#[derive(Debug, thiserror::Error)]
pub enum InputsError {
    #[error("inputs {path}: can't be opened: {source}")]
    Open { path: PathBuf, source: rusqlite::Error },
    /// A newer Brig wrote the database.
    #[error("inputs {path}: written by a newer brigd (schema {found}, this one knows up to {known})")]
    Newer { path: PathBuf, found: i64, known: i64 },
    /// The database can't be read or written.
    #[error("inputs: records: {0}")]
    Database(rusqlite::Error),
    #[error("inputs {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    /// The file system has no more space.
    #[error("no space is left on the file system of the inputs: {0}")]
    NoSpace(io::Error),
    /// The file system has no space that inputs may have.
    #[error(
        "{free} bytes are free on the file system of the inputs; with {more} more fewer than {reserve} would be \
         (inputs.reserve)"
    )]
    Full { free: u64, more: u64, reserve: u64 },
    /// A limit of the configuration is reached.
    #[error("inputs.{key}: {used} of {most} are in use, {more} more don't fit")]
    Quota {
        key: &'static str,
        used: u64,
        most: u64,
        more: u64,
    },
    /// As many uploads as may go on already.
    #[error("{0} uploads go on already, which is as many as may")]
    Busy(usize),
    /// More bytes came than the file may have.
    #[error("data: has more than {max_bytes} bytes")]
    TooLarge { max_bytes: u64 },
    /// The id was given to another record while this one came in.
    #[error("the id was used before")]
    Taken,
}

impl InputsError {
    pub(super) fn file(path: &Path, source: io::Error) -> Self {
        if is_full(&source) {
            return Self::NoSpace(source);
        }
        Self::File {
            path: path.to_owned(),
            source,
        }
    }

    /// The reason for programs.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Open { .. } | Self::Newer { .. } => Reason::Configuration,
            Self::Database(_) | Self::File { .. } => Reason::Internal,
            Self::NoSpace(_) | Self::Full { .. } => Reason::StorageFull,
            Self::Quota { .. } => Reason::StorageQuota,
            Self::Busy(_) => Reason::FileQuota,
            Self::TooLarge { .. } => Reason::TooLarge,
            Self::Taken => Reason::IdTaken,
        }
    }
}

impl From<rusqlite::Error> for InputsError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => Self::NoSpace(io::Error::other(error)),
            _ => Self::Database(error),
        }
    }
}
