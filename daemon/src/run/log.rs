//! What happened to one execution: kept in order, followed by any number of clients at their own pace.
//!
//! The log holds events and, for output, only where chunks lie: their bytes stay in the kept [`Output`], so that
//! nothing is held twice. Sequence numbers are places in the log, from 1. `accepted` is not kept: it is made from the
//! present state whenever a follower has an old one. Bytes of artifacts are read for each follower that wants them.
//!
//! Once the program runs, each entry is in the `Journal` before anybody sees it, so that the next brigd has the same
//! log under the same numbers ([`Log::restore`]): of the events it gets all, of the files that were collected not the
//! bytes.
//!
//! Of an output of which a window is kept, old entries go: those that every follower is well past (`Log::window`).

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use brig_jailer::faults::{Point, point};
use brig_jailer::ids::Id;
use brig_proto::sizes::FINISHED_RESULTS_MAX;
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{
    Artifact, ArtifactChunk, ExecutionAccepted, ExecutionEvent, ExecutionOutput, ExecutionResult, ExecutionState,
    Notice, NoticeKind, OutputStream,
};
use prost::Message;
use tokio::sync::{Notify, watch};
use tonic::Status;
use tracing::error;

use crate::artifacts::Stored;
use crate::kernel::{ErrorClaim, Mark};
use crate::output::{Count, Output, Range, Stream, WINDOW, WINDOW_READ};
use crate::run::journal::{Again, Counts, Head, Journal, JournalError, Kept, Record, ago, nanos};
use crate::run::listen::Claims;
use crate::status::Problem;

/// What memory files take up in steps of, in bytes.
const PAGE: u64 = 4096;

/// What is freed of a window together: bytes of its output, and entries.
const FREED: u64 = 256 * 1024;
const FREED_ENTRIES: usize = 1024;
/// The most entries of a window that are unread, and that were read and are kept: chunks may be short.
const ENTRIES_MAX: u64 = 8192;

/// The most notices of an execution: a guest can cause them.
const NOTICES_MAX: usize = 128;

/// The log of one execution.
#[derive(Debug)]
pub struct Log {
    execution: Id,
    session: Id,
    output: Arc<Output>,
    state: Mutex<State>,
    /// Counts changes, so that followers wait for the next one.
    changes: watch::Sender<u64>,
    /// Wakes whoever ends what can't be kept.
    failed: Notify,
}

/// What something that is kept takes up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    pub memory_bytes: u64,
    /// Files of the spool, each an open descriptor.
    pub files: u64,
    pub file_bytes: u64,
}

/// What is known of an execution now.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub state: ExecutionState,
    pub queue_position: u32,
    pub pid: Option<u32>,
    pub start_time: Option<SystemTime>,
    pub end_time: Option<SystemTime>,
    pub result: Option<Box<ExecutionResult>>,
    /// Sequence of the last event.
    pub last_sequence: u64,
}

#[derive(Debug)]
struct State {
    progress: Progress,
    /// Counts the states that `accepted` tells.
    version: u64,
    entries: VecDeque<Entry>,
    /// How many entries are gone.
    gone: u64,
    /// The event `started`, if it is among them.
    started: Option<Box<ExecutionEvent>>,
    readers: BTreeMap<u64, Reader>,
    /// Counts readers.
    came: u64,
    /// Where the reader is that has read least, or was the last.
    read: Reader,
    /// Whether somebody waits for the window to go on.
    waits: bool,
    /// How much of each stream is among the entries.
    told: [u64; 2],
    chunks: u64,
    notices: usize,
    /// Whether it was told that output is dropped.
    limit_told: bool,
    /// Until the end: what the next brigd reads.
    journal: Option<Journal>,
    frames: Option<Arc<File>>,
    counts: Counts,
    mark: Mark,
    error: Option<ErrorClaim>,
    /// Nothing more of the output counts.
    sealed: bool,
    /// Why not everything can be kept.
    fault: Option<String>,
    /// Bytes that the entries take up.
    bytes: usize,
    /// Bytes of the journal that is given up.
    aside: u64,
    /// Files of the spool that the entries hold.
    files: Held,
    closed: bool,
    /// What ends the streams of callers instead of `finished`, when nothing was started.
    refusal: Option<Status>,
}

