//! `brig watch`.

use brig_proto::v1::files_watch_response::Event;
use brig_proto::v1::{FileChange, FileChangeKind, FilesWatchRequest};
use clap::Args;
use serde_json::json;

use super::{Remote, client};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions};
use crate::output::escape;
use crate::output::screen::Screen;

/// Tells of changes below a directory of a session, until the session ends or Ctrl-C.
///
/// With -o json, too, there is one object on each line.
#[derive(Debug, Clone, Args)]
pub(crate) struct WatchOptions {
    /// The directory; the working directory without one.
    #[arg(value_name = "SESSION[:PATH]")]
    of: Remote,

    /// Directories below it too.
    #[arg(short, long)]
    recursive: bool,

    #[command(flatten)]
    pub(crate) format: FormatOptions,
}

/// Shows changes as they come.
pub(crate) fn watch(options: &WatchOptions, screen: &mut Screen) -> Result<Exit, Failure> {
    let is_text = options.format.format() == Format::Text;
    let request = FilesWatchRequest {
        session_id: options.of.session.clone(),
        path: options.of.path.clone(),
        recursive: options.recursive,
        ..FilesWatchRequest::default()
    };
    connect::runtime()?.block_on(async {
        let failed = |status: tonic::Status| Failure::from_status(&status);
        let mut stream = client().await?.watch(request).await.map_err(failed)?.into_inner();
        while let Some(message) = stream.message().await.map_err(failed)? {
            match message.event {
                Some(event) if is_text => screen.out.text(&text(&event)),
                Some(event) => screen.out.json_line(&document(&event)),
                // One of a newer daemon.
                None => {}
            }
            if screen.out.failed() {
                break;
            }
        }
        Ok(Exit::Success)
    })
}

fn text(event: &Event) -> String {
    match event {
        Event::Ready(_) => String::new(),
        Event::Change(change) => format!("{:<10}  {}\n", word(change), escape::line(&change.path)),
        Event::Overflow(_) => "overflow    some changes were lost: list again\n".to_owned(),
    }
}

fn document(event: &Event) -> serde_json::Value {
    match event {
        Event::Ready(_) => json!({"event": "ready"}),
        Event::Change(change) => json!({
            "event": "change",
            "kind": word(change),
            "path": change.path,
            "time": change.time.as_ref().map(ToString::to_string),
        }),
        Event::Overflow(_) => json!({"event": "overflow"}),
    }
}

fn word(change: &FileChange) -> &'static str {
    match change.kind() {
        FileChangeKind::Created => "created",
        FileChangeKind::Written => "written",
        FileChangeKind::Removed => "removed",
        FileChangeKind::Renamed => "renamed",
        FileChangeKind::Attributes => "attributes",
        FileChangeKind::Unspecified => "unknown",
    }
}
