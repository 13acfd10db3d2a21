//! Kept sessions: what is made, used and closed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use brig_jailer::api::CloseReason;
use brig_jailer::ids::Id;
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::{
    self, CauseKind, Code, ExecuteRequest, ExecutionSpec, ExecutionState, ExecutionStatus, Limits, OnDisconnect,
    SessionCloseReason, SessionState, SessionsCreateRequest, SessionsListRequest, SessionsUpdateRequest,
};
use prost_types::FieldMask;
use tonic::Status;
use tonic_types::StatusExt;

use crate::support::jailer::Behaviour;
use crate::support::{Daemon, Gate, daemon, drain, next, result, sh};

fn span(millis: u64) -> Option<prost_types::Duration> {
    Some(Duration::from_millis(millis).try_into().unwrap())
}

fn named(id: &str) -> SessionsCreateRequest {
    SessionsCreateRequest {
        session_id: id.to_owned(),
        ..SessionsCreateRequest::default()
    }
}

fn code() -> ExecutionSpec {
    let code = Code {
        source: "1".to_owned(),
        ..Code::default()
    };
    ExecutionSpec {
        work: Some(Work::Code(code)),
        ..ExecutionSpec::default()
    }
}

fn reason(status: &Status) -> String {
    status.get_error_details().error_info().unwrap().reason.clone()
}

fn fields(status: &Status) -> Vec<String> {
    let details = status.get_error_details();
    let violations = &details.bad_request().unwrap().field_violations;
    violations.iter().map(|violation| violation.field.clone()).collect()
}

fn end(events: &[Event]) -> (ExecutionStatus, Option<CauseKind>) {
    let result = result(events);
    (result.status(), result.cause.as_ref().map(v1::Cause::kind))
}

async fn until_output(stream: &mut tonic::Streaming<v1::ExecutionEvent>) {
    while !matches!(next(stream).await, Event::Output(_)) {}
}

#[tokio::test]
async fn a_session_is_used_until_somebody_closes_it_and_stays_readable() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    let labels = [("team".to_owned(), "blue".to_owned())];
    let request = SessionsCreateRequest {
        labels: labels.clone().into(),
        environment: [("TZ".to_owned(), "UTC".to_owned())].into(),
        max_age: span(60_000),
        ..named("mine")
    };
    let session = daemon.create(request).await.unwrap();
    assert_eq!(
        (session.state(), session.has_state, session.labels),
        (SessionState::Running, false, labels.into())
    );
    let life = |session: &v1::Session| {
        let time = |time: &Option<prost_types::Timestamp>| time.unwrap().seconds;
        time(&session.end_time) - time(&session.create_time)
    };
    assert_eq!(session.end_time, session.expire_time);
    assert!((59..=60).contains(&life(&daemon.shown("mine").await)));
    for round in 0..2 {
        let events = drain(daemon.execute("mine", sh(&format!("echo {round}"))).await.unwrap()).await;
        let result = result(&events);
        assert_eq!(result.stdout, format!("{round}\n").as_bytes());
        let summary = result.session.clone().unwrap();
        assert_eq!(
            (summary.session_id.as_str(), summary.kept, summary.has_state),
            ("mine", true, true)
        );
        assert_eq!(summary.expire_time, session.expire_time);
    }
    assert!(daemon.shown("mine").await.has_state);
    assert_eq!(daemon.jailer.jails.load(Ordering::SeqCst), 1);
    let closed = daemon.close("mine").await;
    assert_eq!(
        (closed.state(), closed.close_reason()),
        (SessionState::Closed, SessionCloseReason::Asked)
    );
    assert!(closed.close_time.is_some());
    assert_eq!(daemon.jailer.jails.load(Ordering::SeqCst), 0);
    assert_eq!(daemon.close("mine").await, daemon.shown("mine").await);
    let refused = daemon.execute("mine", sh("true")).await.unwrap_err();
    assert_eq!(reason(&refused), "SESSION_CLOSED");
    let unknown = daemon.execute("other", sh("true")).await.unwrap_err();
    assert_eq!(reason(&unknown), "SESSION_NOT_FOUND");
    let is_forgotten = |daemon: &Daemon| daemon.jailer.with_session("mine", |left| left.is_none());
    daemon.until("it is forgotten", is_forgotten).await;
}

