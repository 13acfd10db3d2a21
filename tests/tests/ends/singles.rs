//! Ends that need a daemon, or a death, of their own.

use std::time::{Duration, Instant};

use brig_proto::v1::{
    CauseKind, ExecutionSpec, ExecutionState, ExecutionStatus as Status, Limits, SessionCloseReason, SessionState,
    SessionsCreateRequest,
};
use brig_tests::processes::{named, of_sessions};
use brig_tests::spec::{code, command, sh, span, timeout};
use brig_tests::{Daemon, Live, daemon, eventually, slow};
use rustix::process::{Pid, Signal, kill_process};
use tonic::Code;

/// What is provoked here.
pub(crate) const ENDS: [(Status, Option<CauseKind>); 3] = [
    (Status::Lost, Some(CauseKind::Internal)),
    (Status::Failed, Some(CauseKind::Internal)),
    (Status::Cancelled, Some(CauseKind::Cancel)),
];

const ONE_PLACE: &str = "[limits]\nrunning = 1\n";

fn named_run(daemon: &Daemon, name: &str, spec: ExecutionSpec) -> Live {
    daemon.begin(ExecutionSpec {
        execution_id: name.to_owned(),
        session_id: format!("s{name}"),
        ..spec
    })
}

/// A daemon whose only place is taken.
fn occupied() -> Option<(Daemon, Live)> {
    let daemon = Daemon::start_configured(ONE_PLACE)?;
    let mut first = named_run(&daemon, "first", sh("echo up; sleep 60"));
    first.until_written("up\n");
    Some((daemon, first))
}

#[test]
fn what_is_cancelled_while_it_waits_never_ran() {
    let Some((daemon, first)) = occupied() else { return };
    let queued = named_run(&daemon, "queued", sh("echo ran"));
    assert_eq!(daemon.cancel("queued"), ExecutionState::Queued);
    let outcome = queued.finish();
    assert_eq!(outcome.end(), (Status::Cancelled, Some(CauseKind::Cancel)));
    assert_eq!(
        (
            outcome.result.exit_code,
            outcome.result.signal,
            outcome.stdout().as_str()
        ),
        (None, None, "")
    );
    assert_eq!(outcome.order(), ["accepted", "finished"]);
    assert_eq!(daemon.cancel("first"), ExecutionState::Running);
    first.finish();
}

#[test]
fn a_caller_that_leaves_the_queue_takes_its_execution_along() {
    let Some((daemon, first)) = occupied() else { return };
    drop(named_run(&daemon, "queued", sh("echo ran")));
    let outcome = daemon.attach("queued", 0).unwrap().finish();
    assert_eq!(outcome.end(), (Status::Cancelled, Some(CauseKind::ClientGone)));
    assert_eq!(outcome.order(), ["accepted", "finished"]);
    daemon.cancel("first");
    first.finish();
}

#[test]
fn what_does_not_start_in_time_is_refused_and_recorded() {
    let Some((daemon, first)) = occupied() else { return };
    let limits = Limits {
        start_timeout: Some(span(Duration::from_millis(500))),
        ..Limits::default()
    };
    let refused = daemon.refused(ExecutionSpec {
        execution_id: "late".to_owned(),
        limits: Some(limits),
        ..sh("echo ran")
    });
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::DeadlineExceeded, "START_TIMEOUT")
    );
    let result = daemon.execution("late").result.unwrap();
    assert_eq!(
        (result.status(), result.cause.unwrap().kind()),
        (Status::Failed, CauseKind::Internal)
    );
    daemon.cancel("first");
    first.finish();
}

#[test]
fn what_can_not_start_failed_and_names_the_step() {
    let daemon = daemon!();
    daemon.refused(ExecutionSpec {
        execution_id: "nosuch".to_owned(),
        ..command(&["no-such-program"])
    });
    let result = daemon.execution("nosuch").result.unwrap();
    let cause = result.cause.as_ref().unwrap();
    assert_eq!((result.status(), cause.kind()), (Status::Failed, CauseKind::Internal));
    assert_eq!((result.exit_code, result.signal), (None, None));
}

