//! Which requests get a session that waits.

use std::collections::BTreeMap;
use std::time::Duration;

use brig_proto::v1::{CauseKind, ExecutionSpec, ExecutionStatus, Limits, StartKind};
use brig_tests::services::Setup;
use brig_tests::spec::{input, sh, small, timeout, with_limits};
use brig_tests::{Service, Services, eventually, slow};

use super::ends::failed_zygotes;
use super::{await_holder, await_waiting, pool, prime, run_in_waiting, session, start, waiting};

#[test]
fn a_session_that_waited_is_used_once() {
    let Some(services) = pool(1) else { return };
    prime(&services);
    let source =
        "import os; print(sorted(os.listdir()), sorted(os.listdir('/tmp'))); open('left', 'w'); open('/tmp/left', 'w')";
    let mut used = Vec::new();
    for _ in 0..3 {
        let outcome = run_in_waiting(&services, small(source)).expect_success();
        assert_eq!((outcome.stdout().as_str(), outcome.paths()), ("[] []\n", vec!["left"]));
        assert_eq!(outcome.result.session.as_ref().unwrap().start(), StartKind::Pool);
        used.push(session(&outcome).to_owned());
    }
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), 3);
    brig_tests::processes::assert_no_groups(&used, *brig_tests::DEADLINE);
    let starts = services.host().load.unwrap().starts;
    assert_eq!(
        starts,
        BTreeMap::from([("cold", 1), ("forked", 0), ("pool", 3)].map(|(name, count)| (name.to_owned(), count)))
    );
}

#[test]
fn code_is_given_its_files_and_arguments_and_has_its_own_time() {
    let Some(services) = pool(1) else { return };
    prime(&services);
    let mut spec = ExecutionSpec {
        inputs: vec![input("data.csv", b"1,2\n")],
        ..small("import sys; print(sys.argv, open('data.csv').read(), __file__)\nopen('out.csv', 'w').write('x')")
    };
    if let Some(brig_proto::v1::execution_spec::Work::Code(code)) = &mut spec.work {
        code.filename = "job.py".to_owned();
        code.arguments = vec!["a".to_owned()];
    }
    let outcome = run_in_waiting(&services, spec).expect_success();
    assert_eq!(outcome.stdout(), "['job.py', 'a'] 1,2\n /home/user/job.py\n");
    assert_eq!(outcome.paths(), ["out.csv"]);
    let endless = ExecutionSpec {
        limits: timeout(300),
        ..small("while True: pass")
    };
    let outcome = run_in_waiting(&services, endless);
    assert_eq!(outcome.end(), (ExecutionStatus::Timeout, Some(CauseKind::WallTime)));
    let failing = run_in_waiting(&services, small("import sys; sys.exit(3)"));
    assert_eq!(
        (failing.status(), failing.result.exit_code),
        (ExecutionStatus::Error, Some(3))
    );
    let greedy = run_in_waiting(
        &services,
        small("b = bytearray(1 << 32)\nfor i in range(0, len(b), 4096): b[i] = 1"),
    );
    assert_ne!(greedy.status(), ExecutionStatus::Success);
}

/// Each of these had to be known when the session was made.
fn particular() -> Vec<(&'static str, ExecutionSpec)> {
    let plain = || small("print(1)");
    let limits = |limits: Limits| ExecutionSpec {
        limits: Some(limits),
        ..plain()
    };
    vec![
        (
            "session_id",
            ExecutionSpec {
                session_id: "chosen1".to_owned(),
                ..plain()
            },
        ),
        (
            "execution_id",
            ExecutionSpec {
                execution_id: "chosen2".to_owned(),
                ..plain()
            },
        ),
        (
            "environment",
            ExecutionSpec {
                environment: BTreeMap::from([("TZ".to_owned(), "UTC".to_owned())]),
                ..plain()
            },
        ),
        (
            "stdin",
            ExecutionSpec {
                stdin: b"x".to_vec().into(),
                ..plain()
            },
        ),
        (
            "merge_stderr",
            ExecutionSpec {
                merge_stderr: true,
                ..plain()
            },
        ),
        (
            "memory",
            limits(Limits {
                memory_bytes: Some(64 << 20),
                ..Limits::default()
            }),
        ),
        (
            "cpu_time",
            limits(Limits {
                cpu_time: Some(prost_types::Duration { seconds: 5, nanos: 0 }),
                ..Limits::default()
            }),
        ),
        (
            "a module as input",
            ExecutionSpec {
                inputs: vec![input("json.py", b"dumps = lambda _: 'mine'")],
                ..small("import json; print(1 if json.dumps(0) == 'mine' else 0)")
            },
        ),
        ("a command", sh("echo 1")),
        (
            "another policy",
            ExecutionSpec {
                policy: "strict".to_owned(),
                ..plain()
            },
        ),
    ]
}

