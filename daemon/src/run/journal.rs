//! The journal of an execution: what its log says, in a memory file that outlives brigd.
//!
//! The first page is the head: what was given to the program, and counts that change in place. What was given to its
//! stdin follows, whole pages long, then records, each behind its length. A record is appended before anybody hears of
//! it, and brigd may be killed at any moment: one that is cut short at the end of the file was told to nobody, and is
//! dropped. Numbers are little-endian.
//!
//! How far stdin was written is the position of the file itself: the kernel moves it with the bytes, in one call.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::kernel::{ErrorClaim, Mark};
use crate::output::{Count, Range};

/// What begins every journal; the number is the version of the format.
const MAGIC: [u8; 8] = *b"brigjnl1";
/// Size of the head, and what the parts of a file are aligned to, so that no page that a guest's pipe refers to holds
/// anything but its input.
const PAGE: u64 = 4096;
/// Where the counts lie in the head.
const COUNTS: u64 = 24;
/// The longest journal that is read: results, chunks and files of an execution are bounded far below.
const JOURNAL_MAX: u64 = 64 * 1024 * 1024;

/// The memory files of an execution, as they come from brig-jailer.
#[derive(Debug)]
pub struct Kept {
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// What a Python kernel is asked, whole pages long, and the frames that it sends.
    pub frames: Option<OwnedFd>,
    pub journal: OwnedFd,
}

impl Kept {
    /// Reads what was written down of the execution when it started.
    pub fn outline(&self) -> Result<Vec<u8>, JournalError> {
        let mut head = [0; 24];
        if !read_exactly(&self.journal, &mut head, 0)? {
            return Err(JournalError::Empty);
        }
        let head = Head::parse(&head)?;
        let mut length = [0; 4];
        let at = head.records();
        let broken = JournalError::Broken(at);
        if !read_exactly(&self.journal, &mut length, at)? {
            return Err(broken);
        }
        let length = u32::from_le_bytes(length);
        if u64::from(length) > JOURNAL_MAX {
            return Err(broken);
        }
        let mut body = vec![0; usize::try_from(length).unwrap_or_default()];
        if !read_exactly(&self.journal, &mut body, at.saturating_add(4))? {
            return Err(broken);
        }
        match postcard::from_bytes(&body) {
            Ok(Record::Outline(outline)) => Ok(outline),
            _ => Err(broken),
        }
    }
}

/// Reads at a place; false where the file ends before.
fn read_exactly(file: &OwnedFd, bytes: &mut [u8], at: u64) -> io::Result<bool> {
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
}

/// Counts that change in place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Bytes of stdout, of stderr and of the kernel's frames that were dropped.
    pub dropped: [u64; 3],
    /// When something came last; nanoseconds since 1970.
    pub last: u64,
}

/// An open journal.
#[derive(Debug)]
pub(super) struct Journal {
    file: Arc<File>,
    /// Where the next record goes.
    end: u64,
    pub head: Head,
}

/// What was given to the program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// Bytes for stdin, from the second page of the journal on.
    pub stdin: u64,
    /// Bytes for the request pipe, at the beginning of the file of frames.
    pub request: u64,
}

impl Head {
    /// Where the bytes for stdin begin in the journal.
    pub(super) const STDIN: u64 = PAGE;

