//! From a file that must be reviewed to the decision, and what is kept of it.

use brig_proto::v1::artifacts_watch_response::Event;
use brig_proto::v1::{
    ArtifactRecord, ArtifactsApproveRequest, ArtifactsDownloadRequest, ArtifactsGetRequest, ArtifactsListRequest,
    ArtifactsSaveRequest, ArtifactsWatchRequest, ExecutionSpec, LedgerVerifyRequest, Origin, ReviewState,
    SessionsCreateRequest,
};
use brig_tests::services::Setup;
use brig_tests::spec::{sh, span};
use brig_tests::{DEADLINE, Daemon, Service, Services, artifacts, daemon, eventually};
use tonic::Code;

use crate::{artifact, id, reviews, sha256};

/// Leaves a file that needs no review, and one that does.
fn leave(daemon: &Daemon) {
    daemon.run(ExecutionSpec {
        origin: Some(Origin {
            user: "ann".to_owned(),
            ..Origin::default()
        }),
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        ..sh("printf 'a,b\\n1,2\\n' > out.csv; printf 'print(1)\\n' > tool.py")
    });
}

fn shown(record: &ArtifactRecord) -> (ReviewState, bool) {
    (record.artifact.as_ref().unwrap().review(), record.stored)
}

#[test]
fn an_artifact_has_a_record_before_and_after_its_review() {
    let daemon = daemon!();
    leave(&daemon);
    let (free, pending) = (artifact(&daemon, "out.csv"), artifact(&daemon, "tool.py"));
    assert_eq!(shown(&free), (ReviewState::NotNeeded, true));
    assert_eq!(shown(&pending), (ReviewState::Pending, true));
    assert_eq!((pending.user.as_str(), pending.tenant.as_str()), ("ann", "default"));
    assert_eq!(pending.labels["team"], "blue");
    assert!(pending.policy.starts_with("data@") && pending.expire_time.is_some());
    assert_eq!(artifacts::bytes(&daemon, id(&free)).unwrap(), b"a,b\n1,2\n");
    let part = ArtifactsDownloadRequest {
        artifact_id: id(&free).to_owned(),
        offset: 4,
        length: Some(3),
        ..ArtifactsDownloadRequest::default()
    };
    assert_eq!(artifacts::download(&daemon, part.clone()).unwrap(), b"1,2");
    let beyond = ArtifactsDownloadRequest { offset: 9, ..part };
    let refused = artifacts::download(&daemon, beyond).unwrap_err();
    assert_eq!(
        (refused.reason.as_str(), refused.offset),
        ("OFFSET_OUT_OF_RANGE", Some(8))
    );
    // Other bytes than those that were looked at are not approved.
    let looked_at = sha256(&artifacts::look(&daemon, id(&pending)).unwrap());
    let wrong = artifacts::approve(&daemon, id(&pending), &sha256(b"other")).unwrap_err();
    assert_eq!(
        (wrong.code, wrong.reason.as_str()),
        (Code::FailedPrecondition, "NOT_PENDING")
    );
    let none = artifacts::approve(&daemon, id(&pending), "").unwrap_err();
    assert_eq!(
        (none.reason.as_str(), &none.fields[..]),
        ("MISSING_VALUE", &["sha256".to_owned()][..])
    );
    let approved = artifacts::approve(&daemon, id(&pending), &looked_at).unwrap();
    assert_eq!(shown(&approved), (ReviewState::Approved, true));
    assert_eq!(approved.reviewer, "default/uid 0");
    assert!(approved.review_time.is_some());
    assert_eq!(artifacts::bytes(&daemon, id(&pending)).unwrap(), b"print(1)\n");
    let entries = reviews(&daemon);
    assert_eq!(entries.len(), 1);
    assert_eq!(
        (entries[0].artifact_id.as_str(), entries[0].review()),
        (id(&pending), ReviewState::Approved)
    );
    assert_eq!(
        (entries[0].user.as_str(), &entries[0].execution_id),
        ("uid 0", &pending.execution_id)
    );
}

