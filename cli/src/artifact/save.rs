//! `brig artifact save`.

use brig_jailer::units::Span;
use brig_proto::v1::ArtifactsSaveRequest;
use clap::Args;

use super::{changed, client, failed, present};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::identity::random_id;
use crate::options::{Format, FormatOptions, parse_id, parse_pair};
use crate::output::screen::Screen;
use crate::spec;

/// Keeps an artifact that may leave for longer, and gives it labels.
#[derive(Debug, Clone, Args)]
pub(crate) struct SaveOptions {
    #[arg(value_name = "ID")]
    id: String,

    /// How long from now; as long as the policy keeps artifacts if absent, which is also the most.
    #[arg(long, value_name = "TIME")]
    keep_for: Option<Span>,

    /// Label to be added. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,

    /// Name of the request. A new one if absent.
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    request_id: Option<String>,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Keeps an artifact for longer.
pub(super) async fn save(options: &SaveOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = ArtifactsSaveRequest {
        request_id: options.request_id.clone().unwrap_or_else(random_id),
        artifact_id: options.id.clone(),
        retention: options.keep_for.map(spec::duration),
        labels: options.label.iter().cloned().collect(),
    };
    let answer = client().await?.save(request).await.map_err(failed)?.into_inner();
    changed(&present(answer.artifact)?, format, screen);
    Ok(Exit::Success)
}