/// How far a follower of a window is.
#[derive(Debug, Default, Clone, Copy)]
struct Reader {
    place: u64,
    /// Bytes of each stream.
    to: [u64; 2],
}

#[derive(Debug, Clone)]
enum Entry {
    /// An event; the bytes of an artifact if a client may have them.
    Event(Box<ExecutionEvent>, Option<Arc<Stored>>),
    Output(Range),
}

/// What a pump needs to know of the past.
#[derive(Debug)]
pub(super) struct Past {
    pub frames: Option<Arc<File>>,
    pub head: Head,
    pub chunks: u64,
    pub counts: Counts,
    pub mark: Mark,
    pub sealed: bool,
}

/// One client that follows a log.
#[derive(Debug)]
pub struct Follower {
    log: Arc<Log>,
    /// How many events are before the next one.
    next: u64,
    /// Of a window: its name among the readers.
    reader: Option<u64>,
    /// Told before all others, the last one first.
    ahead: Vec<ExecutionEvent>,
    /// Why it gets nothing.
    gone: Option<Status>,
    /// The state that was told last.
    version: Option<u64>,
    inline: bool,
    transfer: Option<Transfer>,
    changes: watch::Receiver<u64>,
    refused: bool,
}

/// An artifact whose bytes are on their way.
#[derive(Debug, Clone)]
struct Transfer {
    artifact: String,
    file: Arc<Stored>,
    offset: u64,
}

/// What a follower does next.
enum Step {
    Tell(Box<ExecutionEvent>),
    Fetch(Range),
    Transfer(Box<ExecutionEvent>, Transfer),
    Refuse(Status),
    Wait,
    End,
}

impl Held {
    /// Counts something more.
    pub fn add(&mut self, more: &Self) {
        self.memory_bytes += more.memory_bytes;
        self.files += more.files;
        self.file_bytes += more.file_bytes;
    }

    /// Counts something no more that was counted before.
    pub fn take(&mut self, less: &Self) {
        self.memory_bytes -= less.memory_bytes;
        self.files -= less.files;
        self.file_bytes -= less.file_bytes;
    }

    /// Whether it is no more than that, in anything.
    pub fn fits(&self, most: &Self) -> bool {
        self.memory_bytes <= most.memory_bytes && self.files <= most.files && self.file_bytes <= most.file_bytes
    }
}

impl Log {
    /// Starts the log of an execution.
    pub fn new(execution: Id, session: Id, output: Arc<Output>) -> Self {
        let progress = Progress {
            state: ExecutionState::Queued,
            queue_position: 0,
            pid: None,
            start_time: None,
            end_time: None,
            result: None,
            last_sequence: 0,
        };
        let state = State {
            progress,
            version: 0,
            entries: VecDeque::new(),
            gone: 0,
            started: None,
            readers: BTreeMap::new(),
            came: 0,
            read: Reader::default(),
            waits: false,
            told: [0; 2],
            chunks: 0,
            notices: 0,
            limit_told: false,
            journal: None,
            frames: None,
            counts: Counts::default(),
            mark: Mark::default(),
            error: None,
            sealed: false,
            fault: None,
            bytes: 0,
            aside: 0,
            files: Held::default(),
            closed: false,
            refusal: None,
        };
        Self {
            execution,
            session,
            output,
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
            failed: Notify::new(),
        }
    }

    /// Reads the log of an execution that an earlier brigd began. `output` must be new and have the same cap.
    ///
    /// What had left the pipes and was told to nobody becomes further chunks, so that nothing is told twice or lost.
    pub fn restore(execution: Id, session: Id, output: Arc<Output>, kept: Kept) -> Result<Self, JournalError> {
        let (journal, counts, records) = Journal::open(Arc::new(kept.journal.into()))?;
        let log = Self::new(execution, session, output);
        {
            let mut state = log.lock();
            state.progress.state = ExecutionState::Running;
            state.counts = counts;
            let sealed = records.into_iter().try_fold(None, |sealed, record| {
                Ok::<_, JournalError>(state.replay(record)?.or(sealed))
            })?;
            state.journal = Some(journal);
            state.frames = kept.frames.map(|fd| Arc::new(fd.into()));
            let files = [kept.stdout, kept.stderr].map(|fd| fd.map(|fd| Arc::new(File::from(fd))));
            let mut found = [Count::default(); 2];
            for ((found, file), dropped) in found.iter_mut().zip(&files).zip(counts.dropped) {
                let kept = file
                    .as_ref()
                    .map_or(Ok(0), |file| file.metadata().map(|data| data.len()))?;
                let bytes = kept + dropped;
                *found = Count { bytes, dropped };
            }
            let last = state.last_output();
            log.output.restore(files, sealed.unwrap_or(found), ago(last));
            if log.output.is_window() {
                log.output.free_before(state.restore_window(counts.gone))?;
            }
            state.sealed = sealed.is_some();
            if state.closed {
                state.let_go();
            }
            if state.sealed {
                log.output.seal();
            } else {
                state.tell_rest(&log.output);
                if log.output.is_limited() {
                    state.tell_limit(log.output.cap());
                }
            }
        }
        Ok(log)
    }