#[tokio::test]
async fn the_end_of_a_session_ends_what_runs_and_what_waits_in_it() {
    let Some(daemon) = daemon(Behaviour::Works, 1).await else {
        return;
    };
    daemon.session("mine").await;
    let mut running = daemon.execute("mine", sh("echo here; exec sleep 60")).await.unwrap();
    until_output(&mut running).await;
    let mut waiting = daemon.execute("mine", sh("true")).await.unwrap();
    assert!(matches!(next(&mut waiting).await, Event::Accepted(a) if a.state() == ExecutionState::Queued));
    assert_eq!(daemon.close("mine").await.state(), SessionState::Closed);
    let cancelled = (ExecutionStatus::Cancelled, Some(CauseKind::SessionClosed));
    let events = drain(running).await;
    assert_eq!((end(&events), &result(&events).stdout[..]), (cancelled, &b"here\n"[..]));
    assert!(!result(&events).session.clone().unwrap().kept);
    assert_eq!(end(&drain(waiting).await), cancelled);
}

#[tokio::test]
async fn an_idle_session_is_closed_and_one_in_use_is_not() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    let idle = |id: &str| SessionsCreateRequest {
        idle_timeout: span(2000),
        ..named(id)
    };
    daemon.create(idle("used")).await.unwrap();
    let gate = Gate::new();
    let running = daemon.execute("used", sh(&gate.script())).await.unwrap();
    daemon.create(idle("idle")).await.unwrap();
    let closed = daemon.closed("idle").await;
    assert_eq!(closed.close_reason(), SessionCloseReason::Idle);
    assert_eq!(daemon.shown("used").await.state(), SessionState::Running);
    gate.open();
    assert_eq!(result(&drain(running).await).exit_code, Some(3));
    assert_eq!(daemon.closed("used").await.close_reason(), SessionCloseReason::Idle);
}

#[tokio::test]
async fn a_session_that_expires_ends_what_runs_as_too_old() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    let request = SessionsCreateRequest {
        expire_after: span(3000),
        ..named("mine")
    };
    daemon.create(request).await.unwrap();
    let events = drain(daemon.execute("mine", sh("exec sleep 60")).await.unwrap()).await;
    assert_eq!(end(&events), (ExecutionStatus::Timeout, Some(CauseKind::SessionAge)));
    let limit = result(&events).cause.as_ref().unwrap().limit.unwrap();
    assert!((2990..=3000).contains(&limit), "{limit}");
    assert_eq!(daemon.closed("mine").await.close_reason(), SessionCloseReason::Expired);
}

#[tokio::test]
async fn what_the_jailer_says_of_the_end_of_a_session_is_told() {
    let Some(daemon) = daemon(Behaviour::Works, 4).await else {
        return;
    };
    let timeout = (ExecutionStatus::Timeout, Some(CauseKind::SessionAge));
    let lost = (ExecutionStatus::Lost, Some(CauseKind::Internal));
    for (id, reason, told, ended) in [
        ("old", CloseReason::SessionAge, SessionCloseReason::Expired, timeout),
        ("dead", CloseReason::Died, SessionCloseReason::Died, lost),
    ] {
        daemon.session(id).await;
        let mut running = daemon.execute(id, sh("echo here; exec sleep 60")).await.unwrap();
        until_output(&mut running).await;
        daemon.jailer.close(&Id::parse(id).unwrap(), reason);
        assert_eq!(end(&drain(running).await), ended, "{id}");
        assert_eq!(daemon.closed(id).await.close_reason(), told, "{id}");
    }
}

