//! What is asked for again when nobody's memory has it any more: brigd was restarted, the session is closed.

use brig_proto::v1::{
    CauseKind, ExecutionSpec, ExecutionState, ExecutionStatus, NoticeKind, OnDisconnect, SessionsCreateRequest,
};
use brig_tests::services::Setup;
use brig_tests::spec::{sh, small};
use brig_tests::{Brig, Outcome, Refused, Service, Services};
use tonic::Code;

use super::rows;

fn name(kind: &str) -> String {
    format!("{kind}{}", std::process::id())
}

fn asked(request: &str, spec: ExecutionSpec) -> ExecutionSpec {
    ExecutionSpec {
        request_id: request.to_owned(),
        ..spec
    }
}

/// A spec as Execute takes it.
fn within(spec: ExecutionSpec) -> ExecutionSpec {
    ExecutionSpec {
        template: String::new(),
        ..spec
    }
}

fn session(request: &str, id: &str) -> SessionsCreateRequest {
    SessionsCreateRequest {
        request_id: request.to_owned(),
        session_id: id.to_owned(),
        template: "base".to_owned(),
        ..SessionsCreateRequest::default()
    }
}

fn restart(services: &mut Services) {
    services.kill(Service::Daemon);
    services.launch(Service::Daemon);
}

fn told(refused: &Refused) -> (Code, &str) {
    (refused.code, refused.reason.as_str())
}

const REUSED: (Code, &str) = (Code::AlreadyExists, "REQUEST_ID_REUSED");
const TAKEN: (Code, &str) = (Code::AlreadyExists, "ID_TAKEN");

/// What the ledger answers: the end as it was told, and that the rest is gone.
fn check_past(past: &Outcome, first: &Outcome) {
    let order = match past.result.artifacts.is_empty() {
        true => vec!["accepted", "notice", "finished"],
        false => vec!["accepted", "notice", "artifact", "finished"],
    };
    assert_eq!(past.order(), order);
    assert_eq!(past.notices(NoticeKind::EventsGone).len(), 1);
    let without_results = |outcome: &Outcome| {
        let mut result = outcome.result.clone();
        result.results.clear();
        result
    };
    assert_eq!(past.result, without_results(first));
}

#[test]
fn what_ran_before_a_restart_is_answered_and_not_run_again() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let ledger = services.directory().join("state/ledger.db");
    let (failing, kept) = (name("failing"), name("kept"));
    let failing_spec = || ExecutionSpec {
        execution_id: failing.clone(),
        session_id: failing.clone(),
        ..asked("failing", sh("echo out; echo err >&2; echo 1,2 > a.csv; exit 3"))
    };
    let first_failing = services.run(failing_spec());
    assert_eq!(
        (first_failing.result.exit_code, first_failing.result.artifacts.len()),
        (Some(3), 1)
    );
    let first_coding = services.run(asked("coding", small("print(1)\n6 * 7"))).expect_success();
    assert_eq!(first_coding.result.results.len(), 1);
    let made = services.create(session("kept", &kept));
    let execute_spec = || asked("execute", within(sh("echo once >> log; cat log")));
    let first_execute = services
        .execute(&kept, execute_spec())
        .unwrap()
        .finish()
        .expect_success();
    assert_eq!(first_execute.stdout(), "once\n");

    restart(&mut services);
    // What was its own session's is past.
    check_past(&services.run(failing_spec()), &first_failing);
    check_past(&services.run(asked("coding", small("print(1)\n6 * 7"))), &first_coding);
    for sequence in [0, 2, 1000] {
        let attached = services.attach(&failing, sequence).unwrap().finish();
        check_past(&attached, &first_failing);
    }
    assert_eq!(services.cancel(&failing), ExecutionState::Finished);
    assert_eq!(told(&services.refused(asked("failing", sh("echo other")))), REUSED);
    let other_kind = services.try_create(session("failing", &name("other"))).unwrap_err();
    assert_eq!(told(&other_kind), REUSED);
    assert_eq!(told(&services.refused(asked("kept", sh("echo other")))), REUSED);
    // What is in a session that lives is not.
    assert_eq!(services.create(session("kept", &kept)).session_id, made.session_id);
    let again = services.execute(&kept, execute_spec()).unwrap().finish();
    assert_eq!(
        (&again.result, again.order()),
        (
            &first_execute.result,
            vec!["accepted", "started", "output", "artifact", "finished"]
        )
    );
    // Ids stay taken.
    let taken = |spec: ExecutionSpec| services.refused(asked("", spec));
    let with_execution = ExecutionSpec {
        execution_id: failing.clone(),
        ..sh("true")
    };
    assert_eq!(told(&taken(with_execution)), TAKEN);
    for id in [&failing, &kept] {
        let with_session = ExecutionSpec {
            session_id: id.clone(),
            ..sh("true")
        };
        assert_eq!(told(&taken(with_session)), TAKEN);
        assert_eq!(told(&services.try_create(session("", id)).unwrap_err()), TAKEN);
    }

    services.close(&kept);
    restart(&mut services);
    let past = services.execute(&kept, execute_spec()).unwrap().finish();
    check_past(&past, &first_execute);
    let other = asked("execute", within(sh("echo other")));
    assert_eq!(told(&services.execute(&kept, other).unwrap_err()), REUSED);
    let closed = services.try_create(session("kept", &kept)).unwrap_err();
    assert_eq!(told(&closed), (Code::FailedPrecondition, "SESSION_CLOSED"));
    let unknown = services.execute(&kept, asked("new", within(sh("true")))).unwrap_err();
    assert_eq!(told(&unknown), (Code::NotFound, "SESSION_NOT_FOUND"));
    for (table, request) in [
        ("executions", "failing"),
        ("executions", "coding"),
        ("executions", "execute"),
        ("sessions", "kept"),
    ] {
        assert_eq!(rows(&ledger, table, request), 1, "{request}");
    }
}

