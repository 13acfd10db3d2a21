//! How far the events of an execution were seen.

use brig_proto::v1::ExecutionEvent;
use brig_proto::v1::execution_event::Event;

/// The place in the events of an execution from which an attachment goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Sequence of the last event that was shown.
    shown: u64,
    /// Sequence of the last one of which nothing is missing: the bytes of an artifact come behind its event, and only
    /// to who has the event from the same connection.
    whole: u64,
}

impl Seen {
    /// All up to this event.
    pub(crate) fn until(sequence: u64) -> Self {
        Self {
            shown: sequence,
            whole: sequence,
        }
    }

    /// The sequence behind which the next connection has to begin.
    pub(crate) fn place(self) -> u64 {
        self.whole
    }

    /// Takes note of an event; `false` means that it was there before. `collecting` says that bytes of artifacts matter.
    pub(crate) fn take(&mut self, event: &ExecutionEvent, collecting: bool) -> bool {
        let sequence = event.sequence;
        match &event.event {
            Some(Event::ArtifactChunk(chunk)) if chunk.last => self.whole = self.shown,
            Some(Event::Artifact(_)) if collecting => self.whole = sequence.saturating_sub(1),
            _ if sequence > 0 => self.whole = sequence,
            // `accepted` and the bytes of artifacts are not kept.
            _ => {}
        }
        let new = sequence == 0 || sequence > self.shown;
        self.shown = self.shown.max(sequence);
        new
    }
}

#[cfg(test)]
mod tests {
    use brig_proto::v1::{Artifact, ArtifactChunk, ExecutionAccepted, ExecutionOutput};

    use super::*;

    fn event(sequence: u64, event: Event) -> ExecutionEvent {
        ExecutionEvent {
            sequence,
            time: None,
            event: Some(event),
        }
    }

    fn output(sequence: u64) -> ExecutionEvent {
        event(sequence, Event::Output(ExecutionOutput::default()))
    }

    fn artifact(sequence: u64) -> ExecutionEvent {
        event(sequence, Event::Artifact(Artifact::default()))
    }

    fn chunk(last: bool) -> ExecutionEvent {
        let chunk = ArtifactChunk {
            last,
            ..ArtifactChunk::default()
        };
        event(0, Event::ArtifactChunk(chunk))
    }

    #[test]
    fn what_comes_twice_is_new_once() {
        let mut seen = Seen::default();
        assert!(seen.take(&output(1), false) && seen.take(&output(2), false));
        assert!(seen.take(&event(0, Event::Accepted(ExecutionAccepted::default())), false));
        assert!(!seen.take(&output(2), false) && seen.take(&output(3), false));
        assert_eq!(seen.place(), 3);
    }

    #[test]
    fn an_artifact_whose_bytes_are_missing_is_asked_for_again() {
        let mut seen = Seen::until(4);
        seen.take(&artifact(5), true);
        seen.take(&chunk(false), true);
        assert_eq!(seen.place(), 4);
        assert!(!seen.take(&artifact(5), true), "it is not shown again");
        seen.take(&chunk(false), true);
        seen.take(&chunk(true), true);
        assert_eq!(seen.place(), 5);
    }

    #[test]
    fn an_artifact_that_may_not_leave_is_whole_when_the_next_event_comes() {
        let mut seen = Seen::default();
        seen.take(&artifact(1), true);
        assert_eq!(seen.place(), 0);
        seen.take(&artifact(2), true);
        assert_eq!(seen.place(), 1);
    }

    #[test]
    fn without_bytes_an_artifact_is_an_event_like_others() {
        let mut seen = Seen::default();
        seen.take(&artifact(1), false);
        assert_eq!(seen.place(), 1);
    }
}