#[tokio::test]
async fn a_file_helper_that_died_is_replaced_once_and_then_the_session_is_given_up() {
    let Some(daemon) = daemon(Behaviour::FirstHelperDies, 2).await else {
        return;
    };
    daemon.session("mine").await;
    let refused = daemon.execute("mine", sh("true")).await.unwrap();
    let refused = first_error(refused).await;
    assert_eq!(reason(&refused), "JAIL_FAILED");
    for _ in 0..2 {
        let events = drain(daemon.execute("mine", sh("true")).await.unwrap()).await;
        assert_eq!(end(&events), (ExecutionStatus::Success, None));
    }
    assert_eq!(*daemon.jailer.files.started.lock().unwrap(), 2);
}

#[tokio::test]
async fn a_session_whose_file_helpers_die_is_not_well() {
    let Some(daemon) = daemon(Behaviour::HelpersDie, 2).await else {
        return;
    };
    daemon.session("mine").await;
    for _ in 0..3 {
        match daemon.execute("mine", sh("true")).await {
            Ok(stream) => drop(first_error(stream).await),
            Err(refused) => assert_eq!(reason(&refused), "SESSION_CLOSED"),
        }
    }
    assert_eq!(daemon.closed("mine").await.close_reason(), SessionCloseReason::Died);
}

async fn first_error(mut stream: tonic::Streaming<v1::ExecutionEvent>) -> Status {
    loop {
        match stream.message().await {
            Ok(event) => assert!(event.is_some(), "it ran"),
            Err(status) => return status,
        }
    }
}

#[tokio::test]
async fn a_program_that_can_t_be_started_because_the_session_ends_is_told_so() {
    let Some(daemon) = daemon(Behaviour::ClosesAtSpawn, 2).await else {
        return;
    };
    daemon.session("mine").await;
    let stream = daemon.execute("mine", sh("true")).await.unwrap();
    assert_eq!(reason(&first_error(stream).await), "SESSION_CLOSED");
    assert_eq!(daemon.closed("mine").await.close_reason(), SessionCloseReason::Died);
}

#[tokio::test]
async fn a_session_that_is_not_made_is_told_as_such() {
    let Some(daemon) = daemon(Behaviour::RefusesToMake, 2).await else {
        return;
    };
    let request = SessionsCreateRequest {
        request_id: "once".to_owned(),
        ..named("mine")
    };
    let refused = daemon.create(request.clone()).await.unwrap_err();
    assert_eq!(reason(&refused), "JAIL_FAILED");
    assert_eq!(daemon.closed("mine").await.close_reason(), SessionCloseReason::Failed);
    assert_eq!(reason(&daemon.create(request).await.unwrap_err()), "JAIL_FAILED");
    assert_eq!(reason(&daemon.create(named("mine")).await.unwrap_err()), "ID_TAKEN");
}

#[tokio::test]
async fn the_same_request_makes_one_session_and_another_payload_none() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    let request = SessionsCreateRequest {
        request_id: "once".to_owned(),
        ..SessionsCreateRequest::default()
    };
    let (first, second) = tokio::join!(daemon.create(request.clone()), daemon.create(request.clone()));
    let first = first.unwrap();
    assert_eq!(first.session_id, second.unwrap().session_id);
    assert_eq!(daemon.jailer.jails.load(Ordering::SeqCst), 1);
    let other = SessionsCreateRequest {
        idle_timeout: span(1000),
        ..request
    };
    assert_eq!(reason(&daemon.create(other).await.unwrap_err()), "REQUEST_ID_REUSED");
    let run = ExecutionSpec {
        request_id: "once".to_owned(),
        ..sh("true")
    };
    assert_eq!(reason(&daemon.run(run.clone()).await.unwrap_err()), "REQUEST_ID_REUSED");
    let again = ExecutionSpec {
        request_id: "run".to_owned(),
        ..run
    };
    let ids = [
        drain(daemon.execute(&first.session_id, again.clone()).await.unwrap()).await,
        drain(daemon.execute(&first.session_id, again.clone()).await.unwrap()).await,
    ];
    let ids = ids.map(|events| result(&events).execution_id.clone());
    assert_eq!(ids[0], ids[1]);
    daemon.session("other").await;
    let elsewhere = daemon.execute("other", again).await.unwrap_err();
    assert_eq!(reason(&elsewhere), "REQUEST_ID_REUSED");
}

