//! The journal of an execution: what its log says, in a memory file that outlives brigd.
//!
//! The first page is the head: where the records begin, and counts that change in place. The records follow, each behind
//! its length. A record is appended before anybody hears of it, and brigd may be killed at any moment: one that is cut
//! short at the end of the file was told to nobody, and is dropped. Numbers are little-endian.
//!
//! The journal of an output of which a window is kept would grow without bound. What is still needed is then written
//! again at its end, the head is made to say that the records begin there, by one small write, and all before is freed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};

use crate::kernel::{ErrorClaim, Mark};
use crate::output::{Count, Range};

/// What begins every journal; the number is the version of the format.
const MAGIC: [u8; 8] = *b"brigjnl2";
/// Size of the head, and what the parts of a file are aligned to, so that no page that a guest's pipe refers to holds
/// anything but the request that is in it.
const PAGE: u64 = 4096;
/// Where the counts lie in the head.
const COUNTS: u64 = 24;
/// Records that are behind the beginning of a journal before it begins anew, in bytes.
const AGAIN: u64 = 1024 * 1024;
/// The longest records that are read: results, chunks and files of an execution are bounded far below.
const JOURNAL_MAX: u64 = 64 * 1024 * 1024;

/// The memory files of an execution, as they come from brig-jailer.
#[derive(Debug)]
pub struct Kept {
    /// What goes into stdin, or is typed into a terminal: [`Stdin`](crate::run::stdin::Stdin) has its form.
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// What a Python kernel is asked, whole pages long, and the frames that it sends.
    pub frames: Option<OwnedFd>,
    pub journal: OwnedFd,
}

impl Kept {
    /// Reads what was written down of the execution when it started.
    pub fn outline(&self) -> Result<Vec<u8>, JournalError> {
        match outline(&self.journal)? {
            Record::Outline(outline) => Ok(outline),
            _ => Err(JournalError::Broken(PAGE)),
        }
    }
}

/// The first record of a journal.
fn outline(journal: &impl AsFd) -> Result<Record, JournalError> {
    let mut head = [0; 24];
    if !read_exactly(journal, &mut head, 0)? {
        return Err(JournalError::Empty);
    }
    let head = Head::parse(&head)?;
    let mut length = [0; 4];
    let broken = JournalError::Broken(head.records);
    if !read_exactly(journal, &mut length, head.records)? {
        return Err(broken);
    }
    let length = u32::from_le_bytes(length);
    if u64::from(length) > JOURNAL_MAX {
        return Err(broken);
    }
    let mut body = vec![0; usize::try_from(length).unwrap_or_default()];
    if !read_exactly(journal, &mut body, head.records.saturating_add(4))? {
        return Err(broken);
    }
    postcard::from_bytes(&body).map_err(|_bad| broken)
}

/// Reads at a place; false where the file ends before.
fn read_exactly(file: &impl AsFd, bytes: &mut [u8], at: u64) -> io::Result<bool> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pread(file, &mut bytes[done..], at.saturating_add(done as u64)) {
            Ok(0) => return Ok(false),
            Ok(read) => done += read,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// Why the log of an execution can't be read again.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// brigd was gone before it had written down what the program was to be given.
    #[error("the journal was not begun")]
    Empty,
    #[error("the journal is of another version of brigd")]
    Version,
    #[error("the journal is broken at byte {0}")]
    Broken(u64),
    #[error("event {0} of the journal is none")]
    Event(u64),
    #[error("journal: {0}")]
    File(#[from] io::Error),
}

/// One record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Record {
    /// A chunk of the output.
    Output(Range),
    /// Events of the API, as protobuf, and how far the kernel was heard if it is about what that said.
    Events(Vec<Vec<u8>>, Option<Mark>),
    /// How far the kernel was heard, and its error if that is new.
    Heard(Mark, Option<ErrorClaim>),
    /// Nothing more of the output counts.
    Sealed([Count; 2]),
    /// What the next brigd needs to know of the execution; the first one.
    Outline(Vec<u8>),
    /// Entries before these are gone; the second one of a journal that was begun anew.
    Again(Again),
}

/// What is known of entries that are gone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Again {
    /// How many.
    pub gone: u64,
    /// How much of each stream they told.
    pub told: [u64; 2],
    /// How many of them were chunks of the output.
    pub chunks: u64,
    /// The event `started`, as protobuf, if it is among them.
    pub started: Option<Vec<u8>>,
}

/// Counts that change in place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Bytes of stdout, of stderr and of the kernel's frames that were dropped.
    pub dropped: [u64; 3],
    /// When something came last; nanoseconds since 1970.
    pub last: u64,
    /// How many entries are gone, because the window went on.
    pub gone: u64,
}

/// An open journal.
#[derive(Debug)]
pub(super) struct Journal {
    file: Arc<File>,
    /// Where the next record goes.
    end: u64,
    /// What its records took when it was begun anew.
    begun: u64,
    pub head: Head,
}

