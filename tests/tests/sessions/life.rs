//! What a session keeps from one execution to the next, and how it ends.

use std::time::Duration;

use brig_proto::v1::{
    ArtifactChange, CauseKind, ExecutionStatus, SessionCloseReason, SessionState, SessionsCreateRequest,
};
use brig_tests::spec::{code, command, input, span};
use brig_tests::{daemon, slow};

use super::{Kept, named};
use brig_proto::v1::ExecutionSpec;

fn artifacts(outcome: &brig_tests::Outcome) -> Vec<(String, ArtifactChange)> {
    let artifacts = outcome.result.artifacts.iter();
    artifacts
        .map(|artifact| (artifact.path.clone(), artifact.change()))
        .collect()
}

#[test]
fn files_stay_and_interpreters_do_not_and_each_execution_tells_what_it_changed() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    let session = kept.create(named("mine"));
    assert_eq!((session.state(), session.has_state), (SessionState::Running, false));
    let put = ExecutionSpec {
        inputs: vec![input("given.txt", b"1")],
        ..code("x = 1\nopen('first.txt', 'w').write('a')\nopen('both.txt', 'w').write('a')")
    };
    let first = kept.execute("mine", "first", put).expect_success();
    let created = |path: &str| (path.to_owned(), ArtifactChange::Created);
    assert_eq!(artifacts(&first), [created("both.txt"), created("first.txt")]);
    let next = "print(open('first.txt').read(), 'x' in globals())\nopen('both.txt', 'a').write('b')\n\
                open('second.txt', 'w').write('b')";
    let again = ExecutionSpec {
        inputs: vec![input("given.txt", b"2")],
        ..code(next)
    };
    let second = kept.execute("mine", "second", again).expect_success();
    assert_eq!(second.stdout(), "a False\n");
    let modified = ("both.txt".to_owned(), ArtifactChange::Modified);
    assert_eq!(artifacts(&second), [modified, created("second.txt")]);
    let third = kept.execute("mine", "third", command(&["cat", "both.txt", "given.txt"]));
    assert_eq!((third.stdout().as_str(), artifacts(&third)), ("ab2", Vec::new()));
    let summary = third.result.session.clone().unwrap();
    assert!(summary.kept && summary.has_state);
    assert_eq!(kept.close("mine").close_reason(), SessionCloseReason::Asked);
    assert_eq!(daemon.log().matches("WARN").count(), 0, "{}", daemon.log());
}

#[test]
fn commands_run_side_by_side_and_see_each_other() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(named("mine"));
    let wait = command(&[
        "sh",
        "-c",
        "echo waiting; while [ ! -e go ]; do sleep 0.02; done; cat go",
    ]);
    let mut waiting = kept.begin("mine", "waiting", wait);
    waiting.live.until_written("waiting");
    kept.execute("mine", "going", command(&["sh", "-c", "echo now > next; mv next go"]))
        .expect_success();
    let outcome = waiting.live.finish().expect_success();
    assert_eq!(outcome.stdout(), "waiting\nnow\n");
}

#[test]
fn a_session_that_nobody_uses_is_closed_and_one_that_is_used_is_not() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    let idle = |id: &str| SessionsCreateRequest {
        idle_timeout: Some(span(Duration::from_secs(2) * slow())),
        ..named(id)
    };
    kept.create(idle("used"));
    let running = kept.begin("used", "running", command(&["sleep", &(5 * slow()).to_string()]));
    kept.create(idle("idle"));
    assert_eq!(kept.closed("idle").close_reason(), SessionCloseReason::Idle);
    running.live.finish().expect_success();
    assert_eq!(kept.closed("used").close_reason(), SessionCloseReason::Idle);
}

#[test]
fn a_session_that_is_too_old_ends_with_what_runs_in_it() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(SessionsCreateRequest {
        max_age: Some(span(Duration::from_secs(4) * slow())),
        ..named("mine")
    });
    let outcome = kept.execute("mine", "running", command(&["sh", "-c", "echo here; exec sleep 600"]));
    assert_eq!(outcome.end(), (ExecutionStatus::Timeout, Some(CauseKind::SessionAge)));
    assert_eq!(outcome.stdout(), "here\n");
    assert_eq!(kept.closed("mine").close_reason(), SessionCloseReason::Expired);
}

#[test]
fn the_same_request_makes_one_session_and_one_execution() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    let request = SessionsCreateRequest {
        request_id: "made".to_owned(),
        template: "base".to_owned(),
        ..SessionsCreateRequest::default()
    };
    let first = kept.create(request.clone());
    assert_eq!(kept.create(request).session_id, first.session_id);
    let spec = ExecutionSpec {
        request_id: "ran".to_owned(),
        ..command(&["sh", "-c", "echo x >> count; cat count"])
    };
    for _ in 0..2 {
        let outcome = kept.execute(&first.session_id, "once", spec.clone());
        assert_eq!(outcome.stdout(), "x\n");
    }
}
