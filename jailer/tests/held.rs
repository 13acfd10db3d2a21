//! Held sessions: what outlives a connection, what does not, and what the next client is told.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use brig_jailer::api::{
    Cause, CloseReason, Event, Exit, Held, HeldExecution, Input, Make, Refusal, Request, SESSION_MEMO_MAX,
};
use brig_jailer::files::wire as files;
use tempfile::TempDir;

use support::{Rig, command, id, quantities, read_all, slow, wait_for};

/// A jailer that listens in a folder of its own.
struct House {
    rig: Rig,
    folder: TempDir,
}

impl House {
    fn open(grace: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("brig-test-").tempdir().unwrap();
        let rig = Rig::listening(&folder.path().join("socket"), grace);
        Self { rig, folder }
    }

    fn hold(&mut self, session: &str) {
        let make = Make {
            held: true,
            memo: format!("memo of {session}").into_bytes(),
            ..Rig::request("data", session, quantities())
        };
        self.rig.try_make(make).unwrap();
    }

    fn come_back(&mut self) -> Told {
        let events = self.rig.come_back(&self.folder.path().join("socket"));
        let mut told = Told::default();
        for (event, fds) in events {
            match event {
                Event::Held(held) => told.sessions.push(*held),
                Event::HeldExecution(held) => told.executions.push((*held, fds)),
                Event::Closed { session, reason } => told.closed.push((session.to_string(), reason)),
                other => panic!("{other:?}"),
            }
        }
        told
    }
}

/// What a client is told that comes back.
#[derive(Default)]
struct Told {
    sessions: Vec<Held>,
    executions: Vec<(HeldExecution, Vec<OwnedFd>)>,
    closed: Vec<(String, CloseReason)>,
}

#[test]
fn a_held_session_and_what_runs_in_it_are_there_for_the_next_client() {
    let mut house = House::open("30s");
    house.hold("s1");
    let mut spawn = command(
        "s1",
        "e1",
        &["sh", "-c", "echo before; read line; echo got $line; exit 3"],
    );
    spawn.stdin = true;
    spawn.memo = b"first".to_vec();
    let running = house.rig.try_spawn(spawn).unwrap();
    let mut first = [0; 7];
    File::from(running.fds.into_iter().nth(1).unwrap())
        .read_exact(&mut first)
        .unwrap();
    let memo = Request::Memo {
        session: id("s1"),
        execution: Some(id("e1")),
        memo: b"second".to_vec(),
    };
    house.rig.send(&memo);

    let mut told = house.come_back();
    assert_eq!(told.sessions.len(), 1);
    let session = &told.sessions[0];
    assert_eq!(
        (
            session.session.as_str(),
            session.memo.as_slice(),
            session.quantities,
            session.policy.as_str()
        ),
        ("s1", &b"memo of s1"[..], quantities(), "data")
    );
    assert_eq!(session.enforced.capabilities, "none");
    let (execution, fds) = told.executions.pop().unwrap();
    assert_eq!((execution.memo.as_slice(), execution.end), (&b"second"[..], None));
    assert!(execution.pid > 0 && execution.streams.stdin && execution.streams.stderr);
    // stdin, stdout, stderr, and the files of both and of the journal.
    assert_eq!(fds.len(), 7);
    let mut fds = fds.into_iter();
    let (stdin, stdout) = (fds.next().unwrap(), fds.next().unwrap());
    File::from(stdin).write_all(b"news\n").unwrap();
    assert_eq!(read_one(stdout, "got news\n".len()), "got news\n");
    assert_eq!(house.rig.ended().exit, Exit::Code(3));
    house.rig.close("s1");
}

