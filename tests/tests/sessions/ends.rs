//! How executions in a session end.

use std::time::Duration;

use brig_proto::v1::{CauseKind, ExecutionSpec, ExecutionStatus, ExecutionsSignalRequest, Limits, SessionState};
use brig_tests::spec::{code, command, span};
use brig_tests::{daemon, slow};

use super::{Kept, named};

const INTERRUPTED: (ExecutionStatus, Option<CauseKind>) = (ExecutionStatus::Error, Some(CauseKind::Interrupt));

#[test]
fn an_interrupt_is_a_keyboard_interrupt_of_the_code_and_no_frame_but_its_own() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(named("mine"));
    let source = "import time\ndef wait():\n    print('here', flush=True); time.sleep(60)\nwait()";
    let mut running = kept.begin("mine", "running", code(source));
    running.live.until_written("here");
    kept.interrupt("running");
    let outcome = running.live.finish();
    assert_eq!(outcome.end(), INTERRUPTED);
    let error = outcome.result.error.clone().unwrap();
    assert_eq!((error.name.as_str(), error.line), ("KeyboardInterrupt", Some(3)));
    let frames = error.traceback.lines().filter(|line| line.starts_with("  File"));
    let own = ["4, in <module>", "3, in wait"].map(|place| format!("  File \"/home/user/main.py\", line {place}"));
    assert_eq!(frames.collect::<Vec<_>>(), own, "{}", error.traceback);
    assert!(
        error.traceback.ends_with("\nKeyboardInterrupt\n"),
        "{}",
        error.traceback
    );
    assert_eq!(outcome.stdout(), "here\n");
    kept.execute("mine", "next", code("print(1)")).expect_success();
}

#[test]
fn an_interrupt_that_the_code_survives_is_no_failure() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(named("mine"));
    let source = "import time\ntry:\n    print('here', flush=True)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    \
                  print('caught')";
    let mut running = kept.begin("mine", "running", code(source));
    running.live.until_written("here");
    kept.interrupt("running");
    let outcome = running.live.finish().expect_success();
    assert_eq!(
        (outcome.stdout().as_str(), &outcome.result.cause),
        ("here\ncaught\n", &None)
    );
}

#[test]
fn code_that_does_not_stop_for_an_interrupt_is_killed_two_seconds_later() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(named("mine"));
    let source = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('here', flush=True)\n\
                  time.sleep(60)";
    let mut running = kept.begin("mine", "running", code(source));
    running.live.until_written("here");
    kept.interrupt("running");
    let outcome = running.live.finish();
    assert_eq!(outcome.end(), INTERRUPTED);
    assert_eq!(kept.shown("mine").state(), SessionState::Running);
    kept.execute("mine", "next", code("print(1)")).expect_success();
}

#[test]
fn a_signal_reaches_the_program() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(named("mine"));
    let script = "trap 'echo got; exit 7' USR1; echo here; while :; do sleep 0.02; done";
    let mut running = kept.begin("mine", "running", command(&["sh", "-c", script]));
    running.live.until_written("here");
    let request = ExecutionsSignalRequest {
        execution_id: "running".to_owned(),
        signal: 10,
        ..ExecutionsSignalRequest::default()
    };
    daemon.wait(daemon.client().signal(request)).unwrap();
    let outcome = running.live.finish();
    assert_eq!(
        (outcome.stdout().as_str(), outcome.result.exit_code),
        ("here\ngot\n", Some(7))
    );
}

#[test]
fn limits_of_cpu_time_and_of_silence_end_what_goes_beyond_them() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(named("mine"));
    let limited = |limits, source| ExecutionSpec {
        limits: Some(limits),
        ..code(source)
    };
    let cpu = Limits {
        cpu_time: Some(span(Duration::from_millis(500))),
        ..Limits::default()
    };
    let busy = kept.execute("mine", "busy", limited(cpu, "while True: pass"));
    assert_eq!(busy.end(), (ExecutionStatus::Timeout, Some(CauseKind::CpuTime)));
    let cause = busy.result.cause.clone().unwrap();
    assert_eq!(cause.limit, Some(500));
    assert!(cause.used.unwrap() >= 500);
    let idle = Limits {
        idle_time: Some(span(Duration::from_secs(3) * slow())),
        ..Limits::default()
    };
    let silent = "import time\nfor i in range(4):\n    print(i, flush=True)\n    time.sleep(0.3)\ntime.sleep(60)";
    let silent = kept.execute("mine", "silent", limited(idle, silent));
    assert_eq!(silent.end(), (ExecutionStatus::Timeout, Some(CauseKind::IdleTime)));
    assert_eq!(silent.stdout(), "0\n1\n2\n3\n");
    assert_eq!(kept.shown("mine").state(), SessionState::Running);
}
