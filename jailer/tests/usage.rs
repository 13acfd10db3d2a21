//! Signs of life, and what sessions use.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use brig_jailer::api::{Cause, Event, Exit, Request, SessionUsage};

use support::{Rig, command, id, slow};

const MIB: u64 = 1 << 20;

fn usage(rig: &mut Rig, session: &str) -> Option<SessionUsage> {
    rig.send(&Request::Usage { session: id(session) });
    match rig.next().0 {
        Event::Usage { usage, .. } => usage,
        other => panic!("{other:?}"),
    }
}

fn pause(rig: &mut Rig, paused: bool) {
    let session = id("s1");
    rig.send(&Request::Pause { session, paused });
    let event = rig.next().0;
    assert!(
        matches!(event, Event::Paused { paused: now, .. } if now == paused),
        "{event:?}"
    );
}

/// Starts a program that says when it is ready.
fn begin(rig: &mut Rig, execution: &str, script: &str) -> File {
    let running = rig
        .try_spawn(command("s1", execution, &["python3", "-c", script]))
        .unwrap();
    let mut stdout = File::from(running.fds.into_iter().next().unwrap());
    stdout.read_exact(&mut [0; 6]).unwrap();
    stdout
}

#[test]
fn each_ping_has_its_answer() {
    let mut rig = Rig::start();
    for _ in 0..3 {
        rig.send(&Request::Ping);
        assert_eq!(rig.next().0, Event::Pong);
    }
}

#[test]
fn usage_is_that_of_all_programs_at_this_moment() {
    let mut rig = Rig::start();
    rig.make("s1");
    let empty = usage(&mut rig, "s1").unwrap();
    assert_eq!(empty.processes, 0, "the file helper is none of them");
    let script = "import os, threading, time\nopen('f', 'wb').write(bytes(20 << 20))\nx = b'x' * (60 << 20)\n\
                  os.fork() or time.sleep(60)\nthreading.Thread(target=time.sleep, args=[60]).start()\n\
                  print('ready', flush=True)\ntime.sleep(60)";
    let _stdout = begin(&mut rig, "e1", script);
    let busy = usage(&mut rig, "s1").unwrap();
    assert_eq!(busy.processes, 3, "two processes, one with two threads");
    assert!(busy.memory_bytes >= 80 * MIB, "{busy:?}");
    assert!(busy.cpu_us > empty.cpu_us, "{busy:?} {empty:?}");
    rig.send(&Request::Kill {
        session: id("s1"),
        execution: id("e1"),
    });
    assert_eq!(rig.ended().exit, Exit::Signal(9));
    // The kernel counts what has ended until its parent has asked for its status.
    let deadline = Instant::now() + Duration::from_secs(20 * slow());
    let after = loop {
        let after = usage(&mut rig, "s1").unwrap();
        if after.processes == 0 {
            break after;
        }
        assert!(Instant::now() < deadline, "{after:?}");
    };
    // The file is still there, and what was used was used.
    assert!(after.memory_bytes >= 20 * MIB, "{after:?}");
    assert!(after.memory_bytes < busy.memory_bytes - 50 * MIB, "{after:?} {busy:?}");
    assert!(after.cpu_us >= busy.cpu_us, "{after:?} {busy:?}");
}

#[test]
fn what_is_not_there_uses_nothing_that_could_be_told() {
    let mut rig = Rig::start();
    assert_eq!(usage(&mut rig, "s1"), None);
    rig.make("s1");
    assert!(usage(&mut rig, "s1").is_some());
    rig.close("s1");
    assert_eq!(usage(&mut rig, "s1"), None);
}

#[test]
fn the_limit_of_cpu_time_holds_after_a_pause_and_not_in_it() {
    let mut rig = Rig::start();
    rig.make("s1");
    let mut spawn = command(
        "s1",
        "e1",
        &["python3", "-c", "print('ready', flush=True)\nwhile True: pass"],
    );
    spawn.cpu_time_ms = Some(4000 * slow());
    let running = rig.try_spawn(spawn).unwrap();
    let mut stdout = File::from(running.fds.into_iter().next().unwrap());
    stdout.read_exact(&mut [0; 6]).unwrap();
    for _ in 0..2 {
        pause(&mut rig, true);
        let before = usage(&mut rig, "s1").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(700 * slow()));
        let after = usage(&mut rig, "s1").unwrap();
        // What it did on its way into the freezer.
        assert!(after.cpu_us - before.cpu_us < 300_000, "{before:?} {after:?}");
        pause(&mut rig, false);
    }
    let end = rig.ended();
    assert_eq!((end.exit, end.cause), (Exit::Signal(9), Some(Cause::CpuTime)));
}