    /// Takes the files of the execution when its program was started, and keeps the kernel's request. `outline` is what [`Kept::outline`] gives the next brigd.
    pub fn keep(&self, kept: Kept, request: &[u8], outline: Vec<u8>) -> io::Result<()> {
        let frames: Option<Arc<File>> = kept.frames.map(|fd| Arc::new(fd.into()));
        if let Some(frames) = &frames {
            frames.write_all_at(request, 0)?;
        }
        let mut state = self.lock();
        let outline = std::iter::once(Record::Outline(outline));
        let records: Vec<_> = outline.chain(state.entries.iter().map(Entry::record)).collect();
        let journal = Journal::begin(Arc::new(kept.journal.into()), request.len() as u64, &records)?;
        if let Some(frames) = &frames {
            frames.set_len(journal.head.frames())?;
        }
        state.journal = Some(journal);
        state.frames = frames;
        let files = [kept.stdout, kept.stderr].map(|fd| fd.map(|fd| Arc::new(File::from(fd))));
        self.output
            .restore(files, [Count::default(); 2], std::time::Duration::ZERO);
        Ok(())
    }

    /// Takes files that brigd made itself, which the next one does not get, with what came before this execution began.
    pub(super) fn keep_here(&self, files: [Option<Arc<File>>; 2], counts: [Count; 2]) {
        self.output.restore(files, counts, std::time::Duration::ZERO);
        self.change(|log| {
            log.tell_rest(&self.output);
            if self.output.is_limited() {
                log.tell_limit(self.output.cap());
            }
        });
    }

    /// How many chunks of the output are told.
    pub(super) fn chunks(&self) -> u64 {
        self.lock().chunks
    }

    /// Tells where the execution is.
    pub fn place(&self, state: ExecutionState, queue_position: u32) {
        self.change(|log| {
            let progress = &mut log.progress;
            if (progress.state, progress.queue_position) != (state, queue_position) {
                (progress.state, progress.queue_position) = (state, queue_position);
                log.version += 1;
            }
        });
    }

    /// Tells that the program runs.
    pub fn started(&self, started: brig_proto::v1::ExecutionStarted, time: SystemTime) {
        self.change(|log| {
            log.progress.pid = Some(started.pid);
            log.progress.start_time = Some(time);
            log.tell(time, Event::Started(started));
        });
    }

    /// Adds an event.
    pub fn tell(&self, event: Event) {
        self.change(|log| log.tell(SystemTime::now(), event));
    }

    /// Adds a notice; of too many the last are left out.
    pub fn notice(&self, kind: NoticeKind, message: impl Into<String>) {
        self.change(|log| log.notice(kind, message.into()));
    }

    /// Adds an artifact, with its bytes if a client may have them.
    pub fn artifact(&self, artifact: Artifact, bytes: Option<Arc<Stored>>) {
        let told = event(0, SystemTime::now(), Event::Artifact(artifact));
        self.change(|log| log.push(Entry::Event(Box::new(told), bytes)));
    }

    /// The kept output.
    pub(super) fn output(&self) -> &Arc<Output> {
        &self.output
    }

    /// Adds chunks of the output.
    pub(super) fn output_came(&self, chunks: Vec<Range>) {
        self.change(|log| {
            if !log.sealed {
                chunks.into_iter().for_each(|range| log.push(Entry::Output(range)));
            }
        });
        point(Point::DaemonOutput);
    }

