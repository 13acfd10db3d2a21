//! For people: the job's output as it comes, then on stderr how it ended.

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::rich_datum::Content;
use brig_proto::v1::{ExecutionEvent, ExecutionState, NoticeKind, OutputStream, RichResult};

use super::{Show, line};
use crate::failure::Failure;
use crate::follow::Outcome;
use crate::options::OutputOptions;
use crate::output::screen::Screen;
use crate::output::summary;

/// What stands behind the output of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// How it ended, what it used and left behind.
    Summary,
    /// Nothing, unless it ended otherwise than by itself, or not all of its output is there.
    Trouble,
}

/// Shows an execution as text.
pub(super) struct Text<'a> {
    screen: &'a mut Screen,
    options: OutputOptions,
    ending: Ending,
}

impl<'a> Text<'a> {
    /// Shows on this screen.
    pub(super) fn new(screen: &'a mut Screen, options: OutputOptions, ending: Ending) -> Self {
        Self {
            screen,
            options,
            ending,
        }
    }

    fn finish_guest(&mut self) {
        self.screen.out.finish_guest();
        self.screen.err.finish_guest();
        self.screen.finish_line();
    }
}

impl Show for Text<'_> {
    fn event(&mut self, event: &ExecutionEvent) -> bool {
        match &event.event {
            Some(Event::Output(output)) => {
                let stderr = output.stream() == OutputStream::Stderr;
                let sink = if stderr {
                    &mut self.screen.err
                } else {
                    &mut self.screen.out
                };
                sink.guest(&output.data, self.options.raw);
            }
            Some(Event::Result(result)) => {
                if let Some(shown) = plain_text(result) {
                    self.screen.out.guest(shown.as_bytes(), self.options.raw);
                    self.screen.out.text("\n");
                }
            }
            Some(Event::Accepted(accepted)) if accepted.state() == ExecutionState::PendingApproval => {
                let id = &accepted.execution_id;
                self.note(&format!(
                    "waits for a reviewer; to look at it and decide: brig execution show {id}, approve {id}, reject {id}"
                ));
            }
            Some(Event::Accepted(accepted)) if accepted.queue_position > 0 => {
                self.note(&format!("queued, {} before it", accepted.queue_position));
            }
            // The summary has what was clamped.
            Some(Event::Notice(notice)) if notice.kind() != NoticeKind::LimitClamped => self.note(&notice.message),
            _ => {}
        }
        !self.screen.out.failed()
    }

    fn note(&mut self, text: &str) {
        if !self.options.quiet {
            self.screen.finish_line();
            let label = self.screen.err.style().dim("note:");
            line(self.screen, &label, text);
        }
    }

    fn tell(&mut self, text: &str) {
        self.screen.finish_line();
        let label = self.screen.err.style().yellow("hint:");
        line(self.screen, &label, text);
    }

    fn finished(&mut self, outcome: &Outcome) {
        self.finish_guest();
        if !self.options.quiet {
            let style = self.screen.err.style();
            let text = match self.ending {
                Ending::Summary => summary::render(&outcome.document, &outcome.saved, style),
                Ending::Trouble => summary::trouble(&outcome.document, style),
            };
            self.screen.err.text(&text);
        }
    }

    fn refused(&mut self, failure: &Failure) {
        self.finish_guest();
        let text = failure.render(self.screen.err.style());
        self.screen.err.text(&text);
    }
}

/// What an interactive interpreter would print.
fn plain_text(result: &RichResult) -> Option<&str> {
    result
        .data
        .iter()
        .find(|datum| datum.r#type == "text/plain")
        .and_then(|datum| match &datum.content {
            Some(Content::Text(text)) => Some(text.as_str()),
            _ => None,
        })
}
