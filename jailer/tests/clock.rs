//! Laps, pauses, terminals and signals of a session's programs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use brig_jailer::api::{Cause, Event, Exit, Lap, Refusal, Request, Spawn, Terminal};

use support::{Rig, command, id, read_all, slow};

fn begin_lap(rig: &mut Rig, timeout_ms: Option<u64>) {
    let (session, execution) = (id("s1"), id("e1"));
    rig.send(&Request::Lap {
        session,
        execution,
        timeout_ms,
    });
}

/// Ends the lap of a program that waits for work, and gives what was used in it.
fn lap(rig: &mut Rig) -> Lap {
    begin_lap(rig, None);
    match rig.next().0 {
        Event::Lapped { lap, .. } => lap,
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

/// Reads until this text has come.
fn expect(from: &mut File, text: &str) -> String {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&seen).contains(text) {
        from.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    String::from_utf8_lossy(&seen).into_owned()
}

fn with_stdin(argv: &[&str]) -> Spawn {
    Spawn {
        stdin: true,
        ..command("s1", "e1", argv)
    }
}

#[test]
fn a_lap_tells_what_was_used_in_it_and_sets_the_time_anew() {
    const WORK: &str = "import sys\nfor line in sys.stdin: exec(line); print('done', flush=True)";
    let mut rig = Rig::start();
    rig.make("s1");
    let mut spawn = with_stdin(&["python3", "-c", WORK]);
    spawn.timeout_ms = 20_000 * slow();
    let mut fds = rig.try_spawn(spawn).unwrap().fds.into_iter();
    let (mut stdin, mut stdout) = (File::from(fds.next().unwrap()), File::from(fds.next().unwrap()));
    stdin
        .write_all(b"x = bytes(60 << 20); x = list(range(10**6)) * 3; del x\n")
        .unwrap();
    expect(&mut stdout, "done");
    let busy = lap(&mut rig);
    stdin.write_all(b"pass\n").unwrap();
    expect(&mut stdout, "done");
    // What is used before a part begins is not that part's.
    stdin.write_all(b"x = bytes(60 << 20); del x\n").unwrap();
    expect(&mut stdout, "done");
    begin_lap(&mut rig, Some(20_000 * slow()));
    stdin.write_all(b"pass\n").unwrap();
    expect(&mut stdout, "done");
    let idle = lap(&mut rig);
    assert!(busy.usage.memory_peak_bytes > 60 << 20, "{busy:?}");
    assert!(idle.usage.cpu_us < busy.usage.cpu_us, "{idle:?} {busy:?}");
    if peak_begins_anew() {
        assert!(
            idle.usage.memory_peak_bytes < busy.usage.memory_peak_bytes,
            "{idle:?} {busy:?}"
        );
    }
    begin_lap(&mut rig, Some(100));
    let end = rig.ended();
    assert_eq!((end.exit, end.cause), (Exit::Signal(9), Some(Cause::WallTime)));
}

/// On version 1 always, on version 2 since kernel 6.12.
fn peak_begins_anew() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 12)
}

#[test]
fn clocks_and_programs_of_a_paused_session_stand_still() {
    let mut rig = Rig::start();
    rig.make("s1");
    let mut spawn = command("s1", "e1", &["sh", "-c", "while :; do echo tick; sleep 0.05; done"]);
    spawn.timeout_ms = 3000 * slow();
    let running = rig.try_spawn(spawn).unwrap();
    let mut stdout = File::from(running.fds.into_iter().next().unwrap());
    expect(&mut stdout, "tick");
    pause(&mut rig, true);
    match rig.try_spawn(command("s1", "e2", &["true"])) {
        Err(Refusal::Paused) => {}
        other => panic!("{other:?}"),
    }
    // Longer than its whole time: it would have ended.
    std::thread::sleep(Duration::from_millis(3500 * slow()));
    rustix::io::ioctl_fionbio(&stdout, true).unwrap();
    let mut last = Vec::new();
    let _would_block = stdout.read_to_end(&mut last);
    std::thread::sleep(Duration::from_millis(200));
    let mut more = Vec::new();
    let _would_block = stdout.read_to_end(&mut more);
    assert_eq!(more, b"");
    pause(&mut rig, false);
    rustix::io::ioctl_fionbio(&stdout, false).unwrap();
    expect(&mut stdout, "tick");
    let end = rig.ended();
    assert_eq!((end.exit, end.cause), (Exit::Signal(9), Some(Cause::WallTime)));
}