/// What the head says once and for all, or until the journal begins anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// Where the records begin.
    pub records: u64,
    /// Bytes for the request pipe, at the beginning of the file of frames.
    pub request: u64,
}

impl Head {
    /// Reads the beginning of a journal.
    fn parse(bytes: &[u8]) -> Result<Self, JournalError> {
        match &bytes[..8] {
            magic if *magic == MAGIC => Ok(Self {
                records: number(bytes, 8),
                request: number(bytes, 16),
            }),
            [0, ..] => Err(JournalError::Empty),
            _ => Err(JournalError::Version),
        }
    }

    /// Where the frames begin in their file.
    pub(super) fn frames(&self) -> u64 {
        self.request.next_multiple_of(PAGE)
    }
}

impl Journal {
    /// Begins a journal in an empty file. The head comes last: without it there is none.
    pub(super) fn begin(file: Arc<File>, request: u64, records: &[Record]) -> io::Result<Self> {
        file.set_len(PAGE)?;
        let (head, end) = (Head { records: PAGE, request }, PAGE);
        let mut journal = Self {
            file,
            end,
            begun: 0,
            head,
        };
        records.iter().try_for_each(|record| journal.append(record))?;
        let numbers = [head.records, head.request].map(u64::to_le_bytes);
        journal
            .file
            .write_all_at(&[MAGIC, numbers[0], numbers[1]].concat(), 0)?;
        Ok(journal)
    }

    /// Whether it has grown so much that it should begin anew, if it can.
    pub(super) fn is_long(&self) -> bool {
        self.end - self.head.records >= self.begun + AGAIN
    }

    /// Begins anew with what is still needed; all that was written before goes, but for the outline.
    pub(super) fn begin_anew(&mut self, again: Again, entries: impl Iterator<Item = Record>) -> io::Result<()> {
        let outline = outline(&self.file).map_err(io::Error::other)?;
        let old = self.head.records;
        let records = self.end.next_multiple_of(PAGE);
        self.end = records;
        for record in [outline, Record::Again(again)].into_iter().chain(entries) {
            self.append(&record)?;
        }
        // One write of so few bytes is done or not done.
        self.file.write_all_at(&records.to_le_bytes(), 8)?;
        self.head.records = records;
        self.begun = self.end - records;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&*self.file, flags, old, records - old)?;
        Ok(())
    }

    /// Reads a journal again. A record that is cut short at its end goes.
    pub(super) fn open(file: Arc<File>) -> Result<(Self, Counts, Vec<Record>), JournalError> {
        let size = file.metadata()?.len();
        if size < PAGE {
            return Err(JournalError::Empty);
        }
        let mut page = [0; 64];
        file.read_exact_at(&mut page, 0)?;
        let head = Head::parse(&page)?;
        let counts = Counts {
            dropped: [24, 32, 40].map(|at| number(&page, at)),
            last: number(&page, 48),
            gone: number(&page, 56),
        };
        let length = size.saturating_sub(head.records);
        if head.records < PAGE || length > JOURNAL_MAX {
            return Err(JournalError::Broken(head.records));
        }
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, head.records)?;
        let (mut end, mut records) = (0, Vec::new());
        while let Some((record, next)) = next_record(&bytes, end, head.records)? {
            records.push(record);
            end = next;
        }
        let end = head.records + end as u64;
        file.set_len(end)?;
        // It may begin anew at once.
        let begun = 0;
        Ok((Self { file, end, begun, head }, counts, records))
    }

    /// Appends a record.
    pub(super) fn append(&mut self, record: &Record) -> io::Result<()> {
        let body = postcard::to_stdvec(record).map_err(io::Error::other)?;
        let length = u32::try_from(body.len()).map_err(io::Error::other)?;
        let bytes = [&length.to_le_bytes()[..], &body].concat();
        self.file.write_all_at(&bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Writes counts down.
    pub(super) fn count(&self, counts: &Counts) -> io::Result<()> {
        let [a, b, c] = counts.dropped;
        let bytes = [a, b, c, counts.last, counts.gone].map(u64::to_le_bytes).concat();
        self.file.write_all_at(&bytes, COUNTS)
    }

    /// Takes another file in the place of its own.
    #[cfg(test)]
    pub(super) fn replace(&mut self, file: File) {
        self.file = Arc::new(file);
    }

    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let number = bytes.get(at..at + 8).and_then(|number| number.try_into().ok());
    number.map_or(0, u64::from_le_bytes)
}

/// The record at a place, and where the next one is; `None` at the end. `base` is where the bytes lie in their file.
fn next_record(bytes: &[u8], at: usize, base: u64) -> Result<Option<(Record, usize)>, JournalError> {
    let Some(header) = bytes
        .get(at..at.saturating_add(4))
        .and_then(|header| header.try_into().ok())
    else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_le_bytes(header)).unwrap_or(usize::MAX);
    if length == 0 {
        // What follows was to be a new beginning, and was not told of.
        return Ok(None);
    }
    let next = (at + 4).saturating_add(length);
    let Some(body) = bytes.get(at + 4..next) else {
        return Ok(None);
    };
    let record = postcard::from_bytes(body).map_err(|_bad| JournalError::Broken(base + at as u64))?;
    Ok(Some((record, next)))
}

