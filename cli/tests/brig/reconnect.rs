//! Connections that break: nothing runs twice, and each byte is shown once.

use std::process::Output;

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{ExecutionResult, ExecutionStatus, OutputStream, Reason, ReviewState};
use rustix::process::Signal;

use crate::daemon::{Cut, Daemon, Script, Step, artifact, chunk, ended, exited, finished, reason, step, wrote};
use crate::process::{await_output, code, eventually, signal, spawn, stderr, stdout};

/// Messages of the job below: `accepted`, `started`, five times output, `finished`.
const MESSAGES: usize = 8;

fn job() -> Vec<Step> {
    vec![
        wrote(OutputStream::Stdout, b"one\n"),
        wrote(OutputStream::Stderr, b"warned\n"),
        wrote(OutputStream::Stdout, b"\xff\x00"),
        wrote(OutputStream::Stdout, b"two"),
        wrote(OutputStream::Stderr, b"\n"),
        exited(ExecutionStatus::Error, Some(3), None),
    ]
}

fn cut(cuts: Vec<Cut>) -> Daemon {
    Daemon::start(Script {
        steps: job(),
        cuts,
        ..Script::default()
    })
}

fn assert_whole(output: &Output, exit: i32) {
    assert_eq!(output.stdout, b"one\n\xff\x00two");
    assert_eq!((stderr(output), code(output)), ("warned\n\n".to_owned(), exit));
}

#[test]
fn wherever_a_stream_is_cut_each_byte_is_printed_once() {
    let ways: [fn(usize) -> Cut; 4] = [Cut::Broken, Cut::Closed, Cut::Ended, Cut::Draining];
    for place in 0..MESSAGES {
        for way in ways {
            // Without an id of the execution, draining is a refusal.
            if place == 0 && matches!(way(0), Cut::Draining(_)) {
                continue;
            }
            let daemon = cut(vec![way(place)]);
            let output = daemon.run(&["run", "-q", "-c", "1"]);
            assert_whole(&output, 1);
            let asked = daemon.asked();
            assert_eq!(asked.specs.len() + asked.attached.len(), 2, "{:?}", way(place));
            assert!(asked.cancelled.is_empty());
        }
    }
}

#[test]
fn each_of_several_cuts_goes_on_where_the_last_one_was() {
    let daemon = cut(vec![Cut::Broken(3), Cut::Closed(1), Cut::Ended(2), Cut::Broken(3)]);
    assert_whole(&daemon.run(&["run", "-q", "-c", "1"]), 1);
    let attached = daemon.asked().attached;
    let places: Vec<u64> = attached.iter().map(|(_, after)| *after).collect();
    // The bytes of a connection that is closed may not arrive, so that its place is not certain.
    assert_eq!((places[0], places.len()), (2, 4), "{places:?}");
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn exec_and_attach_are_mended_in_the_same_way() {
    let cuts = || vec![Cut::Broken(4), Cut::Closed(2)];
    assert_whole(&cut(cuts()).run(&["exec", "-q", "s1", "--", "true"]), 3);
    let daemon = cut(cuts());
    assert_whole(&daemon.run(&["execution", "attach", "-q", "e1"]), 1);
    assert!(daemon.asked().specs.is_empty());
}

#[test]
fn before_its_id_is_known_the_same_request_is_sent_again() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("in.bin");
    std::fs::write(&file, vec![7; 300 * 1024]).unwrap();
    let daemon = cut(vec![Cut::Broken(0), Cut::Closed(0)]);
    let input = file.to_str().unwrap();
    assert_whole(&daemon.run(&["run", "-q", "--input", input, "-c", "1"]), 1);
    let asked = daemon.asked();
    assert_eq!((asked.specs.len(), asked.attached.len()), (3, 0));
    assert!(asked.specs.iter().all(|spec| *spec == asked.specs[0]));
    assert!(!asked.specs[0].request_id.is_empty());
    let lengths: Vec<_> = asked
        .chunks
        .iter()
        .map(|chunk| (chunk.offset, chunk.data.len()))
        .collect();
    assert_eq!(lengths, [(0, 262_144), (262_144, 45_056)].repeat(3));
}

