//! What a pause stops, what goes on, and what ends a paused session.

use std::time::{Duration, SystemTime};

use brig_proto::v1::{
    CauseKind, ExecutionSpec, ExecutionState, ExecutionStatus, ExecutionsSignalRequest, FilesStatRequest, Limits,
    OnTimeout, Session, SessionCloseReason, SessionState, SessionsCreateRequest, SessionsPauseRequest,
    SessionsResumeRequest, SessionsUpdateRequest,
};
use brig_tests::spec::{code, command, span};
use brig_tests::{DEADLINE, Daemon, Refused, daemon, eventually, slow};
use tonic::Code;

use super::{Kept, named};

/// Writes to a file again and again.
const LOOP: &str = "echo x > n; echo up; while :; do echo x >> n; sleep 0.01; done";

impl Kept<'_> {
    fn try_pause(&self, id: &str, request_id: &str) -> Result<Session, Refused> {
        let request = SessionsPauseRequest {
            request_id: request_id.to_owned(),
            session_id: id.to_owned(),
        };
        let answer = self.daemon.ask(self.sessions().pause(request))?;
        Ok(answer.session.unwrap())
    }

    pub(super) fn pause(&self, id: &str) -> Session {
        self.try_pause(id, "").unwrap()
    }

    fn try_resume(&self, id: &str, request_id: &str) -> Result<Session, Refused> {
        let request = SessionsResumeRequest {
            request_id: request_id.to_owned(),
            session_id: id.to_owned(),
        };
        let answer = self.daemon.ask(self.sessions().resume(request))?;
        Ok(answer.session.unwrap())
    }

    pub(super) fn resume(&self, id: &str) -> Session {
        self.try_resume(id, "").unwrap()
    }

    fn await_state(&self, id: &str, state: SessionState) {
        eventually("the session is where it should be", *DEADLINE, || {
            let session = self.shown(id);
            if session.state() == state {
                Ok(())
            } else {
                Err(session.state())
            }
        });
    }

    fn size(&self, session: &str, path: &str) -> u64 {
        let request = FilesStatRequest {
            session_id: session.to_owned(),
            path: path.to_owned(),
            ..FilesStatRequest::default()
        };
        let answer = self.daemon.ask(self.daemon.files().stat(request)).unwrap();
        answer.file.unwrap().size_bytes
    }

    fn state(&self, execution: &str) -> ExecutionState {
        self.daemon.execution(execution).state()
    }

    fn signal(&self, execution: &str, signal: u32) {
        let request = ExecutionsSignalRequest {
            execution_id: execution.to_owned(),
            signal,
            ..ExecutionsSignalRequest::default()
        };
        self.daemon.wait(self.daemon.client().signal(request)).unwrap();
    }
}

/// Waits until a file grows no more, and proves that it doesn't.
fn assert_still(kept: &Kept, session: &str, path: &str) -> u64 {
    let moment = Duration::from_millis(100);
    eventually("all stands still", *DEADLINE, || {
        let before = kept.size(session, path);
        std::thread::sleep(moment);
        let after = kept.size(session, path);
        if before == after { Ok(()) } else { Err((before, after)) }
    });
    let size = kept.size(session, path);
    std::thread::sleep(moment * 10);
    assert_eq!(kept.size(session, path), size);
    size
}

#[test]
fn a_paused_loop_makes_no_progress_and_goes_on() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(named("mine"));
    let mut running = kept.begin("mine", "running", command(&["sh", "-c", LOOP]));
    running.live.until_written("up");
    assert_eq!(kept.pause("mine").state(), SessionState::Paused);
    // The file helper is not stopped.
    let size = assert_still(&kept, "mine", "n");
    assert_eq!(kept.state("running"), ExecutionState::Running);
    assert_eq!(kept.pause("mine").state(), SessionState::Paused);
    let refused = Refused::new(&kept.try_execute("mine", command(&["true"])).unwrap_err());
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::FailedPrecondition, "SESSION_PAUSED")
    );
    assert_eq!(kept.resume("mine").state(), SessionState::Running);
    eventually("it goes on", *DEADLINE, || {
        let now = kept.size("mine", "n");
        if now > size { Ok(()) } else { Err(now) }
    });
    let refused = kept.try_resume("mine", "").unwrap_err();
    assert_eq!(refused.reason, "SESSION_NOT_PAUSED");
    kept.execute("mine", "next", command(&["true"])).expect_success();
}

