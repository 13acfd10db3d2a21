//! What happened to one execution: kept in order, followed by any number of clients at their own pace.
//!
//! The log holds events and, for output, only the numbers of chunks: their bytes stay in the kept [`Output`], so that
//! nothing is held twice. Sequence numbers are places in the log, from 1. `accepted` is not kept: it is made from the
//! present state whenever a follower has an old one. Bytes of artifacts are read for each follower that wants them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use brig_jailer::ids::Id;
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{
    Artifact, ArtifactChunk, ExecutionAccepted, ExecutionEvent, ExecutionOutput, ExecutionResult, ExecutionState,
    Notice, NoticeKind, OutputStream,
};
use prost::Message;
use tokio::sync::watch;
use tonic::Status;

use crate::artifacts::Stored;
use crate::output::{Output, Stream};

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
    entries: Vec<Entry>,
    /// Chunks of the output that are among the entries.
    chunks: u64,
    notices: usize,
    /// Bytes that the entries take up.
    bytes: usize,
    /// Files of the spool that the entries hold.
    files: Held,
    closed: bool,
    /// What ends the streams of callers instead of `finished`, when nothing was started.
    refusal: Option<Status>,
}

#[derive(Debug, Clone)]
enum Entry {
    Event(SystemTime, Box<Event>),
    /// The number of a chunk of the output.
    Output(u64),
    Artifact(SystemTime, Box<Artifact>, Option<Arc<Stored>>),
}

