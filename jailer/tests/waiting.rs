//! Sessions that are made before anybody wants them, and taken once. Needs root and the `base` image.
#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod support;

use std::path::PathBuf;

use brig_jailer::api::{CloseReason, Event, Make, Request};
use support::{Rig, command, id, quantities};

/// Makes one and starts a program in it that waits.
fn waiting(rig: &mut Rig, session: &str) {
    let make = Make {
        waiting: true,
        ..Rig::request("data", session, quantities())
    };
    rig.try_make(make).unwrap();
    rig.try_spawn(command(session, "e1", &["sleep", "100"])).unwrap();
}

fn take(rig: &mut Rig, session: &str, execution: &str) -> Event {
    rig.send(&Request::Take {
        session: id(session),
        execution: (!execution.is_empty()).then(|| id(execution)),
    });
    loop {
        match rig.next().0 {
            Event::Ended { .. } => {}
            other => return other,
        }
    }
}

/// Whether the groups of a session get only what nobody else wants.
fn is_idle(session: &str) -> bool {
    let found = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-path", &format!("*/brig-*/{session}/cpu.idle")])
        .output()
        .unwrap();
    let files: Vec<PathBuf> = String::from_utf8(found.stdout)
        .unwrap()
        .lines()
        .map(PathBuf::from)
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    std::fs::read_to_string(&files[0]).unwrap() == "1\n"
}

fn closed(session: &str, reason: CloseReason) -> Event {
    Event::Closed {
        session: id(session),
        reason,
    }
}

#[test]
fn a_session_that_waits_is_taken_once_and_idle_until_then() {
    let mut rig = Rig::start();
    waiting(&mut rig, "waits1");
    assert!(is_idle("waits1"));
    assert_eq!(rig.host().sessions, 0);
    assert_eq!(take(&mut rig, "waits1", "e1"), Event::Taken { session: id("waits1") });
    assert!(!is_idle("waits1"));
    assert_eq!(rig.host().sessions, 1);
    assert_eq!(rig.sh("waits1", "e2", "echo 1").stdout, "1\n");
    assert_eq!(take(&mut rig, "waits1", "e1"), closed("waits1", CloseReason::Died));
    rig.stop();
}

#[test]
fn what_does_not_wait_or_has_no_program_is_not_taken() {
    let mut rig = Rig::start();
    rig.make("plain1");
    assert_eq!(take(&mut rig, "plain1", "e1"), closed("plain1", CloseReason::Died));
    waiting(&mut rig, "waits2");
    assert_eq!(take(&mut rig, "waits2", "e9"), closed("waits2", CloseReason::Died));
    rig.stop();
}

#[test]
fn a_session_in_which_nothing_was_started_is_taken_as_that() {
    let mut rig = Rig::start();
    for session in ["empty1", "empty2"] {
        let make = Make {
            waiting: true,
            ..Rig::request("data", session, quantities())
        };
        rig.try_make(make).unwrap();
    }
    assert_eq!(take(&mut rig, "empty1", ""), Event::Taken { session: id("empty1") });
    assert!(!is_idle("empty1"));
    assert_eq!(rig.sh("empty1", "e1", "echo 1").stdout, "1\n");
    rig.try_spawn(command("empty2", "e1", &["sleep", "100"])).unwrap();
    assert_eq!(take(&mut rig, "empty2", ""), closed("empty2", CloseReason::Died));
    rig.stop();
}

#[test]
fn the_age_of_a_session_begins_when_it_is_taken() {
    let mut rig = Rig::start();
    let make = Make {
        waiting: true,
        quantities: brig_jailer::api::Quantities {
            max_age_ms: 2000,
            ..quantities()
        },
        ..Rig::request("data", "aged1", quantities())
    };
    rig.try_make(make).unwrap();
    rig.try_spawn(command("aged1", "e1", &["sleep", "100"])).unwrap();
    let taken = std::time::Instant::now();
    assert_eq!(take(&mut rig, "aged1", "e1"), Event::Taken { session: id("aged1") });
    let end = loop {
        match rig.next().0 {
            Event::Ended { .. } => {}
            other => break other,
        }
    };
    assert_eq!(end, closed("aged1", CloseReason::SessionAge));
    assert!(taken.elapsed() >= std::time::Duration::from_millis(2000));
    rig.stop();
}