/// A time as counts have it.
pub(super) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// How long ago a time was.
pub(super) fn ago(nanos: u64) -> Duration {
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos);
    time.elapsed().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::output::Stream;
    use crate::output::testing::memory_file;

    use super::*;

    fn chunk(start: u64) -> Record {
        let (stream, time) = (Stream::Stdout, SystemTime::UNIX_EPOCH);
        Record::Output(Range {
            stream,
            start,
            len: 7,
            time,
        })
    }

    fn written() -> (Arc<File>, Vec<Record>) {
        let file = Arc::new(memory_file());
        let mut journal = Journal::begin(Arc::clone(&file), 5000, &[]).unwrap();
        let records = vec![chunk(0), Record::Events(vec![vec![7; 300]], None), chunk(9)];
        records.iter().for_each(|record| journal.append(record).unwrap());
        (file, records)
    }

    #[test]
    fn what_was_written_is_read_again() {
        let (file, records) = written();
        let (mut journal, counts, read) = Journal::open(Arc::clone(&file)).unwrap();
        assert_eq!((counts, &read), (Counts::default(), &records));
        assert_eq!((journal.head.records, journal.head.frames()), (PAGE, 8192));
        let counts = Counts {
            dropped: [1, 2, u64::MAX],
            last: 4,
            gone: 3,
        };
        journal.count(&counts).unwrap();
        journal.append(&chunk(20)).unwrap();
        let (_, again, read) = Journal::open(file).unwrap();
        assert_eq!((again, read), (counts, [records, vec![chunk(20)]].concat()));
    }

    #[test]
    fn a_record_cut_short_is_dropped_and_the_next_one_takes_its_place() {
        let (whole, records) = written();
        let size = whole.metadata().unwrap().len();
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        whole.read_exact_at(&mut bytes, 0).unwrap();
        for cut in PAGE..size {
            let file = Arc::new(memory_file());
            file.write_all_at(&bytes[..usize::try_from(cut).unwrap()], 0).unwrap();
            let (mut journal, _, read) = Journal::open(Arc::clone(&file)).unwrap();
            assert!(read.len() < records.len() && records.starts_with(&read), "{cut}");
            journal.append(&chunk(1)).unwrap();
            let (_, _, after) = Journal::open(file).unwrap();
            assert_eq!(after, [read, vec![chunk(1)]].concat());
        }
    }

    #[test]
    fn a_journal_that_begins_anew_is_the_outline_and_what_is_still_needed() {
        let file = Arc::new(memory_file());
        let outline = Record::Outline(b"outline".to_vec());
        let mut journal = Journal::begin(Arc::clone(&file), 5, std::slice::from_ref(&outline)).unwrap();
        let mut round = 0;
        while round < 3 {
            journal.append(&Record::Events(vec![vec![7; 3000]], None)).unwrap();
            if journal.is_long() {
                round += 1;
                let again = Again {
                    gone: round,
                    ..Again::default()
                };
                journal.begin_anew(again, [chunk(round)].into_iter()).unwrap();
            }
        }
        journal.append(&chunk(99)).unwrap();
        let held = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512;
        assert!(held <= 4 * PAGE, "{held}");
        let (mut journal, _, read) = Journal::open(Arc::clone(&file)).unwrap();
        let again = Again {
            gone: 3,
            ..Again::default()
        };
        assert_eq!(read, [outline, Record::Again(again), chunk(3), chunk(99)]);
        assert_eq!(journal.head.request, 5);
        journal.append(&chunk(100)).unwrap();
        assert_eq!(Journal::open(file).unwrap().2.len(), 5);
    }

    #[test]
    fn what_is_no_journal_is_told_apart() {
        let open = |bytes: &[u8], size: u64| {
            let file = memory_file();
            file.write_all_at(bytes, 0).unwrap();
            file.set_len(size).unwrap();
            Journal::open(Arc::new(file)).map(drop).unwrap_err()
        };
        assert!(matches!(open(b"", 0), JournalError::Empty));
        assert!(matches!(open(b"", 3 * PAGE), JournalError::Empty));
        assert!(matches!(open(b"brigjnl0", 3 * PAGE), JournalError::Version));
        let head = |records: u64| [MAGIC, records.to_le_bytes()].concat();
        assert!(matches!(
            open(&head(PAGE), JOURNAL_MAX + PAGE + 1),
            JournalError::Broken(_)
        ));
        assert!(matches!(open(&head(7), 3 * PAGE), JournalError::Broken(7)));
        let (file, _) = written();
        file.write_all_at(&[255], PAGE + 4).unwrap();
        assert!(matches!(Journal::open(file), Err(JournalError::Broken(PAGE))));
    }
}
