//! `brig artifact link`.

use brig_jailer::units::Span;
use brig_proto::v1::{ArtifactsLinkRequest, LinkDisposition};
use clap::Args;
use serde::Serialize;

use super::{client, failed};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions};
use crate::output::escape;
use crate::output::screen::Screen;
use crate::spec;

const EXAMPLES: &str = "\
Examples:
  curl -OJ \"$(brig artifact link ID)\"
  brig artifact link ID --inline --lifetime 1m     for the page that shows a chart";

/// Prints an address under which whoever has it gets an artifact for a short time, over HTTP.
///
/// Only where the daemon serves links (`links` in brigd.toml).
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LinkOptions {
    #[arg(value_name = "ID")]
    id: String,

    /// How long from now; as the daemon is configured if absent (5m as shipped, at most 1h).
    #[arg(long, value_name = "TIME")]
    lifetime: Option<Span>,

    /// Has browsers show it, in the place of keeping it. Pictures and plain text that the policy has previewed.
    #[arg(long)]
    inline: bool,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// A link.
#[derive(Debug, Serialize)]
struct LinkDocument {
    artifact_id: String,
    url: String,
    expire_time: Option<String>,
    /// `attachment` or `inline`.
    disposition: &'static str,
}

/// Makes a link and prints it.
pub(super) async fn link(options: &LinkOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let (disposition, word) = if options.inline {
        (LinkDisposition::Inline, "inline")
    } else {
        (LinkDisposition::Attachment, "attachment")
    };
    let request = ArtifactsLinkRequest {
        artifact_id: options.id.clone(),
        lifetime: options.lifetime.map(spec::duration),
        disposition: disposition.into(),
    };
    let linked = client().await?.link(request).await.map_err(failed)?.into_inner();
    let document = LinkDocument {
        artifact_id: options.id.clone(),
        url: linked.url,
        expire_time: linked.expire_time.map(|time| time.to_string()),
        disposition: word,
    };
    match format {
        Format::Text => screen.out.text(&format!("{}\n", escape::line(&document.url))),
        Format::Json => screen.out.json(&document),
        Format::Jsonl => screen.out.json_line(&document),
    }
    Ok(Exit::Success)
}
