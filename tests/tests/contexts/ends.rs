//! Interrupts, limits, deaths, resets: who is hit, and what is left.

use std::time::Duration;

use brig_proto::v1::{
    CauseKind, ContextState, ContextsCreateRequest, ExecutionSpec, ExecutionStatus, Limits, NoticeKind,
    SessionsCreateRequest,
};
use brig_tests::policies::Policies;
use brig_tests::spec::{code, span, timeout};
use brig_tests::{DEADLINE, Daemon, Outcome, daemon, eventually, slow};

use super::{Kept, MINE, has_state};

/// The state is gone, the answer says so, and the context takes work.
fn replaced(kept: &Kept<'_>, outcome: &Outcome) {
    assert!(!has_state(outcome));
    assert_eq!(
        outcome.notices(NoticeKind::ContextReplaced).len(),
        1,
        "{:?}",
        outcome.order()
    );
    assert_eq!(kept.stdout("print('x' in globals())"), "False\n");
}

#[test]
fn an_interrupt_hits_the_execution_that_it_names_and_its_state_stays() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    let mut first = kept.begin_as("first", "x = 1\nimport time\nprint('going')\ntime.sleep(60)");
    first.until_written("going");
    let second = kept.begin_as("second", "print(x)\nx = 2");
    daemon.interrupt("first");
    let first = first.finish();
    assert_eq!(first.end(), (ExecutionStatus::Error, Some(CauseKind::Interrupt)));
    assert_eq!(first.result.error.as_ref().unwrap().name, "KeyboardInterrupt");
    assert!(has_state(&first));
    assert_eq!(second.finish().expect_success().stdout(), "1\n");
    assert_eq!(kept.stdout("print(x)"), "2\n");
}

#[test]
fn code_that_goes_on_after_an_interrupt_loses_its_interpreter() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    // Whoever reads it can be faster than the interpreter is at its next line.
    let stubborn = "import time\nx = 1\nwhile True:\n    try:\n        print('going')\n        time.sleep(60)\n    \
                    except KeyboardInterrupt:\n        pass";
    let mut live = kept.begin_as("first", stubborn);
    live.until_written("going");
    daemon.interrupt("first");
    let outcome = live.finish();
    assert_eq!(outcome.end(), (ExecutionStatus::Error, Some(CauseKind::Interrupt)));
    replaced(&kept, &outcome);
    assert_eq!(kept.shown().generation, 2);
}

#[test]
fn cancelling_what_runs_asks_it_to_stop_and_keeps_the_state() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    let mut live = kept.begin_as("first", "x = 1\nimport time\nprint('going')\ntime.sleep(60)");
    live.until_written("going");
    daemon.cancel("first");
    let outcome = live.finish();
    assert_eq!(outcome.end(), (ExecutionStatus::Cancelled, Some(CauseKind::Cancel)));
    assert!(has_state(&outcome));
    assert_eq!(kept.stdout("print(x)"), "1\n");
}

#[test]
fn limits_of_time_are_each_executions_own_and_cost_the_state() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    kept.stdout("import time\nx = 1");
    let long = ExecutionSpec {
        limits: timeout(2000 * u64::from(slow())),
        ..code("print('going')\ntime.sleep(60)")
    };
    let outcome = kept.begin(MINE, long).finish();
    assert_eq!(outcome.end(), (ExecutionStatus::Timeout, Some(CauseKind::WallTime)));
    assert_eq!(outcome.stdout(), "going\n");
    replaced(&kept, &outcome);
    let silent = ExecutionSpec {
        limits: Some(Limits {
            idle_time: Some(span(Duration::from_millis(500))),
            ..Limits::default()
        }),
        ..code("import time\ntime.sleep(60)")
    };
    let outcome = kept.begin(MINE, silent).finish();
    assert_eq!(outcome.end(), (ExecutionStatus::Timeout, Some(CauseKind::IdleTime)));
    replaced(&kept, &outcome);
}

