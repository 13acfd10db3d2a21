//! What the next brigd makes of what the last one left, whatever state it was in.

use std::time::Duration;

use brig_daemon::run::execution::StopCause;
use brig_daemon::run::kept::memo::ExecutionMemo;
use brig_jailer::api::{Cause, CloseReason};
use brig_jailer::ids::Id;
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{
    CauseKind, ExecutionEvent, ExecutionSpec, ExecutionStatus, ExecutionsCancelRequest, Limits, SessionCloseReason,
    SessionState, SessionsCreateRequest, SessionsUpdateRequest,
};
use prost_types::FieldMask;
use tonic::{Code, Streaming};
use tonic_types::StatusExt;

use crate::support::jailer::{Behaviour, Program};
use crate::support::{Daemon, Gate, daemon_that_comes_back, drain, result, sh};

fn span(millis: u64) -> Option<prost_types::Duration> {
    Some(Duration::from_millis(millis).try_into().unwrap())
}

fn under(execution: &str, script: &str) -> ExecutionSpec {
    ExecutionSpec {
        execution_id: execution.to_owned(),
        request_id: format!("r{execution}"),
        ..sh(script)
    }
}

/// Starts something in the session `mine` and waits until it says something; gives the last sequence.
async fn begin(daemon: &Daemon, execution: &str, script: &str) -> u64 {
    let mut stream = daemon.execute("mine", under(execution, script)).await.unwrap();
    until_output(&mut stream).await
}

async fn until_output(stream: &mut Streaming<ExecutionEvent>) -> u64 {
    loop {
        let told = stream.message().await.unwrap().unwrap();
        if matches!(told.event, Some(Event::Output(_))) {
            return told.sequence;
        }
    }
}

/// All events up to the end, which must follow a sequence number.
async fn rest(daemon: &Daemon, execution: &str, after: u64) -> Vec<Event> {
    let mut stream = daemon.attach(execution, after).await.unwrap();
    let (mut events, mut last) = (Vec::new(), after);
    while let Some(told) = stream.message().await.unwrap() {
        if told.sequence > 0 {
            assert_eq!(told.sequence, last + 1);
            last = told.sequence;
        }
        events.extend(told.event);
    }
    events
}

fn end(events: &[Event]) -> (ExecutionStatus, Option<CauseKind>, Vec<u8>) {
    let result = result(events);
    (
        result.status(),
        result.cause.as_ref().map(|cause| cause.kind()),
        result.stdout.to_vec(),
    )
}

fn program<T>(daemon: &Daemon, execution: &str, look: impl FnOnce(Option<&mut Program>) -> T) -> T {
    let id = Id::parse(execution).unwrap();
    daemon.jailer.with_session("mine", |session| {
        look(session.and_then(|session| session.programs.get_mut(&id)))
    })
}

fn has_ended(daemon: &Daemon, execution: &str) -> bool {
    program(daemon, execution, |program| program.unwrap().end.is_some())
}

fn is_forgotten(daemon: &Daemon, session: &str) -> bool {
    daemon.jailer.with_session(session, |session| session.is_none())
}

