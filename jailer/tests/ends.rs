//! How programs and sessions end: told truly, and with nothing left. Needs root and the `base` image.
#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod support;

use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use brig_jailer::api::{Cause, CloseReason, End, Event, Exit, Quantities, Refusal, Request, Spawn};
use support::{Outcome, Rig, command, id, quantities, slow, wait_for};

fn run_for(script: &str, timeout_ms: u64) -> (Outcome, Duration) {
    let mut rig = Rig::start();
    rig.make("s1");
    let start = Instant::now();
    let outcome = rig.run(Spawn {
        timeout_ms,
        ..command("s1", "e1", &["sh", "-c", script])
    });
    let took = start.elapsed();
    rig.close("s1");
    rig.stop();
    (outcome, took)
}

fn left(session: &str) -> Vec<PathBuf> {
    let listed = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-type", "d", "-path", &format!("*/brig-*/{session}*")])
        .output()
        .unwrap();
    String::from_utf8(listed.stdout)
        .unwrap()
        .lines()
        .map(PathBuf::from)
        .collect()
}

/// How long anything may take that would take minutes if it were not ended.
fn soon() -> Duration {
    Duration::from_secs(20 * slow())
}

#[test]
fn a_timeout_keeps_the_output_and_ends_the_whole_tree() {
    // Detached, stopped, ignoring signals, holding the pipes: all of them go.
    let script =
        "echo before; (setsid sleep 100 &); (trap '' TERM INT HUP; sleep 100) & sleep 100 & kill -STOP $!; sleep 100";
    let limit = 2000 * slow();
    let (outcome, took) = run_for(script, limit);
    assert_eq!(
        (outcome.end.exit, outcome.end.cause),
        (Exit::Signal(9), Some(Cause::WallTime))
    );
    assert_eq!(outcome.stdout, "before\n");
    assert!(took < Duration::from_millis(limit + 5000 * slow()), "{took:?}");
}

#[test]
fn a_fork_bomb_stays_in_its_limit_and_ends_in_time() {
    let script = "bomb() { bomb | bomb & }; bomb; while :; do :; done";
    let (outcome, took) = run_for(script, 1000 * slow());
    assert_eq!(outcome.end.cause, Some(Cause::WallTime));
    assert!(outcome.end.usage.processes_peak <= quantities().pids, "{outcome:?}");
    assert!(outcome.end.pids_refused > 0, "{outcome:?}");
    assert!(took < Duration::from_secs(6 * slow()), "{took:?}");
}

#[test]
fn what_a_program_leaves_behind_ends_with_it() {
    let (outcome, took) = run_for("(setsid sleep 100 &) ; sleep 100 & echo done", 20_000 * slow());
    assert_eq!((outcome.end.exit, outcome.stdout.as_str()), (Exit::Code(0), "done\n"));
    assert!(took < soon(), "{took:?}");
}

#[test]
fn out_of_memory_is_told_apart_from_a_signal_of_ones_own() {
    let (outcome, _) = run_for("exec python3 -c 'x = bytearray(600 << 20)'", 20_000 * slow());
    assert_eq!(
        (outcome.end.exit, outcome.end.cause),
        (Exit::Signal(9), Some(Cause::Memory)),
        "{outcome:?}"
    );
    assert!(outcome.end.oom_kills > 0);
    let (outcome, _) = run_for("kill -9 $$", 20_000 * slow());
    assert_eq!(
        (outcome.end.exit, outcome.end.cause, outcome.end.oom_kills),
        (Exit::Signal(9), None, 0)
    );
}

#[test]
fn a_parent_survives_a_child_that_ran_out_of_memory() {
    let (outcome, _) = run_for(
        "python3 -c 'x = bytearray(600 << 20)'; echo survived $?",
        20_000 * slow(),
    );
    assert_eq!(
        (outcome.end.exit, outcome.end.cause, outcome.end.oom_kills),
        (Exit::Code(0), None, 1),
        "{outcome:?}"
    );
    assert_eq!(outcome.stdout, "survived 137\n");
}

#[test]
fn a_full_disk_is_no_memory_matter() {
    let (outcome, _) = run_for("cat /dev/zero >f; echo $?", 20_000 * slow());
    assert_eq!((outcome.stdout.as_str(), outcome.end.oom_kills), ("1\n", 0));
    assert!(outcome.stderr.contains("No space left"), "{outcome:?}");
}

