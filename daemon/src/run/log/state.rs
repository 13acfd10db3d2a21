//! What a log knows, under its lock.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{ExecutionEvent, ExecutionState, Notice, NoticeKind};
use prost::Message;
use tonic::Status;
use tracing::error;

use super::{Held, Progress, event};
use crate::artifacts::Stored;
use crate::kernel::{ErrorClaim, Mark};
use crate::output::{Count, Output, Range, Stream, WINDOW, WINDOW_READ};
use crate::run::journal::{Again, Counts, Journal, JournalError, Record, nanos};

/// What is freed of a window together: bytes of its output, and entries.
const FREED: u64 = 256 * 1024;
const FREED_ENTRIES: usize = 1024;
/// The most entries of a window that are unread, and that were read and are kept: chunks may be short.
const ENTRIES_MAX: u64 = 8192;

/// The most notices of an execution: a guest can cause them.
const NOTICES_MAX: usize = 128;

/// What happened, and how far everybody is.
#[derive(Debug)]
pub(super) struct State {
    pub(super) progress: Progress,
    /// Counts the states that `accepted` tells.
    pub(super) version: u64,
    pub(super) entries: VecDeque<Entry>,
    /// How many entries are gone.
    pub(super) gone: u64,
    /// The event `started`, if it is among them.
    pub(super) started: Option<Box<ExecutionEvent>>,
    pub(super) readers: BTreeMap<u64, Reader>,
    /// Counts readers.
    pub(super) came: u64,
    /// Where the reader is that has read least, or was the last.
    pub(super) read: Reader,
    /// Whether somebody waits for the window to go on.
    pub(super) waits: bool,
    /// How much of each stream is among the entries.
    pub(super) told: [u64; 2],
    pub(super) chunks: u64,
    pub(super) notices: usize,
    /// Whether it was told that output is dropped.
    pub(super) limit_told: bool,
    /// Until the end: what the next brigd reads.
    pub(super) journal: Option<Journal>,
    pub(super) frames: Option<Arc<File>>,
    pub(super) counts: Counts,
    pub(super) mark: Mark,
    pub(super) error: Option<ErrorClaim>,
    /// Nothing more of the output counts.
    pub(super) sealed: bool,
    /// Why not everything can be kept.
    pub(super) fault: Option<String>,
    /// Bytes that the entries take up.
    pub(super) bytes: usize,
    /// Bytes of the journal that is given up.
    pub(super) aside: u64,
    /// Files of the spool that the entries hold.
    pub(super) files: Held,
    pub(super) closed: bool,
    /// What ends the streams of callers instead of `finished`, when nothing was started.
    pub(super) refusal: Option<Status>,
}

/// How far a follower of a window is.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Reader {
    pub(super) place: u64,
    /// Bytes of each stream.
    pub(super) to: [u64; 2],
}

#[derive(Debug, Clone)]
pub(super) enum Entry {
    /// An event; the bytes of an artifact if a client may have them.
    Event(Box<ExecutionEvent>, Option<Arc<Stored>>),
    Output(Range),
}

impl State {
    /// Sequence of the last event.
    pub(super) fn last(&self) -> u64 {
        self.gone + self.entries.len() as u64
    }

    /// The entry that so many events are before.
    pub(super) fn entry(&self, place: u64) -> Option<&Entry> {
        let index = place.checked_sub(self.gone)?;
        self.entries.get(usize::try_from(index).ok()?)
    }

    /// Where the output of each stream begins that is told from a place on.
    fn positions(&self, place: u64) -> [u64; 2] {
        let mut found = [None; 2];
        let index = usize::try_from(place.saturating_sub(self.gone)).unwrap_or(usize::MAX);
        for entry in self.entries.iter().skip(index) {
            if let Entry::Output(range) = entry {
                found[range.stream.index()].get_or_insert(range.start);
            }
            if found.iter().all(Option::is_some) {
                break;
            }
        }
        [0, 1].map(|stream| found[stream].unwrap_or(self.told[stream]))
    }

    /// Counts one more reader of a window, from a place on; gives its name.
    pub(super) fn enter_reader(&mut self, place: u64) -> u64 {
        self.came += 1;
        let to = self.positions(place);
        self.readers.insert(self.came, Reader { place, to });
        self.look_at_readers();
        self.came
    }

    /// Counts a reader no more.
    pub(super) fn leave_reader(&mut self, reader: u64) {
        self.readers.remove(&reader);
        self.look_at_readers();
    }

