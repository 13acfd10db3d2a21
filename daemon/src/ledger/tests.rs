use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::Connection;

use super::writer::Durability;
use super::*;

mod chained;
mod promised;
mod removed;
mod reviewed;

fn id(text: &str) -> Id {
    Id::parse(text).unwrap()
}

fn accept(execution: &str) -> Accept {
    Accept {
        execution: id(execution),
        request: Some("r1".to_owned()),
        request_sha256: None,
        session: id("s1"),
        kept: true,
        tenant: "default".to_owned(),
        user: "root".to_owned(),
        origin: Origin {
            user: "ann".to_owned(),
            conversation: "c".to_owned(),
            request: String::new(),
        },
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        policy: "data".to_owned(),
        policy_hash: "ab".repeat(32),
        template: "data@0123456789ab".to_owned(),
        work: Work {
            kind: Kind::Code,
            body: Body::new(b"print(1)".to_vec()),
        },
        inputs: vec![Input {
            name: "Q3 sales (1).csv".to_owned(),
            path: "q3_sales_1.csv".to_owned(),
            size_bytes: 1,
            sha256: "cd".repeat(32),
        }],
        limits: Limits {
            timeout_ms: 30_000,
            memory_bytes: 1 << 29,
            ..Limits::default()
        },
        keep: Keep::default(),
        time: UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
    }
}

fn finish(execution: &str) -> Finish {
    Finish {
        status: "success".to_owned(),
        cause: None,
        message: None,
        exit_code: Some(0),
        usage: Usage {
            cpu_us: 812_000,
            memory_peak_bytes: 96_468_992,
            processes_peak: 3,
            disk_bytes: 0,
        },
        stdout_bytes: 2,
        stdout: Body::new(b"1\n".to_vec()),
        artifacts: vec![Artifact {
            artifact: id("a1"),
            path: "chart.png".to_owned(),
            sha256: "ef".repeat(32),
            size_bytes: 84_231,
            class: "chart".to_owned(),
            handling: "preview".to_owned(),
            review: "not_needed".to_owned(),
        }],
        start_time: Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_200)),
        ..Finish::lost(id(execution), UNIX_EPOCH + Duration::from_millis(1_700_000_002_000))
    }
}

fn refused(message: &str) -> Refused {
    Refused {
        request: None,
        tenant: "default".to_owned(),
        user: "root".to_owned(),
        origin: Origin::default(),
        policy: "no-such".to_owned(),
        reason: "POLICY_UNKNOWN".to_owned(),
        field: "policy".to_owned(),
        message: message.to_owned(),
        count: 1,
        time: UNIX_EPOCH,
    }
}

/// A directory for a ledger, and the ledger's path in it.
fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    (directory, path)
}

fn texts(path: &Path, sql: &str) -> Vec<String> {
    let connection = Connection::open(path).unwrap();
    let mut statement = connection.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

/// An entry as a record, with its names.
fn read_entry<T: serde::de::DeserializeOwned>(path: &Path, number: i64) -> T {
    let connection = Connection::open(path).unwrap();
    let sql = "SELECT data, content FROM entries LEFT JOIN names ON names.number = entries.number
               WHERE entries.number = ?1";
    let (data, names): (String, Option<String>) = connection
        .query_row(sql, [number], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    query::parse(&data, names.as_deref()).unwrap()
}

#[tokio::test]
async fn an_execution_comes_back_as_it_was_recorded() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    ledger.accept(accept("e1")).await.unwrap();
    let running = ledger.get(&id("e1")).await.unwrap().unwrap();
    assert_eq!(
        running,
        Record {
            accept: accept("e1"),
            finish: None
        }
    );
    ledger.finish(finish("e1")).await.unwrap();
    ledger.close().await.unwrap();

    let ledger = Ledger::open(&path).unwrap();
    let record = ledger.get(&id("e1")).await.unwrap().unwrap();
    assert_eq!(
        record,
        Record {
            accept: accept("e1"),
            finish: Some(finish("e1"))
        }
    );
    assert_eq!(ledger.get(&id("e2")).await.unwrap(), None);
}

#[tokio::test]
async fn ids_are_used_once_and_finishes_need_an_accept() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    ledger.accept(accept("e1")).await.unwrap();
    assert!(matches!(ledger.accept(accept("e1")).await, Err(LedgerError::Exists(e)) if e == id("e1")));
    assert!(matches!(ledger.finish(finish("e2")).await, Err(LedgerError::NotRunning(e)) if e == id("e2")));
    ledger.finish(finish("e1")).await.unwrap();
    assert!(matches!(
        ledger.finish(finish("e1")).await,
        Err(LedgerError::NotRunning(_))
    ));
    ledger.close().await.unwrap();
    assert_eq!(
        texts(&path, "SELECT kind FROM entries ORDER BY number"),
        ["accept", "finish"]
    );
}

