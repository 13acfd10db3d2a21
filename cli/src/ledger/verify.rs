//! `brig ledger verify`.

use brig_proto::v1::{LedgerVerifyRequest, LedgerVerifyResponse};
use clap::Args;
use serde::Serialize;

use super::{client, failed};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions};
use crate::output::escape;
use crate::output::screen::Screen;

/// Computes the chain of hashes again. Exits with 1 if an entry is missing or was changed.
///
/// Who can write the ledger's file can write its whole chain anew. That is found with a head that was noted elsewhere:
/// brigd writes one to its log at its start and end and every 1000 entries (journalctl -u brigd -g 'ledger head').
#[derive(Debug, Clone, Args)]
pub(crate) struct VerifyOptions {
    /// The first entry.
    #[arg(long, value_name = "ENTRY", default_value_t = 1)]
    from: u64,

    /// The last entry; the newest without it.
    #[arg(long, value_name = "ENTRY")]
    to: Option<u64>,

    /// The head that was noted: the entry and its hash.
    #[arg(long, value_name = "ENTRY:HASH", value_parser = parse_head, conflicts_with = "to")]
    head: Option<(u64, String)>,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

#[derive(Serialize)]
struct VerifyDocument {
    intact: bool,
    entries: u64,
    head_hash: String,
    broken_sequence: Option<u64>,
    message: String,
}

/// Has the daemon look.
pub(super) async fn verify(options: &VerifyOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let (to, hash) = options.head.clone().unzip();
    let request = LedgerVerifyRequest {
        first_sequence: options.from,
        last_sequence: to.or(options.to).unwrap_or_default(),
        expected_hash: hash.unwrap_or_default(),
    };
    let found = client().await?.verify(request).await.map_err(failed)?.into_inner();
    let exit = if found.intact { Exit::Success } else { Exit::Error };
    let document = VerifyDocument {
        intact: found.intact,
        entries: found.entries,
        head_hash: found.head_hash.clone(),
        broken_sequence: found.broken_sequence,
        message: found.message.clone(),
    };
    match format {
        Format::Text => screen.out.text(&text(&found)),
        Format::Json => screen.out.json(&document),
        Format::Jsonl => screen.out.json_line(&document),
    }
    Ok(exit)
}

fn text(found: &LedgerVerifyResponse) -> String {
    let message = escape::line(&found.message);
    let hash = escape::line(&found.head_hash);
    match found.broken_sequence {
        None => format!("intact: {message}\nhead: {hash}\n"),
        Some(_) => format!(
            "broken: {message}\n{} entries before it are unchanged, up to {hash}\n",
            found.entries
        ),
    }
}

/// Reads `ENTRY:HASH`.
fn parse_head(text: &str) -> Result<(u64, String), String> {
    let parsed = text
        .split_once(':')
        .and_then(|(entry, hash)| Some((entry.parse().ok().filter(|entry| *entry > 0)?, hash.to_owned())));
    parsed.ok_or_else(|| format!("{text:?} is no head: the number of an entry, a colon, and its hash"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_a_number_and_a_hash() {
        assert_eq!(parse_head("12:abc"), Ok((12, "abc".to_owned())));
        for wrong in ["", "12", "0:abc", "x:abc", "-1:abc"] {
            assert!(parse_head(wrong).is_err(), "{wrong}");
        }
    }
}