#[test]
fn lines_of_json_have_each_event_once() {
    let daemon = cut(vec![Cut::Broken(4), Cut::Broken(2)]);
    let output = daemon.run(&["run", "-o", "jsonl", "-c", "1"]);
    let sequences: Vec<u64> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter_map(|event| event["sequence"].as_u64().filter(|sequence| *sequence > 0))
        .collect();
    assert_eq!(sequences, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn people_are_told_that_the_connection_broke() {
    let output = cut(vec![Cut::Broken(3)]).run(&["run", "-c", "1"]);
    let said = "note: the connection to the daemon broke: gone; trying again for 60 s\n";
    assert!(stderr(&output).contains(said), "{}", stderr(&output));
}

#[test]
fn a_daemon_that_is_started_again_is_found() {
    let whole = || Script {
        steps: job(),
        ..Script::default()
    };
    let first = Daemon::start(Script {
        steps: vec![wrote(OutputStream::Stdout, b"one\n"), Step::Hang],
        ..Script::default()
    });
    let mut child = spawn(&mut first.brig(&["run", "-q", "-c", "1"]));
    await_output(&mut child);
    let second = Daemon::start_again(first.stop(), whole());
    let output = child.wait_with_output().unwrap();
    // The first byte was read while waiting for it.
    assert_eq!(output.stdout, b"ne\n\xff\x00two");
    assert_eq!(code(&output), 1);
    assert_eq!(second.asked().attached, [("e1".to_owned(), 2)]);
}

#[test]
fn an_execution_that_the_next_daemon_does_not_know_is_gone() {
    let daemon = Daemon::start(Script {
        steps: job(),
        cuts: vec![Cut::Broken(3)],
        no_attach: Some(reason(Reason::ExecutionNotFound, "no execution \"e1\"")),
        ..Script::default()
    });
    let output = daemon.run(&["run", "-q", "-c", "1"]);
    assert_eq!((code(&output), stdout(&output)), (70, "one\n".to_owned()));
    assert_eq!(
        stderr(&output),
        "error: execution e1 is gone: the daemon does not know it any more, and how it ended is not known\n"
    );
}

#[test]
fn patience_has_an_end_that_says_how_to_go_on() {
    let daemon = Daemon::playing(vec![wrote(OutputStream::Stdout, b"one\n"), Step::Hang]);
    let mut child = spawn(daemon.brig(&["run", "-q", "-c", "1"]).env("BRIG_RECONNECT", "300ms"));
    await_output(&mut child);
    let directory = daemon.stop();
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 70);
    let said = stderr(&output);
    assert!(
        said.contains("broke after the start of the job, and could not be mended within 300 ms"),
        "{said}"
    );
    assert!(
        said.contains("hint: it may go on; follow it: brig execution attach e1 --after 2"),
        "{said}"
    );
    drop(directory);
}

#[test]
fn a_patience_that_is_no_span_is_refused() {
    let daemon = cut(vec![]);
    let output = daemon
        .brig(&["run", "-c", "1"])
        .env("BRIG_RECONNECT", "ever")
        .output()
        .unwrap();
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).starts_with("error: BRIG_RECONNECT: \"ever\" is not a span of time"),
        "{output:?}"
    );
    assert!(daemon.asked().specs.is_empty());
}

#[test]
fn a_refusal_is_not_asked_for_again() {
    for (status, exit) in [
        (reason(Reason::HostBusy, "no place"), 75),
        (reason(Reason::Draining, "about to stop"), 75),
        (reason(Reason::JailerGone, "no jailer"), 75),
        (reason(Reason::JailFailed, "mounts: EPERM"), 70),
    ] {
        let daemon = Daemon::refusing(status);
        assert_eq!(code(&daemon.run(&["run", "-q", "-c", "1"])), exit);
        assert_eq!(daemon.asked().specs.len(), 1);
    }
}

#[test]
fn bytes_of_an_artifact_that_were_cut_are_fetched_again() {
    let chart = artifact("a1", "x.png", ReviewState::NotNeeded);
    let result = ExecutionResult {
        artifacts: vec![chart.clone()],
        ..ended(ExecutionStatus::Success)
    };
    let steps = vec![
        step(Event::Artifact(chart)),
        chunk("a1", 0, b"hel", false),
        chunk("a1", 3, b"lo", true),
        step(Event::Finished(result)),
    ];
    // Behind `accepted` and `started`: the artifact, its first bytes, its last ones.
    for (place, after) in [(3, 1), (4, 1), (5, 2)] {
        let directory = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(Script {
            steps: steps.clone(),
            cuts: vec![Cut::Broken(place)],
            ..Script::default()
        });
        let mut command = daemon.brig(&["run", "-q", "--out", "out", "-c", "1"]);
        let output = command.current_dir(directory.path()).output().unwrap();
        assert_eq!(code(&output), 0, "{place}: {output:?}");
        assert_eq!(std::fs::read(directory.path().join("out/x.png")).unwrap(), b"hello");
        assert_eq!(std::fs::read_dir(directory.path().join("out")).unwrap().count(), 1);
        assert_eq!(daemon.asked().attached, [("e1".to_owned(), after)]);
    }
}

#[test]
fn an_interrupt_during_an_outage_cancels_when_it_is_over() {
    let daemon = Daemon::playing(vec![
        wrote(OutputStream::Stdout, b"."),
        Step::AwaitCancel,
        finished(ExecutionStatus::Cancelled),
    ]);
    let mut child = spawn(&mut daemon.brig(&["run", "-q", "-c", "1"]));
    await_output(&mut child);
    daemon.hang_up(true);
    eventually("it tries again", || daemon.refused_connections() > 0);
    signal(&child, Signal::INT);
    let tried = daemon.refused_connections();
    eventually("it goes on to try", || daemon.refused_connections() > tried + 2);
    daemon.hang_up(false);
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 130, "{}", stderr(&output));
    assert!(daemon.asked().cancelled.iter().all(|id| id == "e1"));
    assert!(!daemon.asked().cancelled.is_empty());
}

#[test]
fn an_interrupt_before_the_request_is_accepted_leaves_at_once() {
    let daemon = Daemon::start(Script {
        cuts: vec![Cut::Broken(0); 1000],
        ..Script::default()
    });
    let child = spawn(&mut daemon.brig(&["run", "-q", "-c", "1"]));
    eventually("it tries again", || daemon.asked().specs.len() > 1);
    signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 130);
    assert_eq!(stderr(&output), "error: cancelled before the job was accepted\n");
}

#[test]
fn an_end_that_was_behind_the_place_of_the_cut_is_asked_for() {
    let daemon = Daemon::playing(job());
    let output = daemon.run(&["execution", "attach", "--after", "99", "-q", "e1"]);
    assert_eq!((code(&output), stdout(&output)), (1, String::new()));
    assert_eq!(daemon.asked().attached, [("e1".to_owned(), 99)]);
}
