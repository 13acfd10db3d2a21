//! The bytes of an artifact, on their way to somebody.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use brig_proto::Bytes;
use brig_proto::sizes::FILE_CHUNK_MAX;
use sha2::{Digest, Sha256};
use tokio_stream::StreamExt;
use tonic::codegen::tokio_stream::Stream;

use super::{ArtifactsError, Record};
use crate::disk;
use crate::run::inputs::hex;

/// Where the bytes come from.
pub(super) enum Source {
    /// What is left of a part of a file.
    File(Arc<File>, Range<u64>),
    /// A stream, and what came of it and was not taken yet.
    Stream(
        std::pin::Pin<Box<dyn Stream<Item = object_store::Result<Bytes>> + Send>>,
        Bytes,
    ),
}

/// An artifact with a part of its bytes, which can be read whatever becomes of it meanwhile.
pub struct Opened {
    record: Record,
    source: Source,
    /// Bytes still to come.
    left: u64,
    /// Of what was read; the end is compared with the record where all of it was.
    hash: Sha256,
    whole: bool,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened")
            .field("record", &self.record)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl Opened {
    pub(super) fn new(record: Record, source: Source, range: &Range<u64>) -> Self {
        Self {
            left: range.end - range.start,
            hash: Sha256::new(),
            whole: range.start == 0 && range.end == record.shown.size_bytes,
            record,
            source,
        }
    }

    /// What it is.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Reads the next bytes, at most 256 KiB; nothing at the end.
    ///
    /// Errors: the store broke off, or, at the end of a whole artifact, its bytes are not those that were stored.
    pub async fn next(&mut self) -> Result<Bytes, ArtifactsError> {
        if self.left == 0 {
            return self.check().map(|()| Bytes::new());
        }
        let mut bytes = match &mut self.source {
            Source::File(file, range) => {
                let read = disk::read(file, range.end, range.start).await;
                let bytes: Bytes = read.map_err(|error| damaged(&self.record, &error.to_string()))?.into();
                range.start += bytes.len() as u64;
                bytes
            }
            Source::Stream(stream, rest) => {
                if rest.is_empty() {
                    *rest = match stream.next().await {
                        Some(bytes) => bytes?,
                        None => return Err(damaged(&self.record, "fewer came than there should be")),
                    };
                }
                rest.split_to(rest.len().min(FILE_CHUNK_MAX))
            }
        };
        bytes.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= bytes.len() as u64;
        self.hash.update(&bytes);
        Ok(bytes)
    }

    /// SHA-256 of what was read.
    pub fn sha256(&self) -> [u8; 32] {
        self.hash.clone().finalize().into()
    }

    fn check(&self) -> Result<(), ArtifactsError> {
        if self.whole && self.sha256() != self.record.sha256 {
            let why = format!("they have the SHA-256 {}", hex(&self.sha256()));
            return Err(damaged(&self.record, &why));
        }
        Ok(())
    }
}

fn damaged(record: &Record, why: &str) -> ArtifactsError {
    ArtifactsError::Damaged {
        artifact: record.id.to_string(),
        why: why.to_owned(),
    }
}

/// Opens a file that must have so many bytes.
pub(super) fn open(path: &std::path::Path, range: Range<u64>, size: u64) -> io::Result<Source> {
    let file = File::open(path)?;
    let found = file.metadata()?.len();
    if found != size {
        return Err(io::Error::other(format!("has {found} bytes, {size} were stored")));
    }
    Ok(Source::File(Arc::new(file), range))
}
