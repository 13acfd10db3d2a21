//! Entries for people: a line each, in which nothing that somebody else wrote can do anything.

use brig_proto::ledger::EntryDocument;
use brig_proto::result::Status;
use brig_proto::v1::LedgerEntry;

use crate::output::escape;
use crate::output::style::Style;
use crate::output::table::{self, Cell};

/// The longest text in the last column, in characters.
const WHAT_MAX: usize = 100;
const HEADING: [&str; 7] = ["entry", "time", "kind", "tenant", "user", "about", "what"];

/// A table of entries.
pub(super) fn render(entries: &[LedgerEntry], style: Style) -> String {
    let rows: Vec<Vec<Cell>> = entries.iter().map(row).collect();
    table::render(&HEADING, &rows, style)
}

/// One entry on a line of its own, where others are still to come.
pub(super) fn line(entry: &LedgerEntry, style: Style) -> String {
    let text = table::render(&HEADING, &[row(entry)], style);
    text.lines().nth(1).map(|line| format!("{line}\n")).unwrap_or_default()
}

fn row(entry: &LedgerEntry) -> Vec<Cell> {
    let document = EntryDocument::from_proto(entry);
    let about = if document.execution_id.is_empty() {
        &document.session_id
    } else {
        &document.execution_id
    };
    let paint = match document.kind.as_str() {
        "refused" | "erased" | "reviewed" | "downloaded" => Style::yellow,
        _ => Style::dim,
    };
    vec![
        Cell::new(document.sequence.to_string()),
        Cell::new(seconds(document.time.as_deref().unwrap_or_default())),
        Cell::painted(escape::line(&document.kind), paint),
        Cell::new(short(&document.tenant)),
        Cell::new(short(&who(&document))),
        Cell::new(escape::line(about)),
        Cell::new(short(&what(&document))),
    ]
}

/// Whose connection it was, and for whom it asked.
fn who(document: &EntryDocument) -> String {
    let asks = matches!(
        document.kind.as_str(),
        "accepted" | "finished" | "refused" | "session_created"
    );
    match &document.origin {
        Some(origin) if asks && document.user.is_empty() => origin.user.clone(),
        Some(origin) if asks && !origin.user.is_empty() => format!("{} for {}", document.user, origin.user),
        _ => document.user.clone(),
    }
}

/// What an entry says, in a few words.
fn what(document: &EntryDocument) -> String {
    match document.kind.as_str() {
        "accepted" => document.work.as_deref().and_then(first_line).map_or_else(
            || format!("{} (removed)", document.policy),
            |line| format!("{}: {line}", document.policy),
        ),
        "finished" => finished(document),
        "refused" => {
            let times = document.count.filter(|count| *count > 1);
            let times = times.map(|count| format!("{count} times ")).unwrap_or_default();
            let reason = document.reason.as_deref().unwrap_or("unknown");
            format!("{times}{reason}: {}", document.message)
        }
        "session_created" => document.policy.clone(),
        "reviewed" => reviewed(document),
        "downloaded" => format!("{} {}", document.artifact_id, document.message),
        _ => document.message.clone(),
    }
}

fn finished(document: &EntryDocument) -> String {
    let Some(result) = &document.result else {
        return String::new();
    };
    let mut text = result.status.to_string();
    if let (Status::Error, Some(code)) = (result.status, result.exit_code) {
        text.push_str(&format!(" (exit code {code})"));
    }
    if let Some(cause) = &result.cause {
        text.push_str(&format!(": {}", cause.kind));
    }
    if !result.artifacts.is_empty() {
        text.push_str(&format!(", {} artifacts", result.artifacts.len()));
    }
    text
}

fn reviewed(document: &EntryDocument) -> String {
    let review = document.review.as_deref().unwrap_or("unknown");
    let said = match document.message.as_str() {
        "" => String::new(),
        message => format!(": {message}"),
    };
    format!("{review} {}{said}", document.artifact_id)
}

fn first_line(text: &str) -> Option<String> {
    text.lines().find(|line| !line.trim().is_empty()).map(str::to_owned)
}

/// A time without its fraction.
fn seconds(time: &str) -> String {
    match time.split_once('.') {
        Some((time, _)) => format!("{time}Z"),
        None => time.to_owned(),
    }
}

/// Escaped, and cut where it is long.
fn short(text: &str) -> String {
    let escaped = escape::line(text);
    match escaped.char_indices().nth(WHAT_MAX) {
        Some((end, _)) => format!("{}...", &escaped[..end]),
        None => escaped,
    }
}

#[cfg(test)]
mod tests {
    use brig_proto::v1::{Cause, CauseKind, ExecutionResult, ExecutionStatus, LedgerEntryKind, Origin, Reason};

    use super::*;

    fn entry(sequence: u64, kind: LedgerEntryKind) -> LedgerEntry {
        LedgerEntry {
            sequence,
            time: Some(prost_types::Timestamp {
                seconds: 1_700_000_000,
                nanos: 123_000_000,
            }),
            kind: kind.into(),
            execution_id: "e1".to_owned(),
            user: "ann".to_owned(),
            ..LedgerEntry::default()
        }
    }

    #[test]
    fn entries_are_lines_that_say_what_happened() {
        let result = ExecutionResult {
            status: ExecutionStatus::Timeout.into(),
            cause: Some(Cause {
                kind: CauseKind::WallTime.into(),
                ..Cause::default()
            }),
            ..ExecutionResult::default()
        };
        let entries = [
            LedgerEntry {
                work: b"\nprint(1)\nprint(2)".to_vec().into(),
                policy: "data@ab".to_owned(),
                ..entry(1, LedgerEntryKind::Accepted)
            },
            LedgerEntry {
                result: Some(result),
                user: "uid 7".to_owned(),
                origin: Some(Origin {
                    user: "bob".to_owned(),
                    ..Origin::default()
                }),
                ..entry(2, LedgerEntryKind::Finished)
            },
            LedgerEntry {
                reason: Reason::QueueFull.into(),
                message: "64 wait".to_owned(),
                count: 12,
                execution_id: String::new(),
                ..entry(3, LedgerEntryKind::Refused)
            },
        ];
        assert_eq!(
            render(&entries, Style::PLAIN),
            "entry  time                  kind      user           about  what\n\
             1      2023-11-14T22:13:20Z  accepted  ann            e1     data@ab: print(1)\n\
             2      2023-11-14T22:13:20Z  finished  uid 7 for bob  e1     timeout: wall_time\n\
             3      2023-11-14T22:13:20Z  refused   ann                   12 times queue_full: 64 wait\n"
        );
        assert_eq!(
            line(&entries[1], Style::PLAIN),
            "2      2023-11-14T22:13:20Z  finished  uid 7 for bob  e1     timeout: wall_time\n"
        );
    }

    #[test]
    fn hostile_text_stays_in_its_cell() {
        let hostile = LedgerEntry {
            user: "a\n\u{1b}[2J\u{202e}".to_owned(),
            work: "x\u{9b}2J".repeat(100).into_bytes().into(),
            ..entry(1, LedgerEntryKind::Accepted)
        };
        let text = render(&[hostile], Style::PLAIN);
        assert_eq!(text.lines().count(), 2);
        assert!(
            text.chars()
                .all(|character| character == '\n' || !character.is_control()),
            "{text}"
        );
        assert!(
            text.contains("a\\n\\x1b[2J\\u{202e}") && text.ends_with("...\n"),
            "{text}"
        );
    }
}
