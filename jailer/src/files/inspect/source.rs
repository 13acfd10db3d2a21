//! The bytes of a file, up to a limit.
#![forbid(unsafe_code)]

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A file that is looked into: read on from a position, or at offsets.
#[derive(Debug)]
pub(super) struct Source {
    file: OwnedFd,
    size: u64,
    position: u64,
    /// Bytes that may still be read.
    left: u64,
    deadline: Instant,
    cut: bool,
}

impl Source {
    pub(super) fn new(file: OwnedFd, size: u64, max_bytes: u64, time_ms: u32) -> Self {
        let deadline = Instant::now() + Duration::from_millis(time_ms.into());
        Self {
            file,
            size,
            position: 0,
            left: max_bytes,
            deadline,
            cut: false,
        }
    }

    /// Length of the file when it was opened.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Whether a limit kept anything back.
    pub(super) fn was_cut(&self) -> bool {
        self.cut
    }

    /// Goes on reading somewhere else.
    pub(super) fn seek(&mut self, position: u64) {
        self.position = position;
    }

    /// Reads all of `buffer` at an offset.
    pub(super) fn read_exact_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.position = offset;
        self.read_exact(buffer)
    }

    /// Reads `N` bytes at an offset.
    pub(super) fn array_at<const N: usize>(&mut self, offset: u64) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Shows the rest of the file to `look`, piece by piece; `look` says whether to go on.
    pub(super) fn for_each_piece(&mut self, mut look: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = self.read(&mut buffer)?;
            if read == 0 || !look(&buffer[..read]) {
                return Ok(());
            }
        }
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // A file that grows while it is read ends where it ended when it was opened.
        let rest = self.size.saturating_sub(self.position);
        let allowed = if Instant::now() < self.deadline { self.left } else { 0 };
        if allowed == 0 && rest > 0 && !buffer.is_empty() {
            self.cut = true;
        }
        let length = usize::try_from(rest.min(allowed))
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = rustix::io::pread(&self.file, &mut buffer[..length], self.position)?;
        self.position += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}
