//! Programs at a terminal of their own.

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{ExecutionSpec, ExecutionStatus as Status, OutputStream};
use brig_tests::{Live, daemon};
use tonic::Code as Answer;

use super::{at_terminal, close_input, open, resize, say, session, start, start_in, streaming};

#[test]
fn a_terminal_has_the_size_that_was_asked_for_and_gets_another() {
    let daemon = daemon!();
    let script = "test -t 0 && test -t 1 && test -t 2 && echo $TERM; stty size; \
                  trap 'stty size; exit 7' WINCH; echo ready; while :; do sleep 0.1; done";
    let mut live = start(&daemon, "s1", at_terminal(script, 91, 33));
    live.until_written("xterm\r\n33 91\r\nready\r\n");
    resize(&daemon, "s1", 132, 50).unwrap();
    let outcome = live.finish();
    assert_eq!(outcome.result.exit_code, Some(7));
    assert!(outcome.stdout().ends_with("50 132\r\n"), "{:?}", outcome.stdout());
    assert_eq!(outcome.stderr(), "");
}

#[test]
fn sizes_are_bounded_and_only_terminals_have_one() {
    let daemon = daemon!();
    session(&daemon, "s1");
    let plain = start_in(&daemon, "s1", "e1", open("cat"));
    let none = resize(&daemon, "e1", 80, 24).unwrap_err();
    assert_eq!(
        (none.code, none.reason.as_str()),
        (Answer::FailedPrecondition, "NO_TERMINAL")
    );
    let live = start_in(&daemon, "s1", "e2", at_terminal("cat", 0, 0));
    let large = resize(&daemon, "e2", 1001, 24).unwrap_err();
    assert_eq!(
        (large.code, large.fields),
        (Answer::InvalidArgument, vec!["size.columns".to_owned()])
    );
    for name in ["e1", "e2"] {
        close_input(&daemon, name).unwrap();
    }
    assert_eq!(
        (plain.finish().status(), live.finish().status()),
        (Status::Success, Status::Success)
    );
    let late = resize(&daemon, "e2", 80, 24).unwrap_err();
    assert_eq!(late.reason, "EXECUTION_NOT_RUNNING");
}

#[test]
fn keys_are_echoed_and_make_lines_signals_and_an_end() {
    let daemon = daemon!();
    let script = "trap 'echo interrupted' INT; echo ready; until read line; do :; done; echo got $line; cat; echo end";
    let mut live = start(&daemon, "s1", at_terminal(script, 80, 24));
    live.until_written("ready\r\n");
    say(&daemon, "s1", "\x03");
    live.until_written("interrupted\r\n");
    // A mistake that is mended before the line ends.
    say(&daemon, "s1", "abx\x7fc\n");
    live.until_written("got abc\r\n");
    say(&daemon, "s1", "copied\n");
    live.until_written("copied\r\ncopied\r\n");
    say(&daemon, "s1", "\x04");
    assert!(live.finish().expect_success().stdout().ends_with("end\r\n"));
}

/// Waits until the shell has said all it has to say, and reads.
fn until_prompt(live: &mut Live) {
    let text = |live: &Live| String::from_utf8_lossy(&live.written(OutputStream::Stdout)).into_owned();
    let before = text(live).len();
    while text(live).len() == before || !text(live).ends_with("$ ") {
        live.until(|event| matches!(event, Event::Output(_)));
    }
}

#[test]
fn ctrl_c_ends_what_runs_in_the_foreground_and_the_shell_stays() {
    let daemon = daemon!();
    let mut live = start(&daemon, "s1", at_terminal("exec bash --norc -i", 80, 24));
    // What is typed before the shell reads, it may pass over.
    until_prompt(&mut live);
    say(&daemon, "s1", "sleep 600\n");
    let running = || {
        let spec = ExecutionSpec {
            stdin_open: false,
            ..open("ps -e -o args= | grep -c '^sleep 600'")
        };
        daemon.execute("s1", spec).unwrap().finish().stdout()
    };
    // It is in the foreground before it has its name.
    brig_tests::eventually("the program runs", *brig_tests::DEADLINE, || match running().as_str() {
        "1\n" => Ok(()),
        other => Err(other.to_owned()),
    });
    say(&daemon, "s1", "\x03");
    until_prompt(&mut live);
    assert_eq!(running(), "0\n");
    say(&daemon, "s1", "echo the shell is $((20 + 22))\nexit 5\n");
    let outcome = live.finish();
    assert!(
        outcome.stdout().contains("the shell is 42\r\n"),
        "{:?}",
        outcome.stdout()
    );
    assert_eq!(outcome.result.exit_code, Some(5));
}

#[test]
fn an_interpreter_is_talked_to_and_closing_its_input_ends_it() {
    let daemon = daemon!();
    let mut live = start(&daemon, "s1", streaming(at_terminal("exec python3 -i -q", 80, 24)));
    live.until_written(">>> ");
    say(&daemon, "s1", "6 * 7\n");
    live.until_written("42\r\n");
    say(
        &daemon,
        "s1",
        "import sys; print(sys.stdin.isatty(), sys.stdout.isatty())\n",
    );
    // At its prompt it takes the end as typed; before, the terminal would eat it.
    live.until_written("True True\r\n>>> ");
    close_input(&daemon, "s1").unwrap();
    live.finish().expect_success();
}

#[test]
fn without_open_input_a_terminal_is_typed_what_there_is_and_the_end() {
    let daemon = daemon!();
    session(&daemon, "s1");
    let spec = ExecutionSpec {
        stdin: b"typed\n".to_vec().into(),
        stdin_open: false,
        ..at_terminal("stty -echo; echo r; cat; echo end", 80, 24)
    };
    let outcome = start_in(&daemon, "s1", "e1", spec).finish().expect_success();
    assert!(outcome.stdout().ends_with("typed\r\nend\r\n"), "{:?}", outcome.stdout());
}

#[test]
fn a_program_that_leaves_its_terminal_or_hangs_on_to_it_ends_as_any_other() {
    let daemon = daemon!();
    session(&daemon, "s1");
    // Nobody holds the terminal while it goes on.
    let left = start_in(
        &daemon,
        "s1",
        "e1",
        at_terminal("echo first; exec <&- >&- 2>&-; sleep 1; exit 3", 80, 24),
    );
    assert_eq!(left.finish().result.exit_code, Some(3));
    // A child stays behind with it; it does not get the hangup.
    let script = "(trap '' HUP; sleep 600) & echo gone; exit 4";
    let held = start_in(&daemon, "s1", "e2", at_terminal(script, 80, 24));
    let outcome = held.finish();
    assert_eq!(
        (outcome.result.exit_code, outcome.stdout()),
        (Some(4), "gone\r\n".to_owned())
    );
    // Nobody reads what it is typed.
    let deaf = start_in(&daemon, "s1", "e3", at_terminal("stty raw -echo; sleep 600", 80, 24));
    say(&daemon, "e3", &"x".repeat(100_000));
    resize(&daemon, "e3", 70, 20).unwrap();
    daemon.cancel("e3");
    assert_eq!(deaf.finish().status(), Status::Cancelled);
}
