//! An artifact with its history as a JSON document, in which every key is always present, and for people.

use std::collections::BTreeMap;

use brig_proto::result::{Artifact, ResultDocument};
use brig_proto::v1::{ArtifactRecord, ExecutionResult};
use serde::Serialize;

use crate::output::style::Style;
use crate::output::{amount, escape};

/// An artifact with its history.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RecordDocument {
    /// As a result has it, but for the review, which is that of now.
    #[serde(flatten)]
    pub(super) artifact: Artifact,
    pub(super) execution_id: String,
    pub(super) session_id: String,
    pub(super) tenant: String,
    pub(super) user: String,
    pub(super) origin: OriginDocument,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) policy: String,
    pub(super) create_time: Option<String>,
    /// Null if its bytes are gone.
    pub(super) expire_time: Option<String>,
    /// Null if nobody has decided.
    pub(super) review_time: Option<String>,
    pub(super) reviewer: String,
    pub(super) review_comment: String,
    pub(super) stored: bool,
}

/// Who asked, in the application's words.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct OriginDocument {
    user: String,
    conversation: String,
    request: String,
}

impl RecordDocument {
    /// Writes a record as a document.
    pub(super) fn from_proto(record: &ArtifactRecord) -> Self {
        let result = ExecutionResult {
            artifacts: vec![record.artifact.clone().unwrap_or_default()],
            ..ExecutionResult::default()
        };
        let origin = record.origin.clone().unwrap_or_default();
        let mut artifacts = ResultDocument::from_proto(&result).artifacts;
        Self {
            artifact: artifacts.remove(0),
            execution_id: record.execution_id.clone(),
            session_id: record.session_id.clone(),
            tenant: record.tenant.clone(),
            user: record.user.clone(),
            origin: OriginDocument {
                user: origin.user,
                conversation: origin.conversation,
                request: origin.request,
            },
            labels: record.labels.clone(),
            policy: record.policy.clone(),
            create_time: record.create_time.map(|time| time.to_string()),
            expire_time: record.expire_time.map(|time| time.to_string()),
            review_time: record.review_time.map(|time| time.to_string()),
            reviewer: record.reviewer.clone(),
            review_comment: record.review_comment.clone(),
            stored: record.stored,
        }
    }

    /// What it is, in one line: `ID  approved  chart.png`.
    pub(super) fn line(&self) -> String {
        let artifact = &self.artifact;
        let words = [&artifact.artifact_id, &artifact.review.to_string(), &artifact.path];
        words.map(|word| escape::line(word)).join("  ")
    }

    /// Writes what it is, a line for each fact that there is.
    pub(super) fn render(&self, style: Style) -> String {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let artifact = &self.artifact;
        let kind = format!("{} ({})", artifact.class, artifact.media_type);
        let facts = [
            ("path", artifact.path.clone()),
            ("class", kind),
            ("size", amount::size(artifact.size_bytes)),
            ("sha256", artifact.sha256.clone()),
            ("flags", artifact.flags.join(", ")),
            ("review", artifact.review.to_string()),
            ("reviewer", self.reviewer.clone()),
            ("reviewed", text(&self.review_time)),
            ("comment", self.review_comment.clone()),
            ("execution", self.execution_id.clone()),
            ("session", self.session_id.clone()),
            ("policy", self.policy.clone()),
            ("user", self.user.clone()),
            ("labels", self.labels()),
            ("created", text(&self.create_time)),
            ("expires", text(&self.expire_time)),
            ("bytes", if self.stored { "" } else { "gone" }.to_owned()),
        ];
        let mut shown = format!("{}\n", style.bold(&escape::line(&artifact.artifact_id)));
        for (subject, said) in facts.iter().filter(|(_, said)| !said.is_empty()) {
            shown.push_str(&format!("  {subject:<12} {}\n", escape::line(said)));
        }
        shown
    }

    /// `a=b, c=d`.
    pub(super) fn labels(&self) -> String {
        let labels = self.labels.iter().map(|(key, value)| format!("{key}={value}"));
        labels.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use brig_proto::v1::{Artifact, ArtifactClass, ReviewState};

    use super::*;

    /// One with a path that would command a terminal.
    pub(in super::super) fn record() -> ArtifactRecord {
        ArtifactRecord {
            artifact: Some(Artifact {
                artifact_id: "a1".into(),
                path: "tool\u{1b}[2J.py".into(),
                r#type: "text/x-python".into(),
                size_bytes: 2048,
                sha256: "ab".repeat(32),
                class: ArtifactClass::Code.into(),
                review: ReviewState::Pending.into(),
                ..Artifact::default()
            }),
            execution_id: "e1".into(),
            user: "ann".into(),
            stored: true,
            ..ArtifactRecord::default()
        }
    }

    #[test]
    fn what_is_known_has_its_line_and_nothing_commands_the_terminal() {
        let document = RecordDocument::from_proto(&record());
        assert_eq!(
            document.render(Style::PLAIN),
            format!(
                "a1\n  path         tool\\x1b[2J.py\n  class        code (text/x-python)\n  size         2 K\n  \
                 sha256       {}\n  review       pending\n  execution    e1\n  user         ann\n",
                "ab".repeat(32)
            )
        );
        assert_eq!(document.line(), "a1  pending  tool\\x1b[2J.py");
    }

    #[test]
    fn every_key_is_there() {
        let document = serde_json::to_value(RecordDocument::from_proto(&ArtifactRecord::default())).unwrap();
        for key in ["artifact_id", "path", "review", "expire_time", "origin", "stored"] {
            assert!(document.get(key).is_some(), "{key}: {document}");
        }
    }
}
