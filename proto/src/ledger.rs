//! An entry of the ledger as a JSON document: a line of `Ledger.Export`, and what `brig ledger` prints.
//!
//! Every key is always present. Bytes that are not UTF-8 appear as U+FFFD.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::display;
use crate::result::{Input, ResultDocument};
use crate::v1::{LedgerEntry, LedgerEntryKind, Reason, ReviewState};

/// An entry of the ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EntryDocument {
    /// Its number, from 1 without gaps.
    pub sequence: u64,
    /// When it was written, RFC 3339.
    pub time: Option<String>,
    /// What it records: `accepted`, `finished`, ...
    pub kind: String,
    /// Tenant that it belongs to.
    pub tenant: String,
    /// User who asked.
    pub user: String,
    /// Who asked, in the application's words. Null if it said nothing.
    pub origin: Option<OriginDocument>,
    pub session_id: String,
    pub execution_id: String,
    pub artifact_id: String,
    pub request_id: String,
    /// Policy, `name@hash`.
    pub policy: String,
    /// Template, `name@hash`.
    pub template: String,
    /// SHA-256 of the code's source or of the arguments.
    pub work_sha256: String,
    /// The code's source or the arguments, one a line. Null where it was removed, or there is none.
    pub work: Option<String>,
    pub inputs: Vec<Input>,
    /// Of `finished`: the result. Null for others.
    pub result: Option<ResultDocument>,
    /// Of `refused`: why, in lower case. Null for others.
    pub reason: Option<String>,
    /// Of `reviewed`: the decision. Null for others.
    pub review: Option<String>,
    /// One sentence for people.
    pub message: String,
    /// Of `refused`: how many requests it stands for. Null for others.
    pub count: Option<u64>,
    pub labels: BTreeMap<String, String>,
    pub previous_hash: String,
    pub hash: String,
}

/// Who asked, in the application's words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginDocument {
    pub user: String,
    pub conversation: String,
    pub request: String,
}

impl EntryDocument {
    /// Writes an entry as a document.
    pub fn from_proto(entry: &LedgerEntry) -> Self {
        let inputs = entry.inputs.iter().map(|input| Input {
            name: input.name.clone(),
            path: input.path.clone(),
            size_bytes: input.size_bytes,
            sha256: input.sha256.clone(),
        });
        let origin = entry.origin.as_ref().map(|origin| OriginDocument {
            user: origin.user.clone(),
            conversation: origin.conversation.clone(),
            request: origin.request.clone(),
        });
        let reason = Some(entry.reason()).filter(|reason| *reason != Reason::Unspecified);
        let review = Some(entry.review()).filter(|review| *review != ReviewState::Unspecified);
        Self {
            sequence: entry.sequence,
            time: entry.time.map(|time| time.to_string()),
            kind: kind(entry.kind()),
            tenant: entry.tenant.clone(),
            user: entry.user.clone(),
            origin,
            session_id: entry.session_id.clone(),
            execution_id: entry.execution_id.clone(),
            artifact_id: entry.artifact_id.clone(),
            request_id: entry.request_id.clone(),
            policy: entry.policy.clone(),
            template: entry.template.clone(),
            work_sha256: entry.work_sha256.clone(),
            work: (!entry.work.is_empty()).then(|| String::from_utf8_lossy(&entry.work).into_owned()),
            inputs: inputs.collect(),
            result: entry.result.as_ref().map(ResultDocument::from_proto),
            reason: reason.map(|reason| reason.name().to_lowercase()),
            review: review.map(|review| word(review.as_str_name(), "REVIEW_STATE_")),
            message: entry.message.clone(),
            count: (entry.count > 0).then_some(entry.count),
            labels: entry.labels.clone(),
            previous_hash: entry.previous_hash.clone(),
            hash: entry.hash.clone(),
        }
    }

    /// The document on one line, its end included. No character of it commands a terminal.
    pub fn line(&self) -> String {
        let text = serde_json::to_string(self).expect("its keys are text");
        format!("{}\n", display::json(&text))
    }
}

/// The name of a kind: `accepted`.
pub fn kind(kind: LedgerEntryKind) -> String {
    word(kind.as_str_name(), "LEDGER_ENTRY_KIND_")
}

fn word(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_one_line_that_commands_no_terminal() {
        let entry = LedgerEntry {
            sequence: 7,
            kind: LedgerEntryKind::Accepted.into(),
            user: "ann\n\u{1b}[2J\u{9b}\u{202e}".to_owned(),
            work: b"print(1)\n\xff".to_vec().into(),
            ..LedgerEntry::default()
        };
        let document = EntryDocument::from_proto(&entry);
        let line = document.line();
        let (text, rest) = line.split_once('\n').unwrap();
        assert_eq!(rest, "");
        assert!(
            !text
                .chars()
                .any(|character| character.is_control() || display::changes_display(character)),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<EntryDocument>(text).unwrap(), document);
        assert_eq!(
            (document.kind.as_str(), document.work.as_deref()),
            ("accepted", Some("print(1)\n\u{fffd}"))
        );
        assert_eq!((document.reason, document.review, document.count), (None, None, None));
    }
}
