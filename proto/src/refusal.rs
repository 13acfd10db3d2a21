//! What `brig run --json` prints when nothing ran.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tonic::Code;

use crate::reason::code_name;
use crate::v1::Reason;

/// Stands in the place of the result when the request was refused: `status` is null and nothing ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefusalDocument {
    /// Always null.
    pub status: (),
    /// Why nothing ran.
    pub refused: Refusal,
}

/// Why nothing ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// gRPC code in lower case: `invalid_argument`.
    pub code: String,
    /// Reason in lower case, as listed in docs/errors.md: `unknown_policy`. Null if no daemon gave one.
    pub reason: Option<String>,
    /// Field of the request that is to blame. Null if none is.
    pub field: Option<String>,
    /// One sentence for people.
    pub message: String,
}

impl RefusalDocument {
    /// Makes the document of a refused call.
    pub fn new(code: Code, reason: Option<Reason>, field: Option<String>, message: String) -> Self {
        let reason = reason.filter(|reason| *reason != Reason::Unspecified);
        let refused = Refusal {
            code: code_name(code).to_lowercase(),
            reason: reason.map(|reason| reason.name().to_lowercase()),
            field,
            message,
        };
        Self { status: (), refused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_a_null_status_and_every_key() {
        let document = RefusalDocument::new(
            Code::InvalidArgument,
            Some(Reason::UnknownPolicy),
            Some("policy".to_owned()),
            "policy: \"x\" does not exist; there are: data, strict".to_owned(),
        );
        assert_eq!(
            serde_json::to_string(&document).unwrap(),
            r#"{"status":null,"refused":{"code":"invalid_argument","reason":"unknown_policy","field":"policy","message":"policy: \"x\" does not exist; there are: data, strict"}}"#
        );
    }

    #[test]
    fn a_refusal_without_reason_and_field_says_null() {
        let document = RefusalDocument::new(
            Code::Unavailable,
            Some(Reason::Unspecified),
            None,
            "no daemon".to_owned(),
        );
        let refused = Refusal {
            code: "unavailable".to_owned(),
            reason: None,
            field: None,
            message: "no daemon".to_owned(),
        };
        assert_eq!(document, RefusalDocument { status: (), refused });
    }
}
