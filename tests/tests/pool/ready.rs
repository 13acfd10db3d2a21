//! What is kept ready from the start: it is there before anybody asks, again after a reload, and for contexts too.

use brig_proto::v1::{
    CauseKind, ContextsCreateRequest, ExecutionSpec, ExecutionStatus, Limits, SessionsCreateRequest, StartKind,
};
use brig_tests::services::Setup;
use brig_tests::spec::{code, sh, small, with_limits};
use brig_tests::{Service, Services, eventually, slow};
use rustix::process::Signal;

use super::{await_waiting, start};

fn ready(pool: &str) -> Option<Services> {
    Services::start(Setup {
        pool: Some(pool.to_owned()),
        ..Setup::default()
    })
}

const BASE: &str = "sessions = 1\nready = [{ policy = \"data\", template = \"base\", contexts = true }]";

#[test]
fn the_first_request_finds_a_session_that_waits_and_so_does_the_first_one_after_a_reload() {
    let Some(services) = ready(BASE) else { return };
    await_waiting(&services, 1);
    assert_eq!(
        start(&services.run(small("print(1)")).expect_success()),
        StartKind::Pool
    );
    await_waiting(&services, 1);
    services.signal(Service::Daemon, Signal::HUP);
    eventually("it was reloaded", std::time::Duration::from_secs(10) * slow(), || {
        let log = services.log(Service::Daemon);
        if log.contains("configuration read again") {
            Ok(())
        } else {
            Err(log)
        }
    });
    await_waiting(&services, 1);
    assert_eq!(
        start(&services.run(small("print(1)")).expect_success()),
        StartKind::Pool
    );
}

#[test]
fn the_place_of_what_is_kept_is_not_given_to_what_was_asked_for_last() {
    let Some(services) = ready(BASE) else { return };
    await_waiting(&services, 1);
    let other = ExecutionSpec {
        policy: "strict".to_owned(),
        ..small("print(1)")
    };
    for _ in 0..2 {
        assert_eq!(start(&services.run(other.clone()).expect_success()), StartKind::Cold);
    }
    assert_eq!(
        start(&services.run(small("print(1)")).expect_success()),
        StartKind::Pool
    );
}

#[test]
fn the_first_context_of_a_session_is_forked() {
    let Some(services) = ready(BASE) else { return };
    // What forks for contexts comes after what waits.
    eventually(
        "both zygotes are there",
        std::time::Duration::from_secs(60) * slow(),
        || {
            let log = services.log(Service::Daemon);
            if log.matches("zygote ready").count() == 2 {
                Ok(())
            } else {
                Err(log)
            }
        },
    );
    services.create(SessionsCreateRequest {
        session_id: "kept".to_owned(),
        template: "base".to_owned(),
        // Limits of a session are no hindrance.
        limits: Some(Limits {
            memory_bytes: Some(200 << 20),
            ..Limits::default()
        }),
        ..SessionsCreateRequest::default()
    });
    let context = ContextsCreateRequest {
        session_id: "kept".to_owned(),
        context_id: "kept".to_owned(),
        ..ContextsCreateRequest::default()
    };
    services.context(context).unwrap();
    let outcome = services
        .execute_in("kept", "kept", code("6 * 7"))
        .unwrap()
        .finish()
        .expect_success();
    assert_eq!(outcome.result.session.as_ref().unwrap().start(), StartKind::Forked);
    let greedy = services
        .execute_in("kept", "kept", code("b = b'x' * (900 << 20)"))
        .unwrap()
        .finish();
    assert_eq!(greedy.end(), (ExecutionStatus::OutOfMemory, Some(CauseKind::Memory)));
}

#[test]
fn what_is_forked_has_the_limits_of_its_request() {
    let Some(services) = ready(BASE) else { return };
    await_waiting(&services, 1);
    let limits = Limits {
        memory_bytes: Some(100 << 20),
        pids: Some(16),
        disk_bytes: Some(1 << 20),
        inodes: Some(50),
        ..Limits::default()
    };
    let run = |source: &str| {
        let outcome = services.run(with_limits(limits, small(source)));
        assert_eq!(start(&outcome), StartKind::Forked);
        outcome
    };
    let told = run("import os, resource
size = os.statvfs('.')
print(size.f_blocks * size.f_frsize, size.f_files, resource.getrlimit(resource.RLIMIT_NOFILE))");
    let cold = services.run(with_limits(
        limits,
        sh("stat -f -c '%b %S %c' . | { read b s f; echo $((b * s)) $f \"($(ulimit -n), $(ulimit -Hn))\"; }"),
    ));
    assert_eq!(start(&cold), StartKind::Cold);
    assert_eq!(told.expect_success().stdout(), cold.expect_success().stdout());
    assert_eq!(
        run("b = b'x' * (200 << 20)").end(),
        (ExecutionStatus::OutOfMemory, Some(CauseKind::Memory))
    );
    let full = run("open('f', 'wb').write(bytes(2 << 20))");
    assert!(full.stderr().contains("No space left"), "{}", full.stderr());
    let many = run("import threading, time
[threading.Thread(target=time.sleep, args=(30,), daemon=True).start() for _ in range(40)]");
    assert!(many.stderr().contains("can't start new thread"), "{}", many.stderr());
}

#[test]
fn a_policy_that_can_not_be_kept_ready_is_named_at_the_start() {
    if !brig_tests::host::can_run() {
        return;
    }
    let check = |ready: &str| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("brigd.toml");
        let policies = brig_tests::host::Places::find().policies;
        let text = format!(
            "socket_group = \"\"\npolicies = [{policies:?}]\nimages = \"{}\"\n[pool]\nready = {ready}\n",
            directory.path().display()
        );
        std::fs::write(&file, text).unwrap();
        let brigd = brig_tests::host::Places::find().program("brigd");
        let output = std::process::Command::new(brigd)
            .arg("--config")
            .arg(&file)
            .arg("--check-config")
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (code, told) = check("[{ policy = \"dta\" }]");
    assert!(
        code == Some(78) && told.contains("pool.ready[0].policy") && told.contains("dta"),
        "{code:?} {told}"
    );
    let (code, told) = check("[{ policy = \"data\" }]");
    assert_eq!((code, told.contains("pool")), (Some(0), false), "{told}");
}
