//! One client that follows a log, at its own pace.

use std::sync::Arc;
use std::time::SystemTime;

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{ArtifactChunk, ExecutionEvent, ExecutionOutput, Notice, NoticeKind, OutputStream};
use tokio::sync::watch;
use tonic::Status;

use super::state::{Entry, State};
use super::{Log, event};
use crate::artifacts::Stored;
use crate::output::{Range, Stream, WINDOW_READ};
use crate::status::Problem;

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

impl Log {
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
                follower.enter(&mut log);
                // It may know all that is there.
                follower.wake(&mut log);
            } else {
                let first = log.gone + 1;
                follower.gone = Some(Problem::EventsGone(after_sequence, first).status());
            }
        }
        follower
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

    /// Begins to read a window, from what is there of it.
    fn enter(&mut self, log: &mut State) {
        if self.next < log.gone {
            let message = format!(
                "the first {} events are gone: of a command whose output streams the last {} MiB are kept",
                log.gone,
                WINDOW_READ >> 20
            );
            let kind = NoticeKind::EventsGone.into();
            let told = event(0, SystemTime::now(), Event::Notice(Notice { kind, message }));
            self.ahead.push(told);
            self.ahead.extend(log.started.as_deref().cloned());
        }
        self.next = self.next.clamp(log.gone, log.last());
        self.reader = Some(log.enter_reader(self.next));
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
            log.leave_reader(reader);
            self.wake(&mut log);
        }
    }
}
