//! The bytes that are looked into: a copy that its owner can't change, read up to a limit.
#![forbid(unsafe_code)]

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::files::root::{Root, failure};
use crate::files::wire::{Failure, Inspect, Op};

/// Copies up to this size are kept in memory, so that a full disk does not prevent a look at a small file.
const IN_MEMORY: u64 = 4 * 1024 * 1024;

/// A file that is looked into: read on from a position, or at offsets.
#[derive(Debug)]
pub(super) struct Source {
    store: Store,
    size: u64,
    position: u64,
    /// Bytes that may still be read.
    left: u64,
    deadline: Instant,
    cut: bool,
}

/// Where the bytes lie.
#[derive(Debug)]
enum Store {
    Memory(Vec<u8>),
    File(OwnedFd),
}

impl Source {
    /// Copies a file of the session, which may change at any moment, to a place of the helper's own: a look at a part
    /// of it here and another there would see a file that never was. Only the very bytes that were asked for count.
    ///
    /// Errors: `EBADMSG` if the file has other bytes by now, `ETIMEDOUT`, and those of reading and writing.
    pub(super) fn copy(root: &Root, ask: &Inspect) -> Result<Self, Failure> {
        let failed = |errno| failure(Op::Read, errno, &ask.path);
        let deadline = Instant::now() + Duration::from_millis(ask.time_ms.into());
        let (file, stat) = root.open_regular(&ask.path)?;
        if u64::try_from(stat.st_size) != Ok(ask.size) {
            return Err(failed(Errno::BADMSG));
        }
        let mut store = if ask.size <= IN_MEMORY {
            Store::Memory(Vec::with_capacity(usize::try_from(ask.size).unwrap_or(0)))
        } else {
            Store::File(root.nameless().map_err(failed)?)
        };
        let (mut hash, mut buffer, mut left) = (Sha256::new(), vec![0; 64 * 1024], ask.size);
        while left > 0 {
            if Instant::now() >= deadline {
                return Err(failed(Errno::TIMEDOUT));
            }
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let piece = match rustix::io::read(&file, &mut buffer[..most]) {
                Ok(0) => return Err(failed(Errno::BADMSG)),
                Ok(read) => &buffer[..read],
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(failed(errno)),
            };
            hash.update(piece);
            store.add(piece).map_err(failed)?;
            left -= piece.len() as u64;
        }
        let sha256: [u8; 32] = hash.finalize().into();
        if sha256 != ask.sha256 {
            return Err(failed(Errno::BADMSG));
        }
        Ok(Self::new(store, ask.size, ask.max_bytes, deadline))
    }

    /// Takes bytes that change no more.
    #[cfg(test)]
    pub(super) fn of(bytes: &[u8], max_bytes: u64) -> Self {
        let deadline = Instant::now() + Duration::from_secs(30);
        Self::new(Store::Memory(bytes.to_vec()), bytes.len() as u64, max_bytes, deadline)
    }

    fn new(store: Store, size: u64, max_bytes: u64, deadline: Instant) -> Self {
        Self {
            store,
            size,
            position: 0,
            left: max_bytes,
            deadline,
            cut: false,
        }
    }

    /// Length of the file.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Whether a limit kept anything back.
    pub(super) fn was_cut(&self) -> bool {
        self.cut
    }

    /// A reader saw as much as it may.
    pub(super) fn cut_short(&mut self) {
        self.cut = true;
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
        let rest = self.size.saturating_sub(self.position);
        let allowed = if Instant::now() < self.deadline { self.left } else { 0 };
        if allowed == 0 && rest > 0 && !buffer.is_empty() {
            self.cut = true;
        }
        let length = usize::try_from(rest.min(allowed))
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = self.store.read(&mut buffer[..length], self.position)?;
        self.position += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

impl Store {
    fn add(&mut self, mut piece: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Memory(bytes) => bytes.extend_from_slice(piece),
            Self::File(file) => {
                while !piece.is_empty() {
                    match rustix::io::write(&*file, piece) {
                        Ok(written) => piece = &piece[written..],
                        Err(Errno::INTR) => {}
                        Err(errno) => return Err(errno),
                    }
                }
            }
        }
        Ok(())
    }

    fn read(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        match self {
            Self::Memory(bytes) => {
                let start = usize::try_from(position).unwrap_or(usize::MAX);
                let rest = bytes.get(start..).unwrap_or_default();
                let length = rest.len().min(buffer.len());
                buffer[..length].copy_from_slice(&rest[..length]);
                Ok(length)
            }
            Self::File(file) => Ok(rustix::io::pread(file, buffer, position)?),
        }
    }
}
