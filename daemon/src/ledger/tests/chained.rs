//! The chain: what verify finds, and how old ledgers get one.

use super::super::record::{hex, to_millis};
use super::super::schema;
use super::*;

const WHOLE: Range = Range {
    first: 1,
    last: None,
    expected: None,
};

/// A ledger with three executions and a session, closed; its head.
async fn written(path: &Path) -> Head {
    let ledger = Ledger::open(path).unwrap();
    for execution in ["e1", "e2", "e3"] {
        ledger.accept(accept(execution)).await.unwrap();
        ledger.finish(finish(execution)).await.unwrap();
    }
    ledger.session_opened(opened("k1")).await.unwrap();
    ledger.session_closed(closed("k1")).await.unwrap();
    ledger.refused(refused("no")).await.unwrap();
    let head = *ledger.head().borrow();
    ledger.close().await.unwrap();
    head
}

async fn verify(path: &Path, range: Range) -> Verdict {
    let ledger = Ledger::open(path).unwrap();
    let verdict = ledger.verify(range).await.unwrap();
    ledger.close().await.unwrap();
    verdict
}

fn change(path: &Path, sql: &str) {
    let connection = Connection::open(path).unwrap();
    connection
        .execute_batch("PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON;")
        .unwrap();
    connection.execute_batch(sql).unwrap();
    assert!(connection.changes() > 0, "{sql}");
}

#[tokio::test]
async fn what_nobody_touched_is_intact() {
    let (_directory, path) = place();
    let head = written(&path).await;
    let intact = Verdict {
        entries: 9,
        head,
        broken: None,
    };
    assert_eq!(verify(&path, WHOLE).await, intact);
    let noted = Range {
        last: Some(9),
        expected: Some(head.hash),
        ..WHOLE
    };
    assert_eq!(verify(&path, noted).await, intact);
    let part = Range {
        first: 4,
        last: Some(6),
        expected: None,
    };
    assert_eq!(verify(&path, part).await.entries, 3);
}

/// Each way to lie, and the first entry that it shows at.
const LIES: &[(&str, i64)] = &[
    ("UPDATE entries SET kind = 'finish' WHERE number = 1", 1),
    ("UPDATE entries SET execution = 'e9' WHERE number = 3", 3),
    ("UPDATE entries SET execution = NULL WHERE number = 3", 3),
    ("UPDATE entries SET session = 's9' WHERE number = 3", 3),
    ("UPDATE entries SET tenant = 'other' WHERE number = 4", 4),
    ("UPDATE entries SET time_ms = time_ms + 1 WHERE number = 5", 5),
    (
        "UPDATE entries SET data = replace(data, 'success', 'failed!') WHERE number = 4",
        4,
    ),
    ("UPDATE entries SET data = data || ' ' WHERE number = 6", 6),
    ("UPDATE entries SET hash = zeroblob(32) WHERE number = 2", 2),
    ("UPDATE entries SET hash = zeroblob(31) WHERE number = 2", 2),
    ("UPDATE entries SET number = 99 WHERE number = 9", 9),
    ("DELETE FROM entries WHERE number = 1", 1),
    ("DELETE FROM entries WHERE number = 5", 5),
    // The newest: SQLite remembers the largest number.
    ("DELETE FROM entries WHERE number > 6", 7),
    // Two entries in each other's place.
    (
        "UPDATE entries SET number = -1 WHERE number = 3; UPDATE entries SET number = 3 WHERE number = 5;
         UPDATE entries SET number = 5 WHERE number = -1",
        3,
    ),
    // One is taken out and the others move up.
    (
        "DELETE FROM entries WHERE number = 3;
         UPDATE entries SET number = number - 1 WHERE number > 3",
        3,
    ),
    // One more at the end.
    (
        "INSERT INTO entries (number, kind, tenant, time_ms, data, hash)
         SELECT 10, kind, tenant, time_ms, data, hash FROM entries WHERE number = 9",
        10,
    ),
    (
        "UPDATE names SET content = replace(content, 'ann', 'bob') WHERE number = 1",
        1,
    ),
    ("UPDATE names SET user = 'bob' WHERE number = 1", 1),
    ("UPDATE names SET origin_user = 'bob' WHERE number = 2", 2),
    (
        "DELETE FROM names WHERE number = 3; UPDATE names SET number = 3 WHERE number = 1",
        3,
    ),
    (
        "UPDATE bodies SET content = x'00' WHERE execution = 'e2' AND part = 'code'",
        3,
    ),
    (
        "UPDATE bodies SET sha256 = 'ab' WHERE execution = 'e2' AND part = 'stdout'",
        4,
    ),
    (
        "UPDATE bodies SET part = 'command' WHERE execution = 'e1' AND part = 'stdout'",
        1,
    ),
];

