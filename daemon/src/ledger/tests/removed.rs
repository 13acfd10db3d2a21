//! Bodies and names go, on request and with time; entries and their chain stay.

use super::*;

const WHOLE: Range = Range {
    first: 1,
    last: None,
    expected: None,
};

fn erasure(one_user: bool) -> Erased {
    Erased {
        request: None,
        tenant: "default".to_owned(),
        user: "root".to_owned(),
        one_user,
        execution: None,
        to_time: None,
        entries: 0,
        message: "they asked for it".to_owned(),
        time: SystemTime::now(),
    }
}

/// All bytes that a ledger has on disk.
fn bytes(path: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for suffix in ["", "-wal"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        all.extend(std::fs::read(name).unwrap_or_default());
    }
    all
}

fn holds(path: &Path, needle: &str) -> bool {
    bytes(path).windows(needle.len()).any(|part| part == needle.as_bytes())
}

/// An execution of a user who leaves traces in every place.
async fn run(ledger: &Ledger, execution: &str, user: &str) {
    let mut accepted = accept(execution);
    accepted.origin.user = user.to_owned();
    accepted.labels = [("of".to_owned(), format!("label-{user}"))].into();
    accepted.inputs[0].name = format!("input-{user}");
    accepted.work.body = Body::new(format!("print('code-{user}')").into_bytes());
    let mut finished = finish(execution);
    finished.stdout = Body::new(format!("output-{user}\n").repeat(1000).into_bytes());
    finished.artifacts[0].path = format!("artifact-{user}.png");
    finished.message = Some(format!("message-{user}"));
    ledger.accept(accepted).await.unwrap();
    ledger.finish(finished).await.unwrap();
}

#[tokio::test]
async fn of_a_user_who_was_erased_no_byte_is_left_and_the_chain_holds() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    for number in 0..150 {
        run(&ledger, &format!("e{number}"), "canaryann").await;
        run(&ledger, &format!("o{number}"), "canarybob").await;
    }
    assert!(holds(&path, "canaryann"));
    let filter = Filter {
        tenant: Some("default".to_owned()),
        user: Some("canaryann".to_owned()),
        ..Filter::default()
    };
    assert_eq!(ledger.count(filter.clone()).await.unwrap(), 300);
    assert_eq!(ledger.erase(filter.clone(), erasure(true)).await.unwrap(), 300);
    assert_eq!(ledger.count(filter.clone()).await.unwrap(), 0);
    assert!(!holds(&path, "canaryann") && holds(&path, "canarybob"));
    let verdict = ledger.verify(WHOLE).await.unwrap();
    assert_eq!((verdict.entries, verdict.broken), (601, None));
    // What remains says that something ran, and how it ended.
    let left = ledger.get(&id("e7")).await.unwrap().unwrap();
    let code = Body::new(b"print('code-canaryann')".to_vec());
    assert_eq!(left.accept.work.body.sha256, code.sha256);
    assert_eq!(
        (left.accept.work.body.content.len(), left.accept.origin),
        (0, Origin::default())
    );
    assert_eq!(left.finish.unwrap().status, "success");
    let other = ledger.get(&id("o7")).await.unwrap().unwrap();
    assert_eq!(other.accept.origin.user, "canarybob");
    // It is an entry itself, without the name.
    let erased: Erased = read_entry(&path, 601);
    assert_eq!(
        (erased.entries, erased.one_user, erased.message.as_str()),
        (300, true, "they asked for it")
    );
}

#[tokio::test]
async fn an_erasure_takes_what_its_filter_finds_and_nothing_else() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    for execution in ["e1", "e2"] {
        run(&ledger, execution, "ann").await;
    }
    let mut foreign = accept("e3");
    foreign.tenant = "other".to_owned();
    ledger.accept(foreign).await.unwrap();
    let of = |execution: &str| Filter {
        tenant: Some("default".to_owned()),
        execution: Some(execution.to_owned()),
        ..Filter::default()
    };
    assert_eq!(
        ledger.erase(of("e3"), erasure(false)).await.unwrap(),
        0,
        "another tenant's"
    );
    assert_eq!(ledger.erase(of("e1"), erasure(false)).await.unwrap(), 2);
    ledger.close().await.unwrap();
    assert_eq!(
        texts(&path, "SELECT execution || ' ' || part FROM bodies ORDER BY 1"),
        ["e2 code", "e2 stderr", "e2 stdout", "e3 code"]
    );
    // Names of: e2's two entries, e3's, and the two erasures.
    assert_eq!(
        texts(&path, "SELECT CAST(number AS TEXT) FROM names ORDER BY number"),
        ["3", "4", "5", "6", "7"]
    );
}

#[tokio::test]
async fn what_may_not_be_kept_any_longer_is_swept() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    let day = 86_400_000;
    let now = SystemTime::now();
    let ago = |days: u32| now - Duration::from_secs(86_400) * days;
    let keep = Keep {
        names_ms: 90 * day,
        work_ms: 30 * day,
        outputs_ms: 7 * day,
    };
    for (execution, days) in [("e1", 1), ("e2", 8), ("e3", 31), ("e4", 91)] {
        let accepted = Accept {
            keep,
            time: ago(days),
            ..accept(execution)
        };
        ledger.accept(accepted).await.unwrap();
        let finished = Finish {
            time: ago(days),
            ..finish(execution)
        };
        ledger.finish(finished).await.unwrap();
    }
    let due = ledger.count_due().await.unwrap();
    assert_eq!((due.works, due.outputs, due.names), (2, 6, 2));
    assert!(due.bytes > 0);
    assert_eq!(ledger.sweep().await.unwrap(), due);
    assert_eq!(ledger.sweep().await.unwrap(), Swept::default());
    let verdict = ledger.verify(WHOLE).await.unwrap();
    assert_eq!((verdict.entries, verdict.broken), (8, None));
    ledger.close().await.unwrap();
    assert_eq!(
        texts(&path, "SELECT execution || ' ' || part FROM bodies ORDER BY 1"),
        ["e1 code", "e1 stderr", "e1 stdout", "e2 code"]
    );
    assert_eq!(
        texts(
            &path,
            "SELECT DISTINCT execution FROM names JOIN entries USING (number) ORDER BY 1"
        ),
        ["e1", "e2", "e3"]
    );
}

#[tokio::test]
async fn a_flood_of_refusals_writes_little_and_is_told_in_one() {
    let (_directory, path) = place();
    let ledger = Ledger::open(&path).unwrap();
    for _ in 0..5000 {
        ledger.refused(refused("no")).await.unwrap();
    }
    for _ in 0..5000 {
        ledger.note_refused(refused("no"));
    }
    ledger.close().await.unwrap();
    let count: i64 = texts(&path, "SELECT CAST(count(*) AS TEXT) FROM entries")[0]
        .parse()
        .unwrap();
    // The burst, what a minute or so adds, and the sum.
    assert!((101..150).contains(&count), "{count}");
    let told: Refused = read_entry(&path, count);
    assert_eq!(told.count + u64::try_from(count).unwrap() - 1, 10_000);
}

#[tokio::test]
async fn refusals_without_space_are_counted_for_later() {
    let (_directory, path) = place();
    let options = Options {
        reserve_bytes: u64::MAX,
        max_bytes: None,
    };
    let ledger = Ledger::open_with(&path, &options).unwrap();
    let error = ledger.refused(refused("no")).await.unwrap_err();
    assert!(error.is_full());
    assert!(
        ledger.tell_counted().await.unwrap_err().is_full(),
        "it was counted, and is again"
    );
    assert!(ledger.tell_counted().await.is_err());
}