#[test]
fn a_paused_session_can_be_closed() {
    let mut rig = Rig::start();
    rig.make("s1");
    rig.try_spawn(command("s1", "e1", &["sleep", "60"])).unwrap();
    pause(&mut rig, true);
    rig.close("s1");
}

fn terminal(argv: &[&str]) -> Spawn {
    Spawn {
        terminal: Some(Terminal { columns: 91, rows: 33 }),
        ..command("s1", "e1", argv)
    }
}

#[test]
fn a_terminal_is_the_programs_own() {
    let mut rig = Rig::start();
    rig.make("s1");
    let script = "test -t 0 && test -t 1 && test -t 2 && stty size && tty && echo $TERM && echo owner $(stat -c %u $(tty)) && \
        echo control >/dev/tty";
    let running = rig.try_spawn(terminal(&["sh", "-c", script])).unwrap();
    assert!(running.streams.terminal && !running.streams.stdout && !running.streams.stdin);
    // The terminal, the files of what is typed and of what is read, the journal, the two pipes.
    assert_eq!(running.fds.len(), 8);
    let shown = read_terminal(running.fds.into_iter().next().unwrap());
    assert_eq!(shown, "33 91\r\n/dev/pts/0\r\nxterm\r\nowner 1000\r\ncontrol\r\n");
    assert_eq!(rig.ended().exit, Exit::Code(0));
}

/// The end of a terminal is EIO.
fn read_terminal(terminal: OwnedFd) -> String {
    let mut bytes = Vec::new();
    let error = File::from(terminal).read_to_end(&mut bytes).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5));
    String::from_utf8(bytes).unwrap()
}

#[test]
fn keys_of_a_terminal_reach_its_programs() {
    let mut rig = Rig::start();
    rig.make("s1");
    let script = "trap 'echo interrupted' INT; echo ready; read line; read line; echo got $line; exit 4";
    let running = rig.try_spawn(terminal(&["sh", "-c", script])).unwrap();
    let mut ours = File::from(running.fds.into_iter().next().unwrap());
    expect(&mut ours, "ready");
    ours.write_all(b"\x03").unwrap();
    expect(&mut ours, "interrupted");
    ours.write_all(b"one\ntwo\n").unwrap();
    expect(&mut ours, "got ");
    assert_eq!(rig.ended().exit, Exit::Code(4));
}

#[test]
fn a_terminal_takes_the_place_of_pipes() {
    let mut rig = Rig::start();
    rig.make("s1");
    let mut spawn = terminal(&["true"]);
    spawn.merge_stderr = true;
    match rig.try_spawn(spawn) {
        Err(Refusal::Invalid { field, .. }) => assert_eq!(field, "terminal"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_signal_to_the_group_reaches_the_children_too() {
    let mut rig = Rig::start();
    rig.make("s1");
    let script = "import os, signal, time\nr, w = os.pipe()\nchild = os.fork()\n\
        def end(*_):\n    if child: os.waitpid(child, 0)\n    os.write(1, b'parent' if child else b'child '); os._exit(9)\n\
        signal.signal(signal.SIGTERM, end)\n\
        os.read(r, 1) and os.write(1, b'ready ') if child else os.write(w, b'x')\n\
        while True: time.sleep(0.01)";
    let running = rig.try_spawn(command("s1", "e1", &["python3", "-c", script])).unwrap();
    let stdout = running.fds.into_iter().next().unwrap();
    let mut reader = File::from(stdout.try_clone().unwrap());
    expect(&mut reader, "ready");
    let (session, execution) = (id("s1"), id("e1"));
    let (signal, group) = (15, true);
    rig.send(&Request::Signal {
        session,
        execution,
        signal,
        group,
    });
    assert_eq!(rig.ended().exit, Exit::Code(9));
    assert_eq!(read_all(stdout), " child parent");
}
