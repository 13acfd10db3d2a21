//! The standard input of an execution: what callers give, on its way to the program.
//!
//! The bytes lie in a memory file that brig-jailer holds too. The size of the file says how much was taken from callers;
//! its position how much the program was given, because the kernel moves it with the bytes, in one call; a seal against
//! growing says that nothing more comes. So brigd may be killed at any moment, and the next one neither gives a byte
//! twice nor leaves one out.
//!
//! Callers append and wait while too much lies there; only the [`pump`](crate::run::pump) gives.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, SealFlags, SeekFrom, fallocate, fcntl_add_seals, fcntl_get_seals, seek};
use rustix::io::Errno;
use tokio::sync::watch;
use tracing::warn;

use super::waker::Waker;

/// How much may lie there that was not given yet, in bytes: callers wait then.
const WINDOW: u64 = 256 * 1024;
/// What was given is freed in whole pages, so that no page that a guest's pipe refers to is ever written again.
const PAGE: u64 = 4096;
/// What was given and is freed together, in bytes.
const FREED: u64 = 256 * 1024;

/// Why bytes were not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("its standard input was not opened: ask for stdin_open")]
    NotOpened,
    #[error("its standard input is closed")]
    Closed,
    #[error("the program has closed its standard input, or has ended")]
    ByProgram,
    #[error("begins behind the {0} bytes that there are")]
    Gap(u64),
    #[error("memory file: {0}")]
    File(Errno),
}

/// The standard input of one execution, or what is typed into its terminal.
#[derive(Debug)]
pub struct Stdin {
    /// Whether callers may add to what came with the request.
    is_open: bool,
    state: Mutex<State>,
    pub(super) waker: Waker,
    /// Counts changes that let a caller go on.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// Once the program has started.
    file: Option<Arc<File>>,
    freed: u64,
    /// Nobody will read any more.
    over: bool,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    /// Bytes that were taken from callers.
    pub total: u64,
    /// Bytes of these that the program was given; one more once a terminal was told the end.
    pub given: u64,
    /// Whether nothing more comes.
    pub closed: bool,
}

impl Stdin {
    /// One that has no file yet.
    pub fn new(is_open: bool) -> Self {
        Self {
            is_open,
            state: Mutex::default(),
            waker: Waker::default(),
            changes: watch::Sender::new(0),
        }
    }

    /// Takes its file when the program has started, and the bytes that came with the request.
    pub(super) fn begin(&self, file: OwnedFd, given: &[u8]) -> io::Result<()> {
        let file = File::from(file);
        file.write_all_at(given, 0)?;
        if !self.is_open {
            fcntl_add_seals(&file, SealFlags::GROW)?;
        }
        self.restore(file.into());
        Ok(())
    }

    /// Takes the file that an earlier brigd wrote.
    pub(super) fn restore(&self, file: OwnedFd) {
        self.lock().file = Some(Arc::new(file.into()));
    }

    /// Adds bytes; those that are there already, by their offset among all that were ever given, are left out. Waits for
    /// the program to read where there is no room. Gives how many there are in all.
    pub async fn add(&self, mut offset: Option<u64>, data: &[u8]) -> Result<u64, Refused> {
        let mut changes = self.changes.subscribe();
        let mut rest = data;
        loop {
            changes.mark_unchanged();
            let (taken, total) = self.take(offset, rest)?;
            rest = &rest[taken..];
            offset = offset.map(|offset| offset + taken as u64);
            if rest.is_empty() {
                return Ok(total);
            }
            // The sender lives as long as this.
            let _ = changes.changed().await;
        }
    }

    /// Says that nothing more comes. Asking twice is harmless.
    pub fn close(&self) -> Result<(), Refused> {
        if !self.is_open {
            return Err(Refused::NotOpened);
        }
        if let Some(file) = &self.lock().file {
            fcntl_add_seals(file, SealFlags::GROW).map_err(Refused::File)?;
        }
        self.waker.wake();
        self.tell();
        Ok(())
    }

