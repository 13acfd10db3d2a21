//! One-shot executions.

use std::time::Duration;

use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::{
    CauseKind, ExecutionSpec, ExecutionState, ExecutionStatus as Status, ExecutionsApproveRequest,
    ExecutionsListRequest, Limits,
};
use brig_tests::spec::{input, sh, small, span, with_limits};
use brig_tests::{Daemon, Refused};

use crate::{asking, daemon, script};

fn listed(daemon: &Daemon) -> Vec<brig_proto::v1::Execution> {
    let request = ExecutionsListRequest {
        states: vec![ExecutionState::PendingApproval.into()],
        ..ExecutionsListRequest::default()
    };
    daemon.ask(daemon.client().list(request)).unwrap().executions
}

fn approve(daemon: &Daemon, execution: &str, work_sha256: &str) -> Result<(), Refused> {
    let request = ExecutionsApproveRequest {
        execution_id: execution.to_owned(),
        work_sha256: work_sha256.to_owned(),
        comment: "only counts".to_owned(),
        ..ExecutionsApproveRequest::default()
    };
    daemon.ask(daemon.client().approve(request)).map(|_| ())
}

#[test]
fn a_reviewer_sees_code_inputs_and_policy_before_anything_is_made_and_then_it_runs() {
    let Some((daemon, _policies)) = daemon("") else { return };
    let source = "print(len(open('sales.csv').readlines()))";
    let spec = asking(
        "e1",
        ExecutionSpec {
            inputs: vec![input("sales.csv", b"a\n1\n2\n")],
            environment: [("TZ".to_owned(), "UTC".to_owned())].into(),
            ..small(source)
        },
    );
    let mut live = daemon.begin(spec);
    live.until_pending();
    let shown = daemon.execution("e1");
    assert_eq!(shown.state(), ExecutionState::PendingApproval);
    let spec = shown.spec.as_ref().unwrap();
    assert!(
        matches!(&spec.work, Some(Work::Code(code)) if code.source == source),
        "{spec:?}"
    );
    assert_eq!(spec.environment["TZ"], "");
    assert!(shown.policy.starts_with("asking@"), "{}", shown.policy);
    let file = &shown.inputs[0];
    assert_eq!(
        (file.name.as_str(), file.size_bytes, file.sha256.len()),
        ("sales.csv", 6, 64)
    );
    let left = shown.approval_expire_time.unwrap().seconds - shown.create_time.unwrap().seconds;
    assert!((86_399..=86_400).contains(&left), "{left}");
    assert_eq!(
        (shown.reviewer.as_str(), shown.pid, &shown.start_time),
        ("", None, &None)
    );
    // There is no jail for it, and it takes no place.
    let load = daemon.host().load.unwrap();
    assert_eq!((load.sessions, load.running, load.queued), (0, 0, 0));
    let list = listed(&daemon);
    assert_eq!((list.len(), list[0].execution_id.as_str()), (1, "e1"));
    let refused = approve(&daemon, "e1", &"0".repeat(64)).unwrap_err();
    assert_eq!(refused.reason, "NOT_PENDING");
    let refused = approve(&daemon, "e1", "").unwrap_err();
    assert_eq!(
        (refused.reason.as_str(), refused.fields),
        ("MISSING_VALUE", vec!["work_sha256".to_owned()])
    );
    approve(&daemon, "e1", &shown.work_sha256).unwrap();
    assert_eq!(live.finish().expect_success().stdout(), "3\n");
    let shown = daemon.execution("e1");
    assert_eq!(
        (shown.reviewer.as_str(), shown.review_comment.as_str()),
        ("default/uid 0", "only counts")
    );
    assert!(listed(&daemon).is_empty());
}

#[test]
fn what_waits_for_approval_is_in_nobodys_way() {
    let Some((daemon, _policies)) = daemon("[limits]\nrunning = 1\nqueue = 1\n") else {
        return;
    };
    let mut waiting = [
        daemon.begin(script("e1", "echo one")),
        daemon.begin(script("e2", "echo two")),
    ];
    waiting.iter_mut().for_each(brig_tests::Live::until_pending);
    assert_eq!(daemon.stdout(sh("echo other")), "other\n");
    let [one, two] = waiting;
    // The order is that of the decisions.
    daemon.approve("e2").unwrap();
    assert_eq!(two.finish().expect_success().stdout(), "two\n");
    daemon.approve("e1").unwrap();
    assert_eq!(one.finish().expect_success().stdout(), "one\n");
}

