//! `brig ledger follow` and `brig ledger export`.

use brig_proto::ledger::EntryDocument;
use brig_proto::v1::{LedgerExportRequest, LedgerFollowRequest};
use clap::Args;

use super::filter::FilterOptions;
use super::{client, failed, table};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions};
use crate::output::screen::Screen;

/// Shows entries as they come, oldest first, until Ctrl-C.
///
/// With -o json, too, there is one object on each line.
#[derive(Debug, Clone, Args)]
pub(crate) struct FollowOptions {
    /// The last entry that is known already; without it all are shown first.
    #[arg(long, value_name = "ENTRY", default_value_t = 0)]
    after: u64,

    #[command(flatten)]
    filter: FilterOptions,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Writes entries as JSON Lines, oldest first, with their code and output as far as these are kept.
#[derive(Debug, Clone, Args)]
pub(crate) struct ExportOptions {
    /// The last entry that was exported before.
    #[arg(long, value_name = "ENTRY", default_value_t = 0)]
    after: u64,

    #[command(flatten)]
    filter: FilterOptions,
}

/// Shows entries as they come.
pub(super) async fn follow(options: &FollowOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = LedgerFollowRequest {
        after_sequence: options.after,
        ..options.filter.follow_request()
    };
    let mut stream = client().await?.follow(request).await.map_err(failed)?.into_inner();
    while let Some(message) = stream.message().await.map_err(failed)? {
        let Some(entry) = message.entry else { continue };
        let text = match format {
            Format::Text => table::line(&entry, screen.out.style()),
            Format::Json | Format::Jsonl => EntryDocument::from_proto(&entry).line(),
        };
        screen.out.text(&text);
        if screen.out.failed() {
            break;
        }
    }
    Ok(Exit::Success)
}

/// Writes entries as the daemon sends them: its lines command no terminal.
pub(super) async fn export(options: &ExportOptions, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = LedgerExportRequest {
        after_sequence: options.after,
        ..options.filter.export_request()
    };
    let mut stream = client().await?.export(request).await.map_err(failed)?.into_inner();
    while let Some(message) = stream.message().await.map_err(failed)? {
        screen.out.guest(&message.data, false);
        if screen.out.failed() {
            break;
        }
    }
    screen.out.finish_guest();
    Ok(Exit::Success)
}
