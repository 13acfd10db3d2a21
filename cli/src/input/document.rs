//! An input as a JSON document, in which every key is always present, and for people.

use std::collections::BTreeMap;

use brig_proto::v1::{Input, Origin};
use serde::Serialize;

use crate::output::style::Style;
use crate::output::{amount, escape};

/// An input.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct InputDocument {
    pub(super) input_id: String,
    pub(super) name: String,
    /// Null if its owner gave none.
    #[serde(rename = "type")]
    pub(super) media_type: Option<String>,
    pub(super) size_bytes: u64,
    pub(super) sha256: String,
    pub(super) create_time: Option<String>,
    pub(super) expire_time: Option<String>,
    pub(super) tenant: String,
    pub(super) user: String,
    pub(super) origin: OriginDocument,
    pub(super) labels: BTreeMap<String, String>,
}

/// Who asked, in the application's words.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct OriginDocument {
    user: String,
    conversation: String,
    request: String,
}

impl InputDocument {
    /// Writes an input as a document.
    pub(super) fn from_proto(input: &Input) -> Self {
        Self {
            input_id: input.input_id.clone(),
            name: input.name.clone(),
            media_type: (!input.r#type.is_empty()).then(|| input.r#type.clone()),
            size_bytes: input.size_bytes,
            sha256: input.sha256.clone(),
            create_time: input.create_time.map(|time| time.to_string()),
            expire_time: input.expire_time.map(|time| time.to_string()),
            tenant: input.tenant.clone(),
            user: input.user.clone(),
            origin: input.origin.as_ref().map(origin).unwrap_or_default(),
            labels: input.labels.clone(),
        }
    }

    /// Writes what it is, a line for each fact that there is.
    pub(super) fn render(&self, style: Style) -> String {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let facts = [
            ("name", self.name.clone()),
            ("type", text(&self.media_type)),
            ("size", amount::size(self.size_bytes)),
            ("sha256", self.sha256.clone()),
            ("user", self.user.clone()),
            ("labels", self.labels()),
            ("created", text(&self.create_time)),
            ("expires", text(&self.expire_time)),
        ];
        let mut shown = format!("{}\n", style.bold(&escape::line(&self.input_id)));
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

fn origin(origin: &Origin) -> OriginDocument {
    OriginDocument {
        user: origin.user.clone(),
        conversation: origin.conversation.clone(),
        request: origin.request.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_has_its_line_and_nothing_commands_the_terminal() {
        let input = Input {
            input_id: "i1".into(),
            name: "a\u{1b}[2J.csv".into(),
            size_bytes: 3 << 20,
            sha256: "ab".into(),
            labels: [("a".to_owned(), "b".to_owned())].into(),
            ..Input::default()
        };
        assert_eq!(
            InputDocument::from_proto(&input).render(Style::PLAIN),
            "i1\n  name         a\\x1b[2J.csv\n  size         3 M\n  sha256       ab\n  labels       a=b\n"
        );
    }
}