#[test]
fn what_was_lost_is_told_as_lost_and_not_begun_again() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let lost = name("lost");
    let spec = || ExecutionSpec {
        execution_id: lost.clone(),
        on_disconnect: OnDisconnect::Continue.into(),
        ..asked("lost", sh("echo up; sleep 100"))
    };
    let mut live = services.begin(spec());
    live.until_written("up\n");
    restart(&mut services);
    let known = live.seen().last().unwrap().sequence;
    let attached = services.attach(&lost, known).unwrap().finish();
    for outcome in [attached, services.run(spec())] {
        assert_eq!(outcome.order(), ["accepted", "notice", "finished"]);
        assert_eq!(outcome.end(), (ExecutionStatus::Lost, Some(CauseKind::Internal)));
        let result = &outcome.result;
        assert_eq!(
            (result.execution_id.as_str(), result.request_id.as_str()),
            (lost.as_str(), "lost")
        );
        assert_eq!(
            result.policy,
            services
                .host()
                .policies
                .iter()
                .find(|id| id.starts_with("data@"))
                .unwrap()
                .as_str()
        );
    }
    assert_eq!(
        rows(&services.directory().join("state/ledger.db"), "executions", "lost"),
        1
    );
}

#[test]
fn artifacts_that_may_leave_may_do_so_after_a_restart() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let kept = name("leaving");
    services.create(session("", &kept));
    let script = "printf 'x,y\\n1,2\\n' > out.csv; printf 'print(1)\\n' > code.py; mkdir d; echo 3,4 > d/b.csv";
    services
        .execute(&kept, within(sh(script)))
        .unwrap()
        .finish()
        .expect_success();
    restart(&mut services);
    let get = |path: &str| Brig::command(&services.socket(), &["get", &format!("{kept}:{path}"), "-"]).run();
    assert_eq!(get("out.csv").expect(0).stdout, b"x,y\n1,2\n");
    assert_eq!(get("d/b.csv").expect(0).stdout, b"3,4\n");
    // What waits for review, and what nobody collected, does not.
    get("code.py").expect(77);
    let put = Brig::command(&services.socket(), &["put", "-", &format!("{kept}:put.csv")]);
    put.stdin(b"5,6\n").run().expect(0);
    get("put.csv").expect(77);
}