    /// Reads the beginning of a journal.
    fn parse(bytes: &[u8]) -> Result<Self, JournalError> {
        match &bytes[..8] {
            magic if *magic == MAGIC => Ok(Self {
                stdin: number(bytes, 8),
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

    fn records(&self) -> u64 {
        PAGE.saturating_add(self.stdin)
            .checked_next_multiple_of(PAGE)
            .unwrap_or(u64::MAX)
    }
}

impl Journal {
    /// Begins a journal in an empty file. The head comes last: without it there is none.
    pub(super) fn begin(file: Arc<File>, stdin: &[u8], request: u64, records: &[Record]) -> io::Result<Self> {
        let head = Head {
            stdin: stdin.len() as u64,
            request,
        };
        file.write_all_at(stdin, Head::STDIN)?;
        file.set_len(head.records())?;
        rustix::fs::seek(&*file, rustix::fs::SeekFrom::Start(Head::STDIN))?;
        let end = head.records();
        let mut journal = Self { file, end, head };
        records.iter().try_for_each(|record| journal.append(record))?;
        let numbers = [head.stdin, head.request].map(u64::to_le_bytes);
        journal
            .file
            .write_all_at(&[MAGIC, numbers[0], numbers[1]].concat(), 0)?;
        Ok(journal)
    }

    /// Reads a journal again. A record that is cut short at its end goes.
    pub(super) fn open(file: Arc<File>) -> Result<(Self, Counts, Vec<Record>), JournalError> {
        let size = file.metadata()?.len();
        if size < PAGE {
            return Err(JournalError::Empty);
        }
        if size > JOURNAL_MAX {
            return Err(JournalError::Broken(JOURNAL_MAX));
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, 0)?;
        let head = Head::parse(&bytes)?;
        let counts = Counts {
            dropped: [24, 32, 40].map(|at| number(&bytes, at)),
            last: number(&bytes, 48),
        };
        let mut end = usize::try_from(head.records()).unwrap_or(usize::MAX);
        let mut records = Vec::new();
        while let Some((record, next)) = next_record(&bytes, end)? {
            records.push(record);
            end = next;
        }
        file.set_len(end as u64)?;
        let end = end as u64;
        Ok((Self { file, end, head }, counts, records))
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
        let bytes = [a, b, c, counts.last].map(u64::to_le_bytes).concat();
        self.file.write_all_at(&bytes, COUNTS)
    }

    /// Takes another file in the place of its own.
    #[cfg(test)]
    pub(super) fn replace(&mut self, file: File) {
        self.file = Arc::new(file);
    }

    /// The file, whose position says how far stdin was written.
    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let number = bytes.get(at..at + 8).and_then(|number| number.try_into().ok());
    number.map_or(0, u64::from_le_bytes)
}

/// The record at a place, and where the next one is; `None` at the end.
fn next_record(bytes: &[u8], at: usize) -> Result<Option<(Record, usize)>, JournalError> {
    let Some(header) = bytes
        .get(at..at.saturating_add(4))
        .and_then(|header| header.try_into().ok())
    else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_le_bytes(header)).unwrap_or(usize::MAX);
    let next = (at + 4).saturating_add(length);
    let Some(body) = bytes.get(at + 4..next) else {
        return Ok(None);
    };
    let record = postcard::from_bytes(body).map_err(|_bad| JournalError::Broken(at as u64))?;
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
        let mut journal = Journal::begin(Arc::clone(&file), b"given", 5000, &[]).unwrap();
        let records = vec![chunk(0), Record::Events(vec![vec![7; 300]], None), chunk(9)];
        records.iter().for_each(|record| journal.append(record).unwrap());
        (file, records)
    }

    #[test]
    fn what_was_written_is_read_again() {
        let (file, records) = written();
        let (mut journal, counts, read) = Journal::open(Arc::clone(&file)).unwrap();
        assert_eq!((counts, &read), (Counts::default(), &records));
        assert_eq!((journal.head.stdin, journal.head.frames()), (5, 8192));
        let mut given = [0; 5];
        file.read_exact_at(&mut given, Head::STDIN).unwrap();
        assert_eq!(&given, b"given");
        let counts = Counts {
            dropped: [1, 2, u64::MAX],
            last: 4,
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
        for cut in 2 * PAGE..size {
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
        assert!(matches!(open(b"x", JOURNAL_MAX + 1), JournalError::Broken(_)));
        let (file, _) = written();
        file.write_all_at(&[255], 2 * PAGE + 4).unwrap();
        assert!(matches!(Journal::open(file), Err(JournalError::Broken(at)) if at == 2 * PAGE));
    }
}