#[tokio::test]
async fn a_session_and_what_runs_in_it_go_on_although_the_policy_is_another_one() {
    let Some(mut daemon) = daemon_that_comes_back(Behaviour::Works).await else {
        return;
    };
    let request = SessionsCreateRequest {
        session_id: "mine".to_owned(),
        request_id: "r1".to_owned(),
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        environment: [("TZ".to_owned(), "UTC".to_owned())].into(),
        ..SessionsCreateRequest::default()
    };
    let made = daemon.create(request.clone()).await.unwrap();
    let update = SessionsUpdateRequest {
        session_id: "mine".to_owned(),
        idle_timeout: span(500_000),
        update_mask: Some(FieldMask {
            paths: vec!["idle_timeout".to_owned()],
        }),
        ..SessionsUpdateRequest::default()
    };
    daemon.sessions().await.update(update).await.unwrap();
    let gate = Gate::new();
    let known = begin(&daemon, "e1", &gate.script()).await;
    let follower = daemon.attach("e1", known).await.unwrap();
    let shown = daemon.shown("mine").await;
    let policy = daemon.config.policies[0].join("data.toml");
    let text = std::fs::read_to_string(&policy).unwrap();
    for round in 0..2 {
        daemon.leave().await;
        std::fs::write(&policy, format!("{text}# {round}\n")).unwrap();
        daemon.come_back().await;
    }
    let told = cut_off(follower).await;
    assert_eq!(told.code(), Code::Unavailable);
    assert_eq!(told.get_error_details().error_info().unwrap().reason, "DRAINING");

    // What runs in it keeps it active.
    let adopted = brig_proto::v1::Session {
        last_active_time: shown.last_active_time,
        ..daemon.shown("mine").await
    };
    assert_eq!(adopted, shown);
    assert_eq!(shown.policy, made.policy);
    assert_eq!(daemon.create(request.clone()).await.unwrap().session_id, "mine");
    let other = SessionsCreateRequest {
        labels: Default::default(),
        ..request
    };
    assert_eq!(daemon.create(other).await.unwrap_err().code(), Code::AlreadyExists);
    // The same request again is the same execution.
    let again = daemon.execute("mine", under("e1", &gate.script())).await.unwrap();
    gate.open();
    let expected = (ExecutionStatus::Error, None, b"up\ndown\n".to_vec());
    assert_eq!(end(&rest(&daemon, "e1", known).await), expected);
    assert_eq!(end(&drain(again).await), expected);
    assert_eq!(daemon.recorded("e1"), "error");
    let more = drain(daemon.execute("mine", sh("echo more")).await.unwrap()).await;
    assert_eq!(result(&more).stdout, b"more\n".as_slice());
    assert_eq!(result(&more).policy, made.policy);
    assert_eq!(daemon.close("mine").await.close_reason(), SessionCloseReason::Asked);
    assert_eq!(daemon.recorded("mine"), "asked");
}

async fn cut_off(mut stream: Streaming<ExecutionEvent>) -> tonic::Status {
    loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended"),
            Err(status) => return status,
        }
    }
}

#[tokio::test]
async fn what_ended_while_nobody_was_there_is_told_and_stays_told() {
    let Some(mut daemon) = daemon_that_comes_back(Behaviour::Works).await else {
        return;
    };
    daemon.session("mine").await;
    let gate = Gate::new();
    let known = begin(&daemon, "e1", &gate.script()).await;
    daemon.leave().await;
    gate.open();
    daemon.until("it has ended", |daemon| has_ended(daemon, "e1")).await;
    assert_eq!(daemon.recorded("e1"), "");
    daemon.come_back().await;
    let first = rest(&daemon, "e1", known).await;
    assert_eq!(end(&first), (ExecutionStatus::Error, None, b"up\ndown\n".to_vec()));
    assert_eq!(daemon.recorded("e1"), "error");
    daemon.leave().await;
    daemon.come_back().await;
    let told = |events: Vec<Event>| -> Vec<Event> {
        let is_kept = |event: &Event| !matches!(event, Event::Accepted(_));
        events.into_iter().filter(is_kept).collect()
    };
    assert_eq!(told(rest(&daemon, "e1", known).await), told(first));
    assert_eq!(daemon.recorded("e1"), "error");
}

#[tokio::test]
async fn an_end_that_was_recorded_and_not_told_is_told_and_not_recorded_again() {
    let Some(mut daemon) = daemon_that_comes_back(Behaviour::Works).await else {
        return;
    };
    daemon.session("mine").await;
    let gate = Gate::new();
    let known = begin(&daemon, "e1", &gate.script()).await;
    daemon.leave().await;
    gate.open();
    daemon.until("it has ended", |daemon| has_ended(daemon, "e1")).await;
    let connection = rusqlite::Connection::open(daemon.config.ledger()).unwrap();
    let finish = "UPDATE executions SET finish_number = accept_number, status = 'error' WHERE execution = 'e1'";
    assert_eq!(connection.execute(finish, []).unwrap(), 1);
    drop(connection);
    daemon.come_back().await;
    let told = end(&rest(&daemon, "e1", known).await);
    assert_eq!(told, (ExecutionStatus::Error, None, b"up\ndown\n".to_vec()));
}

