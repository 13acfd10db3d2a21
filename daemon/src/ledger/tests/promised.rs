use tokio::sync::oneshot;

use super::super::request::{Batch as Requests, Request};
use super::*;

const ENTRIES: &str = "SELECT kind || ' ' || execution FROM entries ORDER BY number";
const PROMISES: &str = "SELECT CAST(length(content) AS TEXT) FROM promises";

/// An execution with names of its own.
fn other(number: u32) -> Accept {
    Accept {
        request: Some(format!("r{number}")),
        request_sha256: Some("ab".repeat(32)),
        session: id(&format!("s{number}")),
        kept: false,
        ..accept(&format!("e{number}"))
    }
}

/// Asks a writer whose thread does not run, and gives its answer.
fn ask<T>(writer: &mut Writer, request: impl FnOnce(Answer<T>) -> Request) -> Result<T, LedgerError> {
    let (answer, mut answered) = oneshot::channel();
    writer.serve(Requests::sort([request(answer)].into_iter(), &mut Vec::new()));
    answered.try_recv().unwrap()
}

fn ask_accept(writer: &mut Writer, accept: Accept) -> Result<(), LedgerError> {
    ask(writer, |answer| Request::Accept(Box::new(accept), answer))
}

fn ask_finish(writer: &mut Writer, execution: &str) -> Result<(), LedgerError> {
    ask(writer, |answer| Request::Finish(Arc::new(finish(execution)), answer))
}

#[test]
fn an_accept_that_comes_alone_is_entered_with_its_end() {
    let (_directory, path) = place();
    let mut writer = Writer::open(&path, &Options::default()).unwrap();
    ask_accept(&mut writer, other(1)).unwrap();
    assert_eq!(
        (texts(&path, ENTRIES), texts(&path, PROMISES)),
        (vec![], vec!["8".to_owned()])
    );
    ask_finish(&mut writer, "e1").unwrap();
    assert_eq!(texts(&path, ENTRIES), ["accept e1", "finish e1"]);
    assert_eq!(texts(&path, PROMISES), Vec::<String>::new());
    assert_eq!(read_entry::<Accept>(&path, 1).request, Some("r1".to_owned()));
}

#[tokio::test]
async fn what_was_promised_before_a_crash_is_lost_and_not_forgotten() {
    let (_directory, path) = place();
    let mut writer = Writer::open(&path, &Options::default()).unwrap();
    for number in [1, 2] {
        ask_accept(&mut writer, other(number)).unwrap();
    }
    drop(writer);
    let damaged = "INSERT INTO promises (data, content) VALUES ('{', x'')";
    Connection::open(&path).unwrap().execute(damaged, []).unwrap();
    let ledger = Ledger::open(&path).unwrap();
    let ends = ledger.open_ends().await.unwrap();
    assert_eq!(ends.executions, [id("e1"), id("e2")].into());
    ledger.settle(OpenEnds::default()).await.unwrap();
    let record = ledger.get(&id("e2")).await.unwrap().unwrap();
    assert_eq!(
        (record.accept, record.finish.unwrap().status.as_str()),
        (other(2), "lost")
    );
    let whole = Range {
        first: 1,
        last: None,
        expected: None,
    };
    let verdict = ledger.verify(whole).await.unwrap();
    assert_eq!((verdict.entries, verdict.broken), (4, None));
    ledger.close().await.unwrap();
    assert_eq!(
        texts(&path, ENTRIES),
        ["accept e1", "accept e2", "finish e1", "finish e2"]
    );
    assert_eq!(texts(&path, PROMISES), Vec::<String>::new());
}

#[test]
fn ids_and_requests_that_are_promised_are_taken() {
    let (_directory, path) = place();
    let mut writer = Writer::open(&path, &Options::default()).unwrap();
    ask_accept(&mut writer, other(1)).unwrap();
    let same_execution = Accept {
        execution: id("e1"),
        ..other(2)
    };
    assert!(matches!(ask_accept(&mut writer, same_execution), Err(LedgerError::Exists(found)) if found == id("e1")));
    ask_accept(&mut writer, other(3)).unwrap();
    let same_session = Accept {
        session: id("s3"),
        ..other(4)
    };
    assert!(matches!(ask_accept(&mut writer, same_session), Err(LedgerError::Exists(found)) if found == id("s3")));
    ask_accept(&mut writer, other(5)).unwrap();
    let same_request = Accept {
        request: Some("r5".to_owned()),
        time: SystemTime::now(),
        ..other(6)
    };
    let repeated = ask_accept(&mut writer, same_request);
    assert!(
        matches!(repeated, Ok(())),
        "the first came more than a day ago: {repeated:?}"
    );
    let [fresh, again] = [7, 8].map(|number| Accept {
        request: Some("r7".to_owned()),
        time: SystemTime::now(),
        ..other(number)
    });
    ask_accept(&mut writer, fresh).unwrap();
    let repeated = ask_accept(&mut writer, again);
    assert!(
        matches!(&repeated, Err(LedgerError::Repeated(known)) if known.made == Made::Execution(id("e7"))),
        "{repeated:?}"
    );
}