#[test]
fn signals_reach_the_main_process_alone() {
    let mut rig = Rig::start();
    rig.make("s1");
    let script = "import signal, time\nsignal.signal(signal.SIGINT, lambda *a: print('caught', flush=True))\n\
                  print('up', flush=True)\ntime.sleep(0.5); time.sleep(30)";
    let running = rig.try_spawn(command("s1", "e1", &["python3", "-c", script])).unwrap();
    let mut fds = running.fds.into_iter();
    let mut stdout = std::fs::File::from(fds.next().unwrap());
    stdout.read_exact(&mut [0; 3]).unwrap();
    rig.send(&Request::Signal {
        session: id("s1"),
        execution: id("e1"),
        signal: 2,
        group: false,
    });
    let mut caught = [0; 7];
    stdout.read_exact(&mut caught).unwrap();
    assert_eq!(&caught, b"caught\n");
    rig.send(&Request::Signal {
        session: id("s1"),
        execution: id("e1"),
        signal: 15,
        group: false,
    });
    assert_eq!(rig.ended().exit, Exit::Signal(15));
    assert_eq!(support::read_all(stdout.into()), "");
    rig.stop();
}

#[test]
fn kill_and_close_are_told_as_asked_for() {
    let mut rig = Rig::start();
    rig.make("s1");
    rig.try_spawn(command("s1", "e1", &["sleep", "100"])).unwrap();
    rig.send(&Request::Kill {
        session: id("s1"),
        execution: id("e1"),
    });
    let End { exit, cause, .. } = rig.ended();
    assert_eq!((exit, cause), (Exit::Signal(9), Some(Cause::Asked)));
    rig.try_spawn(command("s1", "e2", &["sleep", "100"])).unwrap();
    rig.send(&Request::Close { session: id("s1") });
    assert_eq!(rig.ended().cause, Some(Cause::Asked));
    assert_eq!(
        rig.next().0,
        Event::Closed {
            session: id("s1"),
            reason: CloseReason::Asked
        }
    );
    rig.stop();
}

#[test]
fn a_session_past_its_age_is_closed() {
    let mut rig = Rig::start();
    rig.try_make(Rig::request(
        "data",
        "aged",
        Quantities {
            max_age_ms: 3000 * slow(),
            ..quantities()
        },
    ))
    .unwrap();
    rig.try_spawn(command("aged", "e1", &["sleep", "100"])).unwrap();
    assert_eq!(rig.ended().cause, Some(Cause::SessionAge));
    assert_eq!(
        rig.next().0,
        Event::Closed {
            session: id("aged"),
            reason: CloseReason::SessionAge
        }
    );
    assert_eq!(left("aged"), Vec::<PathBuf>::new());
    rig.stop();
}

#[test]
fn a_jailer_without_a_client_ends_and_leaves_nothing() {
    let mut rig = Rig::start();
    for session in ["gone1", "gone2", "gone3"] {
        rig.make(session);
        rig.try_spawn(command(session, "e1", &["sleep", "100"])).unwrap();
    }
    let start = Instant::now();
    rig.stop();
    assert!(start.elapsed() < soon());
    assert_eq!(left("gone"), Vec::<PathBuf>::new());
}

#[test]
fn a_killed_jailer_takes_its_jails_along_and_the_next_one_sweeps() {
    let other = Rig::start();
    let mut rig = Rig::start();
    rig.make("swept");
    let script = "echo $$; sleep 100";
    let running = rig.try_spawn(command("swept", "e1", &["sh", "-c", script])).unwrap();
    let mut stdout = std::fs::File::from(running.fds.into_iter().next().unwrap());
    stdout.read_exact(&mut [0; 2]).unwrap();
    rig.process.kill().unwrap();
    rig.process.wait().unwrap();
    // The pipe ends when the last process that holds it is dead.
    let start = Instant::now();
    support::read_all(stdout.into());
    assert!(start.elapsed() < soon());
    // Regions are taken lowest first: the next one takes the other's, and not the dead one's.
    other.stop();
    let next = Rig::start();
    // One of another test may just have had it in hand.
    wait_for("it is swept", || left("swept").is_empty());
    next.stop();
}

#[test]
fn a_jail_whose_pid_1_is_stopped_dies_with_the_jailer_all_the_same() {
    let mut rig = Rig::start();
    let _up = rig.make("frozen");
    rig.sh("frozen", "e0", "true");
    let running = rig.try_spawn(command("frozen", "e1", &["sleep", "100"])).unwrap();
    let children = format!("/proc/{0}/task/{0}/children", rig.process.id());
    let init: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    let init = rustix::process::Pid::from_raw(init).unwrap();
    rustix::process::kill_process(init, rustix::process::Signal::STOP).unwrap();
    rig.process.kill().unwrap();
    rig.process.wait().unwrap();
    let start = Instant::now();
    support::read_all(running.fds.into_iter().next().unwrap());
    assert!(start.elapsed() < soon());
}