#[tokio::test]
async fn a_session_that_was_closed_meanwhile_is_told_as_closed_with_what_ran_in_it() {
    let Some(mut daemon) = daemon_that_comes_back(Behaviour::Works).await else {
        return;
    };
    let cases = [
        (CloseReason::SessionAge, SessionCloseReason::Expired, "expired"),
        (CloseReason::Died, SessionCloseReason::Died, "died"),
    ];
    for (index, (reason, told, recorded)) in cases.into_iter().enumerate() {
        // Ids are used once.
        let (session, execution) = (format!("s{index}"), format!("e{index}"));
        daemon.session(&session).await;
        let spec = under(&execution, "echo up; exec sleep 60");
        until_output(&mut daemon.execute(&session, spec).await.unwrap()).await;
        daemon.leave().await;
        let id = Id::parse(&session).unwrap();
        daemon.jailer.close(&id, reason);
        let closed = |daemon: &Daemon| daemon.jailer.with_session(&session, |session| session.unwrap().closed);
        daemon.until("it is closed", closed).await;
        daemon.come_back().await;
        // From the first answer on.
        assert_eq!(daemon.shown(&session).await.close_reason(), told);
        let events = rest(&daemon, &execution, 0).await;
        let expected = match reason {
            CloseReason::SessionAge => (ExecutionStatus::Timeout, Some(CauseKind::SessionAge)),
            _ => (ExecutionStatus::Lost, Some(CauseKind::Internal)),
        };
        assert_eq!(end(&events), (expected.0, expected.1, b"up\n".to_vec()));
        assert_eq!(daemon.closed(&session).await.close_reason(), told);
        assert_eq!(daemon.recorded(&session), recorded);
        daemon
            .until("it is forgotten", |daemon| is_forgotten(daemon, &session))
            .await;
    }
}

#[tokio::test]
async fn a_session_whose_memo_says_nothing_is_closed_and_lost() {
    let Some(mut daemon) = daemon_that_comes_back(Behaviour::Works).await else {
        return;
    };
    daemon.session("first").await;
    let good = daemon
        .jailer
        .with_session("first", |session| session.unwrap().make.memo.clone());
    daemon.close("first").await;
    let next_version = [&[good[0] + 1], &good[1..]].concat();
    let longer = [&good[..], b"x"].concat();
    // The last one is of another session with other limits.
    let memos = [Vec::new(), next_version, good[..good.len() / 2].to_vec(), longer, good];
    for (index, memo) in memos.into_iter().enumerate() {
        let (session, execution) = (format!("s{index}"), format!("e{index}"));
        let request = SessionsCreateRequest {
            session_id: session.clone(),
            limits: Some(Limits {
                memory_bytes: Some(64 << 20),
                ..Limits::default()
            }),
            ..SessionsCreateRequest::default()
        };
        daemon.create(request).await.unwrap();
        let spec = under(&execution, "echo up; exec sleep 60");
        until_output(&mut daemon.execute(&session, spec).await.unwrap()).await;
        daemon.leave().await;
        daemon
            .jailer
            .with_session(&session, |session| session.unwrap().make.memo = memo);
        daemon.come_back().await;
        assert_eq!(
            (daemon.recorded(&session), daemon.recorded(&execution)),
            ("lost".to_owned(), "lost".to_owned())
        );
        // The ledger tells how it ended.
        assert_eq!(end(&rest(&daemon, &execution, 0).await).0, ExecutionStatus::Lost);
        daemon
            .until("it is gone", |daemon| is_forgotten(daemon, &session))
            .await;
    }
}

