//! Many sessions with mixed ends, eight at a time: afterwards the host has what it had before, and the daemons have not
//! grown. Runs on the machine itself only, for about a minute; `BRIG_SOAK=2000` says how many sessions are counted instead.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{CauseKind, ExecutionSpec, ExecutionStatus as Status, Limits};
use brig_tests::processes::{Process, descendants, groups, mounts, named, namespaces, process};
use brig_tests::spec::{input, sh, small, span};
use brig_tests::{Daemon, daemon, eventually, slow};
use rusqlite::{Connection, OpenFlags};

const AT_ONCE: usize = 8;
/// How long the soak takes where no number of sessions is given.
const TIME: Duration = Duration::from_secs(40);
/// Sessions before the first look. brigd remembers 1,024 executions that have ended; only what it takes beyond is growth.
const WARM_UP: usize = 1_100;
/// How much a daemon may have grown after 1,000 sessions, in bytes.
const GROWTH: i64 = 8 << 20;

/// How a session ends, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Success,
    Python,
    Error,
    Timeout,
    OutOfMemory,
    Cancelled,
    ClientGone,
    Flood,
    Killed,
    Files,
}

impl Kind {
    const ALL: [Kind; 10] = [
        Kind::Success,
        Kind::Error,
        Kind::Timeout,
        Kind::OutOfMemory,
        Kind::Cancelled,
        Kind::ClientGone,
        Kind::Flood,
        Kind::Killed,
        Kind::Files,
        Kind::Python,
    ];

    fn end(self) -> (Status, Option<CauseKind>) {
        match self {
            Kind::Success | Kind::Flood | Kind::Files | Kind::Python => (Status::Success, None),
            Kind::Error => (Status::Error, None),
            Kind::Timeout => (Status::Timeout, Some(CauseKind::WallTime)),
            Kind::OutOfMemory => (Status::OutOfMemory, Some(CauseKind::Memory)),
            Kind::Cancelled => (Status::Cancelled, Some(CauseKind::Cancel)),
            Kind::ClientGone => (Status::Cancelled, Some(CauseKind::ClientGone)),
            Kind::Killed => (Status::Killed, Some(CauseKind::Signal)),
        }
    }

    fn spec(self) -> ExecutionSpec {
        let limits = |limits, spec| ExecutionSpec {
            limits: Some(limits),
            ..spec
        };
        match self {
            Kind::Success => sh("echo fine"),
            Kind::Python => small("print(sum(range(1000)))"),
            Kind::Error => sh("(setsid sleep 100 &); exit 3"),
            Kind::Timeout => {
                let timeout = Some(span(Duration::from_millis(150)));
                limits(
                    Limits {
                        timeout,
                        ..Limits::default()
                    },
                    sh("(setsid sleep 100 &); sleep 100"),
                )
            }
            Kind::OutOfMemory => {
                let (memory_bytes, disk_bytes) = (Some(16 << 20), Some(1 << 20));
                limits(
                    Limits {
                        memory_bytes,
                        disk_bytes,
                        ..Limits::default()
                    },
                    sh("exec tail /dev/zero"),
                )
            }
            Kind::Cancelled | Kind::ClientGone => sh("echo up; sleep 100"),
            Kind::Flood => limits(
                Limits {
                    output_bytes: Some(10_000),
                    ..Limits::default()
                },
                sh("head -c 2000000 /dev/zero"),
            ),
            Kind::Killed => sh("kill -9 $$"),
            Kind::Files => ExecutionSpec {
                inputs: vec![input("a.csv", b"a\n1\n")],
                ..sh("cp a.csv b.csv; mkfifo f; ln -s /etc/passwd p")
            },
        }
    }
}

/// One session from its start to its end.
fn session(daemon: &Daemon, number: usize) {
    let kind = Kind::ALL[number % Kind::ALL.len()];
    let name = format!("soak{}x{number}", std::process::id());
    let mut live = daemon.begin(ExecutionSpec {
        policy: "strict".to_owned(),
        session_id: name.clone(),
        execution_id: name.clone(),
        ..kind.spec()
    });
    if matches!(kind, Kind::Cancelled | Kind::ClientGone) {
        live.until(|event| matches!(event, Event::Output(_)));
    }
    if kind == Kind::Cancelled {
        daemon.cancel(&name);
    }
    if kind == Kind::ClientGone {
        drop(live);
        live = daemon.attach(&name, 0).unwrap();
    }
    let outcome = live.finish();
    assert_eq!(outcome.end(), kind.end(), "{number}: {:?}", outcome.result);
}

/// Everything that sessions take from a host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Counts {
    descriptors: [usize; 2],
    processes: usize,
    groups: usize,
    mounts: usize,
    networks: usize,
    sessions: u64,
    files: BTreeSet<String>,
}

/// The daemon, and how it stands.
struct Host<'d> {
    daemon: &'d Daemon,
    brigd: Process,
    jailer: Process,
}

impl<'d> Host<'d> {
    fn new(daemon: &'d Daemon) -> Self {
        let (brigd, jailer) = (process(daemon.pid()), named(daemon.pid(), "brig-jailer"));
        Self { daemon, brigd, jailer }
    }

