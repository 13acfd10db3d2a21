//! What becomes of sessions that wait: they are closed, or make room, and nothing of them is left.

use std::time::Duration;

use brig_proto::v1::StartKind;
use brig_tests::policies::Policies;
use brig_tests::processes::{Process, assert_gone, descendants};
use brig_tests::services::Setup;
use brig_tests::spec::small;
use brig_tests::{Service, Services, eventually, slow};
use rustix::process::{Pid, Signal, kill_process};

use super::{await_waiting, pool, prime, run_in_waiting, start, waiting};

pub(super) const SOON: Duration = Duration::from_secs(10);

/// The processes of all sessions.
pub(super) fn jailed(services: &Services) -> Vec<Process> {
    descendants(services.process(Service::Jailer).pid)
}

fn await_nobody(services: &Services) {
    eventually("no session is left", SOON * slow(), || {
        let left = jailed(services);
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}

/// Services with ceilings of their own.
fn below(ceilings: &str) -> Option<(Services, Policies)> {
    let policies = Policies::with(&[])?;
    let file = policies.path().join("ceilings");
    std::fs::write(&file, ceilings).unwrap();
    let services = Services::start(Setup {
        pool: Some("sessions = 1".to_owned()),
        ceilings: file,
        ..Setup::default()
    })?;
    Some((services, policies))
}

#[test]
fn sessions_that_wait_end_with_the_daemon_however_it_ends() {
    let Some(mut services) = pool(1) else { return };
    prime(&services);
    services.stop();
    await_nobody(&services);
    services.launch(Service::Daemon);
    prime(&services);
    let left = jailed(&services);
    assert!(!left.is_empty());
    services.kill(Service::Daemon);
    assert_gone(&left, SOON * slow());
    services.launch(Service::Daemon);
    prime(&services);
    let left = jailed(&services);
    services.kill(Service::Jailer);
    assert_gone(&left, SOON * slow());
}

#[test]
fn a_reload_throws_away_what_waits() {
    let Some(services) = pool(1) else { return };
    prime(&services);
    let before = jailed(&services);
    services.signal(Service::Daemon, Signal::HUP);
    assert_gone(&before, SOON * slow());
    // It waits again once it is asked for again.
    prime(&services);
    run_in_waiting(&services, small("print(1)")).expect_success();
}

#[test]
fn a_session_that_waits_leaves_its_place_to_one_that_is_wanted() {
    let Some((services, _policies)) = below("sessions = 1\n") else {
        return;
    };
    // There is no place for a holder.
    services.run(small("print(0)")).expect_success();
    await_waiting(&services, 1);
    let named = |name: &str| brig_proto::v1::ExecutionSpec {
        session_id: name.to_owned(),
        ..small("print(1)")
    };
    let outcome = services.run(named("wanted1")).expect_success();
    assert_eq!(start(&outcome), StartKind::Forked);
}

#[test]
fn none_is_made_ahead_where_memory_is_short_and_requests_are_served_all_the_same() {
    let Some((services, _policies)) = below("reserve = \"1000G\"\n") else {
        return;
    };
    for _ in 0..2 {
        let outcome = services.run(small("print(1)")).expect_success();
        assert_eq!(start(&outcome), StartKind::Cold);
    }
    eventually("it is told", SOON * slow(), || {
        let load = services.host().load.unwrap();
        let log = services.log(Service::Daemon);
        if load.failed_ahead > 0 && log.contains("reserve in ceilings.toml") {
            Ok(())
        } else {
            Err(log)
        }
    });
    assert_eq!(waiting(&services), 0);
}

#[test]
fn what_waits_is_replaced_before_it_is_too_old_and_no_failure() {
    let Some(policies) = Policies::with(&[]) else { return };
    let policies = policies.and(
        "brief",
        &[
            ("idle = \"10m\"", "idle = \"20s\""),
            ("max_age = \"1h\"", "max_age = \"20s\""),
        ],
    );
    let services = Services::start(Setup {
        pool: Some("sessions = 1\nready = [{ policy = \"brief\", template = \"base\" }]".to_owned()),
        policies: policies.path().to_owned(),
        ..Setup::default()
    });
    let Some(services) = services else { return };
    for _ in 0..2 {
        await_waiting(&services, 1);
        let all = jailed(&services);
        eventually("all of it is replaced", 3 * SOON * slow(), || {
            let now = jailed(&services);
            let left: Vec<&Process> = all.iter().filter(|process| now.contains(process)).collect();
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            }
        });
    }
    await_waiting(&services, 1);
    let brief = brig_proto::v1::ExecutionSpec {
        policy: "brief".to_owned(),
        ..small("print(1)")
    };
    assert_eq!(start(&services.run(brief).expect_success()), StartKind::Pool);
    let load = services.host().load.unwrap();
    assert_eq!((load.failed_ahead, load.failed_zygotes), (0, 0));
}

/// The interpreters of all sessions, the zygote before those that it has forked.
pub(super) fn interpreters(services: &Services) -> Vec<Process> {
    let mut found = jailed(services);
    found.retain(|process| process.name.starts_with("python"));
    found.sort_by_key(|process| process.start);
    found
}

pub(super) fn kill(process: &Process) {
    kill_process(Pid::from_raw(process.pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
    assert_gone(std::slice::from_ref(process), SOON * slow());
}

pub(super) fn failed_zygotes(services: &Services) -> u64 {
    services.host().load.unwrap().failed_zygotes
}

#[test]
fn what_a_zygote_has_forked_outlives_it_and_another_one_takes_its_place() {
    let Some(services) = pool(1) else { return };
    prime(&services);
    assert_eq!(failed_zygotes(&services), 0);
    let before = interpreters(&services);
    assert_eq!(before.len(), 2, "{before:?}");
    kill(&before[0]);
    assert_eq!(
        run_in_waiting(&services, small("print(1)")).expect_success().stdout(),
        "1\n"
    );
    // Made without one, until there is one again.
    assert_eq!(
        run_in_waiting(&services, small("print(2)")).expect_success().stdout(),
        "2\n"
    );
    assert!(failed_zygotes(&services) > 0);
    let log = services.log(Service::Daemon);
    assert_eq!(log.matches("no zygote").count(), 1, "{log}");
}

#[test]
fn a_zygote_that_stands_still_is_given_up_and_the_program_is_started() {
    let Some(services) = pool(1) else { return };
    prime(&services);
    let zygote = interpreters(&services).remove(0);
    kill_process(Pid::from_raw(zygote.pid.cast_signed()).unwrap(), Signal::STOP).unwrap();
    let named = brig_proto::v1::ExecutionSpec {
        session_id: "named1".to_owned(),
        ..small("print(1)")
    };
    let outcome = services.run(named).expect_success();
    assert_eq!((start(&outcome), outcome.stdout().as_str()), (StartKind::Cold, "1\n"));
    assert!(failed_zygotes(&services) > 0);
    assert_gone(&[zygote], SOON * slow());
}

#[test]
fn a_request_is_served_whose_session_died_with_that_of_its_zygote() {
    let Some(services) = pool(1) else { return };
    prime(&services);
    let mut first: Vec<Process> = jailed(&services);
    first.retain(|process| process.name == "brig-init");
    first.sort_by_key(|process| process.start);
    // That of a holder is the third.
    assert_eq!(first.len(), 3, "{first:?}");
    let all = jailed(&services);
    kill(&first[0]);
    assert_gone(&all, SOON * slow());
    let outcome = services.run(small("print(1)")).expect_success();
    assert_eq!(outcome.stdout(), "1\n");
    // The pool may have noticed before the request came, and says so then.
    let noticed = services.host().load.unwrap().failed_ahead > 0;
    assert!(noticed || start(&outcome) == StartKind::Cold, "{outcome:?}");
    await_waiting(&services, 1);
}

#[test]
fn a_request_is_served_whose_session_died_while_it_waited() {
    let Some(services) = pool(1) else { return };
    prime(&services);
    let all = interpreters(&services);
    assert_eq!(all.len(), 2, "{all:?}");
    kill(&all[1]);
    let outcome = services.run(small("print(1)")).expect_success();
    assert_eq!(outcome.stdout(), "1\n");
    let noticed = services.host().load.unwrap().failed_ahead > 0;
    assert!(noticed || start(&outcome) == StartKind::Forked, "{outcome:?}");
    // And the next one waits for the next request.
    await_waiting(&services, 1);
}
