//! `brig artifact approve` and `brig artifact reject`.

use brig_proto::v1::{ArtifactsApproveRequest, ArtifactsRejectRequest};
use clap::Args;

use super::{changed, client, failed, present};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::identity::random_id;
use crate::options::{Format, FormatOptions, parse_id};
use crate::output::screen::Screen;

const EXAMPLES: &str = "\
Examples:
  brig artifact get --for-review ID - | less       looks at it
  brig artifact show ID                            has its SHA-256, as get has with -o json
  brig artifact approve ID --sha256 SHA256 --comment 'read it'";

/// Lets an artifact out: exactly the bytes that were looked at.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ApproveOptions {
    #[arg(value_name = "ID")]
    id: String,

    /// SHA-256 of what was looked at; other bytes are not approved.
    #[arg(long, value_name = "SHA256")]
    sha256: String,

    /// What is to be said about it, for the record.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    comment: String,

    /// Name of the request, so that the same one is not refused. A new one if absent.
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    request_id: Option<String>,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Refuses an artifact; its bytes are deleted.
#[derive(Debug, Clone, Args)]
pub(crate) struct RejectOptions {
    #[arg(value_name = "ID")]
    id: String,

    /// Why, for the record and for whoever asked for it.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    comment: String,

    /// Name of the request, so that the same one is not refused. A new one if absent.
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    request_id: Option<String>,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Approves an artifact.
pub(super) async fn approve(options: &ApproveOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = ArtifactsApproveRequest {
        request_id: options.request_id.clone().unwrap_or_else(random_id),
        artifact_id: options.id.clone(),
        sha256: options.sha256.clone(),
        comment: options.comment.clone(),
    };
    let answer = client().await?.approve(request).await.map_err(failed)?.into_inner();
    changed(&present(answer.artifact)?, format, screen);
    Ok(Exit::Success)
}

/// Rejects an artifact.
pub(super) async fn reject(options: &RejectOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = ArtifactsRejectRequest {
        request_id: options.request_id.clone().unwrap_or_else(random_id),
        artifact_id: options.id.clone(),
        comment: options.comment.clone(),
    };
    let answer = client().await?.reject(request).await.map_err(failed)?.into_inner();
    changed(&present(answer.artifact)?, format, screen);
    Ok(Exit::Success)
}