#[tokio::test]
async fn every_edit_is_found_at_the_first_entry_that_is_wrong() {
    let (_directory, path) = place();
    written(&path).await;
    let sound = std::fs::read(&path).unwrap();
    for (lie, number) in LIES {
        std::fs::write(&path, &sound).unwrap();
        change(&path, lie);
        let verdict = verify(&path, WHOLE).await;
        let found = verdict.broken.clone().map(|(number, _)| number);
        assert_eq!(found, Some(*number), "{lie}: {verdict:?}");
        assert_eq!(verdict.head.number, number - 1, "{lie}");
    }
}

#[tokio::test]
async fn a_chain_that_was_written_anew_is_found_by_a_note_of_its_head() {
    let (directory, path) = place();
    let head = written(&path).await;
    // The same entries but for one, so that everything fits.
    let other = directory.path().join("other.db");
    let ledger = Ledger::open(&other).unwrap();
    for execution in ["e1", "e2", "e4"] {
        ledger.accept(accept(execution)).await.unwrap();
        ledger.finish(finish(execution)).await.unwrap();
    }
    ledger.close().await.unwrap();
    let noted = Range {
        last: Some(6),
        expected: Some(head.hash),
        ..WHOLE
    };
    assert_eq!(verify(&other, WHOLE).await.broken, None);
    assert_eq!(verify(&other, noted).await.broken.unwrap().0, 6);
    // What was cut off is found too, even with what SQLite remembers.
    change(
        &path,
        "DELETE FROM entries WHERE number > 6; UPDATE sqlite_sequence SET seq = 6 WHERE name = 'entries'",
    );
    assert_eq!(verify(&path, WHOLE).await.broken, None);
    let noted = Range {
        last: Some(9),
        expected: Some(head.hash),
        ..WHOLE
    };
    assert_eq!(verify(&path, noted).await.broken.unwrap().0, 7);
}

#[tokio::test]
async fn a_gap_stays_found_when_more_is_written() {
    let (_directory, path) = place();
    written(&path).await;
    change(&path, "DELETE FROM entries WHERE number > 7");
    let ledger = Ledger::open(&path).unwrap();
    ledger.accept(accept("e5")).await.unwrap();
    assert_eq!(ledger.verify(WHOLE).await.unwrap().broken.unwrap().0, 8);
    assert_eq!(ledger.head().borrow().number, 10);
    // What came after it can still be verified by itself.
    let rest = Range { first: 10, ..WHOLE };
    assert_eq!(ledger.verify(rest).await.unwrap().broken.unwrap().0, 9);
}

#[tokio::test]
async fn a_transaction_that_fails_leaves_no_gap() {
    let (_directory, path) = place();
    let options = Options {
        max_bytes: Some(512 * 1024),
        ..Options::default()
    };
    let ledger = Ledger::open_with(&path, &options).unwrap();
    let mut large = accept("e1");
    large.work.body = Body::new(vec![b'x'; 1 << 20]);
    ledger.accept(accept("e0")).await.unwrap();
    let (failed, written) = tokio::join!(ledger.accept(large), ledger.accept(accept("e2")));
    assert!(failed.is_err() && written.is_ok());
    let verdict = ledger.verify(WHOLE).await.unwrap();
    assert_eq!((verdict.entries, verdict.broken), (2, None));
}

/// A ledger as the version before the chain left it, with many entries.
fn old(path: &Path, executions: usize) {
    let connection = Connection::open(path).unwrap();
    let tables = [
        "CREATE TABLE migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, time_ms INTEGER NOT NULL) STRICT;",
        schema::FIRST,
        schema::SESSIONS,
        "INSERT INTO migrations VALUES (1, '', 0), (2, '', 0); BEGIN;",
    ];
    tables.iter().for_each(|sql| connection.execute_batch(sql).unwrap());
    let entry =
        |kind: &str, execution: Option<&str>, session: Option<&str>, data: serde_json::Value| {
            connection
            .execute(
                "INSERT INTO entries (kind, execution, session, tenant, time_ms, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                rusqlite::params![kind, execution, session, "default", 1_700_000_000_123_i64, data.to_string()],
            )
            .unwrap();
            connection.last_insert_rowid()
        };
    let json = |record: &dyn erased_json::Json| record.json();
    for number in 0..executions {
        let name = format!("e{number}");
        let accepted = entry("accept", Some(&name), None, json(&accept(&name)));
        let finished = entry("finish", Some(&name), None, json(&finish(&name)));
        let row = "INSERT INTO executions VALUES (?1, 's1', 'default', 'root', 'r1', ?2, ?3, 'success', ?4, ?4)";
        let time = to_millis(accept(&name).time);
        connection
            .execute(row, rusqlite::params![name, accepted, finished, time])
            .unwrap();
        let bodies = "INSERT INTO bodies VALUES (?1, 'code', ?2, ?3)";
        let code = accept(&name).work.body;
        connection
            .execute(bodies, rusqlite::params![name, code.sha256, code.content])
            .unwrap();
    }
    let opening = entry("open", None, Some("s1"), json(&opened("s1")));
    let row = "INSERT INTO sessions VALUES ('s1', 'default', 'root', 'r1', ?1, NULL, NULL, 0, NULL)";
    connection.execute(row, [opening]).unwrap();
    entry("refused", None, None, json(&refused("no")));
    connection.execute_batch("COMMIT").unwrap();
}