    /// Tells, once, that output is being dropped.
    pub(super) fn limit_reached(&self) {
        self.change(|log| {
            if !log.sealed {
                log.tell_limit(self.output.cap());
            }
        });
    }

    /// Writes down how much was dropped: of stdout, of stderr, of the kernel's frames.
    pub(super) fn dropped(&self, dropped: [u64; 3]) {
        self.unseen(|log| {
            let last = nanos(SystemTime::now());
            log.counts = Counts {
                dropped,
                last,
                ..log.counts
            };
            let counts = log.counts;
            log.journaled(|journal| journal.count(&counts));
        });
    }

    /// Notes how far the kernel was heard, with what is told of what it said: all of it or nothing.
    pub(super) fn heard(&self, said: Vec<Event>, error: Option<ErrorClaim>, mark: Mark) {
        self.change(|log| {
            if log.sealed || log.closed {
                return;
            }
            log.mark = mark;
            log.error = log.error.take().or_else(|| error.clone());
            if said.is_empty() {
                return log.journaled(|journal| journal.append(&Record::Heard(mark, error)));
            }
            let time = SystemTime::now();
            let told = |(place, said): (u64, Event)| Box::new(event(place, time, said));
            let told: Vec<_> = (log.last() + 1..).zip(said).map(told).collect();
            let record = Record::Events(told.iter().map(|told| told.encode_to_vec()).collect(), Some(mark));
            log.journaled(|journal| journal.append(&record));
            told.into_iter().for_each(|told| log.enter(Entry::Event(told, None)));
        });
    }

    /// Says that nothing more of the output counts, whatever a thread that is late does. What left the pipes is told.
    pub(super) fn seal(&self) {
        self.change(|log| {
            if log.sealed || log.closed {
                return;
            }
            log.sealed = true;
            let counts = self.output.seal();
            log.tell_rest(&self.output);
            log.journaled(|journal| journal.append(&Record::Sealed(counts)));
        });
    }

    /// What the kernel said so far, as far as the final message can carry it.
    pub(super) fn claims(&self) -> Claims {
        let log = self.lock();
        let mut bytes = 0;
        let results = log.entries.iter().filter_map(|entry| match entry {
            Entry::Event(told, _) => match &told.event {
                Some(Event::Result(result)) => Some(result),
                _ => None,
            },
            Entry::Output(_) => None,
        });
        let fits = results.filter(|result| {
            bytes += result.encoded_len();
            bytes <= FINISHED_RESULTS_MAX
        });
        Claims {
            results: fits.cloned().collect(),
            error: log.error.clone(),
        }
    }

    /// What a pump goes on from; nothing where no files were given.
    pub(super) fn past(&self) -> Option<Past> {
        let log = self.lock();
        let journal = log.journal.as_ref()?;
        Some(Past {
            frames: log.frames.clone(),
            head: journal.head,
            chunks: log.chunks,
            counts: log.counts,
            mark: log.mark,
            sealed: log.sealed,
        })
    }

    /// Notes that something can't be kept.
    pub(super) fn fail(&self, fault: String) {
        self.unseen(|log| {
            log.fault.get_or_insert(fault);
        });
    }

    /// Waits until something can't be kept; for whoever ends the execution then.
    pub(super) async fn failed(&self) -> String {
        loop {
            let waiting = self.failed.notified();
            tokio::pin!(waiting);
            waiting.as_mut().enable();
            if let Some(fault) = &self.lock().fault {
                return fault.clone();
            }
            waiting.await;
        }
    }

    /// Ends the log with the result. Only the first end counts.
    pub fn finish(&self, result: ExecutionResult, time: SystemTime) {
        self.end(result, time, |log, result| log.tell(time, Event::Finished(result)));
    }

    /// Ends the log of an execution that never started: who follows it gets the refusal.
    pub fn refuse(&self, result: ExecutionResult, time: SystemTime, refusal: Status) {
        self.end(result, time, |log, _| log.refusal = Some(refusal));
    }

    /// Ends the streams of those who follow it: another brigd goes on with it. What is not told by now is told by that.
    pub fn leave(&self, status: Status) {
        self.change(|log| {
            if !log.closed {
                (log.closed, log.refusal) = (true, Some(status));
            }
        });
    }

