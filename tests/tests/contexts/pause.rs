//! Contexts of a paused session.

use std::time::Duration;

use brig_proto::v1::{
    CauseKind, ContextsCreateRequest, ExecutionSpec, ExecutionStatus, Limits, SessionsGetRequest, SessionsPauseRequest,
    SessionsResumeRequest,
};
use brig_tests::spec::{code, command, span};
use brig_tests::{DEADLINE, Daemon, daemon, eventually, slow};

use super::{Kept, MINE};

fn pause(daemon: &Daemon) {
    let request = SessionsPauseRequest {
        session_id: MINE.to_owned(),
        ..SessionsPauseRequest::default()
    };
    daemon.ask(daemon.sessions().pause(request)).unwrap();
}

fn resume(daemon: &Daemon) {
    let request = SessionsResumeRequest {
        session_id: MINE.to_owned(),
        ..SessionsResumeRequest::default()
    };
    daemon.ask(daemon.sessions().resume(request)).unwrap();
}

#[test]
fn state_and_limits_of_a_context_stand_still_in_a_pause() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    kept.run("x = 41").expect_success();
    let limit = Duration::from_secs(3) * slow();
    let limits = Limits {
        timeout: Some(span(limit)),
        idle_time: Some(span(limit)),
        ..Limits::default()
    };
    let source = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nx += 1";
    let spec = ExecutionSpec {
        limits: Some(limits),
        ..code(source)
    };
    let mut waiting = kept.begin(MINE, spec);
    waiting.until_written("up");
    let behind = kept.begin(MINE, code("print(x)"));
    pause(&daemon);
    let refused = daemon.execute_in(MINE, MINE, code("print(x)")).err().unwrap();
    assert_eq!(refused.reason, "SESSION_PAUSED");
    let another = ContextsCreateRequest {
        session_id: MINE.to_owned(),
        ..ContextsCreateRequest::default()
    };
    assert_eq!(daemon.context(another).unwrap_err().reason, "SESSION_PAUSED");
    std::thread::sleep(limit + Duration::from_secs(1));
    resume(&daemon);
    daemon
        .execute(MINE, command(&["touch", "go"]))
        .unwrap()
        .finish()
        .expect_success();
    let outcome = waiting.finish().expect_success();
    let took = Duration::try_from(outcome.result.duration.unwrap()).unwrap();
    assert!(took < limit, "{took:?}");
    assert!(outcome.result.session.unwrap().left.is_some());
    assert_eq!(behind.finish().expect_success().stdout(), "42\n");
}

#[test]
fn code_of_a_context_can_be_cancelled_in_a_pause_and_the_next_comes_after_it() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    let mut running = kept.begin_as("running", "import time\nprint('up', flush=True)\ntime.sleep(60)");
    running.until_written("up");
    let behind = kept.begin(MINE, code("print('next')"));
    pause(&daemon);
    daemon.cancel("running");
    assert_eq!(
        running.finish().end(),
        (ExecutionStatus::Cancelled, Some(CauseKind::Cancel))
    );
    let request = SessionsGetRequest {
        session_id: MINE.to_owned(),
    };
    let usage = || {
        let shown = daemon.ask(daemon.sessions().get(request.clone())).unwrap();
        shown.session.unwrap().usage.unwrap()
    };
    // The session is let go of behind the end that was told.
    eventually("one of them waits", *DEADLINE, || match usage() {
        usage if (usage.contexts, usage.executions) == (1, 1) => Ok(()),
        usage => Err(usage),
    });
    resume(&daemon);
    assert_eq!(behind.finish().expect_success().stdout(), "next\n");
}
