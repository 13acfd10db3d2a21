//! Files on the host's disk: how much room is left for them, and how they are read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::fstatvfs;
use rustix::io::Errno;
use tokio::task::spawn_blocking;

use crate::artifacts::READ_MAX;

/// Bytes that are free on the file system of a file or folder.
pub fn free(file: &File) -> io::Result<u64> {
    let space = fstatvfs(file)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Whether an error of the system means that there is no space.
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG)
    )
}

/// Reads at most [`READ_MAX`] bytes from an offset on, of a file that has `size`; nothing at its end.
pub async fn read(file: &Arc<File>, size: u64, offset: u64) -> io::Result<Vec<u8>> {
    let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
    let file = Arc::clone(file);
    let read = spawn_blocking(move || {
        let mut bytes = vec![0; left.min(READ_MAX)];
        file.read_exact_at(&mut bytes, offset).map(|()| bytes)
    });
    read.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