#[tokio::test]
async fn a_program_that_nobody_knows_enough_of_is_ended_and_lost_and_its_session_goes_on() {
    let Some(mut daemon) = daemon_that_comes_back(Behaviour::Works).await else {
        return;
    };
    daemon.session("mine").await;
    let changes: [fn(&mut Program); 3] = [
        |program| program.untold = true,
        |program| program.memo = vec![77],
        |program| program.memo.clear(),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        for ended in [false, true] {
            let execution = format!("e{index}{ended}");
            let gate = Gate::new();
            begin(&daemon, &execution, &gate.script()).await;
            daemon.leave().await;
            program(&daemon, &execution, |program| change(program.unwrap()));
            if ended {
                gate.open();
                daemon
                    .until("it has ended", |daemon| has_ended(daemon, &execution))
                    .await;
            }
            daemon.come_back().await;
            assert_eq!(daemon.recorded(&execution), "lost");
            let is_gone = |daemon: &Daemon| program(daemon, &execution, |program| program.is_none());
            daemon.until("it is gone", is_gone).await;
            let events = drain(daemon.execute("mine", sh("echo fine")).await.unwrap()).await;
            assert_eq!(result(&events).stdout, b"fine\n".as_slice());
        }
    }
}

#[tokio::test]
async fn what_was_asked_of_an_execution_is_known_to_the_next_brigd() {
    let Some(mut daemon) = daemon_that_comes_back(Behaviour::Works).await else {
        return;
    };
    daemon.session("mine").await;
    // A program that ignores what a caller sends; the memo has it before the answer.
    begin(&daemon, "e1", "trap '' TERM; echo up; while :; do sleep 0.05; done").await;
    let request = brig_proto::v1::ExecutionsSignalRequest {
        execution_id: "e1".to_owned(),
        signal: 15,
        ..Default::default()
    };
    daemon.client().await.signal(request).await.unwrap();
    let memo = |daemon: &Daemon| {
        program(daemon, "e1", |program| {
            ExecutionMemo::decode(&program.unwrap().memo).unwrap()
        })
    };
    daemon
        .until("the signal is noted", |daemon| memo(daemon).signals == 1 << 14)
        .await;
    // Somebody cancelled it, and brigd was gone before the end was told.
    daemon.leave().await;
    let cancelled = ExecutionMemo {
        stop: Some(StopCause::Cancel),
        ..memo(&daemon)
    };
    program(&daemon, "e1", |program| program.unwrap().memo = cancelled.encode());
    daemon
        .jailer
        .kill(&Id::parse("mine").unwrap(), &Id::parse("e1").unwrap(), Cause::Asked);
    daemon.until("it has ended", |daemon| has_ended(daemon, "e1")).await;
    daemon.come_back().await;
    let events = rest(&daemon, "e1", 0).await;
    let expected = (ExecutionStatus::Cancelled, Some(CauseKind::Cancel), b"up\n".to_vec());
    assert_eq!(end(&events), expected);

    // One that was to be stopped and was not: the next brigd does it.
    begin(&daemon, "e2", "echo up; exec sleep 60").await;
    daemon.leave().await;
    program(&daemon, "e2", |program| program.unwrap().memo = cancelled.encode());
    daemon.come_back().await;
    assert_eq!(end(&rest(&daemon, "e2", 0).await), expected);

    // And one that is cancelled after it was adopted.
    begin(&daemon, "e3", "echo up; exec sleep 60").await;
    daemon.leave().await;
    daemon.come_back().await;
    let request = ExecutionsCancelRequest {
        execution_id: "e3".to_owned(),
        ..Default::default()
    };
    daemon.client().await.cancel(request).await.unwrap();
    assert_eq!(end(&rest(&daemon, "e3", 0).await), expected);
}