#[test]
fn what_had_to_be_known_before_starts_as_without_a_pool() {
    let Some(services) = pool(1) else { return };
    prime(&services);
    for (what, spec) in particular() {
        // Names and limits of a session are no hindrance to a zygote.
        let expected = match what {
            "session_id" | "execution_id" | "memory" => StartKind::Forked,
            _ => StartKind::Cold,
        };
        let outcome = services.run(spec).expect_success();
        assert_eq!(
            (start(&outcome), outcome.stdout().as_str()),
            (expected, "1\n"),
            "{what}"
        );
    }
    // Another kind was asked for last, and has the place.
    await_waiting(&services, 1);
}

#[test]
fn a_burst_is_forked_by_one_zygote() {
    let started = Services::start(Setup {
        pool: Some("sessions = 1".to_owned()),
        limits: "running = 24\n".to_owned(),
        ..Setup::default()
    });
    let Some(services) = started else { return };
    prime(&services);
    let begin = |number| {
        services.begin(ExecutionSpec {
            session_id: format!("burst{number}"),
            ..small("print(1)")
        })
    };
    let all: Vec<_> = (0..24).map(begin).collect();
    for live in all {
        assert_eq!(start(&live.finish().expect_success()), StartKind::Forked);
    }
    assert_eq!(failed_zygotes(&services), 0);
}

#[test]
fn a_request_that_is_repeated_takes_no_second_session() {
    let Some(services) = pool(1) else { return };
    prime(&services);
    let spec = || ExecutionSpec {
        request_id: "again1".to_owned(),
        ..small("print(1)")
    };
    let first = run_in_waiting(&services, spec()).expect_success();
    await_waiting(&services, 1);
    let second = services.run(spec()).expect_success();
    assert_eq!(second.result.execution_id, first.result.execution_id);
    assert_eq!(waiting(&services), 1);
}

#[test]
fn nothing_waits_where_the_pool_is_off() {
    let Some(services) = pool(0) else { return };
    for _ in 0..2 {
        let outcome = services.run(small("print(1)")).expect_success();
        assert_eq!(start(&outcome), StartKind::Cold);
    }
    assert_eq!(waiting(&services), 0);
}

#[test]
fn what_needs_a_program_of_its_own_finds_a_session_for_it() {
    let Some(services) = pool(1) else { return };
    prime(&services);
    let named = ExecutionSpec {
        execution_id: "named".to_owned(),
        ..small("print(1)")
    };
    let with_variables = ExecutionSpec {
        environment: [("TZ".to_owned(), "UTC".to_owned())].into(),
        ..small("import os; print(os.environ['TZ'])")
    };
    let with_files = ExecutionSpec {
        inputs: vec![input("a.txt", b"in")],
        ..sh("cat a.txt; echo out > b.txt")
    };
    let made = services.log(Service::Jailer);
    let outcome = services.run(named).expect_success();
    assert_eq!((start(&outcome), outcome.stdout().as_str()), (StartKind::Forked, "1\n"));
    assert!(made.contains(session(&outcome)), "{}", session(&outcome));
    for (spec, expected, paths) in [(with_variables, "UTC\n", vec![]), (with_files, "in", vec!["b.txt"])] {
        // The first of its kind finds none.
        eventually("a session was there", Duration::from_secs(60) * slow(), || {
            let made = services.log(Service::Jailer);
            let outcome = services.run(spec.clone()).expect_success();
            assert_eq!(
                (start(&outcome), outcome.stdout().as_str()),
                (StartKind::Cold, expected)
            );
            assert_eq!(outcome.paths(), paths);
            std::thread::sleep(Duration::from_millis(200));
            made.contains(session(&outcome)).then_some(()).ok_or(made)
        });
    }
    // Who brings the name of a session along has it made.
    await_holder(&services);
    let own = ExecutionSpec {
        session_id: "own1".to_owned(),
        ..sh("true")
    };
    services.run(own).expect_success();
    assert_eq!(services.host().load.unwrap().holders, 1);
    // So has who has other limits.
    let few = Limits {
        pids: Some(20),
        ..Limits::default()
    };
    let made = services.log(Service::Jailer);
    let outcome = services.run(with_limits(few, sh("true"))).expect_success();
    assert!(!made.contains(session(&outcome)));
}
