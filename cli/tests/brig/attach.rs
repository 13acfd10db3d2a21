//! `brig execution attach`, `cancel`, `interrupt`, `signal`.

use brig_proto::v1::{ExecutionStatus, OutputStream, Reason};
use rustix::process::Signal;
use serde_json::json;

use crate::daemon::{Daemon, Script, Step, finished, reason, wrote};
use crate::process::{await_output, code, json, signal, spawn, stderr, stdout};

#[test]
fn it_follows_to_the_end_and_ends_as_run_would() {
    for (status, exit) in [
        (ExecutionStatus::Success, 0),
        (ExecutionStatus::Timeout, 124),
        (ExecutionStatus::OutOfMemory, 137),
        (ExecutionStatus::Lost, 70),
    ] {
        let daemon = Daemon::playing(vec![wrote(OutputStream::Stdout, b"\xffa\n"), finished(status)]);
        let output = daemon.run(&["execution", "attach", "e1"]);
        assert_eq!((code(&output), &output.stdout[..]), (exit, &b"\xffa\n"[..]));
        assert!(stderr(&output).ends_with(" in 0 ms\n"), "{}", stderr(&output));
        assert_eq!(daemon.asked().attached, [("e1".to_owned(), 0)]);
    }
}

#[test]
fn what_was_seen_is_left_out() {
    let daemon = Daemon::playing(vec![
        wrote(OutputStream::Stdout, b"seen\n"),
        wrote(OutputStream::Stdout, b"new\n"),
        finished(ExecutionStatus::Success),
    ]);
    let output = daemon.run(&["execution", "attach", "-q", "--after", "2", "e1"]);
    assert_eq!(stdout(&output), "new\n");
}

#[test]
fn leaving_it_ends_nothing_and_says_how_to_come_back() {
    let daemon = Daemon::playing(vec![wrote(OutputStream::Stdout, b"."), Step::AwaitCancel]);
    let mut child = spawn(&mut daemon.brig(&["execution", "attach", "e1"]));
    await_output(&mut child);
    signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 130);
    assert_eq!(
        stderr(&output),
        "error: left it before its end\nhint: it may go on; follow it: brig execution attach e1 --after 2\n"
    );
    assert!(daemon.asked().cancelled.is_empty());
}

#[test]
fn a_reader_that_goes_away_ends_nothing() {
    let steps = (0..64).map(|_| wrote(OutputStream::Stdout, &[b'y'; 8192]));
    let daemon = Daemon::playing(steps.chain([Step::Hang]).collect());
    let mut child = spawn(&mut daemon.brig(&["execution", "attach", "e1"]));
    await_output(&mut child);
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(daemon.asked().cancelled.is_empty());
}

#[test]
fn an_execution_that_is_not_there_is_a_refusal() {
    let daemon = Daemon::start(Script {
        no_attach: Some(reason(Reason::ExecutionNotFound, "no execution \"e9\"")),
        ..Script::default()
    });
    let output = daemon.run(&["execution", "attach", "--json", "e9"]);
    assert_eq!(
        (code(&output), stderr(&output).as_str()),
        (2, "error: no execution \"e9\"\n")
    );
    assert_eq!(json(&output)["refused"]["reason"], "execution_not_found");
}

#[test]
fn an_execution_is_cancelled_interrupted_and_signalled() {
    let daemon = Daemon::playing(vec![]);
    let said = |arguments: &[&str]| {
        let output = daemon.run(&[&["execution"], arguments].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        stdout(&output)
    };
    assert_eq!(said(&["cancel", "e1"]), "e1 is being cancelled\n");
    assert_eq!(said(&["interrupt", "e1"]), "e1 had ended already\n");
    assert_eq!(said(&["signal", "e1", "usr1"]), "e1 was sent signal 10\n");
    let document = |arguments: &[&str]| serde_json::from_str::<serde_json::Value>(&said(arguments)).unwrap();
    assert_eq!(
        document(&["cancel", "--json", "e1"]),
        json!({"execution_id": "e1", "state": "running"})
    );
    assert_eq!(
        document(&["signal", "-ojson", "e1", "64"]),
        json!({"execution_id": "e1", "signal": 64})
    );
    let asked = daemon.asked();
    assert_eq!(
        (asked.cancelled, asked.interrupted),
        (vec!["e1".to_owned(); 2], vec!["e1".to_owned()])
    );
    let signals: Vec<u32> = asked.signals.iter().map(|signal| signal.signal).collect();
    assert_eq!(signals, [10, 64]);
}

#[test]
fn a_signal_that_is_none_is_a_usage_error() {
    let daemon = Daemon::playing(vec![]);
    let output = daemon.run(&["execution", "signal", "e1", "TREM"]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("\"TREM\" is not a signal: a name such as TERM"),
        "{}",
        stderr(&output)
    );
    assert!(daemon.asked().signals.is_empty());
}

#[test]
fn a_refused_request_has_its_exit_code_and_its_document() {
    let daemon = Daemon::start(Script {
        no_call: Some(reason(Reason::ExecutionNotRunning, "e1 has ended")),
        ..Script::default()
    });
    for arguments in [
        &["cancel", "e1", "--json"][..],
        &["interrupt", "e1", "--json"],
        &["signal", "e1", "9", "--json"],
        &["show", "e1"],
        &["list", "--json"],
    ] {
        let output = daemon.run(&[&["execution"], arguments].concat());
        assert_eq!((code(&output), stderr(&output).as_str()), (78, "error: e1 has ended\n"));
        assert_eq!(
            json(&output)["refused"]["reason"],
            "execution_not_running",
            "{arguments:?}"
        );
    }
}

#[test]
fn the_list_is_a_table_a_document_or_lines() {
    let daemon = Daemon::playing(vec![]);
    let text = stdout(&daemon.run(&["execution", "list"]));
    assert_eq!(text, "execution  state\ne1         running\n");
    let document = json(&daemon.run(&["execution", "list", "--json"]));
    assert_eq!(document["executions"][0]["state"], "running");
    let line = stdout(&daemon.run(&["execution", "list", "-o", "jsonl"]));
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&line).unwrap()["execution_id"],
        "e1"
    );
}
