//! brigd is killed at random moments while it accepts and finishes: whatever it answered is in the ledger, and the chain
//! holds.
//!
//! `BRIG_ROUNDS` says how often (4 times without it), `BRIG_SEED` repeats the moments of a run.
#![allow(clippy::print_stderr, reason = "how far it came is told where a failure is")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use brig_proto::v1::{
    ExecutionSpec, LedgerEntryKind, LedgerListRequest, LedgerVerifyRequest, OnDisconnect, SessionsCreateRequest,
};
use brig_tests::random::{Random, number};
use brig_tests::services::Setup;
use brig_tests::spec::sh;
use brig_tests::{Client, DEADLINE, Service, Services, eventually, slow};
use rustix::process::Signal;

/// Clients that run one execution after the other.
const LANES: usize = 3;
/// The latest moment of a kill after the clients have begun.
const LATEST_MS: u64 = 600;

/// What the clients were told.
#[derive(Default)]
struct Told {
    accepted: Vec<String>,
    /// With the status in lower case.
    finished: BTreeMap<String, String>,
}

/// Runs executions until brigd is gone: every second one in the kept session.
fn lane(client: &Client, session: &str, names: &AtomicUsize, told: &Mutex<Told>, stopped: &AtomicBool) {
    while !stopped.load(Ordering::Relaxed) {
        let name = names.fetch_add(1, Ordering::Relaxed);
        let id = format!("x{name}");
        let spec = ExecutionSpec {
            execution_id: id.clone(),
            on_disconnect: OnDisconnect::Continue.into(),
            ..sh("echo out")
        };
        let live = if name.is_multiple_of(2) {
            client.execute(
                session,
                ExecutionSpec {
                    template: String::new(),
                    ..spec
                },
            )
        } else {
            let part = brig_proto::v1::run_request::Part::Spec(spec);
            client.send(vec![brig_proto::v1::RunRequest { part: Some(part) }])
        };
        let Ok(live) = live else { continue };
        told.lock().unwrap().accepted.push(id.clone());
        if let Ok(outcome) = live.end() {
            let status = outcome
                .status()
                .as_str_name()
                .trim_start_matches("EXECUTION_STATUS_")
                .to_lowercase();
            told.lock().unwrap().finished.insert(id, status);
        }
    }
}

fn verify(services: &Services) {
    let verdict = services
        .ask(services.ledger().verify(LedgerVerifyRequest::default()))
        .unwrap();
    assert!(verdict.intact, "{verdict:?}");
}

#[test]
fn whatever_was_answered_is_recorded_and_the_chain_holds() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let rounds = number("BRIG_ROUNDS", 4);
    let mut random = Random::of_environment(rounds);
    let (names, told) = (AtomicUsize::new(0), Mutex::new(Told::default()));
    let session = services
        .create(SessionsCreateRequest {
            template: "base".to_owned(),
            ..SessionsCreateRequest::default()
        })
        .session_id;
    for round in 0..rounds {
        // In the last round something has ended for sure.
        let more = if round + 1 == rounds { 2_000 } else { 0 };
        let moment = Duration::from_millis(more + random.below(LATEST_MS)) * slow();
        let stopped = AtomicBool::new(false);
        let client: &Client = &services;
        std::thread::scope(|scope| {
            for _ in 0..LANES {
                scope.spawn(|| lane(client, &session, &names, &told, &stopped));
            }
            std::thread::sleep(moment);
            services.signal(Service::Daemon, Signal::KILL);
            stopped.store(true, Ordering::Relaxed);
        });
        services.await_end(Service::Daemon);
        services.launch(Service::Daemon);
        verify(&services);
        if round % 20 == 19 {
            eprintln!("{} rounds, {} accepted", round + 1, told.lock().unwrap().accepted.len());
        }
    }
    let Told { accepted, finished } = told.into_inner().unwrap();
    eprintln!("{} accepted, {} finished", accepted.len(), finished.len());
    assert!(!accepted.is_empty() && !finished.is_empty());
    for id in &accepted {
        // What goes on in the kept session may need a moment.
        eventually("every execution has an end", *DEADLINE, || {
            match services.recorded(id).as_deref() {
                None => panic!("{id} was accepted and is not recorded"),
                Some("") => Err(id.clone()),
                Some(status) => {
                    let expected = finished.get(id).map_or(status, String::as_str);
                    assert_eq!(status, expected, "{id}");
                    Ok(())
                }
            }
        });
    }
    verify(&services);
    // The service shows the same as the file.
    let ends = LedgerListRequest {
        page_size: 1000,
        kinds: vec![LedgerEntryKind::Finished.into()],
        ..LedgerListRequest::default()
    };
    let listed = services.ask(services.ledger().list(ends)).unwrap().entries;
    let last = finished
        .keys()
        .max_by_key(|id| id[1..].parse::<u64>().unwrap())
        .unwrap();
    assert!(listed.iter().any(|entry| entry.execution_id == *last), "{last}");
}