#[test]
fn a_request_that_comes_again_does_not_undo_what_was_done_meanwhile() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(named("mine"));
    assert_eq!(kept.try_pause("mine", "p1").unwrap().state(), SessionState::Paused);
    assert_eq!(kept.try_resume("mine", "r1").unwrap().state(), SessionState::Running);
    assert_eq!(kept.try_pause("mine", "p1").unwrap().state(), SessionState::Running);
    assert_eq!(kept.try_resume("mine", "r1").unwrap().state(), SessionState::Running);
    assert_eq!(kept.try_resume("mine", "p1").unwrap_err().reason, "REQUEST_ID_REUSED");
    assert_eq!(kept.try_pause("mine", "P1").unwrap_err().reason, "INVALID_ID");
    assert_eq!(kept.try_pause("other", "p2").unwrap_err().reason, "SESSION_NOT_FOUND");
    kept.close("mine");
    assert_eq!(kept.try_pause("mine", "p3").unwrap_err().reason, "SESSION_CLOSED");
    assert_eq!(kept.try_resume("mine", "r3").unwrap_err().reason, "SESSION_CLOSED");
}

#[test]
fn limits_of_time_do_not_run_down_in_a_pause() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(named("mine"));
    let limit = Duration::from_secs(3) * slow();
    let limits = Limits {
        timeout: Some(span(limit)),
        idle_time: Some(span(limit)),
        ..Limits::default()
    };
    let limited = |spec| ExecutionSpec {
        limits: Some(limits),
        ..spec
    };
    let script = "echo up; while [ ! -e go ]; do sleep 0.02; done; echo down";
    let mut waiting = kept.begin("mine", "waiting", limited(command(&["sh", "-c", script])));
    waiting.live.until_written("up");
    kept.pause("mine");
    std::thread::sleep(limit + Duration::from_secs(1));
    kept.resume("mine");
    kept.execute("mine", "going", command(&["touch", "go"]))
        .expect_success();
    let outcome = waiting.live.finish().expect_success();
    assert_eq!(outcome.stdout(), "up\ndown\n");
    let took = Duration::try_from(outcome.result.duration.unwrap()).unwrap();
    assert!(took < limit, "{took:?}");
    // What is left of the limit still holds.
    let mut late = kept.begin("mine", "late", limited(command(&["sh", "-c", "echo up; sleep 60"])));
    late.live.until_written("up");
    kept.pause("mine");
    std::thread::sleep(Duration::from_millis(500));
    kept.resume("mine");
    assert_eq!(late.live.finish().status(), ExecutionStatus::Timeout);
}

#[test]
fn an_interrupt_waits_for_the_end_of_the_pause_and_so_does_its_kill() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(named("mine"));
    let source = "import time\ntry:\n    print('here', flush=True); time.sleep(60)\nexcept KeyboardInterrupt:\n    \
                  print('caught')";
    let mut running = kept.begin("mine", "running", code(source));
    running.live.until_written("here");
    kept.pause("mine");
    kept.interrupt("running");
    // Longer than code has after an interrupt.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(kept.state("running"), ExecutionState::Running);
    kept.resume("mine");
    assert_eq!(running.live.finish().expect_success().stdout(), "here\ncaught\n");
}

#[test]
fn whatever_ends_an_execution_ends_it_in_a_pause() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    let begin = |id: &str, settings: SessionsCreateRequest| {
        kept.create(SessionsCreateRequest {
            session_id: id.to_owned(),
            template: "base".to_owned(),
            ..settings
        });
        let mut running = kept.begin(id, id, command(&["sh", "-c", "echo up; sleep 60"]));
        running.live.until_written("up");
        kept.pause(id);
        running.live
    };
    let settings = SessionsCreateRequest::default;
    let live = begin("cancel", settings());
    daemon.cancel("cancel");
    assert_eq!(
        live.finish().end(),
        (ExecutionStatus::Cancelled, Some(CauseKind::Cancel))
    );
    let live = begin("kill", settings());
    kept.signal("kill", 9);
    assert_eq!(live.finish().end(), (ExecutionStatus::Killed, Some(CauseKind::Signal)));
    for id in ["cancel", "kill"] {
        assert_eq!(kept.shown(id).state(), SessionState::Paused);
        kept.resume(id);
        kept.execute(id, &format!("{id}2"), command(&["true"])).expect_success();
    }
    let live = begin("close", settings());
    assert_eq!(kept.close("close").state(), SessionState::Closed);
    let end = (ExecutionStatus::Cancelled, Some(CauseKind::SessionClosed));
    assert_eq!(live.finish().end(), end);
    let aged = SessionsCreateRequest {
        max_age: Some(span(Duration::from_secs(4))),
        on_timeout: OnTimeout::Pause.into(),
        ..settings()
    };
    let live = begin("aged", aged);
    assert_eq!(
        live.finish().end(),
        (ExecutionStatus::Timeout, Some(CauseKind::SessionAge))
    );
    assert_eq!(kept.closed("aged").close_reason(), SessionCloseReason::Expired);
}

