//! Listening to the Python kernel of an execution. What it says is a claim, and passes the gate before it is told.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use brig_jailer::policy::Policy;
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::rich_datum::Content;
use brig_proto::v1::{Notice, NoticeKind, RichDatum, RichResult};
use tracing::debug;

use crate::kernel::{self, Claim, ErrorClaim, Frames};
use crate::run::gate;
use crate::run::log::Log;

/// How many bytes of frames are heard before that is written down, though nothing is to be told.
const HEARD: u64 = 64 * 1024;

/// What the kernel said. Claims.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    pub error: Option<ErrorClaim>,
    /// As many results as the final message can carry.
    pub results: Vec<RichResult>,
}

/// Listens to the kernel of one execution.
#[derive(Debug)]
pub(super) struct Listener {
    log: Arc<Log>,
    policy: Arc<Policy>,
    frames: Frames,
    /// Bytes of frames that were heard according to the journal.
    noted: u64,
}

impl Listener {
    pub(super) fn new(log: Arc<Log>, policy: Arc<Policy>, frames: Frames) -> Self {
        let noted = frames.mark.at;
        Self {
            log,
            policy,
            frames,
            noted,
        }
    }

    /// How many bytes of frames the next brigd need not hear again.
    pub(super) fn noted(&self) -> u64 {
        self.noted
    }

    /// Whether nothing more is listened to.
    pub(super) fn is_done(&self) -> bool {
        self.frames.mark.ended
    }

    /// Takes the frames that are there: `end` bytes so far, which are all if `last`. Gives how many the next brigd need
    /// not hear again.
    pub(super) fn hear(&mut self, end: u64, last: bool) -> u64 {
        if self.is_done() {
            return self.noted;
        }
        while let Some(claim) = self.frames.next(end, last) {
            match claim {
                Claim::Result(result) => {
                    let events = show(&self.policy, result);
                    self.note(events, None);
                }
                Claim::Error(error) => self.note(Vec::new(), Some(error)),
                Claim::Done => {}
            }
        }
        if self.is_done() {
            self.note(left_out(self.frames.mark.dropped), None);
            if let Some(broken) = self.frames.broken {
                debug!(%broken, "kernel frames ended early");
            }
        } else if self.frames.mark.at - self.noted >= HEARD {
            self.note(Vec::new(), None);
        }
        self.noted
    }

    fn note(&mut self, events: Vec<Event>, error: Option<ErrorClaim>) {
        self.log.heard(events, error, self.frames.mark);
        self.noted = self.frames.mark.at;
    }
}

/// Tells a result, as far as it may leave.
pub(super) fn show(policy: &Policy, result: kernel::RichResult) -> Vec<Event> {
    let (shown, withheld) = rich_result(policy, result);
    let message = format!("{withheld} forms of a result may not leave by the policy; they were left out");
    let notice = (withheld > 0).then(|| dropped(message));
    let shown = (!shown.data.is_empty()).then_some(Event::Result(shown));
    notice.into_iter().chain(shown).collect()
}

/// Tells how many results, or parts of results, were left out.
pub(super) fn left_out(count: u64) -> Vec<Event> {
    let message = format!("{count} results, or parts of results, were too large or too many");
    (count > 0).then(|| dropped(message)).into_iter().collect()
}

fn dropped(message: String) -> Event {
    let kind = NoticeKind::ResultDropped.into();
    Event::Notice(Notice { kind, message })
}

/// Writes a claim in the form of the API; says how many forms were left out.
fn rich_result(policy: &Policy, claim: kernel::RichResult) -> (RichResult, usize) {
    let all = claim.data.len();
    let datum = |(media_type, text): (String, String)| {
        let content = if is_text(&media_type) {
            Content::Text(text)
        } else {
            Content::Binary(STANDARD.decode(text.replace(['\n', '\r'], "")).ok()?.into())
        };
        gate::result_may_leave(policy, &media_type).then_some(RichDatum {
            r#type: media_type,
            content: Some(content),
        })
    };
    let data: Vec<_> = claim.data.into_iter().filter_map(datum).collect();
    let withheld = all - data.len();
    (
        RichResult {
            main: claim.main,
            display_id: claim.display_id,
            data,
            chart: claim.chart.filter(|_| gate::chart_may_leave(policy)),
        },
        withheld,
    )
}

fn is_text(media_type: &str) -> bool {
    let text = ["application/json", "application/javascript", "image/svg+xml"];
    media_type.starts_with("text/") || media_type.ends_with("+json") || text.contains(&media_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_bytes_or_text_by_their_type_and_what_is_neither_is_left_out() {
        let text = "template = \"data\"\n[syscalls]\ngroups = [\"base\"]\n[artifacts.chart]\nhandling = \"preview\"";
        let policy = Policy::parse("p", text).unwrap();
        let data = [
            ("text/plain", "hi"),
            ("image/png", "aGk=\n"),
            ("image/jpeg", "!"),
            ("application/x", "aGk="),
        ];
        let data = data.map(|(name, datum)| (name.to_owned(), datum.to_owned())).into();
        let (shown, withheld) = rich_result(
            &policy,
            kernel::RichResult {
                main: true,
                display_id: None,
                data,
                chart: None,
            },
        );
        let expected = [
            ("image/png", Content::Binary(b"hi".to_vec().into())),
            ("text/plain", Content::Text("hi".to_owned())),
        ];
        let expected = expected.map(|(name, content)| RichDatum {
            r#type: name.to_owned(),
            content: Some(content),
        });
        assert_eq!((shown.data.as_slice(), withheld), (expected.as_slice(), 2));
    }
}
