//! The one gate out: which bytes of a session a client may have.
//!
//! stdout and stderr are bounded and not reviewed. Everything else passes [`may_leave`], whichever call it leaves by: it
//! knows the policy and the state of the review.

use brig_jailer::policy::{Class, Download, Handling, Policy};

use crate::artifacts::Review;
use crate::status::Problem;

/// A way on which bytes leave a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// An artifact, to whoever ran the execution or finds it later.
    Artifact(Review),
    /// An artifact, to a reviewer who is to decide about it.
    Look(Review),
    /// A representation of a rich result, which is a file in another form, as its class is handled. Plain text is none.
    Result(Option<Handling>),
    /// A file of the workspace, with the review of the artifact that has its path and the very same bytes, if there is
    /// one.
    File(Option<Review>),
}

/// Why bytes may not be handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shut {
    /// The policy lets nothing of the kind out.
    Policy,
    /// Somebody has to say yes first.
    Pending,
    /// Somebody said no, or nobody said anything in time.
    Refused,
}

/// Whether bytes may be handed out.
pub fn may_leave(download: Download, way: Way) -> Result<(), Shut> {
    match (download, way) {
        (_, Way::Result(None)) => Ok(()),
        (Download::None, _) => Err(Shut::Policy),
        (_, Way::Look(Review::Pending)) => Ok(()),
        (_, Way::Artifact(review) | Way::Look(review)) => reviewed(review),
        (_, Way::Result(Some(Handling::Review))) => Err(Shut::Policy),
        (_, Way::Result(Some(Handling::Preview | Handling::Download))) => Ok(()),
        // Any file is not about artifacts: the code can write the same bytes elsewhere.
        (Download::Any, Way::File(_)) => Ok(()),
        (Download::Artifacts, Way::File(Some(review))) => reviewed(review),
        (Download::Artifacts, Way::File(None)) => Err(Shut::Policy),
    }
}

fn reviewed(review: Review) -> Result<(), Shut> {
    match review {
        Review::NotNeeded | Review::Approved => Ok(()),
        Review::Pending => Err(Shut::Pending),
        Review::Rejected | Review::Expired => Err(Shut::Refused),
    }
}

/// Whether a representation of a rich result may be handed out, by its media type.
pub fn result_may_leave(policy: &Policy, media_type: &str) -> bool {
    let handling = |class| policy.artifacts.rule(class).handling;
    let handling = (media_type != "text/plain").then(|| handling(class(media_type)));
    may_leave(policy.files.download, Way::Result(handling)).is_ok()
}

/// Whether what a plot shows may be handed out as data: where the plot may.
pub fn chart_may_leave(policy: &Policy) -> bool {
    result_may_leave(policy, "image/svg+xml")
}

impl Shut {
    /// What a client is told who asked for `what`.
    pub fn problem(self, what: String) -> Problem {
        match self {
            Self::Policy => Problem::DownloadForbidden(what),
            Self::Pending => Problem::ReviewRequired(what),
            Self::Refused => Problem::ReviewRefused(what),
        }
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
        assert!(chart_may_leave(&policy));
    }

    #[test]
    fn a_policy_without_downloads_lets_only_text_out() {
        let policy = policy("[files]\ndownload = \"none\"\n[artifacts.chart]\nhandling = \"preview\"");
        assert!(result_may_leave(&policy, "text/plain") && !result_may_leave(&policy, "image/png"));
    }

    /// What each way out is in each state of the review, in the order of [`Review::ALL`].
    fn row(download: Download, way: fn(Review) -> Way) -> [Result<(), Shut>; 5] {
        Review::ALL.map(|review| may_leave(download, way(review)))
    }

    #[test]
    fn every_way_out_is_as_open_as_policy_and_review_say() {
        // A way that is added has to be listed here.
        match Way::File(None) {
            Way::Artifact(_) | Way::Look(_) | Way::Result(_) | Way::File(_) => {}
        }
        let file = |review| Way::File(Some(review));
        let (open, pending, refused) = (Ok(()), Err(Shut::Pending), Err(Shut::Refused));
        let reviewed = [open, pending, open, refused, refused];
        let looked_at = [open, open, open, refused, refused];
        let shut = [Err(Shut::Policy); 5];
        let expected = [
            (Download::Any, reviewed, looked_at, [open; 5]),
            (Download::Artifacts, reviewed, looked_at, reviewed),
            (Download::None, shut, shut, shut),
        ];
        for (download, artifacts, looks, files) in expected {
            assert_eq!(row(download, Way::Artifact), artifacts, "{download:?}");
            assert_eq!(row(download, Way::Look), looks, "{download:?}");
            assert_eq!(row(download, file), files, "{download:?}");
        }
        let others = [
            Way::Result(None),
            Way::Result(Some(Handling::Preview)),
            Way::Result(Some(Handling::Download)),
            Way::Result(Some(Handling::Review)),
            Way::File(None),
        ];
        let policy = Err(Shut::Policy);
        for (download, expected) in [
            (Download::Any, [open, open, open, policy, open]),
            (Download::Artifacts, [open, open, open, policy, policy]),
            (Download::None, [open, policy, policy, policy, policy]),
        ] {
            assert_eq!(others.map(|way| may_leave(download, way)), expected, "{download:?}");
        }
    }
}
