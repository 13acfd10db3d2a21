//! What can go wrong with kept artifacts.

use std::io;
use std::path::{Path, PathBuf};

use brig_proto::v1::Reason;

use crate::database::OpenError;
use crate::disk::is_full;

/// Why an artifact was not kept, found or read.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactsError {
    #[error("artifacts {path}: can't be opened: {source}")]
    Open { path: PathBuf, source: rusqlite::Error },
    /// A newer Brig wrote the database.
    #[error("artifacts {path}: written by a newer brigd (schema {found}, this one knows up to {known})")]
    Newer { path: PathBuf, found: i64, known: i64 },
    /// The database can't be read or written.
    #[error("artifacts: records: {0}")]
    Database(#[from] rusqlite::Error),
    #[error("artifacts {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    /// The file system has no space that artifacts may have.
    #[error(
        "{free} bytes are free on the file system of the artifacts; with {more} more fewer than {reserve} would be \
         (artifacts.reserve)"
    )]
    Full { free: u64, more: u64, reserve: u64 },
    /// A limit of the configuration is reached.
    #[error("artifacts.{key}: {used} of {most} are in use, {more} more don't fit")]
    Quota {
        key: &'static str,
        used: u64,
        most: u64,
        more: u64,
    },
    /// The store can't be used as it is configured.
    #[error("artifacts.s3: {0}")]
    Bucket(String),
    /// The store did not do what it was asked for.
    #[error("artifact store: {0}")]
    Store(#[from] object_store::Error),
    /// What is stored is not what was.
    #[error("artifact {artifact}: its stored bytes are damaged: {why}")]
    Damaged { artifact: String, why: String },
}

impl ArtifactsError {
    pub(super) fn file(path: &Path, source: io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            source,
        }
    }

    pub(super) fn open(path: &Path, error: OpenError) -> Self {
        let path = path.to_owned();
        match error {
            OpenError::File(source) => Self::File { path, source },
            OpenError::Database(source) => Self::Open { path, source },
            OpenError::Newer { found, known } => Self::Newer { path, found, known },
        }
    }

    /// The reason for programs.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Open { .. } | Self::Newer { .. } | Self::Bucket(_) => Reason::Configuration,
            Self::Full { .. } => Reason::StorageFull,
            Self::File { source, .. } if is_full(source) => Reason::StorageFull,
            Self::Database(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) => {
                Reason::StorageFull
            }
            Self::Database(_) | Self::File { .. } | Self::Damaged { .. } => Reason::Internal,
            Self::Quota { .. } => Reason::StorageQuota,
            Self::Store(_) => Reason::StoreUnavailable,
        }
    }
}
