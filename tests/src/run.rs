//! A run as its caller sees it.

use std::fmt;
use std::sync::Arc;

use brig_proto::result::ResultDocument;
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{
    Artifact, CauseKind, ExecutionEvent, ExecutionOutput, ExecutionResult, ExecutionState, ExecutionStatus, NoticeKind,
    OutputStream, StartKind,
};
use serde_json::Value;
use tokio::runtime::Handle;
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt;

use crate::DEADLINE;
use crate::way::Finds;

/// A run that goes on.
pub struct Live {
    runtime: Handle,
    stream: Streaming<ExecutionEvent>,
    /// The last sequence that was known before.
    known: u64,
    seen: Vec<ExecutionEvent>,
    /// How its program must have come to be.
    expected: Option<(Arc<Finds>, StartKind)>,
}

/// A call that ended without `finished`.
#[derive(Debug)]
pub struct Cut {
    pub events: Vec<ExecutionEvent>,
    pub why: Refused,
}

/// A run that ended, with all that was told of it.
#[derive(Debug)]
pub struct Outcome {
    pub events: Vec<ExecutionEvent>,
    pub result: ExecutionResult,
}

/// Why nothing ran.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub code: Code,
    pub reason: String,
    /// Fields that are to blame.
    pub fields: Vec<String>,
    /// All that was said, of the fields too.
    pub message: String,
    /// Step of making the jail that failed.
    pub step: Option<String>,
    /// How much there is, where more was asked for.
    pub offset: Option<u64>,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl Live {
    pub(crate) fn new(runtime: Handle, stream: Streaming<ExecutionEvent>) -> Self {
        Self {
            runtime,
            stream,
            known: 0,
            seen: Vec::new(),
            expected: None,
        }
    }

    pub(crate) fn expecting(self, finds: &Arc<Finds>, expected: Option<StartKind>) -> Self {
        Self {
            expected: expected.map(|expected| (Arc::clone(finds), expected)),
            ..self
        }
    }

    /// Follows on from a sequence.
    pub(crate) fn after(mut self, sequence: u64) -> Self {
        self.known = sequence;
        self
    }

    /// The session that it runs in.
    pub fn session(&self) -> String {
        let accepted = self.seen.iter().find_map(|event| match &event.event {
            Some(Event::Accepted(accepted)) => Some(accepted.session_id.clone()),
            _ => None,
        });
        accepted.expect("it was accepted")
    }

    /// The events so far.
    pub fn seen(&self) -> &[ExecutionEvent] {
        &self.seen
    }

    /// Waits for an event that fits; those before it are kept for the outcome.
    pub fn until(&mut self, fits: impl Fn(&Event) -> bool) -> Event {
        loop {
            let event = self.next().unwrap().expect("the run ended before the event came");
            let found = event.event.clone().unwrap();
            self.seen.push(event);
            if fits(&found) {
                return found;
            }
        }
    }

    /// Waits until it waits for a reviewer.
    pub fn until_pending(&mut self) {
        let pending =
            |event: &Event| matches!(event, Event::Accepted(at) if at.state() == ExecutionState::PendingApproval);
        self.until(pending);
    }

    /// Waits until the program runs.
    pub fn until_started(&mut self) {
        self.until(|event| matches!(event, Event::Started(_)));
    }

    /// Waits until the program has written this to stdout in all.
    pub fn until_written(&mut self, text: &str) {
        self.until_written_to(OutputStream::Stdout, text);
    }

    /// Waits until the program has written this to a stream in all.
    pub fn until_written_to(&mut self, stream: OutputStream, text: &str) {
        while !String::from_utf8_lossy(&self.written(stream)).contains(text) {
            self.until(|event| matches!(event, Event::Output(_)));
        }
    }

    /// What the program has written to a stream so far.
    pub fn written(&self, stream: OutputStream) -> Vec<u8> {
        let outputs = self.seen.iter().filter_map(|event| match &event.event {
            Some(Event::Output(output)) if output.stream() == stream => Some(output.data.as_ref()),
            _ => None,
        });
        outputs.collect::<Vec<&[u8]>>().concat()
    }

    /// Waits for the end.
    pub fn finish(self) -> Outcome {
        self.end().unwrap_or_else(|cut| panic!("cut off: {cut:?}"))
    }

    /// Waits for a refusal in the place of an event; a run that ends gives its result.
    pub fn refusal(self) -> Result<Refused, Box<ExecutionResult>> {
        match self.end() {
            Ok(outcome) => Err(Box::new(outcome.result)),
            Err(cut) => Ok(cut.why),
        }
    }

    /// Waits for the end, which may be that of the daemon.
    pub fn end(mut self) -> Result<Outcome, Box<Cut>> {
        loop {
            match self.next() {
                Ok(Some(event)) => self.seen.push(event),
                Ok(None) => {
                    let outcome = Outcome::new(self.seen, self.known);
                    if let (Some((finds, expected)), Some(start)) = (self.expected, outcome.start()) {
                        finds.check(expected, start);
                    }
                    return Ok(outcome);
                }
                Err(status) => {
                    return Err(Box::new(Cut {
                        events: self.seen,
                        why: Refused::new(&status),
                    }));
                }
            }
        }
    }

    fn next(&mut self) -> Result<Option<ExecutionEvent>, Status> {
        let next = async { tokio::time::timeout(*DEADLINE * 2, self.stream.message()).await };
        let next = self.runtime.block_on(next);
        next.unwrap_or_else(|_elapsed| panic!("no event came; before it: {:?}", last(&self.seen)))
    }
}

