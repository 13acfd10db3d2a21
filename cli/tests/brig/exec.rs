//! `brig exec`: what is asked for, exact output, and the exit codes of the program.

use std::collections::HashMap;
use std::process::{Output, Stdio};

use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::{ExecutionStatus, OnDisconnect, OutputStream, Reason};
use rustix::process::Signal;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::daemon::{Daemon, Script, Step, brig, exited, finished, reason, wrote};
use crate::process::{await_output, code, json, signal, spawn, stderr, stdout};

fn ended(status: ExecutionStatus, exit_code: Option<i32>, signal: Option<i32>) -> Output {
    Daemon::playing(vec![exited(status, exit_code, signal)]).run(&["exec", "s1", "--", "x"])
}

#[test]
fn options_become_the_request() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("in.txt"), "line\n").unwrap();
    let daemon = Daemon::playing(vec![finished(ExecutionStatus::Success)]);
    let line = "exec --env TZ=UTC --workdir /tmp --stdin in.txt --timeout 2s --max-output 1K --merge-stderr \
                --user ann --label a=b --request-id r1 sales -- ls -l --json";
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = daemon.brig(&words).current_dir(place.path()).output().unwrap();
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    let asked = daemon.asked();
    let spec = asked.spec();
    assert_eq!(
        (asked.sessions.as_slice(), spec.request_id.as_str()),
        (&["sales".to_owned()][..], "r1")
    );
    let Some(Work::Command(command)) = &spec.work else {
        panic!("{:?}", spec.work)
    };
    assert_eq!(command.argv, ["ls", "-l", "--json"]);
    assert_eq!((command.directory.as_str(), &spec.stdin[..]), ("/tmp", &b"line\n"[..]));
    let limits = spec.limits.unwrap();
    assert_eq!((limits.timeout.unwrap().seconds, limits.output_bytes), (2, Some(1024)));
    assert_eq!(
        (spec.environment["TZ"].as_str(), spec.labels["a"].as_str()),
        ("UTC", "b")
    );
    assert_eq!(
        (spec.merge_stderr, spec.on_disconnect()),
        (true, OnDisconnect::Unspecified)
    );
    assert_eq!(spec.origin.as_ref().unwrap().user, "ann");
}

#[test]
fn the_line_needs_no_dashes_and_options_may_stand_behind_the_session() {
    for line in ["exec s1 ls -l", "exec s1 -q -- ls -l", "exec -q s1 ls -l"] {
        let daemon = Daemon::playing(vec![finished(ExecutionStatus::Success)]);
        assert_eq!(code(&daemon.run(&line.split(' ').collect::<Vec<_>>())), 0, "{line}");
        let Some(Work::Command(command)) = daemon.asked().spec().work.clone() else {
            panic!("{line}")
        };
        assert_eq!(command.argv, ["ls", "-l"], "{line}");
    }
}

#[test]
fn output_is_exact_and_nothing_is_added() {
    let daemon = Daemon::playing(vec![
        wrote(OutputStream::Stdout, b"\x1b[31m\xff\r\n\x00no end"),
        wrote(OutputStream::Stderr, b"warned\n"),
        exited(ExecutionStatus::Success, Some(0), None),
    ]);
    let output = daemon.run(&["exec", "s1", "--", "x"]);
    assert_eq!(
        (code(&output), &output.stdout[..]),
        (0, &b"\x1b[31m\xff\r\n\x00no end"[..])
    );
    assert_eq!(stderr(&output), "warned\n");
}

#[test]
fn standard_input_is_given_whole() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("in");
    std::fs::write(&file, b"a\xff\x00").unwrap();
    let daemon = Daemon::playing(vec![finished(ExecutionStatus::Success)]);
    let mut command = daemon.brig(&["exec", "--stdin", "-", "s1", "--", "cat"]);
    let stdin = std::fs::File::open(&file).unwrap();
    assert_eq!(code(&command.stdin(stdin).output().unwrap()), 0);
    assert_eq!(&daemon.asked().spec().stdin[..], b"a\xff\x00");
    let daemon = Daemon::playing(vec![finished(ExecutionStatus::Success)]);
    let mut command = daemon.brig(&["exec", "s1", "--", "cat"]);
    command.stdin(Stdio::piped()).output().unwrap();
    assert!(daemon.asked().spec().stdin.is_empty());
}

#[test]
fn the_exit_code_is_that_of_the_program() {
    assert_eq!(code(&ended(ExecutionStatus::Success, Some(0), None)), 0);
    assert_eq!(code(&ended(ExecutionStatus::Error, Some(42), None)), 42);
    assert_eq!(code(&ended(ExecutionStatus::Killed, None, Some(15))), 143);
    assert_eq!(code(&ended(ExecutionStatus::Timeout, None, Some(9))), 137);
    assert_eq!(code(&ended(ExecutionStatus::Lost, None, None)), 125);
    assert_eq!(code(&ended(ExecutionStatus::Failed, None, None)), 125);
}