#[test]
fn the_death_of_the_jailer_loses_everything_and_what_was_written_is_kept() {
    let mut daemon = daemon!();
    let mut lives: Vec<Live> = ["left", "right"]
        .map(|name| named_run(&daemon, name, sh("echo up; sleep 60")))
        .into();
    lives.iter_mut().for_each(|live| live.until_written("up\n"));
    kill(named(daemon.pid(), "brig-jailer").pid);
    for live in lives {
        let outcome = live.finish();
        assert_eq!(outcome.end(), (Status::Lost, Some(CauseKind::Internal)));
        assert_eq!(outcome.stdout(), "up\n");
    }
    assert!(daemon.wait_end().is_some(), "{}", daemon.log());
}

#[test]
fn the_death_of_pid_1_loses_its_session_alone() {
    let daemon = daemon!();
    let mut lives: Vec<Live> = ["one", "two"]
        .map(|name| named_run(&daemon, name, sh("echo up; sleep 60")))
        .into();
    lives.iter_mut().for_each(|live| live.until_written("up\n"));
    let init = of_sessions(&["sone".to_owned()])
        .into_iter()
        .find(|process| process.name == "brig-init");
    kill(init.unwrap().pid);
    let [one, two] = lives.try_into().unwrap();
    let outcome = one.finish();
    assert_eq!(outcome.end(), (Status::Lost, Some(CauseKind::Internal)));
    assert_eq!(outcome.stdout(), "up\n");
    daemon.cancel("two");
    assert_eq!(two.finish().end(), (Status::Cancelled, Some(CauseKind::Cancel)));
}

#[test]
fn a_session_that_nobody_uses_is_closed_and_says_why() {
    let daemon = daemon!();
    let idle = Duration::from_millis(1500) * slow();
    let session = daemon.create(SessionsCreateRequest {
        template: "base".to_owned(),
        idle_timeout: Some(span(idle)),
        ..SessionsCreateRequest::default()
    });
    // Use puts the end off: it counts from the end of the last execution.
    let begun = Instant::now();
    let spec = ExecutionSpec {
        template: String::new(),
        ..sh("echo one; sleep 1")
    };
    daemon
        .execute(&session.session_id, spec)
        .unwrap()
        .finish()
        .expect_success();
    eventually("the session is closed", idle * 10, || {
        let now = daemon.session(&session.session_id);
        if now.state() == SessionState::Closed {
            Ok(())
        } else {
            Err(now.state())
        }
    });
    assert!(
        begun.elapsed() >= Duration::from_secs(1) + idle,
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(
        daemon.session(&session.session_id).close_reason(),
        SessionCloseReason::Idle
    );
    let spec = ExecutionSpec {
        template: String::new(),
        ..sh("echo late")
    };
    let refused = daemon.execute(&session.session_id, spec).unwrap_err();
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::FailedPrecondition, "SESSION_CLOSED")
    );
}

#[test]
fn a_long_native_call_ends_on_time() {
    let daemon = daemon!();
    let limit = Duration::from_secs(3) * slow();
    let work =
        "print('up', flush=True)\nimport numpy\na = numpy.random.rand(4000, 4000)\nwhile True: numpy.linalg.svd(a)";
    let outcome = daemon.run(ExecutionSpec {
        limits: timeout(u64::try_from(limit.as_millis()).unwrap()),
        ..code(work)
    });
    assert_eq!(
        (outcome.end(), outcome.stdout()),
        ((Status::Timeout, Some(CauseKind::WallTime)), "up\n".to_owned())
    );
    let took = Duration::try_from(outcome.result.duration.unwrap()).unwrap();
    assert!(
        took >= limit && took < limit + Duration::from_secs(2) * slow(),
        "{took:?}"
    );
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
}
