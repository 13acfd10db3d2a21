//! brigd is killed at random moments while it collects, stores, approves and rejects: no artifact is torn, the chain
//! holds, and every decision that was answered is there.
//!
//! `BRIG_ROUNDS` says how often (200 times without it), `BRIG_SEED` repeats the moments of a run.
#![allow(clippy::print_stderr, reason = "how far it came is told where a failure is")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use brig_proto::v1::{ArtifactRecord, ArtifactsListRequest, LedgerVerifyRequest, ReviewState, SessionsCreateRequest};
use brig_tests::random::{Random, number};
use brig_tests::services::Setup;
use brig_tests::spec::command;
use brig_tests::{Client, DEADLINE, Service, Services, artifacts, eventually};
use rustix::process::Signal;

use crate::{id, reviews, sha256};

const SESSION: &str = "mine";
/// The latest moment of a kill after the clients have begun.
const LATEST_MS: u64 = 250;

/// What was answered: for each artifact the decision.
#[derive(Default)]
struct Told(BTreeMap<String, ReviewState>);

fn pending() -> ArtifactsListRequest {
    ArtifactsListRequest {
        reviews: vec![ReviewState::Pending.into()],
        ..ArtifactsListRequest::default()
    }
}

/// Leaves artifacts, some of which must be reviewed, until brigd is gone.
fn leave(client: &Client, names: &AtomicUsize, stopped: &AtomicBool) {
    while !stopped.load(Ordering::Relaxed) {
        let name = names.fetch_add(1, Ordering::Relaxed);
        let script = format!("for i in a b; do echo {name} $i > $i{name}.py; done; echo {name} > c{name}.csv");
        if let Ok(live) = client.execute(SESSION, command(&["sh", "-c", &script])) {
            let _cut_off = live.end();
        }
    }
}

/// Decides about what waits, until brigd is gone: every second one is approved.
fn decide(client: &Client, told: &Mutex<Told>, stopped: &AtomicBool) {
    while !stopped.load(Ordering::Relaxed) {
        let Ok(page) = client.ask(client.artifacts().list(pending())) else {
            continue;
        };
        for (number, record) in page.artifacts.iter().enumerate() {
            let hash = &record.artifact.as_ref().unwrap().sha256;
            let decided = if number.is_multiple_of(2) {
                artifacts::approve(client, id(record), hash)
            } else {
                artifacts::reject(client, id(record), "")
            };
            if let Ok(decided) = decided {
                let review = decided.artifact.as_ref().unwrap().review();
                let earlier = told.lock().unwrap().0.insert(id(record).to_owned(), review);
                assert_eq!(earlier, None, "{} was decided about twice", id(record));
            }
            if stopped.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

fn verify(services: &Services) {
    let verdict = services
        .ask(services.ledger().verify(LedgerVerifyRequest::default()))
        .unwrap();
    assert!(verdict.intact, "{verdict:?}");
}

/// All artifacts, page by page.
fn all(services: &Services) -> Vec<ArtifactRecord> {
    let (mut request, mut found) = (ArtifactsListRequest::default(), Vec::new());
    loop {
        let page = services.ask(services.artifacts().list(request.clone())).unwrap();
        found.extend(page.artifacts);
        if page.next_page_token.is_empty() {
            return found;
        }
        request.page_token = page.next_page_token;
    }
}

/// Whether bytes that may leave are whole, and those that may not are not there.
fn check(services: &Services, record: &ArtifactRecord) {
    let shown = record.artifact.as_ref().unwrap();
    let bytes = match shown.review() {
        ReviewState::Pending => artifacts::look(services, id(record)),
        _ => artifacts::bytes(services, id(record)),
    };
    match shown.review() {
        ReviewState::Rejected => assert_eq!(bytes.unwrap_err().reason, "REVIEW_REFUSED"),
        _ => assert_eq!(sha256(&bytes.unwrap()), shown.sha256, "{record:?}"),
    }
}

#[test]
fn no_artifact_is_torn_and_every_decision_that_was_answered_is_there() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let rounds = number("BRIG_ROUNDS", 200);
    let mut random = Random::of_environment(rounds);
    let (names, told) = (AtomicUsize::new(0), Mutex::new(Told::default()));
    services.create(SessionsCreateRequest {
        session_id: SESSION.to_owned(),
        template: "base".to_owned(),
        ..SessionsCreateRequest::default()
    });
    for round in 0..rounds {
        let moment = Duration::from_millis(random.below(LATEST_MS));
        let stopped = AtomicBool::new(false);
        let client: &Client = &services;
        std::thread::scope(|scope| {
            scope.spawn(|| leave(client, &names, &stopped));
            scope.spawn(|| decide(client, &told, &stopped));
            std::thread::sleep(moment);
            services.signal(Service::Daemon, Signal::KILL);
            stopped.store(true, Ordering::Relaxed);
        });
        services.await_end(Service::Daemon);
        services.launch(Service::Daemon);
        verify(&services);
        if round % 20 == 19 {
            eprintln!("{} rounds, {} decisions", round + 1, told.lock().unwrap().0.len());
        }
    }
    let told = told.into_inner().unwrap().0;
    assert!(!told.is_empty());
    let records = all(&services);
    eprintln!("{} artifacts, {} decisions", records.len(), told.len());
    let now: BTreeMap<&str, &ArtifactRecord> = records.iter().map(|record| (id(record), record)).collect();
    for (id, review) in &told {
        assert_eq!(now[id.as_str()].artifact.as_ref().unwrap().review(), *review, "{id}");
    }
    records.iter().for_each(|record| check(&services, record));
    // The ledger has the same decisions, each once.
    let mut decided = BTreeMap::new();
    for entry in reviews(&services) {
        assert!(
            decided.insert(entry.artifact_id.clone(), entry.review()).is_none(),
            "{entry:?}"
        );
    }
    told.iter()
        .for_each(|(id, review)| assert_eq!(decided.get(id), Some(review), "{id}"));
    // What may be stored is, and nothing else is left over.
    let folder = services.directory().join("state/artifacts");
    eventually("only what waits is in the quarantine", *DEADLINE, || {
        let waiting = artifacts::list(
            &services,
            ArtifactsListRequest {
                page_size: 1000,
                ..pending()
            },
        )
        .len();
        match std::fs::read_dir(folder.join("quarantine")).unwrap().count() {
            held if held == waiting => Ok(()),
            held => Err((held, waiting)),
        }
    });
    verify(&services);
}