#[test]
fn large_ones_and_those_that_come_together_are_entered_at_once() {
    let (_directory, path) = place();
    let mut writer = Writer::open(&path, &Options::default()).unwrap();
    let mut large = other(1);
    large.work.body = Body::new(vec![b'x'; 4096]);
    ask_accept(&mut writer, large).unwrap();
    let answers = [(); 2].map(|()| oneshot::channel());
    let requests = answers.into_iter().zip([2, 3]);
    let together = requests.map(|((answer, _), number)| Request::Accept(Box::new(other(number)), answer));
    writer.serve(Requests::sort(together, &mut Vec::new()));
    assert_eq!(texts(&path, ENTRIES), ["accept e1", "accept e2", "accept e3"]);
    assert_eq!(texts(&path, PROMISES), Vec::<String>::new());
}

#[tokio::test]
async fn a_promise_is_entered_in_a_moment_and_for_whoever_reads() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    ledger.accept(other(1)).await.unwrap();
    let most = Most {
        entries: 9,
        bytes: 1 << 20,
    };
    let batch = ledger.batch(Filter::default(), Start::After(0), most).await.unwrap();
    assert_eq!(batch.entries.len(), 1);
    let mut head = ledger.head();
    ledger.accept(other(2)).await.unwrap();
    head.wait_for(|head| head.number == 2).await.unwrap();
}

#[test]
fn while_promises_can_not_be_entered_no_more_are_given() {
    let (_directory, path) = place();
    let mut writer = Writer::open(&path, &Options::default()).unwrap();
    let asked = Accept {
        time: SystemTime::now(),
        ..other(1)
    };
    ask_accept(&mut writer, asked.clone()).unwrap();
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("ALTER TABLE bodies RENAME TO hidden").unwrap();
    assert!(matches!(
        ask_finish(&mut writer, "e1"),
        Err(LedgerError::Unwritable { .. })
    ));
    // It is answered for all the same.
    assert_eq!(
        ask(&mut writer, Request::OpenEnds).unwrap().executions,
        [id("e1")].into()
    );
    let requested = |answer| Request::Look(Look::Requested("default".to_owned(), "r1".to_owned(), answer));
    assert_eq!(
        ask(&mut writer, requested).unwrap().unwrap().made,
        Made::Execution(id("e1"))
    );
    let found = ask(&mut writer, |answer| Request::Look(Look::Get(id("e1"), answer)))
        .unwrap()
        .unwrap();
    assert_eq!((found.accept.request, found.finish), (asked.request, None));
    let entered = ask(&mut writer, |answer| Request::Look(Look::Entered(answer)));
    assert!(matches!(entered, Err(LedgerError::Unwritable { .. })));
    assert!(matches!(
        ask_accept(&mut writer, other(2)),
        Err(LedgerError::Unwritable { .. })
    ));
    connection.execute_batch("ALTER TABLE hidden RENAME TO bodies").unwrap();
    ask_finish(&mut writer, "e1").unwrap();
    ask_accept(&mut writer, other(3)).unwrap();
    assert_eq!(texts(&path, ENTRIES), ["accept e1", "finish e1"]);
    assert_eq!(texts(&path, PROMISES).len(), 1);
}

#[tokio::test]
async fn who_asks_for_a_promise_does_not_hold_up_others_while_somebody_else_has_the_database() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    let mut head = ledger.head();
    ledger.accept(other(0)).await.unwrap();
    head.wait_for(|head| head.number == 1).await.unwrap();
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    let asked = ledger.clone();
    let accepting = tokio::spawn(async move { asked.accept(other(1)).await });
    // One thread serves both: it has time for this.
    let began = Instant::now();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(began.elapsed() < database::BUSY, "{:?}", began.elapsed());
    assert!(!accepting.is_finished());
    connection.execute_batch("COMMIT").unwrap();
    accepting.await.unwrap().unwrap();
    assert!(ledger.get(&id("e1")).await.unwrap().is_some());
    ledger.accept(other(2)).await.unwrap();
    head.wait_for(|head| head.number == 3).await.unwrap();
}

#[tokio::test]
async fn the_writer_ends_with_its_last_handle_whatever_was_promised() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    for number in [1, 2] {
        ledger.accept(other(number)).await.unwrap();
    }
    let began = Instant::now();
    drop(ledger);
    let writer = loop {
        match Writer::open(&path, &Options::default()) {
            Err(LedgerError::InUse { .. }) => tokio::time::sleep(Duration::from_millis(1)).await,
            writer => break writer.unwrap(),
        }
    };
    assert!(began.elapsed() < database::BUSY);
    assert_eq!(texts(&path, ENTRIES), ["accept e1", "accept e2"]);
    drop(writer);
}