#[tokio::test]
async fn what_was_left_running_is_lost_after_the_next_start() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    for execution in ["e1", "e2", "e3"] {
        ledger.accept(accept(execution)).await.unwrap();
    }
    ledger.finish(finish("e2")).await.unwrap();
    ledger.close().await.unwrap();

    let ledger = Ledger::open(&path).unwrap();
    ledger.settle(OpenEnds::default()).await.unwrap();
    let mut ends = Vec::new();
    for execution in ["e1", "e2", "e3"] {
        let finish = ledger.get(&id(execution)).await.unwrap().unwrap().finish.unwrap();
        ends.push((finish.status, finish.cause));
    }
    let lost = ("lost".to_owned(), Some("internal".to_owned()));
    assert_eq!(ends, [lost.clone(), ("success".to_owned(), None), lost]);
    ledger.close().await.unwrap();
    let count = "SELECT CAST(count(*) AS TEXT) FROM entries";
    assert_eq!(texts(&path, count), ["6"]);
    let ledger = Ledger::open(&path).unwrap();
    ledger.settle(OpenEnds::default()).await.unwrap();
    ledger.close().await.unwrap();
    assert_eq!(texts(&path, count), ["6"]);
}

#[tokio::test]
async fn a_second_brigd_is_kept_out_until_the_first_is_gone() {
    let (_directory, path) = place();
    let first = Ledger::open(&path).unwrap();
    assert!(matches!(Ledger::open(&path), Err(LedgerError::InUse { .. })));
    first.close().await.unwrap();
    Ledger::open(&path).unwrap();
}

#[tokio::test]
async fn the_files_are_their_owners_alone() {
    let (directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    ledger.accept(accept("e1")).await.unwrap();
    let files = std::fs::read_dir(directory.path()).unwrap().map(Result::unwrap);
    let modes: Vec<u32> = files
        .map(|file| file.metadata().unwrap().permissions().mode() & 0o777)
        .collect();
    assert_eq!(modes, [0o600; 4]);
}

#[tokio::test]
async fn hostile_text_is_only_data() {
    let (_directory, path) = place();
    let hostile = "a\0b\n\r\u{1b}[2J\"}','); DROP TABLE entries; --\u{202e}\u{85}";
    let mut accepted = accept("e1");
    accepted.labels = [(hostile.to_owned(), hostile.to_owned())].into();
    accepted.origin.user = hostile.to_owned();
    accepted.inputs[0].name = hostile.to_owned();
    accepted.work = Work {
        kind: Kind::Command,
        body: Body::new(b"sh\0-c\0\xff\xfe\0".to_vec()),
    };
    let mut finished = finish("e1");
    finished.message = Some(hostile.to_owned());
    finished.stdout = Body::new(b"\0\xff\x1b[31m".to_vec());
    let ledger = Ledger::open(&path).unwrap();
    ledger.accept(accepted.clone()).await.unwrap();
    ledger.finish(finished.clone()).await.unwrap();
    ledger.refused(refused(hostile)).await.unwrap();
    let record = ledger.get(&id("e1")).await.unwrap().unwrap();
    assert_eq!(
        record,
        Record {
            accept: accepted,
            finish: Some(finished)
        }
    );
    ledger.close().await.unwrap();
    // One entry is one line of JSON, without control characters, and so are its names.
    let entries = texts(&path, "SELECT data FROM entries UNION ALL SELECT content FROM names");
    assert_eq!(entries.len(), 6);
    let ascii_controls = entries
        .iter()
        .flat_map(|entry| entry.chars())
        .filter(char::is_ascii_control)
        .count();
    assert_eq!(ascii_controls, 0);
}

#[tokio::test]
async fn refusals_are_kept_with_bounded_texts() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    ledger.refused(refused(&"é".repeat(1 << 20))).await.unwrap();
    ledger.close().await.unwrap();
    let kept: Refused = read_entry(&path, 1);
    assert_eq!(kept, refused(&"é".repeat(512)));
}