#[tokio::test]
async fn as_many_sessions_are_kept_as_may_be() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    for id in ["a", "b"] {
        daemon.session(id).await;
    }
    assert_eq!(reason(&daemon.create(named("c")).await.unwrap_err()), "SESSION_QUOTA");
    // They are no executions: a run has a place of its own.
    assert_eq!(end(&daemon.sh("true").await), (ExecutionStatus::Success, None));
    daemon.close("a").await;
    daemon.session("c").await;
}

#[tokio::test]
async fn every_field_that_a_session_has_no_use_for_is_named() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    let wrong = SessionsCreateRequest {
        environment: [("LD_PRELOAD".to_owned(), "x".to_owned())].into(),
        idle_timeout: span(0),
        on_timeout: 7,
        packages: vec!["polars".to_owned()],
        ..named("Mine")
    };
    let refused = daemon.create(wrong).await.unwrap_err();
    let named = [
        "session_id",
        "packages",
        "environment[\"LD_PRELOAD\"]",
        "on_timeout",
        "idle_timeout",
    ];
    assert_eq!(fields(&refused), named);
    daemon.session("mine").await;
    let spec = ExecutionSpec {
        policy: "data".to_owned(),
        template: "base".to_owned(),
        session_id: "mine".to_owned(),
        limits: Some(Limits {
            memory_bytes: Some(1 << 30),
            disk_bytes: Some(1 << 30),
            cpu_time: span(0),
            ..Limits::default()
        }),
        ..sh("true")
    };
    let refused = daemon.execute("mine", spec).await.unwrap_err();
    let named = [
        "policy",
        "template",
        "session_id",
        "limits.memory_bytes",
        "limits.disk_bytes",
        "limits.cpu_time",
    ];
    assert_eq!(fields(&refused), named);
    let mut client = daemon.client().await;
    let request = ExecuteRequest {
        session_id: "mine".to_owned(),
        context_id: "c".to_owned(),
        spec: Some(code()),
    };
    assert_eq!(
        reason(&client.execute(request.clone()).await.unwrap_err()),
        "CONTEXT_NOT_FOUND"
    );
    let nothing = ExecuteRequest {
        context_id: String::new(),
        spec: None,
        ..request
    };
    assert_eq!(fields(&client.execute(nothing).await.unwrap_err()), ["spec"]);
}

#[tokio::test]
async fn limits_of_a_session_are_the_defaults_of_its_executions() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    let request = SessionsCreateRequest {
        limits: Some(Limits {
            timeout: span(3000),
            output_bytes: Some(10),
            ..Limits::default()
        }),
        max_age: span(100_000_000),
        ..named("mine")
    };
    let session = daemon.create(request).await.unwrap();
    assert_eq!(session.clamped[0].limit, "max_age_ms");
    let asked = |limits| ExecutionSpec {
        limits: Some(limits),
        ..sh("echo 0123456789")
    };
    let default = drain(daemon.execute("mine", asked(Limits::default())).await.unwrap()).await;
    assert_eq!(result(&default).limits.unwrap().timeout, span(3000));
    assert_eq!(result(&default).stdout, &b"0123456789"[..]);
    let more = Limits {
        timeout: span(60_000),
        output_bytes: Some(11),
        ..Limits::default()
    };
    let more = drain(daemon.execute("mine", asked(more)).await.unwrap()).await;
    assert_eq!(result(&more).limits.unwrap().timeout, span(20_000));
    assert_eq!(result(&more).clamped[0].limit, "timeout_ms");
    assert_eq!(result(&more).stdout, &b"0123456789\n"[..]);
}

