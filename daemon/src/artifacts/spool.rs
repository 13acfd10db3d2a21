//! Where bytes that came out of a session lie until they are handed on: files without a name.
//!
//! A spool file is unlinked from the start (`O_TMPFILE` where the file system has it), so nothing is left behind,
//! however brigd ends, and each is a descriptor for as long as it lies here. What is to stay is given a name elsewhere.
//! Number and sum of all files are bounded. Reading and writing run on the blocking pool.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use brig_proto::Bytes;
use rustix::fs::{AtFlags, CWD, linkat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use tokio::task::spawn_blocking;

use super::PREFIX_MAX;
use crate::disk;

/// The most bytes that one read gives.
pub const READ_MAX: usize = 256 * 1024;

/// Why bytes could not be stored or read back.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The file is larger than an artifact may be.
    #[error("artifact larger than {max_bytes} bytes")]
    TooLarge { max_bytes: u64 },
    /// All files together would be larger than the spool may be.
    #[error("spool {path}: full, {max_bytes} bytes are in use")]
    Full { path: PathBuf, max_bytes: u64 },
    /// As many files as there may be are in the spool: each is an open descriptor.
    #[error("spool {path}: full, {max_files} files are in use")]
    TooMany { path: PathBuf, max_files: u64 },
    #[error("spool {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    /// A write was given up half way.
    #[error("spool {path}: a write was interrupted")]
    Interrupted { path: PathBuf },
}

/// A directory for spool files, shared by all executions.
#[derive(Debug, Clone)]
pub struct Spool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    max_bytes: u64,
    max_files: u64,
    used: AtomicU64,
    files: AtomicU64,
}

impl Spool {
    /// Uses a directory, which must exist, for at most `max_bytes` in at most `max_files` files at one time.
    pub fn new(directory: &Path, max_bytes: u64, max_files: u64) -> Self {
        let directory = directory.to_owned();
        Self {
            shared: Arc::new(Shared {
                directory,
                max_bytes,
                max_files,
                used: AtomicU64::new(0),
                files: AtomicU64::new(0),
            }),
        }
    }

    /// Starts a file that may grow to `max_bytes`.
    pub async fn create(&self, max_bytes: u64) -> Result<Spooled, SpoolError> {
        let room = Room::for_file(&self.shared)?;
        let shared = Arc::clone(&self.shared);
        let made = spawn_blocking(move || tempfile::tempfile_in(&shared.directory)).await;
        let file = made.unwrap_or_else(|error| Err(io::Error::other(error)));
        let file = file.map_err(|source| self.shared.failed(source))?;
        let inner = Inner {
            file,
            hash: Sha256::new(),
            prefix: Vec::new(),
            room,
        };
        Ok(Spooled {
            inner: Some(inner),
            shared: Arc::clone(&self.shared),
            max_bytes,
        })
    }

    /// Counts the bytes that lie in the spool.
    pub fn used_bytes(&self) -> u64 {
        self.shared.used.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn failed(&self, source: io::Error) -> SpoolError {
        SpoolError::File {
            path: self.directory.clone(),
            source,
        }
    }

    fn interrupted(&self) -> SpoolError {
        SpoolError::Interrupted {
            path: self.directory.clone(),
        }
    }
}

/// A file's part of the spool's room, given back when it is dropped.
#[derive(Debug)]
struct Room {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Room {
    fn for_file(shared: &Arc<Shared>) -> Result<Self, SpoolError> {
        let more = |files: u64| (files < shared.max_files).then_some(files + 1);
        match shared.files.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Self {
                shared: Arc::clone(shared),
                bytes: 0,
            }),
            Err(_) => Err(SpoolError::TooMany {
                path: shared.directory.clone(),
                max_files: shared.max_files,
            }),
        }
    }

