//! The bytes of a record: written under a name that nobody knows, and read once they are whole.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::task::spawn_blocking;

use super::InputsError;
use super::room::Share;
use crate::disk;

/// Bytes after which the free space is looked at again.
const LOOK: u64 = 8 * 1024 * 1024;

/// A file that is being written; dropped before [`Draft::settle`] it leaves nothing.
#[derive(Debug)]
pub(super) struct Draft {
    /// Absent while a write runs, and after one that failed or was given up.
    inner: Option<Inner>,
    path: PathBuf,
    /// The most bytes that it may have.
    max_bytes: u64,
}

#[derive(Debug)]
struct Inner {
    file: File,
    name: Unlink,
    hash: Sha256,
    size: u64,
    /// Bytes since the free space was looked at.
    unseen: u64,
    share: Share,
    reserve: u64,
}

/// A file that was written whole and is on the disk, though not yet in its place.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) size: u64,
    pub(super) sha256: [u8; 32],
    pub(super) share: Share,
    name: Unlink,
}

/// A name that goes with this, unless it was renamed.
#[derive(Debug)]
struct Unlink(Option<PathBuf>);

impl Draft {
    /// Begins a file at `path`, which must not exist, for at least `announced` bytes. Can block.
    pub(super) fn create(
        path: &Path,
        share: Share,
        announced: u64,
        max_bytes: u64,
        reserve: u64,
    ) -> Result<Self, InputsError> {
        let failed = |source| InputsError::file(path, source);
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = made.map_err(failed)?;
        let name = Unlink(Some(path.to_owned()));
        check_space(&file, path, announced, reserve)?;
        let inner = Inner {
            file,
            name,
            hash: Sha256::new(),
            size: 0,
            unseen: 0,
            share,
            reserve,
        };
        Ok(Self {
            inner: Some(inner),
            path: path.to_owned(),
            max_bytes,
        })
    }

    /// Adds bytes.
    ///
    /// Errors: after any error, and after a call that was dropped half way, the file takes no more.
    pub(super) async fn write(&mut self, bytes: prost::bytes::Bytes) -> Result<(), InputsError> {
        let path = self.path.clone();
        let mut inner = self.take()?;
        if inner.size + bytes.len() as u64 > self.max_bytes {
            return Err(InputsError::TooLarge {
                max_bytes: self.max_bytes,
            });
        }
        let writing = spawn_blocking(move || inner.write(&bytes, &path).map(|()| inner));
        let written = writing.await.unwrap_or_else(|error| Err(self.failed(error)));
        self.inner = Some(written?);
        Ok(())
    }

    /// Brings all bytes to the disk.
    pub(super) async fn settle(mut self) -> Result<Settled, InputsError> {
        let path = self.path.clone();
        let inner = self.take()?;
        let settling = spawn_blocking(move || {
            inner
                .file
                .sync_all()
                .map_err(|source| InputsError::file(&path, source))?;
            Ok(Settled {
                size: inner.size,
                sha256: inner.hash.finalize().into(),
                share: inner.share,
                name: inner.name,
            })
        });
        settling.await.unwrap_or_else(|error| Err(self.failed(error)))
    }

    fn take(&mut self) -> Result<Inner, InputsError> {
        match self.inner.take() {
            Some(inner) => Ok(inner),
            None => Err(self.failed("a write was interrupted")),
        }
    }

    fn failed(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> InputsError {
        InputsError::file(&self.path, io::Error::other(error))
    }
}

impl Inner {
    fn write(&mut self, bytes: &[u8], path: &Path) -> Result<(), InputsError> {
        let more = bytes.len() as u64;
        self.share.grow(self.size + more)?;
        self.unseen += more;
        if self.unseen >= LOOK {
            check_space(&self.file, path, 0, self.reserve)?;
            self.unseen = 0;
        }
        let written = self.file.write_all(bytes);
        written.map_err(|source| InputsError::file(path, source))?;
        self.hash.update(bytes);
        self.size += more;
        Ok(())
    }
}

impl Settled {
    /// Gives the file its place, durably. Can block.
    pub(super) fn rename(&mut self, to: &Path) -> Result<(), InputsError> {
        let failed = |source| InputsError::file(to, source);
        if let Some(from) = &self.name.0 {
            std::fs::rename(from, to).map_err(failed)?;
        }
        self.name.0 = Some(to.to_owned());
        let folder = to.parent().unwrap_or(Path::new("/"));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
    }

    /// The file stays where it is.
    pub(super) fn keep(mut self) {
        self.name.0 = None;
        self.share.keep(self.size);
    }
}

impl Drop for Unlink {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            // What stays here all the same is swept at the next start.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Looks whether `more` bytes leave `reserve` of the file system free.
fn check_space(file: &File, path: &Path, more: u64, reserve: u64) -> Result<(), InputsError> {
    let free = disk::free(file).map_err(|source| InputsError::file(path, source))?;
    if free.saturating_sub(more) < reserve {
        return Err(InputsError::Full { free, more, reserve });
    }
    Ok(())
}

/// The bytes of a record, opened: they can be read whatever becomes of the record.
#[derive(Debug)]
pub struct Opened {
    file: Arc<File>,
    size: u64,
    sha256: [u8; 32],
}

impl Opened {
    /// Opens a file that must have this size. Can block.
    pub(super) fn open(path: &Path, size: u64, sha256: [u8; 32]) -> Result<Self, InputsError> {
        let failed = |source| InputsError::file(path, source);
        let file = File::open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?.len();
        if found != size {
            let message = format!("has {found} bytes, {size} were stored");
            return Err(failed(io::Error::other(message)));
        }
        Ok(Self {
            file: Arc::new(file),
            size,
            sha256,
        })
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// SHA-256 of the bytes when they were stored.
    pub fn sha256(&self) -> [u8; 32] {
        self.sha256
    }

    /// Reads some bytes from an offset on; nothing at the end.
    pub async fn read(&self, offset: u64) -> io::Result<Vec<u8>> {
        disk::read(&self.file, self.size, offset).await
    }
}