#[tokio::test]
async fn a_command_goes_on_without_its_caller_and_code_does_not() {
    let Some(daemon) = daemon(Behaviour::KernelWaits, 3).await else {
        return;
    };
    daemon.session("mine").await;
    let started = |spec: ExecutionSpec, id: &str| ExecutionSpec {
        execution_id: id.to_owned(),
        ..spec
    };
    let told = ExecutionSpec {
        on_disconnect: OnDisconnect::Cancel.into(),
        ..sh("echo here; sleep 60")
    };
    for (spec, id) in [(code(), "code"), (sh("echo here; sleep 1"), "command"), (told, "told")] {
        let mut stream = daemon.execute("mine", started(spec, id)).await.unwrap();
        until_output(&mut stream).await;
    }
    let cancelled = (ExecutionStatus::Cancelled, Some(CauseKind::ClientGone));
    assert_eq!(attached_end(&daemon, "code").await, cancelled);
    assert_eq!(attached_end(&daemon, "told").await, cancelled);
    assert_eq!(attached_end(&daemon, "command").await, (ExecutionStatus::Success, None));
}

async fn attached_end(daemon: &Daemon, execution: &str) -> (ExecutionStatus, Option<CauseKind>) {
    let request = v1::ExecutionsAttachRequest {
        execution_id: execution.to_owned(),
        after_sequence: 0,
    };
    let stream = daemon.client().await.attach(request).await.unwrap().into_inner();
    end(&drain(stream).await)
}

#[tokio::test]
async fn code_is_interrupted_and_a_command_is_signalled() {
    let Some(daemon) = daemon(Behaviour::KernelWaits, 2).await else {
        return;
    };
    daemon.session("mine").await;
    let named = |spec, id: &str| ExecutionSpec {
        execution_id: id.to_owned(),
        ..spec
    };
    let interrupt = |id: &str| v1::ExecutionsInterruptRequest {
        execution_id: id.to_owned(),
        ..Default::default()
    };
    let signal = |id: &str, signal| v1::ExecutionsSignalRequest {
        execution_id: id.to_owned(),
        signal,
        ..Default::default()
    };
    let mut client = daemon.client().await;
    let mut running = daemon.execute("mine", named(code(), "code")).await.unwrap();
    until_output(&mut running).await;
    let answer = client.interrupt(interrupt("code")).await.unwrap().into_inner();
    assert_eq!(answer.state(), ExecutionState::Running);
    assert_eq!(
        end(&drain(running).await),
        (ExecutionStatus::Error, Some(CauseKind::Interrupt))
    );
    let over = client.interrupt(interrupt("code")).await.unwrap_err();
    assert_eq!(reason(&over), "EXECUTION_NOT_RUNNING");

    let trap = named(
        sh("trap 'exit 7' USR1; echo here; while :; do sleep 0.02; done"),
        "command",
    );
    let mut running = daemon.execute("mine", trap).await.unwrap();
    until_output(&mut running).await;
    assert_eq!(
        fields(&client.interrupt(interrupt("command")).await.unwrap_err()),
        ["execution_id"]
    );
    for wrong in [0, 65] {
        assert_eq!(
            fields(&client.signal(signal("command", wrong)).await.unwrap_err()),
            ["signal"]
        );
    }
    client.signal(signal("command", 10)).await.unwrap();
    assert_eq!(result(&drain(running).await).exit_code, Some(7));
}