    fn take(&mut self, more: u64) -> Result<(), SpoolError> {
        let fits = |used: u64| used.checked_add(more).filter(|sum| *sum <= self.shared.max_bytes);
        match self
            .shared
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
        {
            Ok(_) => {
                self.bytes += more;
                Ok(())
            }
            Err(_) => Err(SpoolError::Full {
                path: self.shared.directory.clone(),
                max_bytes: self.shared.max_bytes,
            }),
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shared.used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.shared.files.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Inner {
    file: File,
    hash: Sha256,
    prefix: Vec<u8>,
    room: Room,
}

impl Inner {
    fn write(&mut self, bytes: &[u8]) -> Result<(), SpoolError> {
        self.room.take(bytes.len() as u64)?;
        self.file
            .write_all(bytes)
            .map_err(|source| self.room.shared.failed(source))?;
        self.hash.update(bytes);
        let missing = PREFIX_MAX - self.prefix.len();
        self.prefix.extend_from_slice(&bytes[..bytes.len().min(missing)]);
        Ok(())
    }
}

/// A file that is being written.
#[derive(Debug)]
pub struct Spooled {
    /// Absent while a write runs, and after one that failed or was given up.
    inner: Option<Inner>,
    shared: Arc<Shared>,
    max_bytes: u64,
}

impl Spooled {
    /// Adds bytes.
    ///
    /// Errors: after any error, and after a call that was dropped half way, the file takes no more.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), SpoolError> {
        let mut inner = self.take()?;
        if inner.room.bytes + bytes.len() as u64 > self.max_bytes {
            return Err(SpoolError::TooLarge {
                max_bytes: self.max_bytes,
            });
        }
        let written = spawn_blocking(move || inner.write(&bytes).map(|()| inner)).await;
        let inner = written.unwrap_or_else(|error| Err(self.shared.failed(io::Error::other(error))))?;
        self.inner = Some(inner);
        Ok(())
    }

    /// Ends the file.
    pub fn finish(mut self) -> Result<Stored, SpoolError> {
        let inner = self.take()?;
        let sha256 = inner.hash.finalize().into();
        Ok(Stored {
            file: Arc::new(inner.file),
            sha256,
            prefix: inner.prefix,
            room: inner.room,
        })
    }

    fn take(&mut self) -> Result<Inner, SpoolError> {
        self.inner.take().ok_or_else(|| self.shared.interrupted())
    }
}

/// A file that was stored. Its bytes change no more, and go when it is dropped.
#[derive(Debug)]
pub struct Stored {
    file: Arc<File>,
    sha256: [u8; 32],
    prefix: Vec<u8>,
    room: Room,
}

impl Stored {
    /// Size in bytes, as stored.
    pub fn size(&self) -> u64 {
        self.room.bytes
    }

    /// SHA-256 of the stored bytes.
    pub fn sha256(&self) -> [u8; 32] {
        self.sha256
    }

    /// The first bytes, at most [`PREFIX_MAX`].
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Gives the bytes a name too, under which they stay; `path` must not exist, and never has a part of them. Can
    /// block. The name itself is on the disk once its folder was synced.
    pub fn keep_as(&self, path: &Path) -> io::Result<()> {
        self.file.set_permissions(Permissions::from_mode(0o600))?;
        self.file.sync_all()?;
        // A file that never had a name can be given one, where the spool lies on the same file system.
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        match linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT | Errno::XDEV | Errno::OPNOTSUPP) => self.copy_to(path),
            Err(error) => Err(error.into()),
        }
    }

    fn copy_to(&self, path: &Path) -> io::Result<()> {
        let draft = path.with_extension("draft");
        let mut to = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)?;
        let (mut offset, mut bytes) = (0, vec![0; READ_MAX]);
        let copied = loop {
            match self.file.read_at(&mut bytes, offset) {
                Ok(0) => break to.sync_all().and_then(|()| std::fs::rename(&draft, path)),
                Ok(read) => {
                    offset += read as u64;
                    if let Err(error) = to.write_all(&bytes[..read]) {
                        break Err(error);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        if copied.is_err() {
            // What stays here all the same is swept at the next start.
            let _ = std::fs::remove_file(&draft);
        }
        copied
    }

    /// Reads at most [`READ_MAX`] bytes from an offset on; nothing at the end.
    pub async fn read(&self, offset: u64) -> Result<Vec<u8>, SpoolError> {
        let bytes = disk::read(&self.file, self.size(), offset).await;
        bytes.map_err(|source| self.room.shared.failed(source))
    }
}

#[cfg(test)]
mod tests;
