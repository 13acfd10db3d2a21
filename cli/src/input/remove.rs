//! `brig input remove`.

use brig_proto::refusal::RefusalDocument;
use brig_proto::v1::InputsDeleteRequest;
use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::identity::random_id;
use crate::options::{Format, FormatOptions};
use crate::output::escape;
use crate::output::screen::Screen;

/// Removes inputs, and prints the id of each. Sessions that have them keep their copies; one that was removed already is
/// no error.
#[derive(Debug, Clone, Args)]
pub(crate) struct RemoveOptions {
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// What was removed; beside a refusal, in the form that it has everywhere.
#[derive(Serialize)]
struct RemovedDocument {
    #[serde(flatten)]
    refusal: Option<RefusalDocument>,
    inputs: Vec<String>,
}

/// Removes each input, also behind one that is refused; the first refusal decides about the exit code.
pub(super) async fn remove(options: &RemoveOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let mut client = client().await?;
    let mut removed = Vec::new();
    let mut refusal: Option<Failure> = None;
    for id in &options.ids {
        let request = InputsDeleteRequest {
            request_id: random_id(),
            input_id: id.clone(),
        };
        match client.delete(request).await {
            Ok(_) => {
                match format {
                    Format::Text => screen.out.text(&format!("{}\n", escape::line(id))),
                    Format::Jsonl => screen.out.json_line(&json!({"input_id": id})),
                    Format::Json => {}
                }
                removed.push(id.clone());
            }
            Err(status) => {
                let failure = Failure::from_status(&status);
                let text = failure.render(screen.err.style());
                screen.err.text(&text);
                if format == Format::Jsonl {
                    screen.out.json_line(&failure.event());
                }
                refusal.get_or_insert(failure);
            }
        }
    }
    if format == Format::Json {
        let document = RemovedDocument {
            refusal: refusal.as_ref().map(Failure::document),
            inputs: removed,
        };
        screen.out.json(&document);
    }
    Ok(refusal.map_or(Exit::Success, |failure| failure.exit))
}