#[tokio::test]
async fn an_update_changes_what_its_mask_names() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    let labels = |value: &str| [("key".to_owned(), value.to_owned())].into();
    let request = SessionsCreateRequest {
        labels: labels("old"),
        expire_after: span(60_000),
        ..named("mine")
    };
    let before = daemon.create(request).await.unwrap();
    let update = |paths: &[&str]| SessionsUpdateRequest {
        session_id: "mine".to_owned(),
        update_mask: Some(FieldMask {
            paths: paths.iter().map(|path| (*path).to_owned()).collect(),
        }),
        labels: labels("new"),
        idle_timeout: span(1_000_000_000),
        expire_time: Some(prost_types::Timestamp {
            seconds: before.end_time.unwrap().seconds + 1000,
            nanos: 0,
        }),
        ..SessionsUpdateRequest::default()
    };
    let mut client = daemon.sessions().await;
    let updated = client.update(update(&["expire_time", "idle_timeout"])).await.unwrap();
    let session = updated.into_inner().session.unwrap();
    assert_eq!(session.expire_time, before.end_time);
    assert_eq!(
        session.idle_timeout, before.idle_timeout,
        "more than the policy's is clamped"
    );
    assert_eq!(session.labels, labels("old"));
    let updated = client.update(update(&["labels"])).await.unwrap();
    assert_eq!(updated.into_inner().session.unwrap().labels, labels("new"));
    assert_eq!(fields(&client.update(update(&[])).await.unwrap_err()), ["update_mask"]);
    assert_eq!(
        fields(&client.update(update(&["user"])).await.unwrap_err()),
        ["update_mask"]
    );
    let soon = SessionsUpdateRequest {
        expire_time: Some((std::time::SystemTime::now() + Duration::from_secs(3)).into()),
        ..update(&["expire_time"])
    };
    client.update(soon).await.unwrap();
    assert_eq!(daemon.closed("mine").await.close_reason(), SessionCloseReason::Expired);
    assert_eq!(
        reason(&client.update(update(&["labels"])).await.unwrap_err()),
        "SESSION_CLOSED"
    );
}

#[tokio::test]
async fn sessions_are_listed_newest_first_by_pages_and_by_what_they_are() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    let with = |id: &str, value: &str| SessionsCreateRequest {
        labels: [("key".to_owned(), value.to_owned())].into(),
        ..named(id)
    };
    daemon.create(with("gone", "a")).await.unwrap();
    daemon.close("gone").await;
    for (id, value) in [("first", "a"), ("second", "b")] {
        daemon.create(with(id, value)).await.unwrap();
    }
    let listed = async |request: SessionsListRequest| {
        let page = daemon.sessions().await.list(request).await.unwrap().into_inner();
        let ids = page.sessions.into_iter().map(|session| session.session_id);
        (ids.collect::<Vec<_>>(), page.next_page_token)
    };
    let all = SessionsListRequest {
        page_size: 1,
        ..SessionsListRequest::default()
    };
    let (first, token) = listed(all.clone()).await;
    let rest = SessionsListRequest {
        page_token: token,
        ..all.clone()
    };
    assert_eq!(
        (first, listed(rest).await.0),
        (vec!["second".to_owned()], vec!["first".to_owned()])
    );
    let closed = SessionsListRequest {
        states: vec![SessionState::Closed.into()],
        ..SessionsListRequest::default()
    };
    assert_eq!(listed(closed).await.0, ["gone"]);
    let blue = SessionsListRequest {
        labels: [("key".to_owned(), "b".to_owned())].into(),
        ..SessionsListRequest::default()
    };
    assert_eq!(listed(blue).await.0, ["second"]);
}

#[tokio::test]
async fn a_session_is_recorded_from_its_beginning_to_its_end() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    daemon.session("closed").await;
    daemon.close("closed").await;
    daemon.session("open").await;
    let path = daemon.config.ledger();
    let (_ledger, _directory) = daemon.ledger().await;
    let connection = rusqlite::Connection::open(path).unwrap();
    let mut rows = connection
        .prepare("SELECT session, reason FROM sessions ORDER BY session")
        .unwrap();
    let rows: Vec<(String, String)> = rows
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let expected = [("closed", "asked"), ("open", "shutdown")];
    assert_eq!(rows, expected.map(|(id, reason)| (id.to_owned(), reason.to_owned())));
}