mod erased_json {
    pub(super) trait Json {
        fn json(&self) -> serde_json::Value;
    }

    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> serde_json::Value {
            serde_json::to_value(self).unwrap()
        }
    }
}

#[tokio::test]
async fn an_old_ledger_gets_a_chain_over_its_entries() {
    let (_directory, path) = place();
    // More than one batch.
    old(&path, 700);
    let ledger = Ledger::open(&path).unwrap();
    let verdict = ledger.verify(WHOLE).await.unwrap();
    assert_eq!((verdict.entries, verdict.broken), (1402, None));
    let record = ledger.get(&id("e699")).await.unwrap().unwrap();
    let mut end = finish("e699");
    end.stdout.content.clear();
    assert_eq!((record.accept, record.finish), (accept("e699"), Some(end)));
    ledger.session_closed(closed("s1")).await.unwrap();
    let by_ann = Filter {
        user: Some("ann".to_owned()),
        ..Filter::default()
    };
    // Begin and end of each, the session's too.
    assert_eq!(ledger.count(by_ann).await.unwrap(), 1402);
    ledger.close().await.unwrap();
    let left = "SELECT data FROM entries WHERE data LIKE '%ann%' OR data LIKE '%sales%'";
    assert_eq!(texts(&path, left), Vec::<String>::new());
    let due = "SELECT DISTINCT CAST((keep_until_ms - 1700000000123) / 86400000 AS TEXT) FROM bodies";
    assert_eq!(texts(&path, due), ["30"]);
}

#[tokio::test]
async fn a_migration_that_was_interrupted_goes_on() {
    let (_directory, path) = place();
    old(&path, 700);
    {
        // One batch, as if brigd had been killed after it.
        let mut connection = Connection::open(&path).unwrap();
        rechain::begin(&mut connection).unwrap();
        let some: i64 = connection
            .query_row("SELECT count(*) FROM entries_chained", [], |row| row.get(0))
            .unwrap();
        assert_eq!(some, 1000);
    }
    let verdict = verify(&path, WHOLE).await;
    assert_eq!((verdict.entries, verdict.broken), (1402, None));
}

#[tokio::test]
async fn entries_are_found_by_what_is_asked() {
    let (_directory, path) = place();
    written(&path).await;
    let ledger = Ledger::open(&path).unwrap();
    let most = Most {
        entries: 100,
        bytes: 1 << 20,
    };
    let found = async |filter: Filter, start| {
        let batch = ledger.batch(filter, start, most).await.unwrap();
        batch.entries.iter().map(|entry| entry.number).collect::<Vec<_>>()
    };
    let all = Filter::default;
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(found(all(), Start::Before(i64::MAX)).await, [9, 8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(found(all(), Start::After(6)).await, [7, 8, 9]);
    let cases = [
        (
            Filter {
                execution: text("e2"),
                ..all()
            },
            vec![3, 4],
        ),
        (
            Filter {
                session: text("s1"),
                ..all()
            },
            vec![1, 2, 3, 4, 5, 6],
        ),
        (
            Filter {
                user: text("ann"),
                ..all()
            },
            vec![1, 2, 3, 4, 5, 6, 7, 8],
        ),
        (
            Filter {
                user: text("root"),
                ..all()
            },
            vec![1, 2, 3, 4, 5, 6, 7, 8, 9],
        ),
        (
            Filter {
                user: text("%"),
                ..all()
            },
            vec![],
        ),
        (
            Filter {
                tenant: text("other"),
                ..all()
            },
            vec![],
        ),
        (
            Filter {
                kinds: vec!["open", "refused"],
                ..all()
            },
            vec![7, 9],
        ),
        (
            Filter {
                from_ms: Some(1_700_000_002_000),
                ..all()
            },
            vec![2, 4, 6, 8],
        ),
        (
            Filter {
                to_ms: Some(1),
                ..all()
            },
            vec![9],
        ),
        (
            Filter {
                execution: text("e2"),
                kinds: vec!["finish"],
                ..all()
            },
            vec![4],
        ),
    ];
    for (filter, numbers) in cases {
        assert_eq!(found(filter.clone(), Start::After(0)).await, numbers, "{filter:?}");
    }
    let few = Most {
        entries: 4,
        bytes: 1 << 20,
    };
    let batch = ledger.batch(all(), Start::After(0), few).await.unwrap();
    assert_eq!((batch.entries.len(), batch.more), (4, true));
    let small = Most { entries: 4, bytes: 1 };
    let batch = ledger.batch(all(), Start::After(8), small).await.unwrap();
    assert_eq!((batch.entries.len(), batch.more), (1, false));
    let first = &ledger.batch(all(), Start::After(0), small).await.unwrap().entries[0];
    assert_eq!(hex(&first.previous), "0".repeat(64));
}
