//! `brig input`: files that were uploaded once, for any number of sessions.

mod document;
mod list;
mod put;
mod remove;

use brig_proto::v1::inputs_client::InputsClient;
use brig_proto::v1::{Input, InputsGetRequest};
use clap::{Args, Subcommand};
use tonic::transport::Channel;

use self::document::InputDocument;
use self::list::ListOptions;
use self::put::PutOptions;
use self::remove::RemoveOptions;
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions};
use crate::output::screen::Screen;

/// Keeps files for many sessions: puts, lists, shows and removes them.
///
/// A file is uploaded once and has an id. Jobs get it by --input input:ID, of brig run and brig exec.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum InputCommand {
    Put(PutOptions),
    List(ListOptions),
    Show(ShowOptions),
    Remove(RemoveOptions),
}

/// Shows what is known of an input.
#[derive(Debug, Clone, Args)]
pub(crate) struct ShowOptions {
    #[arg(value_name = "ID")]
    id: String,

    #[command(flatten)]
    format: FormatOptions,
}

impl InputCommand {
    /// What stdout is.
    pub(crate) fn format(&self) -> Format {
        let options = match self {
            Self::Put(options) => options.format,
            Self::List(options) => options.format,
            Self::Show(options) => options.format,
            Self::Remove(options) => options.format,
        };
        options.format()
    }
}

/// Runs a command about inputs.
pub(crate) fn input(command: &InputCommand, screen: &mut Screen) -> Result<Exit, Failure> {
    let format = command.format();
    connect::runtime()?.block_on(async {
        match command {
            InputCommand::Put(options) => put::put(options, format, screen).await,
            InputCommand::List(options) => list::list(options, format, screen).await,
            InputCommand::Show(options) => show(options, format, screen).await,
            InputCommand::Remove(options) => remove::remove(options, format, screen).await,
        }
    })
}

async fn show(options: &ShowOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = InputsGetRequest {
        input_id: options.id.clone(),
    };
    let answer = client().await?.get(request).await;
    let answer = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
    let document = InputDocument::from_proto(&present(answer.input)?);
    match format {
        Format::Text => {
            let text = document.render(screen.out.style());
            screen.out.text(&text);
        }
        Format::Json => screen.out.json(&document),
        Format::Jsonl => screen.out.json_line(&document),
    }
    Ok(Exit::Success)
}

async fn client() -> Result<InputsClient<Channel>, Failure> {
    Ok(InputsClient::new(connect::connect(&connect::socket()?).await?))
}

/// Takes the record out of an answer.
fn present(input: Option<Input>) -> Result<Input, Failure> {
    input.ok_or_else(|| Failure::new(Exit::Failed, "the daemon answered without an input"))
}
