//! Executions in kept sessions and in contexts.

use brig_proto::v1::{
    ContextsCreateRequest, ExecutionSpec, ExecutionState, FilesListRequest, OnDisconnect, SessionState,
    SessionsCreateRequest,
};
use brig_tests::spec::{code, command, input, span};
use brig_tests::{Daemon, Live, eventually};

use crate::{ASKING, daemon};

fn session(daemon: &Daemon, idle_ms: Option<u64>) {
    daemon.create(SessionsCreateRequest {
        session_id: "s1".to_owned(),
        policy: ASKING.to_owned(),
        template: "base".to_owned(),
        idle_timeout: idle_ms.map(|millis| span(std::time::Duration::from_millis(millis) * brig_tests::slow())),
        ..SessionsCreateRequest::default()
    });
}

fn begin(daemon: &Daemon, name: &str, context: &str, spec: ExecutionSpec) -> Live {
    let spec = ExecutionSpec {
        execution_id: name.to_owned(),
        ..spec
    };
    let mut live = if context.is_empty() {
        daemon.execute("s1", spec).unwrap()
    } else {
        daemon.execute_in("s1", context, spec).unwrap()
    };
    live.until_pending();
    live
}

fn paths(daemon: &Daemon) -> Vec<String> {
    let request = FilesListRequest {
        session_id: "s1".to_owned(),
        ..FilesListRequest::default()
    };
    let list = daemon.ask(daemon.files().list(request)).unwrap();
    list.files.into_iter().map(|file| file.path).collect()
}

#[test]
fn inputs_are_put_only_when_it_is_approved() {
    let Some((daemon, _policies)) = daemon("") else { return };
    session(&daemon, None);
    let spec = || ExecutionSpec {
        inputs: vec![input("given.txt", b"given\n")],
        ..command(&["cat", "given.txt"])
    };
    let rejected = begin(&daemon, "e1", "", spec());
    assert!(paths(&daemon).is_empty());
    daemon.reject("e1", "").unwrap();
    rejected.finish();
    assert!(paths(&daemon).is_empty(), "nothing of what was rejected came in");
    let approved = begin(&daemon, "e2", "", spec());
    assert!(paths(&daemon).is_empty());
    daemon.approve("e2").unwrap();
    assert_eq!(approved.finish().expect_success().stdout(), "given\n");
    assert!(paths(&daemon).iter().any(|path| path.ends_with("given.txt")));
}

#[test]
fn a_context_runs_what_is_approved_in_the_order_of_the_approvals() {
    let Some((daemon, _policies)) = daemon("") else { return };
    session(&daemon, None);
    let request = ContextsCreateRequest {
        session_id: "s1".to_owned(),
        context_id: "main".to_owned(),
        language: "python".to_owned(),
        ..ContextsCreateRequest::default()
    };
    daemon.context(request).unwrap();
    let first = begin(&daemon, "e1", "main", code("seen.append('first'); print(seen)"));
    let second = begin(&daemon, "e2", "main", code("seen = ['second']"));
    assert_eq!(daemon.execution("e1").state(), ExecutionState::PendingApproval);
    daemon.approve("e2").unwrap();
    second.finish().expect_success();
    daemon.approve("e1").unwrap();
    assert_eq!(first.finish().expect_success().stdout(), "['second', 'first']\n");
}

#[test]
fn a_session_is_not_idle_while_something_in_it_waits() {
    let Some((daemon, _policies)) = daemon("") else { return };
    session(&daemon, Some(2000));
    let live = begin(&daemon, "e1", "", command(&["true"]));
    let nap = 4 * brig_tests::slow();
    daemon
        .run(brig_tests::spec::sh(&format!("sleep {nap}")))
        .expect_success();
    assert_eq!(daemon.session("s1").state(), SessionState::Running);
    daemon.approve("e1").unwrap();
    live.finish().expect_success();
    eventually(
        "the session is closed",
        std::time::Duration::from_secs(20) * brig_tests::slow(),
        || match daemon.session("s1").state() {
            SessionState::Closed => Ok(()),
            state => Err(state),
        },
    );
}

#[test]
fn what_goes_on_without_its_caller_waits_on_without_it() {
    let Some((daemon, _policies)) = daemon("") else { return };
    session(&daemon, None);
    let spec = ExecutionSpec {
        on_disconnect: OnDisconnect::Continue.into(),
        ..command(&["echo", "ran"])
    };
    drop(begin(&daemon, "e1", "", spec));
    assert_eq!(daemon.execution("e1").state(), ExecutionState::PendingApproval);
    daemon.approve("e1").unwrap();
    let outcome = daemon.attach("e1", 0).unwrap().finish();
    assert_eq!(outcome.expect_success().stdout(), "ran\n");
}
