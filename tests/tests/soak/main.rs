//! Many sessions with mixed ends, eight at a time, one in four of them kept for several executions: afterwards the host has
//! what it had before, and the daemons have not grown. Runs on the machine itself only, for half a minute;
//! `BRIG_SOAK=2000` says how many sessions are counted instead.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod host;
mod kept;
mod once;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brig_proto::v1::ExecutionStatus as Status;
use brig_tests::Daemon;
use rusqlite::{Connection, OpenFlags};

use host::Host;

const AT_ONCE: usize = 8;
/// How long the soak takes where no number of sessions is given, and how long at most what comes before it.
const TIME: Duration = Duration::from_secs(12);
const WARM_UP_TIME: Duration = Duration::from_secs(20);
/// Sessions before the first look. brigd remembers 1,024 executions that have ended; only what it takes beyond is growth.
const WARM_UP: usize = 800;
/// How much a daemon may have grown after 1,000 sessions, in bytes; after fewer too, since some of it is chance.
const GROWTH: i64 = 8 << 20;

/// What a session is, by its number.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Once(once::Kind),
    Kept(kept::Kind),
}

impl Kind {
    fn of(number: usize) -> Self {
        let (round, place) = (number / 4, number % 4);
        match place {
            3 => Self::Kept(kept::Kind::ALL[round % kept::Kind::ALL.len()]),
            _ => Self::Once(once::Kind::ALL[(round * 3 + place) % once::Kind::ALL.len()]),
        }
    }

    /// How its executions end.
    fn ends(self) -> Vec<Status> {
        match self {
            Self::Once(kind) => vec![kind.end().0],
            Self::Kept(kind) => kind.ends().0.iter().map(|(status, _)| *status).collect(),
        }
    }
}

/// What a session is called.
fn name(number: usize) -> String {
    format!("soak{}x{number}", std::process::id())
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
                        match Kind::of(number) {
                            Kind::Once(kind) => once::session(daemon, kind, &name(number)),
                            Kind::Kept(kind) => kept::session(daemon, kind, &name(number)),
                        }
                    }
                })
            })
            .collect();
        lanes.into_iter().for_each(|lane| lane.join().unwrap());
    });
}

/// Every execution has one row, with the end that its number says, and every kept session too.
fn check_ledger(daemon: &Daemon, sessions: usize) {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let ledger = Connection::open_with_flags(daemon.directory().join("ledger.db"), flags).unwrap();
    let mut select = ledger
        .prepare("SELECT status, count(*) FROM executions GROUP BY status")
        .unwrap();
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let found: BTreeMap<String, i64> = rows.map(Result::unwrap).collect();
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    let mut kept = 0;
    for kind in (0..sessions).map(Kind::of) {
        kept += i64::from(matches!(kind, Kind::Kept(_)));
        for status in kind.ends() {
            let word = status
                .as_str_name()
                .trim_start_matches("EXECUTION_STATUS_")
                .to_lowercase();
            *expected.entry(word).or_default() += 1;
        }
    }
    assert_eq!(found, expected);
    let count = |sql: &str| -> i64 { ledger.query_row(sql, [], |row| row.get(0)).unwrap() };
    assert_eq!(count("SELECT count(*) FROM sessions WHERE reason IS NOT NULL"), kept);
    let executions: i64 = expected.values().sum();
    assert_eq!(count("SELECT count(*) FROM entries"), 2 * (executions + kept));
}

#[test]
fn after_many_sessions_the_host_has_what_it_had_and_the_daemons_have_not_grown() {
    let Some(daemon) = Daemon::start_forgetful() else {
        return;
    };
    let host = Host::new(&daemon);
    let number = std::env::var("BRIG_SOAK")
        .map(|number| number.parse::<usize>().unwrap())
        .ok();
    let until = |time: Duration| number.is_none().then(|| Instant::now() + time);
    run(&daemon, WARM_UP, until(WARM_UP_TIME));
    let (warm, before, memory) = (next(), host.settled(), host.memory());
    let begun = Instant::now();
    match number {
        None => run(&daemon, usize::MAX, until(TIME)),
        Some(number) => {
            for part in (1..=number.div_ceil(1000)).map(|part| (part * 1000).min(number)) {
                run(&daemon, warm + part, None);
                println!("after {part}: RSS {:?}", host.memory());
            }
        }
    }
    let took = begun.elapsed();
    let (after, sessions) = (host.settled(), next());
    let grown: [i64; 2] = std::array::from_fn(|index| host.memory()[index] - memory[index]);
    let soaked = i64::try_from(sessions - warm).unwrap();
    let slope = grown.map(|bytes| bytes * 1000 / soaked);
    println!("{sessions} sessions, {AT_ONCE} at a time, the last {soaked} in {took:?}");
    println!("before: {before:?}\nafter: {after:?}");
    println!("RSS {memory:?}, grown {grown:?} bytes, {slope:?} per 1,000 sessions (brigd, brig-jailer)");
    assert_eq!(after, before);
    check_ledger(&daemon, sessions);
    let most = GROWTH * soaked.max(1000) / 1000;
    assert!(grown.iter().all(|bytes| *bytes < most), "{grown:?}");
}
