//! Nothing is left: after many runs, and after the death of any part at any time.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{CauseKind, ExecutionSpec, ExecutionStatus as Status, Limits, NoticeKind};
use brig_tests::processes::{
    Process, assert_gone, assert_no_groups, await_named, descendants, groups, mounts, named, of_sessions, process,
    session_of,
};
use brig_tests::spec::{code, command, input, patient, sh, small, timeout};
use brig_tests::{Brig, DEADLINE, Daemon, daemon, eventually, slow, way};
use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take to be gone.
static SOON: LazyLock<Duration> = LazyLock::new(|| Duration::from_secs(5) * slow());

/// How long what was kept for the next request may stay.
static REST: LazyLock<Duration> = LazyLock::new(|| Duration::from_secs(20) * slow());

fn signal(process: &Process, signal: Signal) {
    kill_process(Pid::from_raw(process.pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// A run of each kind, by number.
fn mixed(number: usize) -> ExecutionSpec {
    let limits = |limits: Limits, spec| ExecutionSpec {
        limits: Some(limits),
        ..spec
    };
    let spec = match number % 10 {
        0 => small("print('hello')\n1 + 1"),
        1 => sh("exit 3"),
        2 => ExecutionSpec {
            limits: timeout(200),
            ..sh("(setsid sleep 100 &); sleep 100")
        },
        3 => limits(
            Limits {
                memory_bytes: Some(40 << 20),
                disk_bytes: Some(1 << 20),
                ..Limits::default()
            },
            small("x = bytearray(200 << 20)"),
        ),
        4 => sh("kill -9 $$"),
        5 => ExecutionSpec {
            inputs: vec![input("a.csv", b"a\n1\n")],
            ..sh("cp a.csv b.csv; mkfifo f; ln -s /etc/passwd p")
        },
        6 => limits(
            Limits {
                pids: Some(20),
                timeout: timeout(500).unwrap().timeout,
                ..Limits::default()
            },
            sh("bomb() { bomb | bomb & }; bomb; while :; do :; done"),
        ),
        7 => code("import numpy\nprint(numpy.arange(4).sum())"),
        8 => sh("head -c 20000000 /dev/zero"),
        _ => small("import multiprocessing as m\nwith m.Pool(2) as p: print(p.map(abs, [-1, -2]))"),
    };
    ExecutionSpec {
        session_id: format!("mixed{}x{number}", std::process::id()),
        ..spec
    }
}

/// A session that runs and whose processes are known.
fn running(daemon: &Daemon, name: &str) -> (brig_tests::Live, String, Vec<Process>) {
    let session = format!("{name}{}", std::process::id());
    let mut live = daemon.begin(ExecutionSpec {
        session_id: session.clone(),
        execution_id: name.to_owned(),
        ..sh("(setsid sleep 100 &); echo up; sleep 100")
    });
    live.until_written("up\n");
    await_named(daemon.pid(), "sleep", 2, *SOON);
    let family = descendants(daemon.pid());
    assert!(!groups(std::slice::from_ref(&session)).is_empty());
    (live, session, family)
}

#[test]
fn after_many_mixed_runs_everything_is_as_before() {
    const RUNS: usize = 30;
    let Some(daemon) = Daemon::start_forgetful() else {
        return;
    };
    daemon.run(mixed(0));
    let (brigd, jailer) = (process(daemon.pid()), named(daemon.pid(), "brig-jailer"));
    let at_rest = || {
        let below = descendants(daemon.pid());
        if below.len() == way::processes_at_rest() && below.contains(&jailer) {
            Ok(())
        } else {
            Err(below)
        }
    };
    eventually("nothing is left", *REST, at_rest);
    assert_no_groups(&[mixed(0).session_id], *SOON);
    let before = (brigd.descriptors(), jailer.descriptors(), mounts());
    let names = |folder: &std::path::Path| -> BTreeSet<_> {
        std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect()
    };
    let files = names(daemon.directory());
    for first in (1..=RUNS).step_by(4) {
        let lives: Vec<_> = (first..(first + 4).min(RUNS + 1))
            .map(|number| daemon.begin(mixed(number)))
            .collect();
        lives.into_iter().for_each(|live| drop(live.finish()));
    }
    eventually("nothing is left again", *REST, at_rest);
    let sessions: Vec<String> = (0..=RUNS).map(|number| mixed(number).session_id).collect();
    assert_no_groups(&sessions, *SOON);
    eventually("descriptors and mounts are as before", *SOON, || {
        let now = (brigd.descriptors(), jailer.descriptors(), mounts());
        if now.0 <= before.0 && now.1 <= before.1 && now.2 == before.2 {
            Ok(())
        } else {
            Err(format!("{now:?} instead of {before:?}"))
        }
    });
    assert_eq!(names(daemon.directory()), files);
    assert_eq!(names(&daemon.directory().join("spool")), BTreeSet::new());
}

#[test]
fn a_daemon_that_is_told_to_stop_ends_its_runs_and_leaves_nothing() {
    let Some(daemon) = Daemon::start_configured("[limits]\ndrain = \"1s\"\n") else {
        return;
    };
    let (live, session, family) = running(&daemon, "stopping");
    let directory = daemon.directory().to_owned();
    let stopping = std::thread::spawn(move || daemon.stop());
    let outcome = live.finish();
    assert_eq!(outcome.end(), (Status::Lost, Some(CauseKind::Internal)));
    assert!(stopping.join().unwrap().success());
    assert_gone(&family, *SOON);
    assert_no_groups(&[session], *SOON);
    assert!(!directory.exists());
}

#[test]
fn a_killed_daemon_takes_everything_along() {
    let mut daemon = daemon!();
    let (live, session, family) = running(&daemon, "killed");
    let start = Instant::now();
    daemon.kill();
    assert_gone(&family, *SOON);
    assert_no_groups(&[session], *SOON);
    assert!(start.elapsed() < *SOON);
    assert!(live.refusal().is_ok(), "the caller is told that the connection is gone");
}

#[test]
fn what_a_dead_daemon_did_not_see_end_is_lost_in_the_ledger_of_the_next() {
    let mut daemon = daemon!();
    let (live, _, family) = running(&daemon, "unseen");
    daemon.kill();
    drop(live);
    assert_gone(&family, *SOON);
    let next = daemon.start_again();
    assert_eq!(next.run(sh("echo fine")).expect_success().stdout(), "fine\n");
    let ledger = rusqlite::Connection::open(next.directory().join("ledger.db")).unwrap();
    let status: String = ledger
        .query_row("SELECT status FROM executions WHERE execution = 'unseen'", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(status, "lost");
}

#[test]
fn the_death_of_the_files_helper_does_not_change_how_a_program_ends() {
    let daemon = daemon!();
    let mut live = daemon.begin(small(
        "open('a.csv', 'w').write('x')\nprint('up')\nimport time\ntime.sleep(5)\nprint('end')",
    ));
    live.until_written("up\n");
    let session = of_sessions(&[live.session()]);
    let helper = session.iter().find(|process| process.name == "brig-files");
    signal(helper.unwrap(), Signal::KILL);
    let outcome = live.finish();
    assert_eq!(
        (outcome.end(), outcome.stdout()),
        ((Status::Success, None), "up\nend\n".to_owned())
    );
    assert!(outcome.result.artifacts.is_empty());
    assert!(!outcome.notices(NoticeKind::ArtifactSkipped).is_empty());
    assert_eq!(daemon.run(sh("echo fine")).expect_success().stdout(), "fine\n");
}

#[test]
fn a_killed_jailer_ends_the_run_as_lost_and_the_daemon_says_why_it_goes() {
    let mut daemon = daemon!();
    let (live, session, family) = running(&daemon, "orphan");
    let jailer = named(daemon.pid(), "brig-jailer");
    signal(&jailer, Signal::KILL);
    let outcome = live.finish();
    assert_eq!(outcome.end(), (Status::Lost, Some(CauseKind::Internal)));
    assert_eq!(outcome.stdout(), "up\n");
    let guests: Vec<Process> = family.into_iter().filter(|process| *process != jailer).collect();
    assert_gone(&guests, *SOON);
    let status = daemon.wait_end().expect("brigd ends without its jailer");
    assert_eq!(status.code(), Some(70), "{}", daemon.log());
    assert!(daemon.log().contains("brig-jailer went away"), "{}", daemon.log());
    // Groups of a dead jailer are swept by the next one; with enough of them, one takes its place. Where limits sit on
    // version 1 controllers, it may be one of another test run, which has other folders there: so only the tracking
    // hierarchy is looked at.
    let next: Vec<Daemon> = (0..8).map(|_| Daemon::start().unwrap()).collect();
    eventually("the groups are swept", *SOON, || {
        let all = groups(std::slice::from_ref(&session));
        let left: Vec<_> = all
            .into_iter()
            .filter(|group| group.join("cgroup.kill").exists())
            .collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
    drop(next);
}

#[test]
fn a_session_whose_first_process_is_killed_is_lost_and_others_go_on() {
    let daemon = daemon!();
    let (other, ..) = running(&daemon, "other");
    let (live, session, _) = running(&daemon, "beheaded");
    let own = of_sessions(std::slice::from_ref(&session));
    let init = own.iter().find(|process| process.name == "brig-init");
    signal(init.unwrap(), Signal::KILL);
    let outcome = live.finish();
    assert_eq!(outcome.end(), (Status::Lost, Some(CauseKind::Internal)));
    assert_gone(&own, *SOON);
    assert_no_groups(&[session], *SOON);
    assert_eq!(daemon.run(sh("echo fine")).expect_success().stdout(), "fine\n");
    drop(other);
    daemon.attach("other", 0).unwrap().finish();
}

#[test]
fn a_client_that_is_killed_mid_run_ends_its_run() {
    let daemon = daemon!();
    let mut client = Brig::command(
        &daemon.socket(),
        &["run", "--", "sh", "-c", "(setsid sleep 100 &); echo up; sleep 100"],
    )
    .spawn();
    let sleepers = await_named(daemon.pid(), "sleep", 2, *DEADLINE);
    let guests = session_of(&sleepers[0], daemon.pid());
    assert!(guests.len() >= 5, "{guests:?}");
    client.kill().unwrap();
    client.wait().unwrap();
    assert_gone(&guests, *SOON);
}

#[test]
fn a_reader_that_stops_reading_does_not_hold_a_run() {
    let daemon = daemon!();
    // The stream is not read; the run goes on to its end, and another call sees it there.
    let mut live = daemon.begin(ExecutionSpec {
        execution_id: "unread".to_owned(),
        ..sh("head -c 7000000 /dev/zero; echo done >&2")
    });
    live.until(|event| matches!(event, Event::Started(_)));
    let outcome = daemon.attach("unread", 0).unwrap().finish();
    assert_eq!(
        (outcome.status(), outcome.stderr()),
        (Status::Success, "done\n".to_owned())
    );
    assert_eq!(live.finish().result, outcome.result);
}

#[test]
fn a_private_daemon_of_one_call_leaves_nothing() {
    if !brig_tests::host::can_run() {
        return;
    }
    let before: BTreeSet<_> = leftovers();
    Brig::alone(&["run", "--standalone", "--template", "base", "-q", "-c", "print(6 * 7)"])
        .run()
        .expect(0);
    let after = leftovers();
    assert_eq!(after.difference(&before).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Directories that private daemons of `brig run` make.
fn leftovers() -> BTreeSet<String> {
    let folders = ["/run/brig", "/tmp"];
    let entries = folders
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten();
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
    names.filter(|name| name.starts_with("brig-standalone-")).collect()
}

#[test]
fn many_short_runs_at_once_all_come_to_their_end() {
    let daemon = daemon!();
    let echo = |number: i32| patient(command(&["echo", &number.to_string()]));
    let lives: Vec<_> = (0..40).map(|number| daemon.begin(echo(number))).collect();
    for (number, live) in lives.into_iter().enumerate() {
        assert_eq!(live.finish().expect_success().stdout(), format!("{number}\n"));
    }
}