#[test]
fn a_paused_program_dies_for_memory_that_its_session_needs() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(SessionsCreateRequest {
        limits: Some(Limits {
            memory_bytes: Some(64 << 20),
            disk_bytes: Some(128 << 20),
            ..Limits::default()
        }),
        ..named("mine")
    });
    let hungry = "import time\nx = b'x' * (150 << 20)\nprint('up', flush=True)\ntime.sleep(60)";
    let mut running = kept.begin("mine", "running", code(hungry));
    running.live.until_written("up");
    kept.pause("mine");
    let file = daemon.directory().join("large");
    std::fs::write(&file, vec![b'x'; 120 << 20]).unwrap();
    daemon
        .brig(&["put", "-q", file.to_str().unwrap(), "mine:large"])
        .expect(0);
    let outcome = running.live.finish();
    assert_eq!(outcome.end(), (ExecutionStatus::OutOfMemory, Some(CauseKind::Memory)));
    assert_eq!(kept.shown("mine").state(), SessionState::Paused);
    assert_eq!(kept.size("mine", "large"), 120 << 20);
}

#[test]
fn what_waits_for_a_place_starts_after_the_pause() {
    let Some(daemon) = Daemon::start_configured("[limits]\nrunning = 1\n") else {
        return;
    };
    let kept = Kept { daemon: &daemon };
    kept.create(named("first"));
    kept.create(named("second"));
    let mut first = kept.begin("first", "first", command(&["sh", "-c", "echo up; sleep 60"]));
    first.live.until_written("up");
    let limits = Limits {
        start_timeout: Some(span(Duration::from_secs(2) * slow())),
        ..Limits::default()
    };
    let second = kept.begin(
        "second",
        "second",
        ExecutionSpec {
            limits: Some(limits),
            ..command(&["echo", "ran"])
        },
    );
    assert_eq!(kept.state("second"), ExecutionState::Queued);
    kept.pause("second");
    daemon.cancel("first");
    first.live.finish();
    // The time for its start is no time of the pause.
    std::thread::sleep(Duration::from_secs(3) * slow());
    let waiting = daemon.execution("second");
    assert_eq!((waiting.state(), waiting.pid), (ExecutionState::Running, None));
    kept.resume("second");
    assert_eq!(second.live.finish().expect_success().stdout(), "ran\n");
}

#[test]
fn a_session_can_be_paused_when_it_is_idle_or_expires_and_ends_at_its_greatest_age() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    kept.create(SessionsCreateRequest {
        idle_timeout: Some(span(Duration::from_millis(500))),
        on_timeout: OnTimeout::Pause.into(),
        ..named("idle")
    });
    kept.await_state("idle", SessionState::Paused);
    assert_eq!(kept.resume("idle").on_timeout(), OnTimeout::Pause);
    kept.await_state("idle", SessionState::Paused);
    let update = SessionsUpdateRequest {
        session_id: "idle".to_owned(),
        update_mask: Some(prost_types::FieldMask {
            paths: vec!["on_timeout".to_owned()],
        }),
        on_timeout: OnTimeout::Close.into(),
        ..SessionsUpdateRequest::default()
    };
    let updated = daemon.ask(kept.sessions().update(update)).unwrap().session.unwrap();
    // A paused one is not idle.
    assert_eq!(
        (updated.state(), updated.on_timeout()),
        (SessionState::Paused, OnTimeout::Close)
    );
    kept.resume("idle");
    assert_eq!(kept.closed("idle").close_reason(), SessionCloseReason::Idle);

    let (expire, age) = (Duration::from_secs(3), Duration::from_secs(12) * slow());
    kept.create(SessionsCreateRequest {
        expire_after: Some(span(expire)),
        max_age: Some(span(age)),
        on_timeout: OnTimeout::Pause.into(),
        ..named("aged")
    });
    let running = kept.begin("aged", "running", command(&["sleep", "60"]));
    kept.await_state("aged", SessionState::Paused);
    let before = kept.shown("aged");
    assert!(SystemTime::try_from(before.expire_time.unwrap()).unwrap() <= SystemTime::now());
    let after = kept.resume("aged");
    let expire_time = |session: &Session| SystemTime::try_from(session.expire_time.unwrap()).unwrap();
    assert!(expire_time(&after) >= expire_time(&before) + expire, "{after:?}");
    assert_eq!(after.end_time, before.end_time);
    kept.await_state("aged", SessionState::Paused);
    assert_eq!(
        running.live.finish().end(),
        (ExecutionStatus::Timeout, Some(CauseKind::SessionAge))
    );
    assert_eq!(kept.closed("aged").close_reason(), SessionCloseReason::Expired);
}
