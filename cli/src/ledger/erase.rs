//! `brig ledger erase` and `brig ledger sweep`.

use brig_proto::v1::{LedgerEraseRequest, LedgerSweepRequest, LedgerSweepResponse};
use clap::Args;
use prost_types::Timestamp;
use serde_json::json;

use super::filter::parse_time;
use super::{client, failed};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::identity::random_id;
use crate::options::{Format, FormatOptions, parse_id};
use crate::output::screen::Screen;

/// Removes code, output and names of entries: what matches everything that is given. Entries and their chain stay.
#[derive(Debug, Clone, Args)]
#[group(id = "whose", args = ["user", "execution", "before"], required = true, multiple = true)]
pub(crate) struct EraseOptions {
    /// Of this user: of the connection, or of the application.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// Of this execution.
    #[arg(long, value_name = "ID")]
    execution: Option<String>,

    /// Before this time: 2026-01-31T08:00:00Z, or how long ago (7d).
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    before: Option<Timestamp>,

    /// Of this tenant; one's own without it.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// Why, for the record.
    #[arg(long, value_name = "TEXT")]
    comment: String,

    /// Counts only.
    #[arg(long)]
    dry_run: bool,

    /// Name of the request, so that the same one is not recorded twice. A new one if absent.
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    request_id: Option<String>,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Removes what the retention of the policies has run out for, which the daemon does every hour too.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct SweepOptions {
    /// Counts only.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Has the daemon remove what belongs to entries.
pub(super) async fn erase(options: &EraseOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = LedgerEraseRequest {
        request_id: options.request_id.clone().unwrap_or_else(random_id),
        tenant: options.tenant.clone().unwrap_or_default(),
        user: options.user.clone().unwrap_or_default(),
        execution_id: options.execution.clone().unwrap_or_default(),
        time_to: options.before,
        comment: options.comment.clone(),
        dry_run: options.dry_run,
    };
    let erased = client().await?.erase(request).await.map_err(failed)?.into_inner();
    let document = json!({"entries": erased.entries, "artifacts": erased.artifacts, "dry_run": options.dry_run});
    match format {
        Format::Text => {
            let would = if options.dry_run { "would lose" } else { "lost" };
            let text = format!(
                "{} entries {would} code, output or names; artifacts with them: {}\n",
                erased.entries, erased.artifacts
            );
            screen.out.text(&text);
        }
        Format::Json => screen.out.json(&document),
        Format::Jsonl => screen.out.json_line(&document),
    }
    Ok(Exit::Success)
}

/// Has the daemon remove what may not be kept any longer.
pub(super) async fn sweep(options: SweepOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = LedgerSweepRequest {
        dry_run: options.dry_run,
    };
    let swept = client().await?.sweep(request).await.map_err(failed)?.into_inner();
    let LedgerSweepResponse {
        works,
        outputs,
        names,
        bytes,
    } = swept;
    let document =
        json!({"works": works, "outputs": outputs, "names": names, "bytes": bytes, "dry_run": options.dry_run});
    match format {
        Format::Text => {
            let would = if options.dry_run { "would go" } else { "went" };
            let text = format!(
                "code of {works} executions, {outputs} outputs and the names of {names} entries {would}, {bytes} bytes\n"
            );
            screen.out.text(&text);
        }
        Format::Json => screen.out.json(&document),
        Format::Jsonl => screen.out.json_line(&document),
    }
    Ok(Exit::Success)
}