fn last(events: &[ExecutionEvent]) -> Option<&ExecutionEvent> {
    events.last()
}

impl Outcome {
    /// Checks what holds for every run.
    fn new(events: Vec<ExecutionEvent>, known: u64) -> Self {
        let kinds: Vec<&Event> = events.iter().map(|event| event.event.as_ref().unwrap()).collect();
        assert!(matches!(kinds.first(), Some(Event::Accepted(_))), "{:?}", kinds.first());
        let is_finished = |event: &&&Event| matches!(event, Event::Finished(_));
        assert_eq!(kinds.iter().filter(is_finished).count(), 1, "finished comes once");
        let Some(Event::Finished(result)) = kinds.last() else {
            panic!("the last event is {:?}", kinds.last())
        };
        let result = result.clone();
        check_order(&kinds);
        check_sequence(&events, known);
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            check_offsets(&kinds, stream);
        }
        let told: Vec<&Artifact> = kinds.iter().filter_map(|event| artifact(event)).collect();
        // Who reads on from a later event is told the last of them.
        let all: Vec<&Artifact> = result.artifacts.iter().collect();
        assert!(
            if known == 0 { told == all } else { all.ends_with(&told) },
            "{told:?} {all:?}"
        );
        Self { events, result }
    }

    /// How its program came to be, if it did.
    pub fn start(&self) -> Option<StartKind> {
        self.kinds().find_map(|event| match event {
            Event::Started(started) => Some(started.start()),
            _ => None,
        })
    }

    pub fn status(&self) -> ExecutionStatus {
        self.result.status()
    }

    /// Status and cause.
    pub fn end(&self) -> (ExecutionStatus, Option<CauseKind>) {
        let cause = self.result.cause.as_ref();
        (self.status(), cause.map(brig_proto::v1::Cause::kind))
    }

    /// Fails with everything there is to know if the run was no success.
    pub fn expect_success(self) -> Self {
        let told = (self.stdout(), self.stderr(), &self.result.error);
        assert_eq!(
            self.status(),
            ExecutionStatus::Success,
            "{told:?} {:?}",
            self.result.cause
        );
        self
    }

    /// What the result says was written to stdout.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.result.stdout).into_owned()
    }

    /// What the result says was written to stderr.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.result.stderr).into_owned()
    }

    /// The kept bytes of a stream, as they came by events.
    pub fn streamed(&self, stream: OutputStream) -> Vec<u8> {
        let chunks = self.outputs(stream).map(|output| output.data.as_ref());
        chunks.collect::<Vec<&[u8]>>().concat()
    }

    /// The events of a stream.
    pub fn outputs(&self, stream: OutputStream) -> impl Iterator<Item = &ExecutionOutput> {
        self.kinds().filter_map(move |event| match event {
            Event::Output(output) if output.stream() == stream => Some(output),
            _ => None,
        })
    }

    /// What happened, without sequence and time.
    pub fn kinds(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().filter_map(|event| event.event.as_ref())
    }

    /// Names of the events in order, repeated ones once.
    pub fn order(&self) -> Vec<&'static str> {
        let mut names: Vec<&str> = self.kinds().map(name).collect();
        names.dedup();
        names
    }

    /// The notices of a kind.
    pub fn notices(&self, kind: NoticeKind) -> Vec<&str> {
        let notices = self.kinds().filter_map(|event| match event {
            Event::Notice(notice) if notice.kind() == kind => Some(notice.message.as_str()),
            _ => None,
        });
        notices.collect()
    }

    /// The artifact at a path.
    pub fn artifact(&self, path: &str) -> &Artifact {
        let found = self.result.artifacts.iter().find(|artifact| artifact.path == path);
        found.unwrap_or_else(|| panic!("{path} is not among {:?}", self.paths()))
    }

    /// Paths of all artifacts.
    pub fn paths(&self) -> Vec<&str> {
        self.result
            .artifacts
            .iter()
            .map(|artifact| artifact.path.as_str())
            .collect()
    }

    /// The bytes of an artifact that came by events; `None` if none came.
    pub fn bytes(&self, artifact: &Artifact) -> Option<Vec<u8>> {
        let mut found = None;
        for event in self.kinds() {
            if let Event::ArtifactChunk(chunk) = event
                && chunk.artifact_id == artifact.artifact_id
            {
                let bytes: &mut Vec<u8> = found.get_or_insert_default();
                assert_eq!(chunk.offset, bytes.len() as u64, "chunks follow each other");
                bytes.extend_from_slice(&chunk.data);
            }
        }
        found
    }

    /// The result as the document that `brig run --json` prints.
    pub fn document(&self) -> Value {
        serde_json::to_value(ResultDocument::from_proto(&self.result)).unwrap()
    }
}

