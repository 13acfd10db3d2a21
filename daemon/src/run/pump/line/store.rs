//! The memory files of a context's process, which outlive brigd with it.
//!
//! What comes while code runs is the execution's own and lies elsewhere; these have what comes in between. The next
//! brigd finds there what nobody was told: the size of a file says what left its pipe, and the position of that of the
//! frames where the first one begins that was not heard.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{SeekFrom, seek};

use crate::output::{Count, Stream};
use crate::run::journal::{Counts, Journal, JournalError, Kept, Record};

/// What is kept of a context's process.
#[derive(Debug)]
pub struct Store {
    outputs: [Option<Arc<File>>; 2],
    frames: Arc<File>,
    journal: Journal,
    dropped: [u64; 2],
}

impl Store {
    /// Begins it for a new process; `outline` is what [`Kept::outline`] gives the next brigd.
    pub(in crate::run) fn begin(kept: Kept, outline: Vec<u8>) -> Result<Self, JournalError> {
        let journal = Arc::new(File::from(kept.journal));
        let journal = Journal::begin(journal, 0, &[Record::Outline(outline)])?;
        Self::new([kept.stdout, kept.stderr], kept.frames, journal, [0; 2])
    }

    /// Goes on with what an earlier brigd began.
    pub(in crate::run) fn open(kept: Kept) -> Result<Self, JournalError> {
        let (journal, counts, _outline) = Journal::open(Arc::new(kept.journal.into()))?;
        let [stdout, stderr, _] = counts.dropped;
        Self::new([kept.stdout, kept.stderr], kept.frames, journal, [stdout, stderr])
    }

    fn new(
        outputs: [Option<OwnedFd>; 2],
        frames: Option<OwnedFd>,
        journal: Journal,
        dropped: [u64; 2],
    ) -> Result<Self, JournalError> {
        let frames = frames.ok_or(io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Self {
            outputs: outputs.map(|fd| fd.map(|fd| Arc::new(fd.into()))),
            frames: Arc::new(frames.into()),
            journal,
            dropped,
        })
    }

    /// The file of a stream.
    pub(super) fn output(&self, stream: Stream) -> Option<Arc<File>> {
        self.outputs[stream.index()].clone()
    }

    /// What came of both streams since the last execution.
    pub(super) fn counts(&self) -> io::Result<[Count; 2]> {
        let mut counts = [Count::default(); 2];
        for ((count, file), dropped) in counts.iter_mut().zip(&self.outputs).zip(self.dropped) {
            let kept = file.as_ref().map_or(Ok(0), |file| size(file))?;
            let bytes = kept + dropped;
            *count = Count { bytes, dropped };
        }
        Ok(counts)
    }

    /// Notes that more of a stream was dropped.
    pub(super) fn dropped(&mut self, stream: Stream, bytes: u64) -> io::Result<()> {
        self.dropped[stream.index()] += bytes;
        self.write_down()
    }

    /// Puts what came of a stream into the file of an execution, at most so many bytes, and forgets it here.
    pub(super) fn give(&mut self, stream: Stream, most: u64, to: &File) -> io::Result<()> {
        let Some(file) = &self.outputs[stream.index()] else {
            return Ok(());
        };
        let mut bytes = vec![0; usize::try_from(size(file)?.min(most)).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, 0)?;
        to.write_all_at(&bytes, 0)?;
        file.set_len(0)?;
        if self.dropped[stream.index()] > 0 {
            self.dropped[stream.index()] = 0;
            self.write_down()?;
        }
        Ok(())
    }

    pub(super) fn frames(&self) -> &Arc<File> {
        &self.frames
    }

    fn write_down(&self) -> io::Result<()> {
        let [stdout, stderr] = self.dropped;
        self.journal.count(&Counts {
            dropped: [stdout, stderr, 0],
            last: 0,
            gone: 0,
        })
    }
}

/// How much is in a file.
pub(super) fn size(file: &File) -> io::Result<u64> {
    file.metadata().map(|data| data.len())
}

/// Where a file stands.
pub(super) fn position(file: &File) -> io::Result<u64> {
    seek(file, SeekFrom::Current(0)).map_err(Into::into)
}

/// Puts a file elsewhere.
pub(super) fn move_position(file: &File, to: u64) -> io::Result<()> {
    seek(file, SeekFrom::Start(to)).map(drop).map_err(Into::into)
}