/// The jailer's own copy keeps a pipe from ending, so that the end can't be waited for.
fn read_one(pipe: OwnedFd, length: usize) -> String {
    let mut bytes = vec![0; length];
    File::from(pipe).read_exact(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn the_memory_files_are_the_same_ones_for_the_next_client() {
    let mut house = House::open("30s");
    house.hold("s1");
    let running = house.rig.try_spawn(command("s1", "e1", &["sleep", "60"])).unwrap();
    let mut journal = File::from(running.fds.into_iter().next_back().unwrap());
    journal.write_all(b"kept").unwrap();
    let mut told = house.come_back();
    let journal = told.executions.pop().unwrap().1.pop().unwrap();
    let mut bytes = [0; 8];
    assert_eq!(rustix::io::pread(&journal, &mut bytes, 0).unwrap(), 4);
    assert_eq!(&bytes[..4], b"kept");
}

#[test]
fn an_end_is_told_again_until_it_is_forgotten() {
    let mut house = House::open("30s");
    house.hold("s1");
    house
        .rig
        .try_spawn(command("s1", "e1", &["sh", "-c", "exit 7"]))
        .unwrap();
    assert_eq!(house.rig.ended().exit, Exit::Code(7));
    for _ in 0..2 {
        let told = house.come_back();
        let ends: Vec<_> = told
            .executions
            .iter()
            .map(|(held, _)| held.end.map(|end| end.exit))
            .collect();
        assert_eq!(ends, [Some(Exit::Code(7))]);
    }
    house.rig.send(&Request::Forget {
        session: id("s1"),
        execution: Some(id("e1")),
    });
    assert!(house.come_back().executions.is_empty());
}

#[test]
fn deadlines_run_while_nobody_is_there() {
    let mut house = House::open("60s");
    house.hold("s1");
    let mut aged = Rig::request("data", "s2", quantities());
    (aged.held, aged.quantities.max_age_ms) = (true, 3000 * slow());
    house.rig.try_make(aged).unwrap();
    let mut spawn = command("s1", "e1", &["sleep", "600"]);
    spawn.timeout_ms = 1500 * slow();
    house.rig.try_spawn(spawn).unwrap();
    house.rig.leave();
    std::thread::sleep(Duration::from_millis(3000 * slow()));
    let mut told = house.come_back();
    wait_for("the session is closed", || {
        told = house.come_back();
        !told.closed.is_empty()
    });
    let end = told.executions[0].0.end.unwrap();
    assert_eq!((end.exit, end.cause), (Exit::Signal(9), Some(Cause::WallTime)));
    assert_eq!(told.closed, [("s2".to_owned(), CloseReason::SessionAge)]);
    assert_eq!(told.sessions.len(), 2);
    // Until it is recorded.
    assert_eq!(house.come_back().closed.len(), 1);
    house.rig.send(&Request::Forget {
        session: id("s2"),
        execution: None,
    });
    let told = house.come_back();
    assert!(told.closed.is_empty() && told.sessions.len() == 1);
}

#[test]
fn one_shot_sessions_end_with_the_connection() {
    let mut house = House::open("60s");
    house.rig.make("s1");
    house.rig.try_spawn(command("s1", "e1", &["sleep", "600"])).unwrap();
    house.hold("s2");
    let told = house.come_back();
    let names: Vec<_> = told.sessions.iter().map(|held| held.session.to_string()).collect();
    assert_eq!((names, told.executions.len()), (vec!["s2".to_owned()], 0));
    wait_for("the one-shot session goes", || house.rig.host().sessions == 1);
}

#[test]
fn what_nobody_comes_back_for_is_closed_and_nothing_is_left() {
    let mut house = House::open("200ms");
    house.hold("s1");
    let running = house.rig.try_spawn(command("s1", "e1", &["sleep", "600"])).unwrap();
    let stdout = running.fds.into_iter().next().unwrap();
    house.rig.leave();
    // Its end comes when the program and the jailer's copy are gone.
    assert_eq!(read_all(stdout), "");
    wait_for("the session goes", || {
        let told = house.come_back();
        let gone = told.sessions.is_empty() && told.closed.is_empty();
        gone && house.rig.host().sessions == 0
    });
}

#[test]
fn a_planned_end_is_waited_for_longer() {
    let mut house = House::open("100ms");
    house.hold("s1");
    house.rig.send(&Request::Handover);
    // Its answer says that the request before it was obeyed.
    house.rig.host();
    house.rig.leave();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(house.come_back().sessions.len(), 1);
    wait_for("the usual time holds again", || {
        house.rig.leave();
        std::thread::sleep(Duration::from_millis(300));
        house.come_back().sessions.is_empty()
    });
}

#[test]
fn a_jail_that_dies_unseen_is_told() {
    let mut house = House::open("60s");
    house.hold("s1");
    house.rig.try_spawn(command("s1", "e1", &["sleep", "600"])).unwrap();
    house.rig.leave();
    let pid1 = pid1_of(house.rig.process.id());
    rustix::process::pidfd_send_signal(&pid1, rustix::process::Signal::KILL).unwrap();
    wait_for("the end is told", || {
        let told = house.come_back();
        let over = told.closed == [("s1".to_owned(), CloseReason::Died)];
        over && told.executions[0].0.end.unwrap().cause == Some(Cause::Internal)
    });
}

/// The only child of a jailer with one session.
fn pid1_of(jailer: u32) -> File {
    let children = std::fs::read_to_string(format!("/proc/{jailer}/task/{jailer}/children")).unwrap();
    let pid = rustix::process::Pid::from_raw(children.trim().parse().unwrap()).unwrap();
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
        .unwrap()
        .into()
}

#[test]
fn an_input_ends_when_both_copies_are_closed() {
    let mut house = House::open("30s");
    house.hold("s1");
    let mut spawn = command("s1", "e1", &["cat"]);
    spawn.stdin = true;
    let running = house.rig.try_spawn(spawn).unwrap();
    let mut fds = running.fds.into_iter();
    File::from(fds.next().unwrap()).write_all(b"all").unwrap();
    let stdout = fds.next().unwrap();
    assert_eq!(read_one(stdout, 3), "all");
    house.rig.send(&Request::CloseInput {
        session: id("s1"),
        execution: id("e1"),
        input: Input::Stdin,
    });
    assert_eq!(house.rig.ended().exit, Exit::Code(0));
}

#[test]
fn the_file_helper_is_replaced_and_the_old_one_is_dead() {
    let mut house = House::open("30s");
    let made = Make {
        held: true,
        ..Rig::request("data", "s1", quantities())
    };
    let old = house.rig.try_make(made).unwrap().files;
    house.rig.send(&Request::Files { session: id("s1") });
    let (event, mut fds) = house.rig.next();
    assert_eq!(event, Event::Files { session: id("s1") });
    assert_eq!(read_all(old), "");
    assert_answers(fds.remove(0));
}

/// Has a file helper do something.
fn assert_answers(socket: OwnedFd) {
    let mut helper = File::from(socket);
    let walk = files::Walk {
        max_entries: 10,
        max_depth: 2,
        time_ms: 1000,
    };
    helper
        .write_all(&files::encode(&files::Request::Snapshot(walk)).unwrap())
        .unwrap();
    let mut header = [0; files::HEADER];
    helper.read_exact(&mut header).unwrap();
    let mut body = vec![0; files::body_length(header).unwrap()];
    helper.read_exact(&mut body).unwrap();
    let answer: files::Response = files::decode(&body).unwrap();
    assert!(
        matches!(
            answer,
            files::Response::Snapshotted {
                files: 0,
                truncated: None
            }
        ),
        "{answer:?}"
    );
}

#[test]
fn a_file_helper_that_an_earlier_client_asked_for_is_not_taken_for_the_one_that_this_one_asked_for() {
    let mut house = House::open("30s");
    house.hold("s1");
    // Wherever the first replacement is when the client goes, and when the next one asks.
    for round in 0..20 {
        house.rig.send(&Request::Files { session: id("s1") });
        std::thread::sleep(Duration::from_micros(500 * round));
        let told = house.come_back();
        assert_eq!(told.sessions.len(), 1);
        std::thread::sleep(Duration::from_micros(500 * (round % 4)));
        house.rig.send(&Request::Files { session: id("s1") });
        let (event, mut fds) = house.rig.next();
        assert_eq!(event, Event::Files { session: id("s1") });
        assert_answers(fds.remove(0));
    }
    // Nothing else was told.
    assert_eq!(house.rig.host().sessions, 1);
}

#[test]
fn cpu_time_is_counted_over_all_processes() {
    let mut rig = Rig::start();
    rig.make("s1");
    let mut spawn = command("s1", "e1", &["sh", "-c", "while :; do :; done & while :; do :; done"]);
    (spawn.cpu_time_ms, spawn.timeout_ms) = (Some(300), 30_000 * slow());
    rig.try_spawn(spawn).unwrap();
    let end = rig.ended();
    assert_eq!((end.exit, end.cause), (Exit::Signal(9), Some(Cause::CpuTime)));
    assert!(end.usage.cpu_us >= 300_000, "{end:?}");
}

#[test]
fn what_a_client_can_get_wrong_is_named() {
    let mut house = House::open("30s");
    house.hold("s1");
    let make = Make {
        memo: vec![0; SESSION_MEMO_MAX + 1],
        ..Rig::request("data", "s2", quantities())
    };
    let field = |refusal| match refusal {
        Refusal::Invalid { field, .. } => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(house.rig.try_make(make).unwrap_err()), "memo");
    let mut spawn = command("s1", "e1", &["true"]);
    spawn.cpu_time_ms = Some(0);
    assert_eq!(field(house.rig.try_spawn(spawn).unwrap_err()), "cpu_time_ms");
    house.rig.try_spawn(command("s1", "e1", &["true"])).unwrap();
    house.rig.ended();
    assert_eq!(
        field(house.rig.try_spawn(command("s1", "e1", &["true"])).unwrap_err()),
        "execution_id"
    );
}

#[test]
fn a_long_request_needs_no_descriptor_and_none_is_taken() {
    let mut house = House::open("30s");
    house.hold("s1");
    let long = "x".repeat(100_000);
    let mut spawn = command("s1", "e1", &["sh", "-c", "printf %s ${#1}", "sh", &long]);
    spawn.merge_stderr = true;
    let running = house.rig.try_spawn(spawn).unwrap();
    assert_eq!(read_one(running.fds.into_iter().next().unwrap(), 6), "100000");
    house.rig.ended();
    let sent = house.rig.send_with_descriptor(&Request::Host);
    if kernel_is_at_least(6, 16) {
        assert_eq!(sent.unwrap_err().raw_os_error(), Some(1));
    } else {
        sent.unwrap();
        assert!(matches!(house.rig.next().0, Event::Host(_)));
    }
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (major, minor)
}