#[tokio::test]
async fn entries_hold_hashes_and_bodies_can_be_erased() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    ledger.accept(accept("e1")).await.unwrap();
    ledger.finish(finish("e1")).await.unwrap();
    ledger.close().await.unwrap();
    let entries = texts(&path, "SELECT data FROM entries ORDER BY number");
    assert!(
        entries
            .iter()
            .all(|entry| !entry.contains("print(1)") && !entry.contains("1\\n"))
    );
    assert_eq!(
        texts(&path, "SELECT part FROM bodies ORDER BY part"),
        ["code", "stderr", "stdout"]
    );
    Connection::open(&path)
        .unwrap()
        .execute("DELETE FROM bodies", [])
        .unwrap();

    let ledger = Ledger::open(&path).unwrap();
    let record = ledger.get(&id("e1")).await.unwrap().unwrap();
    let body = Body::new(b"print(1)".to_vec());
    assert_eq!(
        record.accept.work.body,
        Body {
            content: Vec::new(),
            ..body
        }
    );
    ledger.close().await.unwrap();
    assert_eq!(texts(&path, "SELECT data FROM entries ORDER BY number"), entries);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_are_all_recorded_once() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    let tasks: Vec<_> = (0..500)
        .map(|number| {
            let ledger = ledger.clone();
            tokio::spawn(async move {
                let execution = format!("e{number}");
                ledger.accept(accept(&execution)).await.unwrap();
                ledger.finish(finish(&execution)).await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    ledger.close().await.unwrap();
    let wrong = "SELECT execution FROM executions WHERE status IS NOT 'success' OR finish_number <= accept_number";
    assert_eq!(texts(&path, wrong), Vec::<String>::new());
    let counts = "SELECT kind || count(*) || count(DISTINCT execution) FROM entries GROUP BY kind ORDER BY kind";
    assert_eq!(texts(&path, counts), ["accept500500", "finish500500"]);
}

#[tokio::test]
async fn a_full_disk_is_a_clear_error_and_the_ledger_goes_on_afterwards() {
    let (_directory, path) = place();
    let options = Options {
        max_bytes: Some(512 * 1024),
        ..Options::default()
    };
    let ledger = Ledger::open_with(&path, &options).unwrap();
    let mut large = accept("e1");
    large.work.body = Body::new(vec![b'x'; 1 << 20]);
    let error = ledger.accept(large).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("ledger {}: can't be written: database or disk is full", path.display())
    );
    assert_eq!(ledger.get(&id("e1")).await.unwrap(), None);
    ledger.accept(accept("e2")).await.unwrap();
    ledger.finish(finish("e2")).await.unwrap();
}

#[tokio::test]
async fn one_entry_that_cannot_be_written_does_not_fail_the_others() {
    let (_directory, path) = place();
    let options = Options {
        max_bytes: Some(512 * 1024),
        ..Options::default()
    };
    let ledger = Ledger::open_with(&path, &options).unwrap();
    let mut large = accept("e1");
    large.work.body = Body::new(vec![b'x'; 1 << 20]);
    let (first, second, third) = tokio::join!(
        ledger.accept(accept("e0")),
        ledger.accept(large),
        ledger.accept(accept("e2"))
    );
    assert!(matches!(
        (first, second, third),
        (Ok(()), Err(LedgerError::Unwritable { .. }), Ok(()))
    ));
}

#[tokio::test]
async fn with_little_space_left_work_is_refused_and_running_work_is_finished() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    ledger.accept(accept("e1")).await.unwrap();
    ledger.close().await.unwrap();
    // The running execution is marked lost; a new one can't be accepted.
    let ledger = Ledger::open_with(
        &path,
        &Options {
            reserve_bytes: u64::MAX,
            max_bytes: None,
        },
    )
    .unwrap();
    assert!(matches!(
        ledger.accept(accept("e2")).await,
        Err(LedgerError::NoSpace { .. })
    ));
    assert!(matches!(
        ledger.refused(refused("no space")).await,
        Err(LedgerError::NoSpace { .. })
    ));
    ledger.settle(OpenEnds::default()).await.unwrap();
    assert_eq!(
        ledger.get(&id("e1")).await.unwrap().unwrap().finish.unwrap().status,
        "lost"
    );
}

#[tokio::test]
async fn what_cannot_be_opened_is_said_with_its_path() {
    let (directory, path) = place();
    let missing = directory.path().join("no/ledger.db");
    let error = Ledger::open(&missing).unwrap_err();
    assert!(matches!(&error, LedgerError::File { .. }), "{error}");
    assert!(error.to_string().contains("no/ledger.db"));
    std::fs::write(&path, "this is no database, only a text of some length ".repeat(100)).unwrap();
    assert!(matches!(Ledger::open(&path), Err(LedgerError::Open { .. })));
}

#[tokio::test]
async fn a_ledger_of_a_newer_brigd_is_left_alone() {
    let (_directory, path) = place();
    Ledger::open(&path).unwrap().close().await.unwrap();
    let newer = "INSERT INTO migrations VALUES (99, 'of the future', 0)";
    Connection::open(&path).unwrap().execute(newer, []).unwrap();
    let error = Ledger::open(&path).unwrap_err();
    assert!(
        matches!(
            error,
            LedgerError::Newer {
                found: 99,
                known: 40,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn finishes_are_synced_and_accepts_are_not() {
    let (_directory, path) = place();
    let mut writer = Writer::open(&path, &Options::default()).unwrap();
    let level = |durability| {
        let read = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
        writer
            .transact(durability, |pen| {
                pen.transaction.pragma_query_value(None, "synchronous", read)
            })
            .unwrap()
    };
    // Source: sqlite.org/pragma.html, `synchronous`: 1 is NORMAL, 2 is FULL.
    assert_eq!(
        [Durability::Committed, Durability::Synced, Durability::Committed].map(level),
        [1, 2, 1]
    );
}

#[tokio::test]
async fn after_close_other_handles_are_told() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    let other = ledger.clone();
    ledger.close().await.unwrap();
    assert!(matches!(other.accept(accept("e1")).await, Err(LedgerError::Closed)));
}

/// What the next test starts as a process of its own, and kills.
#[tokio::test]
#[ignore = "part of kill_minus_nine_loses_nothing_that_was_answered"]
async fn writes_until_it_is_killed() {
    let Ok(path) = std::env::var("BRIG_TEST_LEDGER") else {
        return;
    };
    let ledger = Ledger::open(Path::new(&path)).unwrap();
    for number in 0.. {
        let execution = format!("e{number}");
        ledger.accept(accept(&execution)).await.unwrap();
        println!("accepted {execution}");
        ledger.finish(finish(&execution)).await.unwrap();
        println!("finished {execution}");
    }
}

#[tokio::test]
async fn kill_minus_nine_loses_nothing_that_was_answered() {
    let (_directory, path) = place();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "ledger::tests::writes_until_it_is_killed",
            "--ignored",
            "--nocapture",
        ])
        .env("BRIG_TEST_LEDGER", &path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen: Vec<String> = Vec::new();
    while seen.len() < 100 {
        seen.extend(lines.next().unwrap().ok());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    seen.extend(lines.map_while(Result::ok));
    let told = |word: &str| -> Vec<Id> {
        seen.iter()
            .filter_map(|line| line.split(word).nth(1))
            .map(|text| id(text.trim()))
            .collect()
    };
    let ledger = Ledger::open(&path).unwrap();
    for execution in told("finished ") {
        assert_eq!(
            ledger.get(&execution).await.unwrap().unwrap().finish,
            Some(finish(execution.as_str()))
        );
    }
    ledger.settle(OpenEnds::default()).await.unwrap();
    let accepted = told("accepted ");
    assert!(accepted.len() >= 40);
    for execution in accepted {
        // Finished, though it may not have come to say so, or lost.
        assert!(ledger.get(&execution).await.unwrap().unwrap().finish.is_some());
    }
}

fn opened(session: &str) -> SessionOpened {
    let accept = accept("e1");
    SessionOpened {
        session: id(session),
        request: accept.request,
        request_sha256: None,
        tenant: accept.tenant,
        user: accept.user,
        origin: accept.origin,
        labels: accept.labels,
        policy: accept.policy,
        policy_hash: accept.policy_hash,
        template: accept.template,
        limits: accept.limits,
        keep: accept.keep,
        expire_time: UNIX_EPOCH + Duration::from_millis(1_700_000_900_000),
        time: accept.time,
    }
}

fn closed(session: &str) -> SessionClosed {
    SessionClosed {
        session: id(session),
        reason: "idle".to_owned(),
        time: UNIX_EPOCH + Duration::from_millis(1_700_000_300_000),
    }
}

#[tokio::test]
async fn a_session_is_opened_once_and_closed_once() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    ledger.session_opened(opened("s1")).await.unwrap();
    let again = ledger.session_opened(opened("s1")).await;
    assert!(matches!(again, Err(LedgerError::Exists(session)) if session == id("s1")));
    ledger.session_closed(closed("s1")).await.unwrap();
    let again = ledger.session_closed(closed("s1")).await;
    assert!(matches!(again, Err(LedgerError::NotRunning(session)) if session == id("s1")));
    ledger.close().await.unwrap();
    let row =
        "SELECT session || ' ' || tenant || ' ' || request || ' ' || reason || ' ' || close_time_ms FROM sessions";
    assert_eq!(texts(&path, row), ["s1 default r1 idle 1700000300000"]);
    assert_eq!(read_entry::<SessionOpened>(&path, 1), opened("s1"));
    assert_eq!(read_entry::<SessionClosed>(&path, 2), closed("s1"));
}

#[tokio::test]
async fn what_was_adopted_is_not_lost() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    for name in ["1", "2"] {
        ledger.session_opened(opened(&format!("s{name}"))).await.unwrap();
        ledger.accept(accept(&format!("e{name}"))).await.unwrap();
    }
    ledger.close().await.unwrap();
    let ledger = Ledger::open(&path).unwrap();
    let adopted = OpenEnds {
        executions: [id("e1")].into(),
        sessions: [id("s1")].into(),
    };
    ledger.settle(adopted).await.unwrap();
    assert_eq!(ledger.get(&id("e1")).await.unwrap().unwrap().finish, None);
    let lost = ledger.get(&id("e2")).await.unwrap().unwrap().finish.unwrap();
    assert_eq!(lost.status, "lost");
    ledger.finish(finish("e1")).await.unwrap();
    ledger.session_closed(closed("s1")).await.unwrap();
    ledger.close().await.unwrap();
    let reasons = "SELECT reason FROM sessions ORDER BY session";
    assert_eq!(texts(&path, reasons), ["idle", "lost"]);
}

/// An execution that a request made, so many hours after the first.
fn asked(execution: &str, request: &str, payload: &str, hours: u32) -> Accept {
    let accept = accept(execution);
    Accept {
        request: Some(request.to_owned()),
        request_sha256: Some(payload.to_owned()),
        session: id(&format!("s{execution}")),
        kept: false,
        time: accept.time + Duration::from_secs(3600) * hours,
        ..accept
    }
}

fn repeated(answer: Result<(), LedgerError>) -> Requested {
    match answer {
        Err(LedgerError::Repeated(requested)) => requested,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_request_makes_one_thing_a_day_whoever_restarts() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    ledger.accept(asked("e1", "r1", "aa", 0)).await.unwrap();
    let opening = |session: &str, request: &str, payload: &str| SessionOpened {
        request: Some(request.to_owned()),
        request_sha256: Some(payload.to_owned()),
        ..opened(session)
    };
    ledger.session_opened(opening("s1", "r2", "bb")).await.unwrap();
    ledger.close().await.unwrap();
    let ledger = Ledger::open(&path).unwrap();
    let first = Requested {
        made: Made::Execution(id("e1")),
        sha256: "aa".to_owned(),
    };
    assert_eq!(repeated(ledger.accept(asked("e2", "r1", "aa", 23)).await), first);
    // Whether the payload is the same is for whoever asks.
    assert_eq!(repeated(ledger.accept(asked("e2", "r1", "ff", 23)).await), first);
    assert_eq!(repeated(ledger.session_opened(opening("s2", "r1", "aa")).await), first);
    let session = repeated(ledger.accept(asked("e2", "r2", "bb", 0)).await);
    assert_eq!((session.made, session.sha256.as_str()), (Made::Session(id("s1")), "bb"));
    // Its own ids are taken too, but that it came before counts first.
    assert_eq!(repeated(ledger.accept(asked("e1", "r1", "aa", 23)).await), first);
    let other_tenant = Accept {
        tenant: "other".to_owned(),
        ..asked("e3", "r1", "aa", 0)
    };
    ledger.accept(other_tenant).await.unwrap();
    // What was refused left nothing.
    ledger.accept(asked("e2", "r3", "aa", 23)).await.unwrap();
    ledger.accept(asked("e4", "r1", "ff", 24)).await.unwrap();
    let last = repeated(ledger.accept(asked("e5", "r1", "ff", 47)).await);
    assert_eq!(last.made, Made::Execution(id("e4")));
    // All of it lies in a time that is long over.
    assert_eq!(ledger.requested("default", &id("r1")).await.unwrap(), None);
    let now = Accept {
        time: SystemTime::now(),
        ..asked("e6", "r6", "aa", 0)
    };
    ledger.accept(now).await.unwrap();
    let found = ledger.requested("default", &id("r6")).await.unwrap().unwrap();
    assert_eq!(found.made, Made::Execution(id("e6")));
    assert_eq!(ledger.requested("other", &id("r6")).await.unwrap(), None);
}

#[tokio::test]
async fn ids_of_sessions_and_executions_are_used_once_also_by_runs_of_their_own() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    let taken = |answer: Result<(), LedgerError>, name: &str| {
        assert!(
            matches!(&answer, Err(LedgerError::Exists(found)) if *found == id(name)),
            "{answer:?}"
        );
    };
    ledger.accept(asked("e1", "q1", "aa", 0)).await.unwrap();
    ledger.session_opened(opened("s1")).await.unwrap();
    ledger.close().await.unwrap();
    let ledger = Ledger::open(&path).unwrap();
    taken(ledger.accept(asked("e1", "q2", "aa", 48)).await, "e1");
    let in_session = |execution: &str, session: &str, kept: bool| Accept {
        session: id(session),
        kept,
        ..asked(execution, &format!("r{execution}"), "aa", 48)
    };
    taken(ledger.accept(in_session("e2", "se1", false)).await, "se1");
    taken(ledger.accept(in_session("e2", "s1", false)).await, "s1");
    taken(ledger.session_opened(opened("s1")).await, "s1");
    taken(ledger.session_opened(opened("se1")).await, "se1");
    for execution in ["e2", "e3"] {
        ledger.accept(in_session(execution, "s1", true)).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_remembered_for_a_day_takes_up_no_more_than_that() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    for number in 0..100 {
        let name = format!("e{number}");
        // One an hour.
        let accept = asked(&name, &format!("r{number}"), "aa", number);
        let end = Finish {
            told: vec![1],
            time: accept.time,
            ..finish(&name)
        };
        ledger.accept(accept).await.unwrap();
        ledger.finish(end).await.unwrap();
    }
    assert_eq!(ledger.get(&id("e99")).await.unwrap().unwrap().finish.unwrap().told, [1]);
    assert!(
        ledger
            .get(&id("e0"))
            .await
            .unwrap()
            .unwrap()
            .finish
            .unwrap()
            .told
            .is_empty()
    );
    ledger.close().await.unwrap();
    for table in ["requests", "told"] {
        let rows = texts(&path, &format!("SELECT count(*) || '' FROM {table}"));
        assert_eq!(rows, ["24"], "{table}");
    }
    let plan = texts_at(
        &path,
        "EXPLAIN QUERY PLAN SELECT 1 FROM executions WHERE session = 's'",
        3,
    );
    assert!(plan[0].contains("INDEX executions_of_session"), "{plan:?}");
}

fn texts_at(path: &Path, sql: &str, column: usize) -> Vec<String> {
    let connection = Connection::open(path).unwrap();
    let mut statement = connection.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get(column)).unwrap();
    rows.map(Result::unwrap).collect()
}