    /// The artifacts that were told.
    pub(super) fn artifacts(&self) -> Vec<Artifact> {
        let log = self.lock();
        let told = log.entries.iter().filter_map(|entry| match entry {
            Entry::Event(told, _) => match &told.event {
                Some(Event::Artifact(artifact)) => Some(artifact.clone()),
                _ => None,
            },
            Entry::Output(_) => None,
        });
        told.collect()
    }

    /// Waits until nothing more is told.
    pub async fn ended(&self) {
        let mut changes = self.changes.subscribe();
        while !self.lock().closed {
            // The sender lives as long as this.
            let _ = changes.changed().await;
        }
    }

    /// Whether the end was told.
    pub fn is_finished(&self) -> bool {
        self.lock().progress.state == ExecutionState::Finished
    }

    /// What is known now.
    pub fn progress(&self) -> Progress {
        self.lock().progress.clone()
    }

    /// What the journal takes up as long as the jailer holds it for the next brigd.
    pub fn aside(&self) -> u64 {
        self.lock().aside
    }

    /// What the log takes up, output included.
    pub fn holds(&self) -> Held {
        let output = Stream::BOTH.map(|stream| self.output.held(stream).next_multiple_of(PAGE));
        let open = self.output.open_files();
        let log = self.lock();
        Held {
            memory_bytes: log.bytes as u64 + output.iter().sum::<u64>(),
            files: log.files.files + open,
            ..log.files
        }
    }

    /// Lets a window go on behind what everybody has read; up to where each stream may be kept now.
    pub(super) fn window(&self) -> [u64; 2] {
        let mut caps = [0; 2];
        self.unseen(|log| {
            let freed = log.make_room().map(|starts| self.output.free_before(starts));
            if let Some(Err(error)) = freed {
                log.fault.get_or_insert(format!("window: {error}"));
            }
            caps = log.room();
            log.waits = true;
        });
        caps
    }

    /// Follows the log from after a sequence number; `inline` asks for the bytes of artifacts.
    ///
    /// Of a window, who has seen nothing gets what is there. Who has seen something and missed what is gone is refused.
    pub fn follow(self: &Arc<Self>, after_sequence: u64, inline: bool) -> Follower {
        let mut follower = Follower {
            log: Arc::clone(self),
            next: after_sequence,
            reader: None,
            ahead: Vec::new(),
            gone: None,
            version: None,
            inline,
            transfer: None,
            changes: self.changes.subscribe(),
            refused: false,
        };
        if self.output.is_window() {
            let mut log = self.lock();
            if after_sequence >= log.gone || after_sequence == 0 {
                log.enter_reader(&mut follower);
                // It may know all that is there.
                follower.wake(&mut log);
            } else {
                let first = log.gone + 1;
                follower.gone = Some(Problem::EventsGone(after_sequence, first).status());
            }
        }
        follower
    }

