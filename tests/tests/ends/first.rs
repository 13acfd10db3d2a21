//! Of two causes the first one counts, and only that.

use std::time::Duration;

use brig_proto::v1::{CauseKind, ExecutionSpec, ExecutionStatus as Status};
use brig_tests::spec::{sh, small, timeout};
use brig_tests::{Daemon, Outcome, daemon, slow};

type End = (Status, Option<CauseKind>);

const CANCELLED: End = (Status::Cancelled, Some(CauseKind::Cancel));
const TIMED_OUT: End = (Status::Timeout, Some(CauseKind::WallTime));

/// Runs a program with a timeout and cancels it so long after its start.
fn cancelled_after(daemon: &Daemon, name: &str, limit_ms: u64, cancel_ms: u64) -> Outcome {
    let scaled = |millis| millis * u64::from(slow());
    let mut live = daemon.begin(ExecutionSpec {
        execution_id: name.to_owned(),
        limits: timeout(scaled(limit_ms)),
        ..sh("sleep 60")
    });
    live.until_started();
    std::thread::sleep(Duration::from_millis(scaled(cancel_ms)));
    daemon.cancel(name);
    live.finish()
}

#[test]
fn a_cancellation_before_the_deadline_counts_and_one_after_it_does_not() {
    let daemon = daemon!();
    assert_eq!(cancelled_after(&daemon, "before", 20_000, 700).end(), CANCELLED);
    assert_eq!(cancelled_after(&daemon, "behind", 500, 2500).end(), TIMED_OUT);
}

#[test]
fn a_cancellation_at_the_deadline_gives_one_of_the_two_and_never_a_mixture() {
    let daemon = daemon!();
    for number in 0..12 {
        let outcome = cancelled_after(&daemon, &format!("both{number}"), 200, 200);
        assert!([CANCELLED, TIMED_OUT].contains(&outcome.end()), "{:?}", outcome.result);
        let hit = outcome.result.limits_hit.contains(&(CauseKind::WallTime as i32));
        assert_eq!(hit, outcome.end() == TIMED_OUT, "{:?}", outcome.result);
        assert_eq!(outcome.result.signal, Some(9));
    }
}

#[test]
fn a_program_that_has_ended_is_not_cancelled_any_more() {
    let daemon = daemon!();
    // What it left behind holds the end open; the main process ended by itself all the same.
    for number in 0..12 {
        let name = format!("ended{number}");
        let mut live = daemon.begin(ExecutionSpec {
            execution_id: name.clone(),
            ..sh("echo up; exit 7")
        });
        live.until_written("up\n");
        daemon.cancel(&name);
        let outcome = live.finish();
        let by_itself = ((Status::Error, None), Some(7), None);
        let told = (outcome.end(), outcome.result.exit_code, outcome.result.signal);
        assert!([by_itself, (CANCELLED, None, Some(9))].contains(&told), "{told:?}");
    }
}

#[test]
fn the_memory_limit_counts_before_a_cancellation_and_the_other_way_round() {
    let daemon = daemon!();
    let hungry = |name: &str, source: &str| ExecutionSpec {
        execution_id: name.to_owned(),
        limits: Some(brig_proto::v1::Limits {
            memory_bytes: Some(64 << 20),
            disk_bytes: Some(1 << 20),
            ..brig_proto::v1::Limits::default()
        }),
        ..small(source)
    };
    let first = daemon.begin(hungry("hungry", "x = bytearray(300 << 20)"));
    let outcome = first.finish();
    daemon.cancel("hungry");
    assert_eq!(outcome.end(), (Status::OutOfMemory, Some(CauseKind::Memory)));
    assert_eq!(daemon.execution("hungry").result, Some(outcome.result));
    let mut second = daemon.begin(hungry(
        "modest",
        "import time\nprint('up')\ntime.sleep(60)\nx = bytearray(300 << 20)",
    ));
    second.until_written("up\n");
    daemon.cancel("modest");
    let outcome = second.finish();
    assert_eq!(outcome.end(), CANCELLED);
    assert!(outcome.result.limits_hit.is_empty());
}

#[test]
fn an_interrupt_that_is_overtaken_by_a_cancellation_does_not_count_and_one_that_is_not_does() {
    let daemon = daemon!();
    let deaf = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('up')\ntime.sleep(60)";
    for (name, cancel_ms, end) in [
        ("overtaken", 200, CANCELLED),
        ("counted", 4500, (Status::Error, Some(CauseKind::Interrupt))),
    ] {
        let mut live = daemon.begin(ExecutionSpec {
            execution_id: name.to_owned(),
            ..small(deaf)
        });
        live.until_written("up\n");
        daemon.interrupt(name);
        std::thread::sleep(Duration::from_millis(cancel_ms));
        daemon.cancel(name);
        assert_eq!(live.finish().end(), end, "{name}");
    }
}
