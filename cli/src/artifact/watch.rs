//! `brig artifact watch`.

use brig_proto::v1::ArtifactsWatchRequest;
use brig_proto::v1::artifacts_watch_response::Event;
use clap::Args;
use serde::Serialize;

use super::document::RecordDocument;
use super::list::Review;
use super::{client, failed};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions, parse_pair};
use crate::output::screen::Screen;

/// Tells of artifacts as they are now and of each change, until Ctrl-C.
///
/// With -o json, too, there is one object on each line.
#[derive(Debug, Clone, Args)]
pub(crate) struct WatchOptions {
    /// In this state of review; one that leaves it is told too. Can be repeated.
    #[arg(long, value_name = "STATE")]
    review: Vec<Review>,

    /// Of this session.
    #[arg(long, value_name = "ID")]
    session: Option<String>,

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
    /// Null unless the event is `artifact`.
    artifact: Option<RecordDocument>,
}

/// Shows changes as they come.
pub(super) async fn watch(options: &WatchOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = ArtifactsWatchRequest {
        session_id: options.session.clone().unwrap_or_default(),
        reviews: options.review.iter().map(|review| review.number()).collect(),
        labels: options.label.iter().cloned().collect(),
    };
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
        Event::Artifact(record) => {
            let line = RecordDocument::from_proto(record).line();
            format!("{}  {line}\n", time.unwrap_or_default())
        }
        Event::Ready(_) => String::new(),
        Event::Overflow(_) => "some changes were lost: list again\n".to_owned(),
    }
}

fn line(event: &Event, time: Option<String>) -> Line {
    let (event, artifact) = match event {
        Event::Artifact(record) => ("artifact", Some(RecordDocument::from_proto(record))),
        Event::Ready(_) => ("ready", None),
        Event::Overflow(_) => ("overflow", None),
    };
    Line { event, time, artifact }
}

#[cfg(test)]
mod tests {
    use brig_proto::v1::{WatchOverflow, WatchReady};
    use serde_json::json;

    use super::super::document::tests::record;
    use super::*;

    fn events() -> [Event; 3] {
        [
            Event::Artifact(record()),
            Event::Ready(WatchReady {}),
            Event::Overflow(WatchOverflow {}),
        ]
    }

    #[test]
    fn a_line_for_each_change_and_nothing_commands_the_terminal() {
        assert_eq!(
            events().map(|event| text(&event, Some("T"))),
            [
                "T  a1  pending  tool\\x1b[2J.py\n",
                "",
                "some changes were lost: list again\n"
            ]
        );
    }

    #[test]
    fn documents_say_what_they_are() {
        let lines = events().map(|event| serde_json::to_value(line(&event, Some("T".to_owned()))).unwrap());
        let events = lines.each_ref().map(|line| line["event"].as_str().unwrap());
        assert_eq!(events, ["artifact", "ready", "overflow"]);
        assert_eq!(lines[0]["artifact"]["review"], "pending");
        assert_eq!(lines[1], json!({"event": "ready", "time": "T", "artifact": null}));
    }
}
