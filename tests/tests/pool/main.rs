//! Sessions that are made before they are asked for: who gets one, that it is as any other, and what becomes of it.
#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod contexts;
mod ends;
mod probe;
mod ready;
mod requests;

use std::time::Duration;

use brig_proto::v1::{ExecutionSpec, StartKind};
use brig_tests::services::Setup;
use brig_tests::spec::small;
use brig_tests::{Outcome, Services, eventually, slow};

/// Services that keep so many sessions waiting.
fn pool(sessions: usize) -> Option<Services> {
    Services::start(Setup {
        pool: Some(format!("sessions = {sessions}")),
        ..Setup::default()
    })
}

/// How the program of a run came to be.
fn start(outcome: &Outcome) -> StartKind {
    outcome.start().unwrap()
}

fn session(outcome: &Outcome) -> &str {
    &outcome.result.session.as_ref().unwrap().session_id
}

fn waiting(services: &Services) -> u64 {
    services.host().load.unwrap().waiting
}

/// Waits until so many wait.
fn await_waiting(services: &Services, count: u64) {
    eventually("sessions wait", Duration::from_secs(60) * slow(), || {
        let now = waiting(services);
        if now == count { Ok(()) } else { Err(now) }
    });
}

/// Runs something that makes one wait, and a holder, and waits for both.
fn prime(services: &Services) {
    let outcome = services.run(small("print(0)")).expect_success();
    assert_eq!(start(&outcome), StartKind::Cold);
    await_waiting(services, 1);
    await_holder(services);
}

/// Waits until there is a session without a program for the next one.
fn await_holder(services: &Services) {
    eventually("a holder waits", Duration::from_secs(60) * slow(), || {
        match services.host().load.unwrap().holders {
            1 => Ok(()),
            other => Err(other),
        }
    });
}

/// Runs something in a session that waits.
fn run_in_waiting(services: &Services, spec: ExecutionSpec) -> Outcome {
    await_waiting(services, 1);
    let outcome = services.run(spec);
    assert_eq!(start(&outcome), StartKind::Pool, "{:?}", outcome.result);
    outcome
}
