//! `brig artifact sweep`.

use brig_proto::v1::ArtifactsSweepRequest;
use clap::Args;
use serde_json::json;

use super::{client, failed};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions};
use crate::output::amount;
use crate::output::screen::Screen;

/// Removes what was kept long enough, and what nobody decided about in time, which the daemon does by itself too.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct SweepOptions {
    /// Counts only.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Has the daemon remove what has expired.
pub(super) async fn sweep(options: SweepOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = ArtifactsSweepRequest {
        dry_run: options.dry_run,
    };
    let swept = client().await?.sweep(request).await.map_err(failed)?.into_inner();
    let document = json!({
        "expired": swept.expired,
        "expired_bytes": swept.expired_bytes,
        "kept": swept.kept,
        "kept_bytes": swept.kept_bytes,
        "dry_run": options.dry_run,
    });
    match format {
        Format::Text => {
            let would = if options.dry_run { "would go" } else { "went" };
            let text = format!(
                "{} artifacts ({}) that nobody decided about and {} ({}) that were kept long enough {would}\n",
                swept.expired,
                amount::size(swept.expired_bytes),
                swept.kept,
                amount::size(swept.kept_bytes)
            );
            screen.out.text(&text);
        }
        Format::Json => screen.out.json(&document),
        Format::Jsonl => screen.out.json_line(&document),
    }
    Ok(Exit::Success)
}