#[test]
fn what_is_rejected_is_gone_and_the_decision_stays() {
    let daemon = daemon!();
    leave(&daemon);
    let pending = artifact(&daemon, "tool.py");
    let rejected = artifacts::reject(&daemon, id(&pending), "not asked for").unwrap();
    assert_eq!(shown(&rejected), (ReviewState::Rejected, false));
    assert_eq!(rejected.review_comment, "not asked for");
    assert_eq!(
        artifacts::look(&daemon, id(&pending)).unwrap_err().reason,
        "REVIEW_REFUSED"
    );
    let late = artifacts::approve(&daemon, id(&pending), &"0".repeat(64)).unwrap_err();
    assert_eq!(late.reason, "NOT_PENDING");
    let quarantine = daemon.directory().join("artifacts/quarantine").join(id(&pending));
    assert!(!quarantine.exists());
    assert_eq!(reviews(&daemon)[0].message, "not asked for");
    let verdict = daemon
        .ask(daemon.ledger().verify(LedgerVerifyRequest::default()))
        .unwrap();
    assert!(verdict.intact, "{verdict:?}");
}

#[test]
fn the_same_request_is_done_once_and_another_with_its_id_is_refused() {
    let daemon = daemon!();
    leave(&daemon);
    let pending = artifact(&daemon, "tool.py");
    let request = ArtifactsApproveRequest {
        request_id: "yes".to_owned(),
        artifact_id: id(&pending).to_owned(),
        sha256: pending.artifact.as_ref().unwrap().sha256.clone(),
        comment: String::new(),
    };
    let ask = |request: ArtifactsApproveRequest| daemon.ask(daemon.artifacts().approve(request));
    let first = ask(request.clone()).unwrap().artifact.unwrap();
    let again = ask(request.clone()).unwrap().artifact.unwrap();
    assert_eq!(shown(&first), shown(&again));
    let other = ArtifactsApproveRequest {
        comment: "another".to_owned(),
        ..request
    };
    assert_eq!(ask(other).unwrap_err().reason, "REQUEST_ID_REUSED");
    assert_eq!(reviews(&daemon).len(), 1);
}

