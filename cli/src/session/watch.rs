//! `brig session watch`.

use brig_proto::v1::sessions_watch_response::Event;
use brig_proto::v1::{Session, SessionsWatchRequest};
use clap::Args;
use serde::Serialize;

use super::document::SessionDocument;
use super::{client, show};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions, parse_pair};
use crate::output::escape;
use crate::output::screen::Screen;

/// Tells of sessions as they are now and of each change, until Ctrl-C: all of the tenant, or those that are named.
///
/// With -o json, too, there is one object on each line.
#[derive(Debug, Clone, Args)]
pub(crate) struct WatchOptions {
    #[arg(value_name = "ID")]
    ids: Vec<String>,

    /// With this label. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// One line.
#[derive(Serialize)]
struct Line {
    event: &'static str,
    time: Option<String>,
    /// Null unless the event is `session`.
    session: Option<SessionDocument>,
}

/// Shows changes as they come.
pub(super) async fn watch(options: &WatchOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = SessionsWatchRequest {
        session_ids: options.ids.clone(),
        labels: options.label.iter().cloned().collect(),
    };
    let failed = |status: tonic::Status| Failure::from_status(&status);
    let mut stream = client().await?.watch(request).await.map_err(failed)?.into_inner();
    while let Some(message) = stream.message().await.map_err(failed)? {
        let time = message.time.as_ref().map(ToString::to_string);
        match message.event {
            Some(event) if format == Format::Text => screen.out.text(&text(&event, time.as_deref())),
            Some(event) => screen.out.json_line(&line(&event, time)),
            // One of a newer daemon.
            None => {}
        }
        if screen.out.failed() {
            break;
        }
    }
    Ok(Exit::Success)
}

fn text(event: &Event, time: Option<&str>) -> String {
    match event {
        Event::Session(session) => shown(session, time.unwrap_or_default()),
        Event::Ready(_) => String::new(),
        Event::Overflow(_) => "some changes were lost: list again\n".to_owned(),
    }
}

fn shown(session: &Session, time: &str) -> String {
    let document = SessionDocument::from_proto(session);
    let (id, state, labels) = (
        escape::line(&document.session_id),
        escape::line(&show::state(&document)),
        escape::line(&show::labels(&document)),
    );
    format!("{time}  {id}  {state}  {labels}").trim_end().to_owned() + "\n"
}

fn line(event: &Event, time: Option<String>) -> Line {
    let (event, session) = match event {
        Event::Session(session) => ("session", Some(SessionDocument::from_proto(session))),
        Event::Ready(_) => ("ready", None),
        Event::Overflow(_) => ("overflow", None),
    };
    Line { event, time, session }
}

#[cfg(test)]
mod tests {
    use brig_proto::v1::{SessionState, WatchOverflow, WatchReady};
    use serde_json::json;

    use super::*;

    fn events() -> [Event; 3] {
        let session = Session {
            session_id: "sales".into(),
            state: SessionState::Paused.into(),
            labels: [("a".to_owned(), "b\u{1b}[2J".to_owned())].into(),
            ..Session::default()
        };
        [
            Event::Session(session),
            Event::Ready(WatchReady {}),
            Event::Overflow(WatchOverflow {}),
        ]
    }

    #[test]
    fn a_line_for_each_change_and_nothing_commands_the_terminal() {
        let lines = events().map(|event| text(&event, Some("T")));
        assert_eq!(
            lines,
            [
                "T  sales  paused  a=b\\x1b[2J\n",
                "",
                "some changes were lost: list again\n"
            ]
        );
    }

    #[test]
    fn documents_say_what_they_are() {
        let lines = events().map(|event| serde_json::to_value(line(&event, Some("T".to_owned()))).unwrap());
        let events = lines.each_ref().map(|line| line["event"].as_str().unwrap());
        assert_eq!(events, ["session", "ready", "overflow"]);
        assert_eq!(lines[0]["session"]["state"], "paused");
        assert_eq!(lines[1], json!({"event": "ready", "time": "T", "session": null}));
    }
}