    fn end(&self, result: ExecutionResult, time: SystemTime, how: impl FnOnce(&mut State, ExecutionResult)) {
        self.change(|log| {
            if log.closed {
                return;
            }
            log.progress.result = Some(Box::new(result.clone()));
            log.progress.end_time = Some(time);
            log.progress.state = ExecutionState::Finished;
            log.progress.queue_position = 0;
            how(log, result);
            log.closed = true;
            log.let_go();
            if !log.sealed {
                log.sealed = true;
                self.output.seal();
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        self.unseen(change);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Changes what no follower looks at.
    fn unseen(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        if state.fault.is_some() {
            self.failed.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic half way through a change runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accepted(&self, progress: &Progress) -> ExecutionEvent {
        let accepted = ExecutionAccepted {
            execution_id: self.execution.to_string(),
            session_id: self.session.to_string(),
            state: progress.state.into(),
            queue_position: progress.queue_position,
        };
        event(0, SystemTime::now(), Event::Accepted(accepted))
    }
}

impl State {
    /// Sequence of the last event.
    fn last(&self) -> u64 {
        self.gone + self.entries.len() as u64
    }

    /// The entry that so many events are before.
    fn entry(&self, place: u64) -> Option<&Entry> {
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

    /// Counts a follower among the readers of a window, from what is there of it.
    fn enter_reader(&mut self, follower: &mut Follower) {
        if follower.next < self.gone {
            let message = format!(
                "the first {} events are gone: of a command whose output streams the last {} MiB are kept",
                self.gone,
                WINDOW_READ >> 20
            );
            let kind = NoticeKind::EventsGone.into();
            let told = event(0, SystemTime::now(), Event::Notice(Notice { kind, message }));
            follower.ahead.push(told);
            follower.ahead.extend(self.started.as_deref().cloned());
        }
        follower.next = follower.next.clamp(self.gone, self.last());
        self.came += 1;
        follower.reader = Some(self.came);
        let to = self.positions(follower.next);
        let place = follower.next;
        self.readers.insert(self.came, Reader { place, to });
        self.look_at_readers();
    }

    /// Notes that a reader has the next entry.
    fn has_read(&mut self, reader: u64, entry: &Entry) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.place += 1;
            if let Entry::Output(range) = entry {
                reader.to[range.stream.index()] = range.end();
            }
        }
        self.look_at_readers();
    }

    /// Finds out how far everybody is. Where nobody is left, it stays where the last one was.
    fn look_at_readers(&mut self) {
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
    fn make_room(&mut self) -> Option<[u64; 2]> {
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
    fn room(&self) -> [u64; 2] {
        if self.last().saturating_sub(self.read.place) > ENTRIES_MAX {
            return [0; 2];
        }
        self.read.to.map(|to| to.saturating_add(WINDOW))
    }

    /// Makes a window again of what an earlier brigd had, of which so many entries are gone; gives where it begins.
    fn restore_window(&mut self, gone: u64) -> [u64; 2] {
        while self.gone < gone && !self.entries.is_empty() {
            self.forget_first();
        }
        let (place, to) = (self.gone, self.positions(self.gone));
        self.read = Reader { place, to };
        to
    }

    /// Gives up the files of what has ended. The jailer may hold the journal for longer; nobody needs the frames.
    fn let_go(&mut self) {
        let size = |file: &File| file.metadata().map_or(0, |data| data.len());
        self.aside = self.journal.take().map_or(0, |journal| size(journal.file()));
        if let Some(frames) = self.frames.take()
            && let Err(error) = frames.set_len(0)
        {
            error!(%error, "frames not given up");
        }
    }

    fn tell(&mut self, time: SystemTime, kind: Event) {
        self.push(Entry::Event(Box::new(event(0, time, kind)), None));
    }

    fn notice(&mut self, kind: NoticeKind, message: String) {
        if self.notices < NOTICES_MAX {
            let kind = kind.into();
            self.tell(SystemTime::now(), Event::Notice(Notice { kind, message }));
        }
    }

    fn tell_limit(&mut self, cap: u64) {
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
    fn tell_rest(&mut self, output: &Output) {
        for stream in Stream::BOTH {
            let kept = output.count(stream).kept();
            for range in Range::cut(stream, self.told[stream.index()], kept, SystemTime::now()) {
                self.push(Entry::Output(range));
            }
        }
    }

    /// Adds an entry, to the journal first.
    fn push(&mut self, mut entry: Entry) {
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

    fn enter(&mut self, entry: Entry) {
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
    fn journaled(&mut self, write: impl FnOnce(&mut Journal) -> io::Result<()>) {
        if let Some(journal) = &mut self.journal
            && let Err(error) = write(journal)
        {
            error!(%error, "journal not written");
            self.journal = None;
            self.fault.get_or_insert(format!("journal: {error}"));
        }
    }

    /// Does what a record says; gives the final counts, if it has them.
    fn replay(&mut self, record: Record) -> Result<Option<[Count; 2]>, JournalError> {
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
    fn last_output(&self) -> u64 {
        let chunk = self.entries.iter().rev().find_map(|entry| match entry {
            Entry::Output(range) => Some(range.time),
            Entry::Event(..) => None,
        });
        let time = chunk.or(self.progress.start_time).unwrap_or_else(SystemTime::now);
        self.counts.last.max(nanos(time))
    }
}

impl Entry {
    fn record(&self) -> Record {
        match self {
            Self::Event(told, _) => Record::Events(vec![told.encode_to_vec()], None),
            Self::Output(range) => Record::Output(*range),
        }
    }
}

impl Follower {
    /// Waits for the next event; `None` after the last one. Safe to cancel.
    pub async fn next(&mut self) -> Option<Result<ExecutionEvent, Status>> {
        loop {
            if let Some(transfer) = self.transfer.take() {
                return Some(self.continue_transfer(transfer).await);
            }
            self.changes.mark_unchanged();
            match self.step() {
                Step::Tell(event) => return Some(Ok(*event)),
                Step::Fetch(range) => return Some(self.fetch(&range)),
                Step::Transfer(event, transfer) => {
                    self.transfer = Some(transfer);
                    return Some(Ok(*event));
                }
                Step::Refuse(status) => return Some(Err(status)),
                Step::End => return None,
                // The sender lives as long as the log, which this follower holds.
                Step::Wait => drop(self.changes.changed().await),
            }
        }
    }

    fn step(&mut self) -> Step {
        if let Some(status) = self.gone.take() {
            self.refused = true;
            return Step::Refuse(status);
        }
        if self.refused {
            return Step::End;
        }
        let mut log = self.log.lock();
        // Whoever comes after the end is told the state once; whoever was there knows it from the last event.
        if self.version != Some(log.version) && (self.version.is_none() || !log.closed) {
            self.version = Some(log.version);
            return Step::Tell(Box::new(self.log.accepted(&log.progress)));
        }
        if let Some(told) = self.ahead.pop() {
            return Step::Tell(Box::new(told));
        }
        let Some(entry) = log.entry(self.next).cloned() else {
            return match &log.refusal {
                Some(status) => {
                    self.refused = true;
                    Step::Refuse(status.clone())
                }
                None if log.closed => Step::End,
                None => Step::Wait,
            };
        };
        self.next += 1;
        if let Some(reader) = self.reader {
            log.has_read(reader, &entry);
            self.wake(&mut log);
        }
        match entry {
            Entry::Output(range) => Step::Fetch(range),
            Entry::Event(told, file) => match (file.filter(|_| self.inline), &told.event) {
                (Some(file), Some(Event::Artifact(artifact))) => {
                    let transfer = Transfer {
                        artifact: artifact.artifact_id.clone(),
                        file,
                        offset: 0,
                    };
                    Step::Transfer(told, transfer)
                }
                _ => Step::Tell(told),
            },
        }
    }

    /// Has the window go on, if somebody waits for that.
    fn wake(&self, log: &mut State) {
        if std::mem::take(&mut log.waits) {
            self.log.output.waker().wake();
        }
    }

    fn fetch(&self, range: &Range) -> Result<ExecutionEvent, Status> {
        let data = self.log.output.read(range);
        let data = data.map_err(|error| Status::internal(format!("kept output: {error}")))?;
        let stream = match range.stream {
            Stream::Stdout => OutputStream::Stdout,
            Stream::Stderr => OutputStream::Stderr,
        };
        let output = ExecutionOutput {
            stream: stream.into(),
            data: data.into(),
            offset: range.start,
        };
        Ok(event(self.next, range.time, Event::Output(output)))
    }

    /// Reads the next bytes of an artifact. A cancelled call reads them again.
    async fn continue_transfer(&mut self, mut transfer: Transfer) -> Result<ExecutionEvent, Status> {
        let (file, offset) = (Arc::clone(&transfer.file), transfer.offset);
        let artifact_id = transfer.artifact.clone();
        self.transfer = Some(transfer.clone());
        let data = match file.read(offset).await {
            Ok(data) => data,
            Err(error) => return Err(Status::internal(format!("artifact {artifact_id}: {error}"))),
        };
        transfer.offset += data.len() as u64;
        let last = transfer.offset == file.size();
        self.transfer = (!last).then_some(transfer);
        let chunk = ArtifactChunk {
            artifact_id,
            offset,
            data: data.into(),
            last,
        };
        Ok(event(0, SystemTime::now(), Event::ArtifactChunk(chunk)))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some(reader) = self.reader {
            let mut log = self.log.lock();
            log.readers.remove(&reader);
            log.look_at_readers();
            self.wake(&mut log);
        }
    }
}

fn event(sequence: u64, time: SystemTime, event: Event) -> ExecutionEvent {
    ExecutionEvent {
        sequence,
        time: Some(time.into()),
        event: Some(event),
    }
}

#[cfg(test)]
mod tests;
