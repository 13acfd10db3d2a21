//! A paused session over a restart of brigd.

use std::time::Duration;

use brig_proto::v1::{
    ExecutionSpec, Limits, OnDisconnect, OnTimeout, SessionState, SessionsCreateRequest, SessionsPauseRequest,
    SessionsResumeRequest, SessionsWatchRequest,
};
use brig_tests::services::Setup;
use brig_tests::spec::{command, span};
use brig_tests::{Service, Services, slow};

use super::watch::Watcher;

#[test]
fn a_paused_session_is_paused_for_the_next_brigd_too() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let name = format!("paused{}", std::process::id());
    services.create(SessionsCreateRequest {
        session_id: name.clone(),
        template: "base".to_owned(),
        on_timeout: OnTimeout::Pause.into(),
        ..SessionsCreateRequest::default()
    });
    let limit = Duration::from_secs(4) * slow();
    let script = "echo up; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo down";
    let spec = ExecutionSpec {
        execution_id: name.clone(),
        on_disconnect: OnDisconnect::Continue.into(),
        limits: Some(Limits {
            timeout: Some(span(limit)),
            idle_time: Some(span(limit)),
            ..Limits::default()
        }),
        ..command(&["sh", "-c", script])
    };
    let mut live = services.execute(&name, spec).unwrap();
    live.until_written("up\n");
    drop(live);
    let pause = SessionsPauseRequest {
        session_id: name.clone(),
        ..SessionsPauseRequest::default()
    };
    services.ask(services.sessions().pause(pause)).unwrap();
    for planned in [false, true] {
        if planned {
            services.stop();
        } else {
            services.kill(Service::Daemon);
        }
        // Together more than its limit.
        std::thread::sleep(limit.mul_f32(0.6));
        services.launch(Service::Daemon);
        let session = services.session(&name);
        assert_eq!(
            (session.state(), session.on_timeout()),
            (SessionState::Paused, OnTimeout::Pause)
        );
        let mut watcher = Watcher::start(&services, SessionsWatchRequest::default()).unwrap();
        assert_eq!(watcher.first()[&name].state(), SessionState::Paused);
        let refused = services.execute(&name, command(&["true"])).err().unwrap();
        assert_eq!(refused.reason, "SESSION_PAUSED");
    }
    let resume = SessionsResumeRequest {
        session_id: name.clone(),
        ..SessionsResumeRequest::default()
    };
    services.ask(services.sessions().resume(resume)).unwrap();
    services
        .execute(&name, command(&["touch", "/tmp/go"]))
        .unwrap()
        .finish()
        .expect_success();
    let outcome = services.attach(&name, 0).unwrap().finish().expect_success();
    assert_eq!(outcome.stdout(), "up\ndown\n");
    let took = Duration::try_from(outcome.result.duration.unwrap()).unwrap();
    assert!(took < limit, "{took:?}");
}