#[test]
fn an_interpreter_that_dies_is_told_with_its_cause_and_comes_back_clean() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    let segfault =
        kept.run("x = 1\nimport os, signal\nprint('here', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)");
    assert_eq!(segfault.end(), (ExecutionStatus::Killed, Some(CauseKind::Signal)));
    assert_eq!(
        (segfault.result.signal, segfault.stdout().as_str()),
        (Some(11), "here\n")
    );
    replaced(&kept, &segfault);
    let left = kept.run("x = 1\nimport os\nos._exit(3)");
    assert_eq!(
        (left.status(), left.result.exit_code),
        (ExecutionStatus::Error, Some(3))
    );
    replaced(&kept, &left);
    let greedy = kept.run("x = 1\nb = []\nwhile True: b.append(bytearray(b'1' * (64 << 20)))");
    assert_eq!(
        greedy.end(),
        (ExecutionStatus::OutOfMemory, Some(CauseKind::Memory)),
        "{:?}",
        greedy.result
    );
    replaced(&kept, &greedy);
    kept.stdout(
        "import os, threading, time\nopen('stay', 'w').close()\ndef end():\n    \
         while os.path.exists('stay'): time.sleep(0.01)\n    os._exit(4)\nthreading.Thread(target=end).start()",
    );
    kept.shell("rm stay");
    eventually("another one is there", *DEADLINE, || match kept.shown().generation {
        4 => Err(4),
        _ => Ok(()),
    });
    let next = kept.run("print('threading' in globals())").expect_success();
    assert_eq!(next.stdout(), "False\n");
    let [notice] = next.notices(NoticeKind::ContextReplaced)[..] else {
        panic!("{:?}", next.order())
    };
    assert!(notice.contains("exit code 4"), "{notice}");
}

#[test]
fn a_reset_gives_a_new_interpreter_and_a_close_ends_it() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    let mut live = kept.begin_as("first", "x = 1\nimport time\nprint('going')\ntime.sleep(60)");
    live.until_written("going");
    let waiting = kept.begin_as("second", "print(x)");
    let context = daemon.reset(MINE, MINE).unwrap();
    assert_eq!((context.generation, context.state()), (2, ContextState::Idle));
    assert_eq!(live.finish().status(), ExecutionStatus::Cancelled);
    assert_eq!(waiting.finish().status(), ExecutionStatus::Cancelled);
    assert_eq!(kept.stdout("print('x' in globals())"), "False\n");
    daemon.close_context(MINE, MINE);
    daemon.close_context(MINE, MINE);
    assert_eq!(kept.shown().state(), ContextState::Closed);
    let refused = daemon.execute_in(MINE, MINE, code("1")).unwrap_err();
    assert_eq!(refused.reason, "CONTEXT_NOT_FOUND");
    let taken = brig_proto::v1::ContextsCreateRequest {
        session_id: MINE.to_owned(),
        context_id: MINE.to_owned(),
        ..Default::default()
    };
    assert_eq!(daemon.context(taken).unwrap_err().reason, "ID_TAKEN");
}

#[test]
fn the_limit_of_an_execution_does_not_bound_the_start() {
    let daemon = daemon!();
    daemon.create(SessionsCreateRequest {
        session_id: MINE.to_owned(),
        template: "base".to_owned(),
        limits: Some(Limits {
            // No interpreter starts in that.
            timeout: Some(span(Duration::from_millis(20))),
            start_timeout: Some(span(Duration::from_secs(10) * slow())),
            ..Limits::default()
        }),
        ..SessionsCreateRequest::default()
    });
    let kept = Kept { daemon: &daemon };
    assert_eq!(kept.context(MINE, "python").state(), ContextState::Idle);
    let outcome = kept.run("while True: pass");
    assert_eq!(outcome.end(), (ExecutionStatus::Timeout, Some(CauseKind::WallTime)));
}

#[test]
fn an_interpreter_that_nobody_uses_has_no_limit_of_time() {
    let short = [("timeout = { default = \"30s\", max = \"300s\" }", "timeout = \"1s\"")];
    let Some(policies) = Policies::with(&[]).map(|policies| policies.and("short", &short)) else {
        return;
    };
    let daemon = Daemon::start_with(policies.path()).unwrap();
    daemon.create(SessionsCreateRequest {
        session_id: MINE.to_owned(),
        policy: "short".to_owned(),
        template: "base".to_owned(),
        ..SessionsCreateRequest::default()
    });
    let kept = Kept { daemon: &daemon };
    // One second is the time of an execution, and the most that anybody may ask for.
    let request = ContextsCreateRequest {
        session_id: MINE.to_owned(),
        context_id: MINE.to_owned(),
        language: "bash".to_owned(),
        ..ContextsCreateRequest::default()
    };
    daemon.context(request).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let outcome = kept.run("echo 1").expect_success();
    assert_eq!(outcome.notices(NoticeKind::ContextReplaced).len(), 0);
    assert_eq!((outcome.stdout().as_str(), kept.shown().generation), ("1\n", 1));
}