#[test]
fn what_did_not_run_is_told_from_what_did() {
    let program = |error: i32| {
        let error = std::io::Error::from_raw_os_error(error);
        let mut details = ErrorDetails::with_error_info(Reason::InvalidValue.name(), "brig", HashMap::new());
        details.add_bad_request_violation(
            "command.argv[0]",
            format!("\"x\" can't be used in template base: {error}"),
        );
        Status::with_error_details(Code::InvalidArgument, "refused", details)
    };
    for (status, exit) in [
        (program(2), 127),
        (program(13), 126),
        (program(8), 126),
        (reason(Reason::SessionNotFound, "no session \"s1\""), 125),
        (reason(Reason::SessionClosed, "closed"), 125),
        (reason(Reason::HostBusy, "no place"), 125),
    ] {
        let output = Daemon::refusing(status).run(&["exec", "s1", "--", "x"]);
        assert_eq!((code(&output), output.stdout.len()), (exit, 0), "{}", stderr(&output));
        assert!(stderr(&output).starts_with("error: "));
    }
}

#[test]
fn brigs_own_failures_are_125() {
    let nowhere = brig(&["exec", "s1", "--", "x"])
        .env("BRIG_ENDPOINT", "unix:///nonexistent/x.sock")
        .output()
        .unwrap();
    assert_eq!(code(&nowhere), 125);
    for line in [
        &["exec"][..],
        &["exec", "s1"],
        &["exec", "s1", "--"],
        &["exec", "--timeout", "soon", "s1", "--", "x"],
        &["exec", "--memory", "1G", "s1", "--", "x"],
        &["exec", "--stdin", "/nonexistent", "s1", "--", "x"],
    ] {
        assert_eq!(code(&brig(line).output().unwrap()), 125, "{line:?}");
    }
    assert_eq!(code(&brig(&["exec", "--help"]).output().unwrap()), 0);
}

#[test]
fn json_is_the_result_or_the_refusal() {
    let output =
        Daemon::playing(vec![exited(ExecutionStatus::Error, Some(4), None)]).run(&["exec", "--json", "s1", "--", "x"]);
    assert_eq!((code(&output), json(&output)["exit_code"].as_i64()), (4, Some(4)));
    let daemon = Daemon::refusing(reason(Reason::SessionClosed, "it is closed"));
    let output = daemon.run(&["exec", "-o", "json", "s1", "--", "x"]);
    assert_eq!(json(&output)["refused"]["reason"], "session_closed");
    let output = brig(&["exec", "--json", "--nonsense", "s1"]).output().unwrap();
    assert_eq!(
        (code(&output), json(&output)["refused"]["code"].as_str()),
        (125, Some("invalid_argument"))
    );
}

#[test]
fn detached_it_prints_the_id_once_the_program_runs() {
    let steps = || vec![wrote(OutputStream::Stdout, b"not shown"), Step::Hang];
    let daemon = Daemon::playing(steps());
    let output = daemon.run(&["exec", "--detach", "s1", "--", "x"]);
    assert_eq!(
        (code(&output), stdout(&output), stderr(&output)),
        (0, "e1\n".to_owned(), String::new())
    );
    assert_eq!(daemon.asked().spec().on_disconnect(), OnDisconnect::Continue);
    assert!(daemon.asked().cancelled.is_empty());
    let document = json(&Daemon::playing(steps()).run(&["exec", "-d", "--json", "s1", "--", "x"]));
    assert_eq!(document, serde_json::json!({"execution_id": "e1", "session_id": "s1"}));
}

#[test]
fn detached_a_refusal_is_still_told() {
    let daemon = Daemon::start(Script {
        refusal: Some(reason(Reason::SessionNotFound, "no session \"s1\"")),
        ..Script::default()
    });
    let output = daemon.run(&["exec", "--detach", "s1", "--", "x"]);
    assert_eq!((code(&output), output.stdout.len()), (125, 0));
    assert_eq!(stderr(&output), "error: no session \"s1\"\n");
}

#[test]
fn ctrl_c_cancels_the_program() {
    let daemon = Daemon::playing(vec![
        wrote(OutputStream::Stdout, b"."),
        Step::AwaitCancel,
        exited(ExecutionStatus::Cancelled, None, Some(9)),
    ]);
    let mut child = spawn(&mut daemon.brig(&["exec", "s1", "--", "x"]));
    await_output(&mut child);
    signal(&child, Signal::INT);
    assert_eq!(code(&child.wait_with_output().unwrap()), 137);
    assert_eq!(daemon.asked().cancelled, ["e1"]);
}