#[test]
fn an_approved_execution_is_not_refused_for_want_of_room_in_the_queue() {
    let Some((daemon, _policies)) = daemon("[limits]\nrunning = 1\nqueue = 1\n") else {
        return;
    };
    let mut first = daemon.begin(ExecutionSpec {
        execution_id: "first".to_owned(),
        ..sh("echo up; sleep 60")
    });
    first.until_written("up\n");
    let mut asked = daemon.begin(script("e1", "echo ran"));
    asked.until_pending();
    let queued = daemon.begin(sh("echo queued"));
    assert_eq!(daemon.approve("e1").unwrap().state(), ExecutionState::Queued);
    daemon.cancel("first");
    first.finish();
    queued.finish().expect_success();
    assert_eq!(asked.finish().expect_success().stdout(), "ran\n");
}

#[test]
fn the_wait_for_a_reviewer_is_no_time_of_the_start_or_of_the_code() {
    let Some((daemon, _policies)) = daemon("") else { return };
    let time = |seconds| Some(span(Duration::from_secs(seconds) * brig_tests::slow()));
    let limits = Limits {
        start_timeout: time(2),
        timeout: time(2),
        ..Limits::default()
    };
    let mut live = daemon.begin(with_limits(limits, script("e1", "echo ran")));
    live.until_pending();
    // Longer than both together.
    let nap = 5 * brig_tests::slow();
    daemon.run(sh(&format!("sleep {nap}"))).expect_success();
    daemon.approve("e1").unwrap();
    let outcome = live.finish().expect_success();
    let queued = outcome.result.timing.as_ref().unwrap().queued.unwrap();
    assert!(queued.seconds < i64::from(nap), "{queued:?}");
}

#[test]
fn who_asked_is_told_why_it_was_rejected_and_what_to_do() {
    let Some((daemon, _policies)) = daemon("") else { return };
    let mut live = daemon.begin(script("e1", "echo ran"));
    live.until_pending();
    let rejected = daemon.reject("e1", "it writes to /tmp").unwrap();
    assert_eq!(rejected.state(), ExecutionState::Finished);
    assert_eq!(
        (rejected.reviewer.as_str(), rejected.review_comment.as_str()),
        ("default/uid 0", "it writes to /tmp")
    );
    let outcome = live.finish();
    assert_eq!(outcome.end(), (Status::Rejected, Some(CauseKind::Rejected)));
    assert_eq!(outcome.order(), ["accepted", "finished"]);
    let (cause, hint) = (
        outcome.result.cause.clone().unwrap(),
        outcome.result.hint.clone().unwrap(),
    );
    assert_eq!(cause.message, "a reviewer rejected it: it writes to /tmp");
    assert!(hint.ends_with("They said: it writes to /tmp"), "{hint}");
    let refused = daemon.reject("e1", "again").unwrap_err();
    assert_eq!(refused.reason, "NOT_PENDING");
    assert!(refused.message.contains("was rejected before"), "{}", refused.message);
}

#[test]
fn nothing_that_needs_no_approval_can_be_decided_about() {
    let Some((daemon, _policies)) = daemon("") else { return };
    daemon.run(ExecutionSpec {
        execution_id: "e1".to_owned(),
        ..sh("true")
    });
    let refused = daemon.approve("e1").unwrap_err();
    assert_eq!(refused.reason, "NOT_PENDING");
    assert!(refused.message.contains("needs no approval"), "{}", refused.message);
    assert_eq!(daemon.reject("nosuch", "").unwrap_err().reason, "EXECUTION_NOT_FOUND");
}

#[test]
fn of_many_decisions_at_one_time_one_counts() {
    let Some((daemon, _policies)) = daemon("") else { return };
    for round in 0..4 {
        let name = format!("e{round}");
        let mut live = daemon.begin(script(&name, "echo ran"));
        live.until_pending();
        let decide = |approves: bool| {
            if approves {
                daemon.approve(&name).map(|_| true)
            } else {
                daemon.reject(&name, "").map(|_| false)
            }
        };
        let decisions: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|place| scope.spawn(move || decide(place % 2 == 0)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let counted: Vec<bool> = decisions.iter().flatten().copied().collect();
        assert_eq!(counted.len(), 1, "{decisions:?}");
        let status = live.finish().result.status();
        assert_eq!(status == Status::Success, counted[0], "{status:?}");
    }
}
