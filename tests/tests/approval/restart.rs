//! What a restart of brigd does to what waits, and to what was approved.

use std::time::Duration;

use brig_proto::v1::{
    ExecutionSpec, ExecutionStatus as Status, ExecutionsApproveRequest, LedgerEntryKind, LedgerListRequest,
    LedgerVerifyRequest, OnDisconnect, SessionsCreateRequest,
};
use brig_tests::services::{Service, Services, Setup};
use brig_tests::spec::command;
use brig_tests::{Client, Live};
use rustix::process::Signal;

use crate::{ASKING, policies, script};

fn in_session(client: &Client, name: &str, argv: &[&str]) -> Live {
    let spec = ExecutionSpec {
        execution_id: name.to_owned(),
        on_disconnect: OnDisconnect::Continue.into(),
        ..command(argv)
    };
    let mut live = client.execute("s1", spec).unwrap();
    live.until_pending();
    live
}

fn session(client: &Client) {
    client.create(SessionsCreateRequest {
        session_id: "s1".to_owned(),
        policy: ASKING.to_owned(),
        template: "base".to_owned(),
        ..SessionsCreateRequest::default()
    });
}

#[test]
fn what_waits_when_brigd_dies_is_lost_and_its_session_is_not() {
    let Some(policies) = policies() else { return };
    let setup = Setup {
        policies: policies.path().to_owned(),
        ..Setup::default()
    };
    let Some(mut services) = Services::start(setup) else {
        return;
    };
    session(&services);
    let kept = in_session(&services, "e1", &["echo", "ran"]);
    let mut once = services.begin(script("e2", "echo ran"));
    once.until_pending();
    services.signal(Service::Daemon, Signal::KILL);
    assert!(kept.end().is_err() && once.end().is_err());
    services.await_end(Service::Daemon);
    services.launch(Service::Daemon);
    for name in ["e1", "e2"] {
        let outcome = services.attach(name, 0).unwrap().finish();
        assert_eq!(outcome.result.status(), Status::Lost, "{name}");
        assert_eq!(services.reject(name, "").unwrap_err().reason, "EXECUTION_NOT_FOUND");
    }
    let live = in_session(&services, "e3", &["echo", "goes on"]);
    services.approve("e3").unwrap();
    assert_eq!(live.finish().expect_success().stdout(), "goes on\n");
}

#[test]
fn what_waits_when_brigd_is_stopped_is_lost_at_once() {
    let Some(policies) = policies() else { return };
    let setup = Setup {
        policies: policies.path().to_owned(),
        // It is not waited for.
        drain: "1h",
        ..Setup::default()
    };
    let Some(mut services) = Services::start(setup) else {
        return;
    };
    let mut once = services.begin(script("e1", "echo ran"));
    once.until_pending();
    services.signal(Service::Daemon, Signal::TERM);
    let outcome = once.finish();
    assert_eq!(outcome.result.status(), Status::Lost);
    assert_eq!(outcome.order(), ["accepted", "finished"]);
    let status = services.await_end(Service::Daemon);
    assert!(status.success(), "{}", services.log(Service::Daemon));
    assert_eq!(services.recorded("e1").as_deref(), Some("lost"));
}

#[test]
fn what_was_approved_goes_on_and_still_says_by_whom() {
    let Some(policies) = policies() else { return };
    let setup = Setup {
        policies: policies.path().to_owned(),
        ..Setup::default()
    };
    let Some(mut services) = Services::start(setup) else {
        return;
    };
    session(&services);
    let mut live = in_session(&services, "e1", &["sh", "-c", "echo up; sleep 60"]);
    services.approve("e1").unwrap();
    live.until_started();
    let before = services.execution("e1");
    services.kill(Service::Daemon);
    services.launch(Service::Daemon);
    let after = services.execution("e1");
    assert_eq!(
        (&after.reviewer, &after.approval_expire_time),
        (&before.reviewer, &before.approval_expire_time)
    );
    assert_eq!(after.reviewer, "default/uid 0");
    services.cancel("e1");
}

#[test]
fn whenever_brigd_dies_in_a_review_nothing_ran_that_was_not_approved_and_the_chain_holds() {
    let Some(policies) = policies() else { return };
    let setup = Setup {
        policies: policies.path().to_owned(),
        ..Setup::default()
    };
    let Some(mut services) = Services::start(setup) else {
        return;
    };
    for millis in [0, 1, 2, 4, 8, 16, 32, 64] {
        let name = format!("e{millis}");
        let mut live = services.begin(script(&name, "echo ran"));
        live.until_pending();
        let request = ExecutionsApproveRequest {
            execution_id: name.clone(),
            work_sha256: services.execution(&name).work_sha256,
            ..ExecutionsApproveRequest::default()
        };
        let mut client = services.client();
        let deciding = services.spawn(async move { client.approve(request).await.is_ok() });
        std::thread::sleep(Duration::from_millis(millis));
        services.signal(Service::Daemon, Signal::KILL);
        let told = live.end();
        let is_told = services.wait(deciding).is_ok_and(|approved| approved);
        services.await_end(Service::Daemon);
        services.launch(Service::Daemon);
        let list = LedgerListRequest {
            execution_id: name.clone(),
            ..LedgerListRequest::default()
        };
        let entries = services.ask(services.ledger().list(list)).unwrap().entries;
        let is_reviewed = entries.iter().any(|entry| entry.kind() == LedgerEntryKind::Reviewed);
        let status = services.recorded(&name).unwrap();
        assert!(
            status == "lost" || (status == "success" && is_reviewed),
            "{name}: {status}"
        );
        assert!(
            is_reviewed || !is_told,
            "{name}: a decision was told that is not recorded"
        );
        assert!(told.is_err() || status == "success", "{name}: {status}");
    }
    let verified = services.ask(services.ledger().verify(LedgerVerifyRequest::default()));
    let verified = verified.unwrap();
    assert!(verified.intact, "{}", verified.message);
}