    /// Notes that a reader has the next entry.
    pub(super) fn has_read(&mut self, reader: u64, entry: &Entry) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.place += 1;
            if let Entry::Output(range) = entry {
                reader.to[range.stream.index()] = range.end();
            }
        }
        self.look_at_readers();
    }

    /// Finds out how far everybody is. Where nobody is left, it stays where the last one was.
    pub(super) fn look_at_readers(&mut self) {
        let least = |a: Reader, b: &Reader| Reader {
            place: a.place.min(b.place),
            to: [a.to[0].min(b.to[0]), a.to[1].min(b.to[1])],
        };
        let mut readers = self.readers.values();
        if let Some(first) = readers.next() {
            self.read = readers.fold(*first, least);
        }
    }

    /// Lets entries go that everybody is well past, if that is worth it; gives where what is kept begins then.
    pub(super) fn make_room(&mut self) -> Option<[u64; 2]> {
        let (mut count, mut bytes) = (0, 0);
        if self.sealed || self.closed {
            return None;
        }
        let read = usize::try_from(self.read.place.saturating_sub(self.gone)).unwrap_or(usize::MAX);
        let many = read.saturating_sub(usize::try_from(ENTRIES_MAX).unwrap_or(usize::MAX));
        for (index, entry) in self.entries.iter().take(read).enumerate() {
            if let Entry::Output(range) = entry {
                if range.end() + WINDOW_READ > self.read.to[range.stream.index()] && index >= many {
                    break;
                }
                (count, bytes) = (index + 1, bytes + range.len as u64);
            }
        }
        if bytes < FREED && count < FREED_ENTRIES {
            return None;
        }
        for _ in 0..count {
            self.forget_first();
        }
        self.counts.gone = self.gone;
        let counts = self.counts;
        self.journaled(|journal| journal.count(&counts));
        self.begin_journal_anew();
        Some(self.positions(self.gone))
    }

    fn forget_first(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        self.gone += 1;
        self.bytes -= std::mem::size_of::<Entry>();
        if let Entry::Event(told, _) = entry {
            self.bytes -= told.encoded_len();
            if matches!(told.event, Some(Event::Started(_))) {
                self.started = Some(told);
            }
        }
    }

    fn begin_journal_anew(&mut self) {
        let Some(mut journal) = self.journal.take_if(|journal| journal.is_long()) else {
            return;
        };
        let chunks = self.entries.iter().filter(|entry| matches!(entry, Entry::Output(_)));
        let again = Again {
            gone: self.gone,
            told: self.positions(self.gone),
            chunks: self.chunks - chunks.count() as u64,
            started: self.started.as_ref().map(|told| told.encode_to_vec()),
        };
        let began = journal.begin_anew(again, self.entries.iter().map(Entry::record));
        self.journal = Some(journal);
        self.journaled(|_| began);
    }

    /// Up to where each stream of a window may be kept.
    pub(super) fn room(&self) -> [u64; 2] {
        if self.last().saturating_sub(self.read.place) > ENTRIES_MAX {
            return [0; 2];
        }
        self.read.to.map(|to| to.saturating_add(WINDOW))
    }

    /// Makes a window again of what an earlier brigd had, of which so many entries are gone; gives where it begins.
    pub(super) fn restore_window(&mut self, gone: u64) -> [u64; 2] {
        while self.gone < gone && !self.entries.is_empty() {
            self.forget_first();
        }
        let (place, to) = (self.gone, self.positions(self.gone));
        self.read = Reader { place, to };
        to
    }

    /// Gives up the files of what has ended. The jailer may hold the journal for longer; nobody needs the frames.
    pub(super) fn let_go(&mut self) {
        let size = |file: &File| file.metadata().map_or(0, |data| data.len());
        self.aside = self.journal.take().map_or(0, |journal| size(journal.file()));
        if let Some(frames) = self.frames.take()
            && let Err(error) = frames.set_len(0)
        {
            error!(%error, "frames not given up");
        }
    }

    pub(super) fn tell(&mut self, time: SystemTime, kind: Event) {
        self.push(Entry::Event(Box::new(event(0, time, kind)), None));
    }

    pub(super) fn notice(&mut self, kind: NoticeKind, message: String) {
        if self.notices < NOTICES_MAX {
            let kind = kind.into();
            self.tell(SystemTime::now(), Event::Notice(Notice { kind, message }));
        }
    }

    pub(super) fn tell_limit(&mut self, cap: u64) {
        if !self.limit_told {
            self.notice(
                NoticeKind::OutputDropped,
                format!("output beyond {cap} bytes of a stream is dropped"),
            );
            // Also where there were too many notices.
            self.limit_told = true;
        }
    }

    /// Adds what is kept of the output and not among the entries.
    pub(super) fn tell_rest(&mut self, output: &Output) {
        for stream in Stream::BOTH {
            let kept = output.count(stream).kept();
            for range in Range::cut(stream, self.told[stream.index()], kept, SystemTime::now()) {
                self.push(Entry::Output(range));
            }
        }
    }

    /// Adds an entry, to the journal first.
    pub(super) fn push(&mut self, mut entry: Entry) {
        if self.closed {
            return;
        }
        if let Entry::Event(told, _) = &mut entry {
            told.sequence = self.last() + 1;
        }
        let record = entry.record();
        self.journaled(|journal| journal.append(&record));
        self.enter(entry);
    }

    pub(super) fn enter(&mut self, entry: Entry) {
        self.bytes += std::mem::size_of::<Entry>();
        match &entry {
            Entry::Event(told, file) => {
                self.bytes += told.encoded_len();
                if let Some(file) = file {
                    self.files.files += 1;
                    self.files.file_bytes += file.size();
                }
                if let Some(Event::Notice(notice)) = &told.event {
                    self.notices += 1;
                    self.limit_told |= notice.kind() == NoticeKind::OutputDropped;
                }
            }
            Entry::Output(range) => {
                self.told[range.stream.index()] = range.end();
                self.chunks += 1;
            }
        }
        self.entries.push_back(entry);
        self.progress.last_sequence = self.last();
    }

    /// Writes to the journal, if there is one; what fails ends the execution.
    pub(super) fn journaled(&mut self, write: impl FnOnce(&mut Journal) -> io::Result<()>) {
        if let Some(journal) = &mut self.journal
            && let Err(error) = write(journal)
        {
            error!(%error, "journal not written");
            self.journal = None;
            self.fault.get_or_insert(format!("journal: {error}"));
        }
    }

    /// Does what a record says; gives the final counts, if it has them.
    pub(super) fn replay(&mut self, record: Record) -> Result<Option<[Count; 2]>, JournalError> {
        match record {
            Record::Output(range) => self.enter(Entry::Output(range)),
            Record::Events(events, mark) => {
                events.iter().try_for_each(|bytes| self.replay_event(bytes))?;
                self.mark = mark.unwrap_or(self.mark);
            }
            Record::Heard(mark, error) => {
                self.mark = mark;
                self.error = self.error.take().or(error);
            }
            Record::Sealed(counts) => return Ok(Some(counts)),
            Record::Outline(_) => {}
            Record::Again(again) => {
                (self.gone, self.told, self.chunks) = (again.gone, again.told, again.chunks);
                if let Some(bytes) = again.started {
                    self.replay_event(&bytes)?;
                    self.forget_first();
                    self.gone = again.gone;
                }
                self.progress.last_sequence = self.gone;
            }
        }
        Ok(None)
    }

    fn replay_event(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        let place = self.last() + 1;
        let told = ExecutionEvent::decode(bytes).map_err(|_bad| JournalError::Event(place))?;
        let time = told.time.and_then(|time| SystemTime::try_from(time).ok());
        match &told.event {
            Some(Event::Started(started)) => {
                self.progress.pid = Some(started.pid);
                self.progress.start_time = time;
            }
            Some(Event::Finished(result)) => {
                self.progress.state = ExecutionState::Finished;
                self.progress.result = Some(Box::new(result.clone()));
                self.progress.end_time = time;
                self.closed = true;
            }
            _ => {}
        }
        self.enter(Entry::Event(Box::new(told), None));
        Ok(())
    }

    /// When output came last, as far as it was written down.
    pub(super) fn last_output(&self) -> u64 {
        let chunk = self.entries.iter().rev().find_map(|entry| match entry {
            Entry::Output(range) => Some(range.time),
            Entry::Event(..) => None,
        });
        let time = chunk.or(self.progress.start_time).unwrap_or_else(SystemTime::now);
        self.counts.last.max(nanos(time))
    }
}

impl Entry {
    pub(super) fn record(&self) -> Record {
        match self {
            Self::Event(told, _) => Record::Events(vec![told.encode_to_vec()], None),
            Self::Output(range) => Record::Output(*range),
        }
    }
}
