//! `brig artifact`: what executions left, and the review that lets it out.

mod decide;
mod document;
mod get;
mod link;
mod list;
mod save;
mod sweep;
mod watch;

use brig_proto::v1::artifacts_client::ArtifactsClient;
use brig_proto::v1::{ArtifactRecord, ArtifactsGetRequest};
use clap::{Args, Subcommand};
use tonic::transport::Channel;

use self::decide::{ApproveOptions, RejectOptions};
use self::document::RecordDocument;
use self::get::GetOptions;
use self::link::LinkOptions;
use self::list::ListOptions;
use self::save::SaveOptions;
use self::sweep::SweepOptions;
use self::watch::WatchOptions;
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions};
use crate::output::screen::Screen;

/// Shows what executions left, gets it, and decides about what must be reviewed.
///
/// Approve and reject need the role reviewer; sweep needs operator.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ArtifactCommand {
    List(ListOptions),
    Show(ShowOptions),
    Get(GetOptions),
    Link(LinkOptions),
    Approve(ApproveOptions),
    Reject(RejectOptions),
    Save(SaveOptions),
    Watch(WatchOptions),
    Sweep(SweepOptions),
}

/// Shows what is known of an artifact.
#[derive(Debug, Clone, Args)]
pub(crate) struct ShowOptions {
    #[arg(value_name = "ID")]
    id: String,

    #[command(flatten)]
    format: FormatOptions,
}

impl ArtifactCommand {
    /// What stdout is.
    pub(crate) fn format(&self) -> Format {
        let options = match self {
            Self::List(options) => options.format,
            Self::Show(options) => options.format,
            Self::Get(options) => options.format,
            Self::Link(options) => options.format,
            Self::Approve(options) => options.format,
            Self::Reject(options) => options.format,
            Self::Save(options) => options.format,
            Self::Watch(options) => options.format,
            Self::Sweep(options) => options.format,
        };
        options.format()
    }
}

/// Runs a command about artifacts.
pub(crate) fn artifact(command: &ArtifactCommand, screen: &mut Screen) -> Result<Exit, Failure> {
    let format = command.format();
    connect::runtime()?.block_on(async {
        match command {
            ArtifactCommand::List(options) => list::list(options, format, screen).await,
            ArtifactCommand::Show(options) => show(options, format, screen).await,
            ArtifactCommand::Get(options) => get::get(options, format, screen).await,
            ArtifactCommand::Link(options) => link::link(options, format, screen).await,
            ArtifactCommand::Approve(options) => decide::approve(options, format, screen).await,
            ArtifactCommand::Reject(options) => decide::reject(options, format, screen).await,
            ArtifactCommand::Save(options) => save::save(options, format, screen).await,
            ArtifactCommand::Watch(options) => watch::watch(options, format, screen).await,
            ArtifactCommand::Sweep(options) => sweep::sweep(*options, format, screen).await,
        }
    })
}

async fn show(options: &ShowOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let record = find(&mut client().await?, &options.id).await?;
    let document = RecordDocument::from_proto(&record);
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

async fn find(client: &mut ArtifactsClient<Channel>, id: &str) -> Result<ArtifactRecord, Failure> {
    let request = ArtifactsGetRequest {
        artifact_id: id.to_owned(),
    };
    let answer = client.get(request).await.map_err(failed)?.into_inner();
    present(answer.artifact)
}

async fn client() -> Result<ArtifactsClient<Channel>, Failure> {
    Ok(ArtifactsClient::new(connect::connect(&connect::socket()?).await?))
}

/// Takes the record out of an answer.
fn present(record: Option<ArtifactRecord>) -> Result<ArtifactRecord, Failure> {
    record.ok_or_else(|| Failure::new(Exit::Failed, "the daemon answered without an artifact"))
}

/// Shows a record that was changed: its id, or all of it.
fn changed(record: &ArtifactRecord, format: Format, screen: &mut Screen) {
    let document = RecordDocument::from_proto(record);
    match format {
        Format::Text => screen.out.text(&format!("{}\n", document.line())),
        Format::Json => screen.out.json(&document),
        Format::Jsonl => screen.out.json_line(&document),
    }
}

fn failed(status: tonic::Status) -> Failure {
    Failure::from_status(&status)
}
