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

mod follow;
mod state;

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
use brig_proto::v1::{Artifact, ExecutionAccepted, ExecutionEvent, ExecutionResult, ExecutionState, NoticeKind};
use prost::Message;
use tokio::sync::{Notify, watch};
use tonic::Status;

use crate::artifacts::Stored;
use crate::kernel::{ErrorClaim, Mark};
use crate::output::{Count, Output, Range, Stream};
use crate::run::journal::{Counts, Head, Journal, JournalError, Kept, Record, ago, nanos};
use crate::run::listen::Claims;
pub use follow::Follower;
use state::{Entry, Reader, State};

/// What memory files take up in steps of, in bytes.
const PAGE: u64 = 4096;

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

fn event(sequence: u64, time: SystemTime, event: Event) -> ExecutionEvent {
    ExecutionEvent {
        sequence,
        time: Some(time.into()),
        event: Some(event),
    }
}

#[cfg(test)]
mod tests;