#[test]
fn lists_find_by_filters_and_pages() {
    let daemon = daemon!();
    for _ in 0..3 {
        leave(&daemon);
    }
    let all = artifacts::list(&daemon, ArtifactsListRequest::default());
    assert_eq!(all.len(), 6);
    let count = |request: ArtifactsListRequest| artifacts::list(&daemon, request).len();
    let pending = ArtifactsListRequest {
        reviews: vec![ReviewState::Pending.into()],
        ..ArtifactsListRequest::default()
    };
    assert_eq!(count(pending.clone()), 3);
    let of_one = ArtifactsListRequest {
        execution_id: all[0].execution_id.clone(),
        ..ArtifactsListRequest::default()
    };
    assert_eq!(count(of_one), 2);
    let label = |value: &str| ArtifactsListRequest {
        labels: [("team".to_owned(), value.to_owned())].into(),
        ..ArtifactsListRequest::default()
    };
    assert_eq!((count(label("blue")), count(label("red"))), (6, 0));
    let (mut request, mut found) = (
        ArtifactsListRequest {
            page_size: 2,
            ..pending
        },
        Vec::new(),
    );
    loop {
        let page = daemon.ask(daemon.artifacts().list(request.clone())).unwrap();
        assert!(page.artifacts.len() <= 2);
        found.extend(page.artifacts.iter().map(|record| id(record).to_owned()));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let expected = all.iter().filter(|record| shown(record).0 == ReviewState::Pending);
    assert_eq!(found, expected.map(|record| id(record).to_owned()).collect::<Vec<_>>());
}

#[test]
fn who_watches_is_told_of_what_waits_and_of_what_becomes_of_it() {
    let daemon = daemon!();
    leave(&daemon);
    let request = ArtifactsWatchRequest {
        reviews: vec![ReviewState::Pending.into()],
        ..ArtifactsWatchRequest::default()
    };
    let mut stream = daemon.ask(daemon.artifacts().watch(request)).unwrap();
    let mut next = || daemon.wait(stream.message()).unwrap().unwrap().event.unwrap();
    let Event::Artifact(first) = next() else { panic!() };
    assert_eq!(first.artifact.as_ref().unwrap().path, "tool.py");
    assert!(matches!(next(), Event::Ready(_)));
    artifacts::reject(&daemon, id(&first), "").unwrap();
    let Event::Artifact(changed) = next() else { panic!() };
    assert_eq!(
        (id(&changed), shown(&changed)),
        (id(&first), (ReviewState::Rejected, false))
    );
    leave(&daemon);
    let Event::Artifact(second) = next() else { panic!() };
    assert_eq!(shown(&second), (ReviewState::Pending, true));
    assert_ne!(id(&second), id(&first));
}

#[test]
fn what_may_leave_is_kept_for_longer_where_that_is_asked_for() {
    let daemon = daemon!();
    leave(&daemon);
    let (free, pending) = (artifact(&daemon, "out.csv"), artifact(&daemon, "tool.py"));
    let save = |record: &ArtifactRecord, seconds: u64| {
        let request = ArtifactsSaveRequest {
            artifact_id: id(record).to_owned(),
            retention: Some(span(std::time::Duration::from_secs(seconds))),
            labels: [("kept".to_owned(), "yes".to_owned())].into(),
            ..ArtifactsSaveRequest::default()
        };
        daemon.ask(daemon.artifacts().save(request))
    };
    let saved = save(&free, 30 * 86_400).unwrap().artifact.unwrap();
    assert!(saved.expire_time.unwrap().seconds >= free.expire_time.unwrap().seconds);
    assert_eq!(
        (saved.labels["kept"].as_str(), saved.labels["team"].as_str()),
        ("yes", "blue")
    );
    assert_eq!(save(&free, 31 * 86_400).unwrap_err().fields, ["retention"]);
    assert_eq!(save(&pending, 60).unwrap_err().reason, "REVIEW_REQUIRED");
}

#[test]
fn nobody_elses_artifacts_are_there() {
    let daemon = daemon!();
    for unknown in ["a0", "no id", ""] {
        let request = ArtifactsGetRequest {
            artifact_id: unknown.to_owned(),
        };
        let refused = daemon.ask(daemon.artifacts().get(request)).unwrap_err();
        assert_eq!(refused.reason, "ARTIFACT_NOT_FOUND", "{unknown:?}");
    }
}

#[test]
fn all_of_it_outlives_the_daemon_and_the_session() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    services.create(SessionsCreateRequest {
        session_id: "mine".to_owned(),
        template: "base".to_owned(),
        ..SessionsCreateRequest::default()
    });
    let script = "printf 'print(1)\\n' > tool.py; printf 'a\\n' > out.csv";
    let spec = brig_tests::spec::command(&["sh", "-c", script]);
    services.execute("mine", spec).unwrap().finish().expect_success();
    let pending = artifact(&services, "tool.py");
    services.kill(Service::Daemon);
    services.launch(Service::Daemon);
    services.close("mine");
    assert_eq!(artifacts::look(&services, id(&pending)).unwrap(), b"print(1)\n");
    let sha256 = pending.artifact.as_ref().unwrap().sha256.clone();
    artifacts::approve(&services, id(&pending), &sha256).unwrap();
    // It is in the store before long, and there alone.
    let quarantine = services.directory().join("state/artifacts/quarantine");
    eventually("the quarantine is empty", *DEADLINE, || {
        match std::fs::read_dir(&quarantine).unwrap().count() {
            0 => Ok(()),
            left => Err(left),
        }
    });
    services.kill(Service::Daemon);
    services.launch(Service::Daemon);
    assert_eq!(artifacts::bytes(&services, id(&pending)).unwrap(), b"print(1)\n");
    let free = artifact(&services, "out.csv");
    assert_eq!(artifacts::bytes(&services, id(&free)).unwrap(), b"a\n");
}