impl Refused {
    /// Reads the status of a call.
    pub fn new(status: &Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info();
        let violations = details
            .bad_request()
            .map(|request| request.field_violations.clone())
            .unwrap_or_default();
        let said = violations
            .iter()
            .map(|violation| format!("; {}: {}", violation.field, violation.description));
        if let Some(info) = info {
            assert_eq!(info.domain, "brig");
        }
        Self {
            code: status.code(),
            reason: info.map(|info| info.reason.clone()).unwrap_or_default(),
            fields: violations.iter().map(|violation| violation.field.clone()).collect(),
            message: std::iter::once(status.message().to_owned()).chain(said).collect(),
            step: info.and_then(|info| info.metadata.get("step").cloned()),
            offset: info.and_then(|info| info.metadata.get("offset")?.parse().ok()),
        }
    }
}

fn name(event: &Event) -> &'static str {
    match event {
        Event::Accepted(_) => "accepted",
        Event::Started(_) => "started",
        Event::Output(_) => "output",
        Event::Result(_) => "result",
        Event::Artifact(_) => "artifact",
        Event::ArtifactChunk(_) => "artifact_chunk",
        Event::Notice(_) => "notice",
        Event::Finished(_) => "finished",
    }
}

fn artifact<'e>(event: &&'e Event) -> Option<&'e Artifact> {
    match event {
        Event::Artifact(artifact) => Some(artifact),
        _ => None,
    }
}

/// `accepted` comes before `started`, that before all output and results, and no output comes after an artifact.
fn check_order(kinds: &[&Event]) {
    let first = |wanted: &str| kinds.iter().position(|event| name(event) == wanted);
    let last = |wanted: &str| kinds.iter().rposition(|event| name(event) == wanted);
    if let Some(started) = first("started") {
        assert_eq!(last("started"), Some(started), "started comes once");
        for later in ["output", "result", "artifact"] {
            assert!(
                first(later).is_none_or(|place| place > started),
                "{later} before started"
            );
        }
        assert!(
            last("accepted").is_some_and(|place| place < started),
            "accepted after started"
        );
    }
    if let (Some(output), Some(artifact)) = (last("output"), first("artifact")) {
        assert!(output < artifact, "output after an artifact");
    }
}

/// Kept events count on from what was known, without gaps; the others have 0.
fn check_sequence(events: &[ExecutionEvent], known: u64) {
    let kept = |event: &&ExecutionEvent| !matches!(event.event, Some(Event::Accepted(_) | Event::ArtifactChunk(_)));
    let numbers: Vec<u64> = events.iter().filter(kept).map(|event| event.sequence).collect();
    assert_eq!(numbers, (known + 1..=known + numbers.len() as u64).collect::<Vec<_>>());
    assert!(
        events
            .iter()
            .filter(|event| !kept(event))
            .all(|event| event.sequence == 0)
    );
    assert!(events.iter().all(|event| event.time.is_some()));
}

/// Chunks are small, not empty, and never go back.
fn check_offsets(kinds: &[&Event], stream: OutputStream) {
    let mut end = 0;
    for event in kinds {
        if let Event::Output(output) = event
            && output.stream() == stream
        {
            assert!(
                !output.data.is_empty() && output.data.len() <= 64 << 10,
                "{}",
                output.data.len()
            );
            assert!(output.offset >= end, "offset {} after {end}", output.offset);
            end = output.offset + output.data.len() as u64;
        }
    }
}
