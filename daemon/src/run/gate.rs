//! The one gate out: which bytes of a session a client may have.
//!
//! stdout and stderr are bounded and not reviewed. Everything else passes here: bytes of artifacts, and rich results
//! beyond plain text, which are files in another form.

use brig_jailer::policy::{Class, Download, Handling, Policy};

use crate::artifacts::{Judgement, Review};

/// Whether the bytes of an artifact may be handed out.
pub fn artifact_may_leave(policy: &Policy, judgement: &Judgement) -> bool {
    policy.files.download != Download::None && judgement.review == Review::NotNeeded
}

/// Whether a representation of a rich result may be handed out.
pub fn result_may_leave(policy: &Policy, media_type: &str) -> bool {
    if media_type == "text/plain" {
        return true;
    }
    let class = match media_type {
        _ if media_type.starts_with("image/") => Class::Chart,
        "application/json" | "text/csv" => Class::Data,
        "text/html" | "text/markdown" | "text/latex" | "application/pdf" => Class::Report,
        "application/javascript" | "text/javascript" => Class::Code,
        _ => Class::Other,
    };
    policy.files.download != Download::None && policy.artifacts.rule(class).handling != Handling::Review
}

/// Whether what a plot shows may be handed out as data: where the plot may.
pub fn chart_may_leave(policy: &Policy) -> bool {
    result_may_leave(policy, "image/svg+xml")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(rest: &str) -> Policy {
        Policy::parse(
            "p",
            &format!("template = \"data\"\n[syscalls]\ngroups = [\"base\"]\n{rest}"),
        )
        .unwrap()
    }

    #[test]
    fn what_the_policy_reviews_as_a_file_does_not_leave_as_a_result() {
        let policy = policy("[artifacts.chart]\nhandling = \"preview\"\nextensions = [\".png\"]");
        let types = [
            "text/plain",
            "image/png",
            "application/json",
            "application/javascript",
            "x/y",
        ];
        assert_eq!(
            types.map(|media_type| result_may_leave(&policy, media_type)),
            [true, true, false, false, false]
        );
    }

    #[test]
    fn a_policy_without_downloads_lets_only_text_out() {
        let policy = policy("[files]\ndownload = \"none\"\n[artifacts.chart]\nhandling = \"preview\"");
        assert!(result_may_leave(&policy, "text/plain") && !result_may_leave(&policy, "image/png"));
        let judgement = Judgement {
            class: Class::Chart,
            media_type: "image/png",
            handling: Handling::Preview,
            review: Review::NotNeeded,
            flags: Vec::new(),
            details: Vec::new(),
        };
        assert!(!artifact_may_leave(&policy, &judgement));
    }
}