#[tokio::test]
async fn the_time_that_the_jailer_says_is_left_counts() {
    let Some(mut daemon) = daemon_that_comes_back(Behaviour::Works).await else {
        return;
    };
    daemon.session("mine").await;
    begin(&daemon, "e1", "echo up; exec sleep 60").await;
    daemon.leave().await;
    program(&daemon, "e1", |program| program.unwrap().left_ms = Some(100));
    daemon.come_back().await;
    // The stand-in ends nothing, and the limit itself is 10 s.
    let begun = std::time::Instant::now();
    let events = rest(&daemon, "e1", 0).await;
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    let expected = (ExecutionStatus::Timeout, Some(CauseKind::WallTime), b"up\n".to_vec());
    assert_eq!(end(&events), expected);
}

#[tokio::test]
async fn idle_time_goes_on_while_nobody_is_there() {
    let Some(mut daemon) = daemon_that_comes_back(Behaviour::Works).await else {
        return;
    };
    let request = SessionsCreateRequest {
        session_id: "mine".to_owned(),
        idle_timeout: span(6000),
        ..SessionsCreateRequest::default()
    };
    daemon.create(request).await.unwrap();
    let using = std::time::SystemTime::now();
    drain(daemon.execute("mine", sh("true")).await.unwrap()).await;
    let used = std::time::SystemTime::now();
    daemon.leave().await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    daemon.come_back().await;
    let session = daemon.closed("mine").await;
    assert_eq!(session.close_reason(), SessionCloseReason::Idle);
    let closed = std::time::SystemTime::try_from(session.close_time.unwrap()).unwrap();
    let idle = [using, used].map(|since| closed.duration_since(since).unwrap());
    // Begun anew, it would take four seconds more.
    assert!(
        idle[0] > Duration::from_millis(5990) && idle[1] < Duration::from_millis(9500),
        "{idle:?}"
    );
    assert_eq!(daemon.recorded("mine"), "idle");
}

#[tokio::test]
async fn an_adopted_session_without_a_file_helper_ends() {
    let Some(mut daemon) = daemon_that_comes_back(Behaviour::HelpersDie).await else {
        return;
    };
    daemon.session("mine").await;
    daemon.leave().await;
    daemon.come_back().await;
    for _ in 0..2 {
        let started = daemon.execute("mine", sh("true")).await;
        let refused = match started {
            Ok(stream) => cut_off(stream).await,
            Err(status) => status,
        };
        assert!(
            matches!(refused.code(), Code::Internal | Code::Unavailable),
            "{refused:?}"
        );
    }
    drop(daemon.execute("mine", sh("true")).await);
    let session = daemon.closed("mine").await;
    assert_eq!(
        (session.state(), session.close_reason()),
        (SessionState::Closed, SessionCloseReason::Died)
    );
}

#[tokio::test]
async fn a_jail_that_dies_right_after_it_was_adopted_is_told() {
    let Some(mut daemon) = daemon_that_comes_back(Behaviour::Works).await else {
        return;
    };
    for round in 0..10_u64 {
        let (session, execution) = (format!("s{round}"), format!("e{round}"));
        daemon.session(&session).await;
        let spec = under(&execution, "echo up; exec sleep 60");
        until_output(&mut daemon.execute(&session, spec).await.unwrap()).await;
        daemon.leave().await;
        let (jailer, id) = (std::sync::Arc::clone(&daemon.jailer), Id::parse(&session).unwrap());
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(round));
            jailer.close(&id, CloseReason::Died);
        });
        daemon.come_back().await;
        killer.join().unwrap();
        let events = rest(&daemon, &execution, 0).await;
        assert_eq!(
            end(&events),
            (ExecutionStatus::Lost, Some(CauseKind::Internal), b"up\n".to_vec())
        );
        assert_eq!(daemon.closed(&session).await.close_reason(), SessionCloseReason::Died);
        daemon
            .until("it is forgotten", |daemon| is_forgotten(daemon, &session))
            .await;
        assert_eq!(
            (daemon.recorded(&session), daemon.recorded(&execution)),
            ("died".to_owned(), "lost".to_owned())
        );
    }
}
