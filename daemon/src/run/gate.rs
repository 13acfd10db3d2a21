//! The one gate out: which bytes of a session a client may have.
//!
//! stdout and stderr are bounded and not reviewed. Everything else passes [`may_leave`], whichever call it leaves by.

use brig_jailer::policy::{Class, Download, Handling, Policy};

use crate::artifacts::{Judgement, Review};

/// A way on which bytes leave a session.
#[derive(Debug, Clone, Copy)]
pub enum Way<'w> {
    /// An artifact, to whoever ran the execution or finds it later.
    Artifact(&'w Judgement),
    /// A representation of a rich result beyond plain text, which is a file in another form, by its media type.
    Result(&'w str),
    /// A file of the workspace. It is `released` if an artifact of its path with the very same bytes may leave.
    File { released: bool },
}

/// Whether bytes may be handed out.
pub fn may_leave(policy: &Policy, way: Way<'_>) -> bool {
    match (policy.files.download, way) {
        (_, Way::Result("text/plain")) => true,
        (Download::None, _) => false,
        (_, Way::Artifact(judgement)) => judgement.review == Review::NotNeeded,
        (_, Way::Result(media_type)) => policy.artifacts.rule(class(media_type)).handling != Handling::Review,
        (Download::Any, Way::File { .. }) => true,
        (Download::Artifacts, Way::File { released }) => released,
    }
}

fn class(media_type: &str) -> Class {
    match media_type {
        _ if media_type.starts_with("image/") => Class::Chart,
        "application/json" | "text/csv" => Class::Data,
        "text/html" | "text/markdown" | "text/latex" | "application/pdf" => Class::Report,
        "application/javascript" | "text/javascript" => Class::Code,
        _ => Class::Other,
    }
}

/// Whether what a plot shows may be handed out as data: where the plot may.
pub fn chart_may_leave(policy: &Policy) -> bool {
    may_leave(policy, Way::Result("image/svg+xml"))
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
            types.map(|media_type| may_leave(&policy, Way::Result(media_type))),
            [true, true, false, false, false]
        );
    }

    #[test]
    fn a_policy_without_downloads_lets_only_text_out() {
        let policy = policy("[files]\ndownload = \"none\"\n[artifacts.chart]\nhandling = \"preview\"");
        assert!(may_leave(&policy, Way::Result("text/plain")) && !may_leave(&policy, Way::Result("image/png")));
        let judgement = Judgement {
            class: Class::Chart,
            media_type: "image/png",
            handling: Handling::Preview,
            review: Review::NotNeeded,
            flags: Vec::new(),
            details: Vec::new(),
        };
        assert!(!may_leave(&policy, Way::Artifact(&judgement)));
    }

    fn judgement(review: Review) -> Judgement {
        Judgement {
            class: Class::Chart,
            media_type: "image/png",
            handling: Handling::Preview,
            review,
            flags: Vec::new(),
            details: Vec::new(),
        }
    }

    #[test]
    fn every_way_out_is_open_as_far_as_the_policy_says() {
        let (good, pending) = (judgement(Review::NotNeeded), judgement(Review::Pending));
        let ways = [
            Way::Artifact(&good),
            Way::Artifact(&pending),
            Way::Result("text/plain"),
            Way::Result("application/json"),
            Way::Result("x/y"),
            Way::File { released: true },
            Way::File { released: false },
        ];
        // One that is added has to be listed here.
        for way in ways {
            match way {
                Way::Artifact(_) | Way::Result(_) | Way::File { .. } => {}
            }
        }
        let expected = [
            ("any", [true, false, true, true, false, true, true]),
            ("artifacts", [true, false, true, true, false, true, false]),
            ("none", [false, false, true, false, false, false, false]),
        ];
        for (download, open) in expected {
            let policy = policy(&format!(
                "[files]\ndownload = \"{download}\"\n[artifacts.data]\nhandling = \"preview\""
            ));
            assert_eq!(ways.map(|way| may_leave(&policy, way)), open, "{download}");
        }
    }
}
