//! What may be asked of zygotes and docks, and what may not. Needs root and the `base` image. That zygotes fork is shown by
//! the tests of the pool.
#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod support;

use brig_jailer::api::{CloseReason, Dock, Event, Make, Refusal, Request, Spawn, Start, Work};
use support::{Rig, command, id, quantities};

fn make(session: &str, dock: Dock) -> Make {
    Make {
        waiting: true,
        dock,
        ..Rig::request("data", session, quantities())
    }
}

fn kernel(session: &str, start: Start) -> Spawn {
    Spawn {
        work: Work::Kernel,
        start,
        ..command(session, "e1", &[])
    }
}

/// The field that a refusal names, and why.
fn refused(refusal: Refusal) -> (String, String) {
    match refusal {
        Refusal::Invalid { field, message } => (field, message),
        other => panic!("{other:?}"),
    }
}

fn start_refused(rig: &mut Rig, spawn: Spawn) -> String {
    let (field, message) = refused(rig.try_spawn(spawn).unwrap_err());
    assert_eq!(field, "start");
    message
}

/// Groups of a dock, of any jailer.
fn groups(dock: &str) -> Vec<String> {
    let found = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-path"])
        .arg(format!("*/brig-*/dock-{dock}"))
        .output()
        .unwrap();
    String::from_utf8(found.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_session_without_a_dock_has_neither_zygote_nor_fork() {
    let mut rig = Rig::start();
    rig.try_make(make("plain1", Dock::None)).unwrap();
    let zygote = start_refused(&mut rig, kernel("plain1", Start::Zygote));
    assert_eq!(zygote, "the session is not one for a zygote");
    let fork = start_refused(&mut rig, kernel("plain1", Start::Fork));
    assert_eq!(fork, "no zygote can reach the session");
    rig.stop();
}

#[test]
fn the_session_of_a_zygote_runs_nothing_else_and_leaves_no_dock() {
    let mut rig = Rig::start();
    rig.try_make(make("docked1", Dock::Own)).unwrap();
    assert!(!groups("docked1").is_empty());
    let exec = start_refused(&mut rig, command("docked1", "e1", &["true"]));
    assert_eq!(exec, "nothing but a zygote is started in its session");
    let command = Spawn {
        start: Start::Zygote,
        ..command("docked1", "e1", &["true"])
    };
    let plain = "zygotes and what they fork are kernels with stdin closed and no variables of their own";
    assert_eq!(start_refused(&mut rig, command), plain);
    let with_stdin = Spawn {
        stdin: true,
        ..kernel("docked1", Start::Zygote)
    };
    assert_eq!(start_refused(&mut rig, with_stdin), plain);
    assert_eq!(
        start_refused(&mut rig, kernel("docked1", Start::Fork)),
        "no zygote can reach the session"
    );
    rig.send(&Request::Close { session: id("docked1") });
    let closed = Event::Closed {
        session: id("docked1"),
        reason: CloseReason::Asked,
    };
    assert_eq!(rig.next().0, closed);
    rig.stop();
    assert_eq!(groups("docked1"), Vec::<String>::new());
}

#[test]
fn a_session_is_not_made_in_a_dock_that_has_no_zygote() {
    let mut rig = Rig::start();
    let nobody = refused(rig.try_make(make("inner1", Dock::Of(id("docked2")))).unwrap_err());
    assert_eq!(nobody, ("dock".to_owned(), "session docked2 has no zygote".to_owned()));
    rig.try_make(make("docked2", Dock::Own)).unwrap();
    let not_yet = refused(rig.try_make(make("inner1", Dock::Of(id("docked2")))).unwrap_err());
    assert_eq!(not_yet, ("dock".to_owned(), "session docked2 has no zygote".to_owned()));
    rig.stop();
}