/// One client that follows a log.
#[derive(Debug)]
pub struct Follower {
    log: Arc<Log>,
    next: usize,
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
    Fetch(u64),
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
            entries: Vec::new(),
            chunks: 0,
            notices: 0,
            bytes: 0,
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
        }
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
            log.push(Entry::Event(time, Box::new(Event::Started(started))));
        });
    }

    /// Adds an event.
    pub fn tell(&self, event: Event) {
        self.change(|log| log.push(Entry::Event(SystemTime::now(), Box::new(event))));
    }

    /// Adds a notice; of too many the last are left out.
    pub fn notice(&self, kind: NoticeKind, message: impl Into<String>) {
        let notice = Notice {
            kind: kind.into(),
            message: message.into(),
        };
        self.change(|log| {
            if log.notices < NOTICES_MAX {
                log.notices += 1;
                log.push(Entry::Event(SystemTime::now(), Box::new(Event::Notice(notice))));
            }
        });
    }

    /// Adds an artifact, with its bytes if a client may have them.
    pub fn artifact(&self, artifact: Artifact, bytes: Option<Arc<Stored>>) {
        self.change(|log| log.push(Entry::Artifact(SystemTime::now(), Box::new(artifact), bytes)));
    }

    /// Adds chunks of the output as they come, until the output is finished.
    pub async fn follow_output(&self) {
        let mut reader = self.output.follow(0);
        while let Some(chunk) = reader.next().await {
            self.change(|log| log.push_output(chunk.sequence + 1));
        }
    }

    /// Adds all of the output that was read so far, before something that must not overtake it.
    pub fn catch_up(&self) {
        let chunks = self.output.settle();
        self.change(|log| log.push_output(chunks));
    }

    /// Ends the log with the result. Only the first end counts.
    pub fn finish(&self, result: ExecutionResult, time: SystemTime) {
        self.end(result, time, |log, result| {
            log.push(Entry::Event(time, Box::new(Event::Finished(result))))
        });
    }

    /// Ends the log of an execution that never started: who follows it gets the refusal.
    pub fn refuse(&self, result: ExecutionResult, time: SystemTime, refusal: Status) {
        self.end(result, time, |log, _| log.refusal = Some(refusal));
    }

    /// What is known now.
    pub fn progress(&self) -> Progress {
        self.lock().progress.clone()
    }

    /// What the log takes up, output included.
    pub fn holds(&self) -> Held {
        let kept = |stream| {
            let count = self.output.count(stream);
            count.bytes - count.dropped
        };
        let output = kept(Stream::Stdout) + kept(Stream::Stderr);
        let log = self.lock();
        Held {
            memory_bytes: log.bytes as u64 + output,
            ..log.files
        }
    }

    /// Follows the log from after a sequence number; `inline` asks for the bytes of artifacts.
    pub fn follow(self: &Arc<Self>, after_sequence: u64, inline: bool) -> Follower {
        let next = usize::try_from(after_sequence).unwrap_or(usize::MAX);
        Follower {
            log: Arc::clone(self),
            next,
            version: None,
            inline,
            transfer: None,
            changes: self.changes.subscribe(),
            refused: false,
        }
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
        });
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changes.send_modify(|count| *count += 1);
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
    /// Adds the chunks that are not among the entries yet.
    fn push_output(&mut self, chunks: u64) {
        for chunk in self.chunks..chunks {
            self.push(Entry::Output(chunk));
        }
        self.chunks = self.chunks.max(chunks);
    }

    fn push(&mut self, entry: Entry) {
        if self.closed {
            return;
        }
        self.bytes += std::mem::size_of::<Entry>()
            + match &entry {
                Entry::Event(_, event) => event.encoded_len(),
                Entry::Output(_) => 0,
                Entry::Artifact(_, artifact, _) => artifact.encoded_len(),
            };
        if let Entry::Artifact(_, _, Some(file)) = &entry {
            self.files.files += 1;
            self.files.file_bytes += file.size();
        }
        self.entries.push(entry);
        self.progress.last_sequence = self.entries.len() as u64;
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
                Step::Fetch(chunk) => return self.fetch(chunk).await.map(Ok),
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
        let log = self.log.lock();
        // Whoever comes after the end is told the state once; whoever was there knows it from the last event.
        if self.version != Some(log.version) && (self.version.is_none() || !log.closed) {
            self.version = Some(log.version);
            return Step::Tell(Box::new(self.log.accepted(&log.progress)));
        }
        let Some(entry) = log.entries.get(self.next) else {
            return match &log.refusal {
                Some(status) if !self.refused => {
                    self.refused = true;
                    Step::Refuse(status.clone())
                }
                _ if log.closed => Step::End,
                _ => Step::Wait,
            };
        };
        let sequence = self.next as u64 + 1;
        if let Entry::Output(chunk) = entry {
            // The place moves on once the chunk was fetched, so that a cancelled call loses nothing.
            return Step::Fetch(*chunk);
        }
        self.next += 1;
        match entry.clone() {
            Entry::Event(time, kind) => Step::Tell(Box::new(event(sequence, time, *kind))),
            Entry::Output(chunk) => Step::Fetch(chunk),
            Entry::Artifact(time, artifact, file) => {
                let transfer = file.filter(|_| self.inline).map(|file| Transfer {
                    artifact: artifact.artifact_id.clone(),
                    file,
                    offset: 0,
                });
                let told = Box::new(event(sequence, time, Event::Artifact(*artifact)));
                match transfer {
                    Some(transfer) => Step::Transfer(told, transfer),
                    None => Step::Tell(told),
                }
            }
        }
    }

    async fn fetch(&mut self, chunk: u64) -> Option<ExecutionEvent> {
        let chunk = self.log.output.follow(chunk).next().await?;
        self.next += 1;
        let stream = match chunk.stream {
            Stream::Stdout => OutputStream::Stdout,
            Stream::Stderr => OutputStream::Stderr,
        };
        let output = ExecutionOutput {
            stream: stream.into(),
            data: chunk.data.into(),
            offset: chunk.offset,
        };
        Some(event(self.next as u64, chunk.time, Event::Output(output)))
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

fn event(sequence: u64, time: SystemTime, event: Event) -> ExecutionEvent {
    ExecutionEvent {
        sequence,
        time: Some(time.into()),
        event: Some(event),
    }
}

#[cfg(test)]
mod tests;