    fn count(&self) -> Counts {
        let all: Vec<String> = (0..next())
            .map(|number| format!("soak{}x{number}", std::process::id()))
            .collect();
        Counts {
            descriptors: [self.brigd.descriptors(), self.jailer.descriptors()],
            processes: descendants(self.daemon.pid()).len(),
            groups: groups(&all).len(),
            mounts: mounts().len(),
            networks: networks_of(self.daemon),
            sessions: self.daemon.host().load.unwrap().sessions,
            files: files(self.daemon.directory()),
        }
    }

    /// Waits until nothing of a session is left, and nothing changes any more: teardown goes on behind the answers.
    fn settled(&self) -> Counts {
        let last = Mutex::new(self.count());
        eventually("no session is left", Duration::from_secs(10) * slow(), || {
            std::thread::sleep(Duration::from_millis(100));
            let counts = self.count();
            let nothing = counts.processes == 1 && counts.groups == 0 && counts.sessions == 0;
            let before = std::mem::replace(&mut *last.lock().unwrap(), counts.clone());
            if nothing && before == counts {
                Ok(())
            } else {
                Err(counts)
            }
        });
        last.into_inner().unwrap()
    }

    /// Memory of brigd and of the jailer, in bytes.
    fn memory(&self) -> [i64; 2] {
        [&self.brigd, &self.jailer].map(|process| i64::try_from(process.memory("VmRSS")).unwrap())
    }
}

/// Network namespaces of the daemon's processes; those of other users of this host don't count.
fn networks_of(daemon: &Daemon) -> usize {
    let own: BTreeSet<_> = descendants(daemon.pid())
        .iter()
        .filter_map(|process| std::fs::read_link(format!("/proc/{}/ns/net", process.pid)).ok())
        .collect();
    own.intersection(&namespaces("net")).count()
}

fn files(directory: &Path) -> BTreeSet<String> {
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().path().display().to_string())
            .collect()
    };
    names(directory)
        .into_iter()
        .chain(names(&directory.join("spool")))
        .collect()
}

static NEXT: AtomicUsize = AtomicUsize::new(0);

fn next() -> usize {
    NEXT.load(Ordering::Relaxed)
}

/// Runs sessions until the number or the time is reached, whichever there is.
fn run(daemon: &Daemon, until: usize, deadline: Option<Instant>) {
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(|| {
                    while deadline.is_none_or(|deadline| Instant::now() < deadline) {
                        let number = NEXT.fetch_add(1, Ordering::Relaxed);
                        if number >= until {
                            NEXT.fetch_sub(1, Ordering::Relaxed);
                            return;
                        }
                        session(daemon, number);
                    }
                })
            })
            .collect();
        lanes.into_iter().for_each(|lane| lane.join().unwrap());
    });
}

/// Every execution has one row, with the end that its number says.
fn check_ledger(daemon: &Daemon, sessions: usize) {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let ledger = Connection::open_with_flags(daemon.directory().join("ledger.db"), flags).unwrap();
    let mut select = ledger
        .prepare("SELECT status, count(*) FROM executions GROUP BY status")
        .unwrap();
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let found: BTreeMap<String, i64> = rows.map(Result::unwrap).collect();
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    for number in 0..sessions {
        let status = Kind::ALL[number % Kind::ALL.len()].end().0.as_str_name();
        *expected
            .entry(status.trim_start_matches("EXECUTION_STATUS_").to_lowercase())
            .or_default() += 1;
    }
    assert_eq!(found, expected);
    let entries: i64 = ledger
        .query_row("SELECT count(*) FROM entries", [], |row| row.get(0))
        .unwrap();
    assert_eq!(usize::try_from(entries).unwrap(), 2 * sessions);
}

#[test]
fn after_many_sessions_the_host_has_what_it_had_and_the_daemons_have_not_grown() {
    let daemon = daemon!();
    let host = Host::new(&daemon);
    run(&daemon, WARM_UP, None);
    let (before, memory) = (host.settled(), host.memory());
    let begun = Instant::now();
    match std::env::var("BRIG_SOAK") {
        Ok(number) => run(&daemon, WARM_UP + number.parse::<usize>().unwrap(), None),
        Err(_) => run(&daemon, usize::MAX, Some(begun + TIME)),
    }
    let took = begun.elapsed();
    let (after, sessions) = (host.settled(), next());
    let grown: [i64; 2] = std::array::from_fn(|index| host.memory()[index] - memory[index]);
    let soaked = i64::try_from(sessions - WARM_UP).unwrap();
    let slope = grown.map(|bytes| bytes * 1000 / soaked);
    println!("{sessions} sessions, {AT_ONCE} at a time, the last {soaked} in {took:?}");
    println!("before: {before:?}\nafter: {after:?}");
    println!("RSS {memory:?}, grown {grown:?} bytes, {slope:?} per 1,000 sessions (brigd, brig-jailer)");
    assert_eq!(after, before);
    check_ledger(&daemon, sessions);
    assert!(slope.iter().all(|bytes| *bytes < GROWTH), "{slope:?}");
}
