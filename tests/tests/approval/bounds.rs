//! How much may wait.

use brig_proto::v1::{ExecutionSpec, ExecutionsApproveRequest};
use brig_tests::Live;
use brig_tests::spec::{input, record, sh};

use crate::{asking, daemon, script};

#[test]
fn so_many_executions_of_a_tenant_wait_and_no_more() {
    let Some((daemon, _policies)) = daemon("[limits]\npending = 2\n") else {
        return;
    };
    let mut waiting = [daemon.begin(script("e1", "true")), daemon.begin(script("e2", "true"))];
    waiting.iter_mut().for_each(Live::until_pending);
    let refused = daemon.refused(script("e3", "true"));
    assert_eq!(refused.reason, "QUEUE_FULL");
    assert!(
        refused.message.contains("2 executions of the tenant wait for approval"),
        "{}",
        refused.message
    );
    // Each decision makes room, once the execution has it.
    daemon.reject("e1", "").unwrap();
    let [one, two] = waiting;
    one.finish();
    let mut next = daemon.begin(script("e3", "true"));
    next.until_pending();
    daemon.approve("e2").unwrap();
    two.finish().expect_success();
    daemon.cancel("e3");
    next.finish();
}

#[test]
fn what_came_with_them_takes_up_so_much_and_no_more() {
    let Some((daemon, _policies)) = daemon("[limits]\npending_bytes = 1000\n") else {
        return;
    };
    let with = |name: &str, bytes: usize| {
        let spec = ExecutionSpec {
            inputs: vec![input("f", &vec![b'x'; bytes])],
            ..sh("wc -c f")
        };
        asking(name, spec)
    };
    let mut first = daemon.begin(with("e1", 600));
    first.until_pending();
    let refused = daemon.refused(with("e2", 600));
    assert_eq!(refused.reason, "STORAGE_QUOTA");
    assert!(refused.message.starts_with("inputs: "), "{}", refused.message);
    let files = tempfile::tempdir().unwrap();
    let large = files.path().join("large");
    std::fs::write(&large, vec![b'x'; 5000]).unwrap();
    daemon
        .brig(&["input", "put", "-q", "--id", "large", large.to_str().unwrap()])
        .expect(0);
    let spec = ExecutionSpec {
        inputs: vec![record("f", "large")],
        ..sh("wc -c f")
    };
    let mut second = daemon.begin(asking("e2", spec));
    second.until_pending();
    daemon.approve("e2").unwrap();
    assert_eq!(second.finish().expect_success().stdout(), "5000 f\n");
    daemon.cancel("e1");
    first.finish();
}

#[test]
fn a_record_that_is_gone_when_it_is_approved_is_told_by_name() {
    let Some((daemon, _policies)) = daemon("") else { return };
    let files = tempfile::tempdir().unwrap();
    let file = files.path().join("file");
    std::fs::write(&file, "x").unwrap();
    daemon
        .brig(&["input", "put", "-q", "--id", "gone", file.to_str().unwrap()])
        .expect(0);
    let spec = ExecutionSpec {
        inputs: vec![record("f", "gone")],
        ..sh("cat f")
    };
    let mut live = daemon.begin(asking("e1", spec));
    live.until_pending();
    daemon.brig(&["input", "remove", "gone"]).expect(0);
    daemon.approve("e1").unwrap();
    assert_eq!(live.refusal().unwrap().reason, "INPUT_NOT_FOUND");
}

#[test]
fn a_decision_that_is_repeated_is_made_once_and_long_comments_are_refused() {
    let Some((daemon, _policies)) = daemon("") else { return };
    let mut live = daemon.begin(script("e1", "true"));
    live.until_pending();
    let work_sha256 = daemon.execution("e1").work_sha256;
    let request = |comment: String| ExecutionsApproveRequest {
        request_id: "decide".to_owned(),
        execution_id: "e1".to_owned(),
        work_sha256: work_sha256.clone(),
        comment,
    };
    let ask = |comment: String| daemon.ask(daemon.client().approve(request(comment)));
    let refused = ask("x".repeat(1025)).unwrap_err();
    assert_eq!(
        (refused.reason.as_str(), refused.fields),
        ("TOO_LARGE", vec!["comment".to_owned()])
    );
    for _ in 0..3 {
        ask("fine".to_owned()).unwrap();
    }
    assert_eq!(ask("other".to_owned()).unwrap_err().reason, "REQUEST_ID_REUSED");
    live.finish().expect_success();
}