    /// Takes as much as there is room for, of what is not there yet. How much of the data is done with, and the total.
    fn take(&self, offset: Option<u64>, data: &[u8]) -> Result<(usize, u64), Refused> {
        if !self.is_open {
            return Err(Refused::NotOpened);
        }
        let state = self.lock();
        let Some(file) = &state.file else {
            return Err(Refused::ByProgram);
        };
        let Progress { total, given, closed } = progress(file).map_err(Refused::File)?;
        let known = match offset {
            Some(offset) if offset > total => return Err(Refused::Gap(total)),
            Some(offset) => usize::try_from(total - offset).map_or(data.len(), |known| known.min(data.len())),
            None => 0,
        };
        let new = &data[known..];
        if new.is_empty() {
            return Ok((known, total));
        }
        if closed {
            return Err(Refused::Closed);
        }
        if state.over {
            return Err(Refused::ByProgram);
        }
        let room = usize::try_from((given + WINDOW).saturating_sub(total)).unwrap_or(usize::MAX);
        let new = &new[..room.min(new.len())];
        if !new.is_empty() {
            let written = file.write_all_at(new, total);
            written.map_err(|error| Refused::File(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
            self.waker.wake();
        }
        Ok((known + new.len(), total + new.len() as u64))
    }

    /// The file, for whoever gives it to the program.
    pub(super) fn file(&self) -> Option<Arc<File>> {
        self.lock().file.clone()
    }

    /// Notes that some of it was given, and frees that.
    pub(super) fn was_given(&self) {
        let mut state = self.lock();
        if let Some(file) = state.file.clone()
            && let Ok(Progress { total, given, .. }) = progress(&file)
        {
            let end = given.min(total) / PAGE * PAGE;
            if end >= state.freed + FREED {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                if let Err(error) = fallocate(&*file, flags, state.freed, end - state.freed) {
                    warn!(%error, "input not freed");
                }
                state.freed = end;
            }
        }
        drop(state);
        self.tell();
    }

    /// Says that nobody will read any more.
    pub(super) fn end(&self) {
        self.lock().over = true;
        self.tell();
    }

    /// Gives up what lies there: the program has ended.
    pub(super) fn release(&self) {
        if let Some(file) = self.lock().file.take()
            && let Ok(Progress { total: size @ 1.., .. }) = progress(&file)
        {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if let Err(error) = fallocate(&*file, flags, 0, size) {
                warn!(%error, "input not freed");
            }
        }
        self.end();
    }

    fn tell(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic half way through a change runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far a file of input is.
pub(super) fn progress(file: &File) -> Result<Progress, Errno> {
    Ok(Progress {
        total: u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or_default(),
        given: seek(file, SeekFrom::Current(0))?,
        closed: fcntl_get_seals(file)?.contains(SealFlags::GROW),
    })
}

#[cfg(test)]
pub(crate) mod testing {
    //! Input whose file comes from a test.

    use super::*;

    /// A memory file as brig-jailer makes them for input.
    pub(crate) fn input_file() -> File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        rustix::fs::memfd_create("stdin", flags).unwrap().into()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::input_file;
    use super::*;

    fn begun(is_open: bool, given: &[u8]) -> (Stdin, File) {
        let (stdin, file) = (Stdin::new(is_open), input_file());
        stdin.begin(file.try_clone().unwrap().into(), given).unwrap();
        (stdin, file)
    }

    fn content(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[tokio::test]
    async fn what_is_there_is_left_out_and_a_gap_is_refused() {
        let (stdin, file) = begun(true, b"given");
        assert_eq!(stdin.add(None, b" and").await, Ok(9));
        assert_eq!(stdin.add(Some(0), b"given and mo").await, Ok(12));
        assert_eq!(stdin.add(Some(0), b"given").await, Ok(12));
        assert_eq!(stdin.add(Some(12), b"re").await, Ok(14));
        assert_eq!(stdin.add(Some(15), b"x").await, Err(Refused::Gap(14)));
        assert_eq!(content(&file), b"given and more");
        // The next brigd finds all of it in the file.
        let next = Stdin::new(true);
        next.restore(file.into());
        assert_eq!(next.add(Some(10), b"more!").await, Ok(15));
        next.close().unwrap();
        assert_eq!(next.add(Some(10), b"more!").await, Ok(15), "it is there");
        assert_eq!(next.add(None, b"x").await, Err(Refused::Closed));
        next.close().unwrap();
    }

    #[tokio::test]
    async fn what_was_not_opened_takes_nothing() {
        let (stdin, file) = begun(false, b"all");
        assert_eq!(stdin.add(None, b"").await, Err(Refused::NotOpened));
        assert_eq!(stdin.close(), Err(Refused::NotOpened));
        assert!(progress(&file).unwrap().closed);
    }

    #[tokio::test]
    async fn a_caller_waits_for_room_and_what_was_given_is_freed() {
        let (stdin, file) = begun(true, b"");
        let data = vec![7; usize::try_from(3 * WINDOW).unwrap()];
        let mut adding = std::pin::pin!(stdin.add(None, &data));
        let mut given = 0;
        while given < 2 * WINDOW {
            assert!(futures_pending(adding.as_mut()).await);
            let now = progress(&file).unwrap();
            assert_eq!((now.total, now.given), (given + WINDOW, given));
            given += WINDOW;
            seek(&file, SeekFrom::Start(given)).unwrap();
            stdin.was_given();
        }
        assert_eq!(adding.await, Ok(3 * WINDOW));
        let held = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512;
        assert_eq!(held, WINDOW);
        stdin.end();
        assert_eq!(stdin.add(None, b"x").await, Err(Refused::ByProgram));
        stdin.release();
        assert_eq!(stdin.add(None, b"x").await, Err(Refused::ByProgram));
        let held = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
        assert_eq!(held, 0);
    }

    async fn futures_pending<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> bool {
        let mut future = Some(future);
        std::future::poll_fn(|context| {
            let polled = future.take().map(|future| future.poll(context).is_pending());
            std::task::Poll::Ready(polled.unwrap_or_default())
        })
        .await
    }
}
