//! Standard input that comes while the program runs.

use std::time::Duration;

use brig_proto::v1::{CauseKind, ExecutionSpec, ExecutionStatus as Status, ExecutionsInputRequest};
use brig_tests::daemon;
use tonic::Code as Answer;

use super::{close_input, give, open, piece, say, session, signal, start, start_in};

#[test]
fn pieces_come_in_order_whatever_is_repeated_and_a_gap_is_refused() {
    let daemon = daemon!();
    let spec = ExecutionSpec {
        stdin: b"zero ".to_vec().into(),
        ..open("cat; echo end")
    };
    let live = start(&daemon, "s1", spec);
    let pieces = vec![
        piece("s1", b"one ", Some(5)),
        // All of it again, and something new.
        piece("", b"zero one two ", Some(0)),
        piece("", b"three ", None),
    ];
    assert_eq!(give(&daemon, pieces), Ok(19));
    assert_eq!(give(&daemon, vec![piece("s1", b"one two", Some(5))]), Ok(19));
    let gap = give(&daemon, vec![piece("s1", b"x", Some(20))]).unwrap_err();
    assert_eq!(
        (gap.code, gap.reason.as_str(), gap.offset),
        (Answer::OutOfRange, "OFFSET_OUT_OF_RANGE", Some(19))
    );
    let last = ExecutionsInputRequest {
        close: true,
        ..piece("s1", b"four\n", Some(19))
    };
    assert_eq!(give(&daemon, vec![last.clone()]), Ok(24));
    // Repeated it is harmless, and more is refused.
    let repeated = give(&daemon, vec![last]);
    if let Err(refused) = repeated {
        // It has ended by now, or is about to.
        let reasons = ["EXECUTION_NOT_RUNNING", "INPUT_CLOSED"];
        assert!(reasons.contains(&refused.reason.as_str()), "{refused:?}");
    }
    let outcome = live.finish().expect_success();
    assert_eq!(outcome.stdout(), "zero one two three four\nend\n");
    let late = give(&daemon, vec![piece("s1", b"x", None)]).unwrap_err();
    assert_eq!(
        (late.code, late.reason.as_str()),
        (Answer::FailedPrecondition, "EXECUTION_NOT_RUNNING")
    );
}

#[test]
fn a_program_has_its_input_open_until_it_is_closed() {
    let daemon = daemon!();
    let mut live = start(
        &daemon,
        "s1",
        open("while read line; do echo got $line; done; echo end"),
    );
    say(&daemon, "s1", "a\n");
    live.until_written("got a\n");
    say(&daemon, "s1", "b\n");
    live.until_written("got b\n");
    close_input(&daemon, "s1").unwrap();
    assert_eq!(live.finish().expect_success().stdout(), "got a\ngot b\nend\n");
}

#[test]
fn who_takes_no_input_says_why() {
    let daemon = daemon!();
    session(&daemon, "s1");
    let reason = |name: &str| give(&daemon, vec![piece(name, b"x", None)]).unwrap_err();
    let plain = ExecutionSpec {
        stdin_open: false,
        ..open("sleep 60")
    };
    let first = start_in(&daemon, "s1", "e1", plain);
    let refused = reason("e1");
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Answer::FailedPrecondition, "INPUT_CLOSED")
    );
    assert!(refused.message.contains("stdin_open"), "{}", refused.message);
    let mut second = start_in(&daemon, "s1", "e2", open("exec 0<&-; echo closed; sleep 60"));
    second.until_written("closed\n");
    // The thread that gives notices it in its own time.
    brig_tests::eventually(
        "the program's end of its input is seen",
        *brig_tests::DEADLINE,
        || match give(&daemon, vec![piece("e2", b"x", None)]) {
            Err(refused) if refused.reason == "INPUT_CLOSED" => Ok(()),
            other => Err(other),
        },
    );
    assert!(
        reason("e2").message.contains("has closed its standard input"),
        "{}",
        reason("e2").message
    );
    assert_eq!(reason("e3").code, Answer::NotFound);
    let large = give(&daemon, vec![piece("e1", &vec![0; (256 << 10) + 1], None)]).unwrap_err();
    assert_eq!(
        (large.code, large.fields),
        (Answer::InvalidArgument, vec!["data".to_owned()])
    );
    for (name, live) in [("e1", first), ("e2", second)] {
        daemon.cancel(name);
        assert_eq!(live.finish().status(), Status::Cancelled);
    }
}

#[test]
fn a_program_that_never_reads_holds_up_its_caller_and_neither_cancel_nor_close() {
    let daemon = daemon!();
    session(&daemon, "s1");
    let lives = ["e1", "e2"].map(|name| start_in(&daemon, "s1", name, open("sleep 60")));
    let flood = |name: &str| {
        let pieces: Vec<_> = (0..8).map(|_| piece(name, &vec![7; 256 << 10], None)).collect();
        let mut request = tonic::Request::new(tokio_stream::iter(pieces));
        request.set_timeout(Duration::from_secs(2));
        request
    };
    // The call's own deadline ends it.
    let late = daemon.wait(daemon.client().input(flood("e1"))).unwrap_err();
    assert!(
        matches!(late.code(), Answer::DeadlineExceeded | Answer::Cancelled),
        "{late:?}"
    );
    let mut client = daemon.client();
    let waiting = daemon.spawn(async move {
        let pieces = (0..8).map(|_| piece("e2", &vec![7; 256 << 10], None));
        client.input(tokio_stream::iter(pieces.collect::<Vec<_>>())).await
    });
    let [first, second] = lives;
    daemon.cancel("e1");
    assert_eq!(first.finish().end(), (Status::Cancelled, Some(CauseKind::Cancel)));
    daemon.close("s1");
    assert_eq!(
        second.finish().end(),
        (Status::Cancelled, Some(CauseKind::SessionClosed))
    );
    let told = daemon.wait(waiting).unwrap().unwrap_err();
    assert_eq!(told.code(), Answer::FailedPrecondition, "{told:?}");
}

#[test]
fn a_run_of_its_own_can_be_talked_to() {
    let daemon = daemon!();
    let spec = ExecutionSpec {
        execution_id: "e1".to_owned(),
        template: "base".to_owned(),
        ..open("read line; echo got $line")
    };
    let mut live = daemon.begin(spec);
    live.until_started();
    say(&daemon, "e1", "it\n");
    assert_eq!(live.finish().expect_success().stdout(), "got it\n");
}

#[test]
fn a_signal_reaches_the_main_process_or_its_group() {
    let daemon = daemon!();
    session(&daemon, "s1");
    // The child is ready behind both traps.
    let script = "trap 'echo parent' USR1; \
                  sh -c 'trap \"echo child\" USR1; echo ready; while :; do sleep 0.1; done' & \
                  while :; do sleep 0.1; done";
    let mut live = start_in(&daemon, "s1", "e1", open(script));
    live.until_written("ready\n");
    signal(&daemon, "e1", 10, false);
    live.until_written("parent\n");
    signal(&daemon, "e1", 10, true);
    live.until_written("child\n");
    signal(&daemon, "e1", 15, true);
    let outcome = live.finish();
    assert_eq!(
        (outcome.result.signal, outcome.stdout().matches("child").count()),
        (Some(15), 1)
    );
}
