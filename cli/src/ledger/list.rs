//! `brig ledger list`.

use brig_proto::ledger::EntryDocument;
use brig_proto::sizes::PAGE_MAX;
use clap::Args;
use serde::Serialize;

use super::filter::FilterOptions;
use super::{client, failed, table};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions};
use crate::output::screen::Screen;

/// Lists entries, newest first.
#[derive(Debug, Clone, Args)]
pub(crate) struct ListOptions {
    #[command(flatten)]
    filter: FilterOptions,

    /// How many at most. For all there are: brig ledger export.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// All of a list as one document.
#[derive(Serialize)]
struct ListDocument {
    entries: Vec<EntryDocument>,
}

/// Lists entries; lines of JSON are printed as the pages come.
pub(super) async fn list(options: &ListOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let mut request = options.filter.list_request();
    let mut client = client().await?;
    let (mut entries, mut left) = (Vec::new(), options.limit);
    while left > 0 && !screen.out.failed() {
        request.page_size = left.min(PAGE_MAX);
        let page = client.list(request.clone()).await.map_err(failed)?.into_inner();
        left -= u32::try_from(page.entries.len()).unwrap_or(left).min(left);
        if format == Format::Jsonl {
            for entry in &page.entries {
                screen.out.text(&EntryDocument::from_proto(entry).line());
            }
        } else {
            entries.extend(page.entries);
        }
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    match format {
        Format::Text => {
            let text = table::render(&entries, screen.out.style());
            screen.out.text(&text);
        }
        Format::Json => {
            let entries = entries.iter().map(EntryDocument::from_proto).collect();
            screen.out.json(&ListDocument { entries });
        }
        Format::Jsonl => {}
    }
    Ok(Exit::Success)
}
