//! For programs: one document, or one object per event.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use brig_proto::result::{Artifact, ResultDocument, RichResult, Start};
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{ExecutionEvent, ExecutionOutput, ExecutionResult, OutputStream};
use serde_json::{Value, json};

use super::{Show, line};
use crate::failure::Failure;
use crate::follow::Outcome;
use crate::options::OutputOptions;
use crate::output::screen::Screen;

/// Shows the result or the refusal as one document on stdout; progress goes to stderr.
pub(super) struct JsonDocument<'a> {
    screen: &'a mut Screen,
    options: OutputOptions,
}

/// Shows each event as one object on a line of stdout; the last one has the result or the refusal.
pub(super) struct JsonLines<'a> {
    screen: &'a mut Screen,
    options: OutputOptions,
}

impl<'a> JsonDocument<'a> {
    /// Shows on this screen.
    pub(super) fn new(screen: &'a mut Screen, options: OutputOptions) -> Self {
        Self { screen, options }
    }
}

impl<'a> JsonLines<'a> {
    /// Shows on this screen.
    pub(super) fn new(screen: &'a mut Screen, options: OutputOptions) -> Self {
        Self { screen, options }
    }
}

impl Show for JsonDocument<'_> {
    fn event(&mut self, event: &ExecutionEvent) -> bool {
        if let Some(Event::Notice(notice)) = &event.event {
            self.note(&notice.message);
        }
        true
    }

    fn note(&mut self, text: &str) {
        note(self.screen, self.options, text);
    }

    fn tell(&mut self, text: &str) {
        tell(self.screen, text);
    }

    fn finished(&mut self, outcome: &Outcome) {
        for place in outcome.saved.values() {
            match place {
                Ok(path) => self.note(&format!("saved {}", path.display())),
                Err(error) => self.note(&format!("not saved: {error}")),
            }
        }
        self.screen.out.json(&outcome.document);
    }

    fn refused(&mut self, failure: &Failure) {
        refused(self.screen, failure);
        self.screen.out.json(&failure.document());
    }
}

impl Show for JsonLines<'_> {
    fn event(&mut self, event: &ExecutionEvent) -> bool {
        if let Some(mut object) = object(event) {
            object["sequence"] = json!(event.sequence);
            object["time"] = json!(event.time.map(|time| time.to_string()));
            self.screen.out.json_line(&object);
        }
        !self.screen.out.failed()
    }

    fn note(&mut self, text: &str) {
        note(self.screen, self.options, text);
    }

    fn tell(&mut self, text: &str) {
        tell(self.screen, text);
    }

    fn finished(&mut self, outcome: &Outcome) {
        for (id, place) in &outcome.saved {
            let object = match place {
                Ok(path) => json!({"event": "saved", "artifact_id": id, "file": path.to_string_lossy(), "error": null}),
                Err(error) => json!({"event": "saved", "artifact_id": id, "file": null, "error": error}),
            };
            self.screen.out.json_line(&object);
        }
        self.screen
            .out
            .json_line(&json!({"event": "finished", "result": outcome.document}));
    }

    fn refused(&mut self, failure: &Failure) {
        refused(self.screen, failure);
        self.screen.out.json_line(&failure.event());
    }
}

fn note(screen: &mut Screen, options: OutputOptions, text: &str) {
    if !options.quiet {
        let label = screen.err.style().dim("note:");
        line(screen, &label, text);
    }
}

fn tell(screen: &mut Screen, text: &str) {
    let label = screen.err.style().yellow("hint:");
    line(screen, &label, text);
}

fn refused(screen: &mut Screen, failure: &Failure) {
    let text = failure.render(screen.err.style());
    screen.err.text(&text);
}

/// Writes an event as an object; bytes of files are left out, as `--out` saves them.
fn object(event: &ExecutionEvent) -> Option<Value> {
    Some(match event.event.as_ref()? {
        Event::Accepted(accepted) => json!({
            "event": "accepted",
            "execution_id": accepted.execution_id,
            "session_id": accepted.session_id,
            "state": lower(accepted.state().as_str_name(), "EXECUTION_STATE_"),
            "queue_position": accepted.queue_position,
        }),
        Event::Started(started) => {
            json!({"event": "started", "pid": started.pid, "start": Start::from(started.start)})
        }
        Event::Output(output) => output_object(output),
        Event::Result(result) => json!({"event": "result", "result": RichResult::from_proto(result)}),
        Event::Artifact(artifact) => json!({"event": "artifact", "artifact": document(artifact)}),
        Event::Notice(notice) => {
            let kind = lower(notice.kind().as_str_name(), "NOTICE_KIND_");
            json!({"event": "notice", "kind": kind, "message": notice.message})
        }
        Event::ArtifactChunk(_) | Event::Finished(_) => return None,
    })
}

/// Output has `text` if it is UTF-8, else `base64`: a chunk may end within a character, and no byte may be lost.
fn output_object(output: &ExecutionOutput) -> Value {
    let stream = if output.stream() == OutputStream::Stderr {
        "stderr"
    } else {
        "stdout"
    };
    let mut object = json!({"event": "output", "stream": stream, "offset": output.offset});
    match std::str::from_utf8(&output.data) {
        Ok(text) => object["text"] = json!(text),
        Err(_) => object["base64"] = json!(STANDARD.encode(&output.data)),
    }
    object
}

fn document(artifact: &brig_proto::v1::Artifact) -> Option<Artifact> {
    let result = ExecutionResult {
        artifacts: vec![artifact.clone()],
        ..ExecutionResult::default()
    };
    ResultDocument::from_proto(&result).artifacts.pop()
}

fn lower(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase()
}

#[cfg(test)]
mod tests {
    use brig_proto::v1::{ExecutionAccepted, ExecutionState};

    use super::*;
    use crate::exit::Exit;
    use crate::output::screen::tests::Written;

    fn output(data: &'static [u8]) -> Event {
        Event::Output(ExecutionOutput {
            stream: OutputStream::Stdout.into(),
            data: data.into(),
            offset: 3,
        })
    }

    fn shown(event: Event) -> Value {
        object(&ExecutionEvent {
            sequence: 1,
            time: None,
            event: Some(event),
        })
        .unwrap()
    }

    #[test]
    fn output_is_text_or_exact_bytes() {
        assert_eq!(
            shown(output(b"a\n")),
            json!({"event": "output", "stream": "stdout", "offset": 3, "text": "a\n"})
        );
        assert_eq!(
            shown(output(b"\xff")),
            json!({"event": "output", "stream": "stdout", "offset": 3, "base64": "/w=="})
        );
    }

    #[test]
    fn names_of_states_are_those_of_the_api() {
        let accepted = ExecutionAccepted {
            execution_id: "e1".to_owned(),
            session_id: "s1".to_owned(),
            state: ExecutionState::PendingApproval.into(),
            queue_position: 0,
        };
        assert_eq!(shown(Event::Accepted(accepted))["state"], "pending_approval");
    }

    #[test]
    fn a_refusal_is_the_only_document_on_stdout() {
        let (out, err) = (Written::default(), Written::default());
        let mut screen = Screen {
            out: out.sink(false),
            err: err.sink(false),
        };
        let failure = Failure::new(Exit::NoDaemon, "no daemon");
        JsonDocument::new(&mut screen, OutputOptions::default()).refused(&failure);
        let document: Value = serde_json::from_str(&out.text()).unwrap();
        let refused = json!({"code": "unavailable", "reason": null, "field": null, "message": "no daemon"});
        assert_eq!(document, json!({"status": null, "refused": refused}));
        assert_eq!(err.text(), "error: no daemon\n");
    }
}