#[test]
fn memory_that_no_process_has_ends_the_program_and_not_the_file_helper() {
    let mut rig = Rig::start();
    let up = rig.make("s1");
    let script =
        "import os\nfd = os.memfd_create('x')\nblock = bytes(1 << 20)\nfor _ in range(600): os.write(fd, block)";
    let outcome = rig.python("s1", "e1", script);
    assert_eq!(outcome.end.cause, Some(Cause::Memory), "{outcome:?}");
    let running = "cat /proc/[0-9]*/status | grep -c brig-files";
    assert_eq!(rig.sh("s1", "e2", running).stdout, "1\n");
    drop(up);
    rig.stop();
}

#[test]
fn sockets_hold_no_memory_beside_the_limit() {
    let script = "import socket, os\nheld = []\ntotal = 0\n\
                  for _ in range(100):\n\
                  \x20   a, b = socket.create_server(('127.0.0.1', 0)), socket.socket()\n\
                  \x20   b.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20); b.connect(a.getsockname())\n\
                  \x20   c, _ = a.accept(); b.setblocking(False); held += [a, b, c]\n\
                  \x20   try:\n\
                  \x20       while True: total += b.send(bytes(1 << 16))\n\
                  \x20   except BlockingIOError: pass\n\
                  print(total >> 20)";
    let mut rig = Rig::start();
    rig.make("s1");
    let outcome = rig.run(Spawn {
        timeout_ms: 20_000 * slow(),
        ..command("s1", "e1", &["python3", "-c", script])
    });
    // On version 2 it counts as memory: the end is then the limit's.
    let held: u64 = outcome.stdout.trim().parse().unwrap_or(0);
    assert!(held < 100, "{outcome:?}");
    rig.stop();
}

#[test]
fn bad_requests_name_the_field_and_leave_nothing() {
    let mut rig = Rig::start();
    let good = || Rig::request("data", "bad", quantities());
    let refused = |rig: &mut Rig, make| match rig.try_make(make).unwrap_err() {
        Refusal::Invalid { field, message } => (field, message),
        other => panic!("{other:?}"),
    };
    let mut make = good();
    make.policy = "nope".to_owned();
    let (field, message) = refused(&mut rig, make);
    assert!(
        field == "policy" && message.contains("data") && message.contains("strict"),
        "{message}"
    );
    let mut make = good();
    make.policy_hash = "0".repeat(64);
    assert_eq!(refused(&mut rig, make).0, "policy_hash");
    let mut make = good();
    make.template = "base@000000000000".to_owned();
    assert_eq!(refused(&mut rig, make).0, "template");
    let mut make = good();
    make.quantities.memory_bytes = 1 << 50;
    assert!(refused(&mut rig, make).0.contains("memory"));
    rig.make("bad");
    assert_eq!(refused(&mut rig, good()).0, "session_id");
    let mut spawn = command("bad", "e1", &["true"]);
    spawn.environment = vec![(b"LD_PRELOAD".to_vec(), b"/tmp/x.so".to_vec())];
    let Refusal::Invalid { field, message } = rig.try_spawn(spawn).unwrap_err() else {
        panic!()
    };
    assert!(field == "environment" && message.contains("LD_PRELOAD"), "{message}");
    let Refusal::Invalid { field, .. } = rig.try_spawn(command("nosuch", "e1", &["true"])).unwrap_err() else {
        panic!()
    };
    assert_eq!(field, "session_id");
    rig.stop();
}

#[test]
fn two_sessions_can_not_touch_each_other() {
    let mut rig = Rig::start();
    rig.make("s1");
    rig.make("s2");
    rig.try_spawn(command(
        "s1",
        "e1",
        &["sh", "-c", "echo secret >/tmp/f; echo secret >/dev/shm/f; sleep 100"],
    ))
    .unwrap();
    let script = "ls /tmp /dev/shm; ps ax -o args= | grep -c '[s]leep 100'; ipcs -m 2>/dev/null | grep -c 0x";
    assert_eq!(rig.sh("s2", "e1", script).stdout, "/dev/shm:\n\n/tmp:\n0\n0\n");
    rig.stop();
}
