//! `brig exec -i` and `-t`: what is asked for, and what becomes of our standard input.

use std::process::Stdio;

use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::{ExecutionStatus, OnDisconnect, OutputMode};

use crate::daemon::{Daemon, Script, Step, brig, exited};
use crate::process::{code, json, stderr};

fn reading(lost_inputs: usize) -> Daemon {
    Daemon::start(Script {
        steps: vec![Step::AwaitInput, exited(ExecutionStatus::Success, Some(0), None)],
        lost_inputs,
        ..Script::default()
    })
}

#[test]
fn our_input_goes_in_as_it_comes_and_its_end_too() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("in");
    let data: Vec<u8> = (0..1_000_000_u32).map(|i| (i / 9).to_le_bytes()[0]).collect();
    std::fs::write(&file, &data).unwrap();
    let daemon = reading(0);
    let mut command = daemon.brig(&["exec", "-i", "s1", "--", "cat"]);
    let output = command.stdin(std::fs::File::open(&file).unwrap()).output().unwrap();
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    let asked = daemon.asked();
    let spec = asked.spec();
    let Some(Work::Command(command)) = &spec.work else {
        panic!("{:?}", spec.work)
    };
    // Its output is not bounded, as that of a pipe is not.
    assert_eq!((command.output_mode(), command.terminal), (OutputMode::Stream, None));
    assert!(spec.stdin_open && spec.stdin.is_empty());
    assert!(asked.input == data);
    assert_eq!(asked.closed_inputs, ["e1"]);
}

#[test]
fn what_got_lost_with_a_connection_is_given_again_where_it_belongs() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("in");
    std::fs::write(&file, b"once").unwrap();
    let daemon = reading(3);
    let mut command = daemon.brig(&["exec", "-i", "s1", "--", "cat"]);
    let output = command.stdin(std::fs::File::open(&file).unwrap()).output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let asked = daemon.asked();
    assert_eq!(
        (asked.input.as_slice(), asked.offsets),
        (&b"once"[..], vec![Some(0); 4])
    );
}

#[test]
fn a_terminal_is_needed_where_one_is_asked_for_and_detached_it_is_not() {
    let refused = brig(&["exec", "-it", "s1", "--", "sh"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(
        (code(&refused), stderr(&refused).as_str()),
        (
            125,
            "error: tty: standard input is not a terminal; leave out -t to do without one\n"
        )
    );
    let documents = brig(&["exec", "-t", "--json", "s1", "--", "sh"]).output().unwrap();
    assert_eq!(
        (code(&documents), json(&documents)["refused"]["field"].as_str()),
        (125, Some("tty"))
    );
    for line in [
        ["exec", "-i", "--stdin", "x", "s1"],
        ["exec", "-t", "--stdin", "x", "s1"],
    ] {
        assert_eq!(code(&brig(&[&line[..], &["sh"]].concat()).output().unwrap()), 125);
    }
    let daemon = Daemon::playing(vec![Step::Hang]);
    assert_eq!(code(&daemon.run(&["exec", "-dit", "s1", "--", "sh"])), 0);
    let asked = daemon.asked();
    let spec = asked.spec();
    let Some(Work::Command(command)) = &spec.work else {
        panic!("{:?}", spec.work)
    };
    assert_eq!((spec.stdin_open, spec.on_disconnect()), (true, OnDisconnect::Continue));
    assert!(command.terminal.is_some() && command.output_mode() == OutputMode::Unspecified);
}
