//! Every way out in every state of the review, under every policy of downloads.

use brig_proto::v1::{
    ArtifactsSweepRequest, ExecutionSpec, FilesDownloadRequest, ReviewState, SessionsCreateRequest, WantArtifacts,
};
use brig_tests::policies::Policies;
use brig_tests::spec::{command, small};
use brig_tests::{Daemon, Outcome, Refused, artifacts};
use rusqlite::Connection;

use crate::{artifact, id};

const SESSION: &str = "mine";
/// A file for each state that its artifact is brought into.
const STATES: [(&str, ReviewState); 5] = [
    ("free.csv", ReviewState::NotNeeded),
    ("pending.py", ReviewState::Pending),
    ("approved.py", ReviewState::Approved),
    ("rejected.py", ReviewState::Rejected),
    ("expired.py", ReviewState::Expired),
];

/// What each way out said of one file: its bytes, or the reason of the refusal.
#[derive(Debug, PartialEq, Eq)]
struct Ways {
    inline: bool,
    artifact: String,
    look: String,
    file: String,
    get: Option<i32>,
}

fn said(bytes: Result<Vec<u8>, Refused>) -> String {
    match bytes {
        Ok(bytes) => String::from_utf8(bytes).unwrap(),
        Err(refused) => refused.reason,
    }
}

fn file(daemon: &Daemon, path: &str) -> Result<Vec<u8>, Refused> {
    use brig_proto::v1::files_download_response::Part;
    let request = FilesDownloadRequest {
        session_id: SESSION.to_owned(),
        path: path.to_owned(),
        ..FilesDownloadRequest::default()
    };
    let mut stream = daemon.ask(daemon.files().download(request))?;
    let mut bytes = Vec::new();
    while let Some(message) = daemon.wait(stream.message()).map_err(|status| Refused::new(&status))? {
        if let Some(Part::Data(data)) = message.part {
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}

fn ways(daemon: &Daemon, outcome: &Outcome, path: &str) -> Ways {
    let told = outcome.artifact(path);
    Ways {
        inline: outcome.bytes(told).is_some(),
        artifact: said(artifacts::bytes(daemon, &told.artifact_id)),
        look: said(artifacts::look(daemon, &told.artifact_id)),
        file: said(file(daemon, path)),
        get: daemon.brig(&["get", "-q", &format!("{SESSION}:{path}"), "-"]).code,
    }
}

/// Lets an execution leave a file for each state, and brings their artifacts there.
fn prepare(daemon: &Daemon) -> Outcome {
    daemon.create(SessionsCreateRequest {
        session_id: SESSION.to_owned(),
        policy: "tried".to_owned(),
        template: "base".to_owned(),
        ..SessionsCreateRequest::default()
    });
    let script = "for f in free.csv pending.py approved.py rejected.py expired.py; do printf $f > $f; done";
    let spec = ExecutionSpec {
        want_artifacts: WantArtifacts::Inline.into(),
        ..command(&["sh", "-c", script])
    };
    daemon.execute(SESSION, spec).unwrap().finish().expect_success()
}

fn decide(daemon: &Daemon) {
    let approved = artifact(daemon, "approved.py");
    let sha256 = &approved.artifact.as_ref().unwrap().sha256;
    artifacts::approve(daemon, id(&approved), sha256).unwrap();
    artifacts::reject(daemon, id(&artifact(daemon, "rejected.py")), "no").unwrap();
    let records = Connection::open(daemon.directory().join("artifacts/records.db")).unwrap();
    let overdue = "UPDATE artifacts SET expire_ms = 1 WHERE path = CAST('expired.py' AS BLOB)";
    assert_eq!(records.execute(overdue, []).unwrap(), 1);
    daemon
        .ask(daemon.artifacts().sweep(ArtifactsSweepRequest::default()))
        .unwrap();
    for (path, state) in STATES {
        let record = artifact(daemon, path);
        assert_eq!(record.artifact.as_ref().unwrap().review(), state, "{path}");
    }
}

/// What is said in each state by a way that lets out what was reviewed.
fn reviewed(path: &str, state: ReviewState) -> String {
    match state {
        ReviewState::NotNeeded | ReviewState::Approved => path,
        ReviewState::Pending => "REVIEW_REQUIRED",
        _ => "REVIEW_REFUSED",
    }
    .to_owned()
}

fn try_all(download: &'static str, expected: impl Fn(&str, ReviewState) -> Ways, has_review: bool) {
    let Some(policies) = Policies::with(&[("tried", ("download = \"artifacts\"", download))]) else {
        return;
    };
    let daemon = Daemon::start_with(policies.path()).unwrap();
    let outcome = prepare(&daemon);
    if has_review {
        decide(&daemon);
    }
    for (path, state) in STATES {
        assert_eq!(
            ways(&daemon, &outcome, path),
            expected(path, state),
            "{download} {path}"
        );
    }
}

#[test]
fn where_artifacts_may_leave_each_way_is_open_for_what_was_reviewed() {
    let expected = |path: &str, state| {
        let reviewed = reviewed(path, state);
        let may = reviewed == path;
        Ways {
            inline: state == ReviewState::NotNeeded,
            look: if state == ReviewState::Pending {
                path.to_owned()
            } else {
                reviewed.clone()
            },
            file: reviewed.clone(),
            artifact: reviewed,
            get: Some(if may { 0 } else { 77 }),
        }
    };
    try_all("download = \"artifacts\"", expected, true);
}

#[test]
fn where_any_file_may_leave_artifacts_are_reviewed_all_the_same() {
    let expected = |path: &str, state| {
        let reviewed = reviewed(path, state);
        Ways {
            inline: state == ReviewState::NotNeeded,
            look: if state == ReviewState::Pending {
                path.to_owned()
            } else {
                reviewed.clone()
            },
            artifact: reviewed,
            file: path.to_owned(),
            get: Some(0),
        }
    };
    try_all("download = \"any\"", expected, true);
}

#[test]
fn where_nothing_may_leave_no_way_is_open_and_nothing_waits() {
    let forbidden = || "DOWNLOAD_FORBIDDEN".to_owned();
    let expected = |_: &str, _| Ways {
        inline: false,
        artifact: forbidden(),
        look: forbidden(),
        file: forbidden(),
        get: Some(77),
    };
    try_all("download = \"none\"", expected, false);
}

#[test]
fn results_leave_as_their_class_is_handled() {
    let review = (
        "handling = \"preview\"\nextensions = [\".png\"",
        "handling = \"review\"\nextensions = [\".png\"",
    );
    let Some(policies) = Policies::with(&[("shut", ("download = \"artifacts\"", "download = \"none\""))]) else {
        return;
    };
    let policies = policies.and("reviewed", &[review]);
    let daemon = Daemon::start_with(policies.path()).unwrap();
    for (policy, shown) in [("data", true), ("reviewed", false), ("shut", false)] {
        let outcome = daemon.run(ExecutionSpec {
            policy: policy.to_owned(),
            ..small("class Plot:\n    def _repr_svg_(self):\n        return '<svg/>'\nPlot()")
        });
        let types = outcome.result.results.iter().flat_map(|result| &result.data);
        let has_picture = types.into_iter().any(|datum| datum.r#type == "image/svg+xml");
        assert_eq!(has_picture, shown, "{policy}: {:?}", outcome.result.results);
    }
}
