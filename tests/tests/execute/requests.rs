//! What may be asked for, what is refused, and what can be asked afterwards.

use std::collections::BTreeMap;
use std::time::Duration;

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{
    CauseKind, ExecutionSpec, ExecutionStatus as Status, ExecutionsGetRequest, ExecutionsListRequest, Limits,
    NoticeKind,
};
use brig_tests::spec::{code, command, input, sh, small, span};
use brig_tests::{Daemon, daemon};
use serde_json::json;
use tonic::Code as Answer;

#[test]
fn the_same_request_is_one_execution_and_another_payload_is_refused() {
    let daemon = daemon!();
    let spec = ExecutionSpec {
        request_id: "once".to_owned(),
        ..sh("date +%N; sleep 0.3")
    };
    let (one, two) = (daemon.begin(spec.clone()), daemon.begin(spec.clone()));
    let (one, two) = (one.finish(), two.finish());
    assert_eq!(one.result, two.result);
    assert_eq!(daemon.run(spec).result, one.result);
    let refused = daemon.refused(ExecutionSpec {
        request_id: "once".to_owned(),
        ..sh("echo other")
    });
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Answer::AlreadyExists, "REQUEST_ID_REUSED")
    );
}

#[test]
fn ids_of_the_client_are_used_once() {
    let daemon = daemon!();
    daemon.run(ExecutionSpec {
        execution_id: "job1".to_owned(),
        session_id: "box1".to_owned(),
        ..sh("true")
    });
    let again = daemon.refused(ExecutionSpec {
        execution_id: "job1".to_owned(),
        ..sh("true")
    });
    assert_eq!((again.code, again.reason.as_str()), (Answer::AlreadyExists, "ID_TAKEN"));
    for bad in ["Upper", "has-dash", "1digit", "", "../x"]
        .into_iter()
        .filter(|bad| !bad.is_empty())
    {
        let refused = daemon.refused(ExecutionSpec {
            execution_id: bad.to_owned(),
            ..sh("true")
        });
        assert_eq!(
            (refused.reason.as_str(), refused.fields[0].as_str()),
            ("INVALID_ID", "execution_id"),
            "{bad}"
        );
    }
}

#[test]
fn limits_above_the_maximum_are_clamped_and_told() {
    let daemon = daemon!();
    let outcome = daemon.run(ExecutionSpec {
        limits: Some(Limits {
            timeout: Some(span(Duration::from_secs(3600))),
            memory_bytes: Some(64 << 30),
            cpus: Some(64.0),
            pids: Some(100_000),
            disk_bytes: Some(64 << 30),
            output_bytes: Some(1 << 30),
            ..Limits::default()
        }),
        ..sh("ulimit -n")
    });
    let document = outcome.document();
    assert_eq!(
        document["limits"],
        json!({"timeout_ms": 300_000, "memory_bytes": 2_u64 << 30, "cpus": 2.0, "pids": 128,
            "disk_bytes": 2_u64 << 30, "output_bytes": 8 << 20})
    );
    let mut clamped: Vec<&str> = outcome
        .result
        .clamped
        .iter()
        .map(|clamped| clamped.limit.as_str())
        .collect();
    clamped.sort_unstable();
    assert_eq!(
        clamped,
        [
            "cpus",
            "disk_bytes",
            "memory_bytes",
            "output_bytes",
            "pids",
            "timeout_ms"
        ]
    );
    let cpus = outcome
        .result
        .clamped
        .iter()
        .find(|clamped| clamped.limit == "cpus")
        .unwrap();
    assert_eq!((cpus.requested, cpus.applied), (64.0, 2.0));
    assert_eq!(outcome.notices(NoticeKind::LimitClamped).len(), 6);
}

#[test]
fn a_limit_of_zero_is_refused_by_name() {
    let daemon = daemon!();
    let zero = || Some(span(Duration::ZERO));
    let none = Limits::default;
    for (limits, field) in [
        (
            Limits {
                timeout: zero(),
                ..none()
            },
            "limits.timeout",
        ),
        (
            Limits {
                memory_bytes: Some(0),
                ..none()
            },
            "limits.memory_bytes",
        ),
        (
            Limits {
                cpus: Some(0.0),
                ..none()
            },
            "limits.cpus",
        ),
        (
            Limits {
                pids: Some(0),
                ..none()
            },
            "limits.pids",
        ),
        (
            Limits {
                disk_bytes: Some(0),
                ..none()
            },
            "limits.disk_bytes",
        ),
        (
            Limits {
                inodes: Some(0),
                ..none()
            },
            "limits.inodes",
        ),
        (
            Limits {
                open_files: Some(0),
                ..none()
            },
            "limits.open_files",
        ),
        (
            Limits {
                output_bytes: Some(0),
                ..none()
            },
            "limits.output_bytes",
        ),
        (
            Limits {
                artifacts: Some(0),
                ..none()
            },
            "limits.artifacts",
        ),
    ] {
        let refused = daemon.refused(ExecutionSpec {
            limits: Some(limits),
            ..sh("true")
        });
        assert_eq!(
            (refused.code, refused.fields),
            (Answer::InvalidArgument, vec![field.to_owned()])
        );
    }
}

#[test]
fn all_that_is_wrong_is_named_at_once() {
    let daemon = daemon!();
    let refused = daemon.refused(ExecutionSpec {
        policy: "dota".to_owned(),
        request_id: "NO".to_owned(),
        inputs: vec![input("../up", b"")],
        packages: vec!["polars".to_owned()],
        ..command(&["a\0b"])
    });
    assert_eq!(refused.code, Answer::InvalidArgument);
    for field in ["request_id", "policy", "packages", "inputs[0].name", "command.argv[0]"] {
        assert!(
            refused.fields.iter().any(|found| found == field),
            "{field}: {:?}",
            refused.fields
        );
    }
    assert!(refused.message.contains("data, strict"), "{}", refused.message);
}

#[test]
fn what_is_not_built_is_refused_and_never_passed_over() {
    let daemon = daemon!();
    let asked = brig_proto::v1::SessionsForkRequest::default();
    let call = daemon.wait(daemon.sessions().fork(asked)).unwrap_err();
    assert_eq!(call.code(), Answer::Unimplemented);
}

#[test]
fn code_has_no_input_that_comes_later() {
    let daemon = daemon!();
    let open = daemon.refused(ExecutionSpec {
        stdin_open: true,
        ..code("print(1)")
    });
    assert_eq!(
        (open.fields, open.reason.as_str()),
        (vec!["stdin_open".to_owned()], "NOT_APPLICABLE")
    );
}

#[test]
fn more_runs_than_places_wait_and_are_told_so() {
    let Some(daemon) = Daemon::start_configured("[limits]\nrunning = 2\n") else {
        return;
    };
    let run = |name: &str, script: &str| ExecutionSpec {
        execution_id: name.to_owned(),
        ..sh(script)
    };
    let mut running = ["one", "two"].map(|name| daemon.begin(run(name, "echo up; sleep 60")));
    running.iter_mut().for_each(|live| live.until_written("up\n"));
    let waiting = [("three", 1), ("four", 2)].map(|(name, place)| {
        let mut live = daemon.begin(run(name, "echo done"));
        live.until(|event| matches!(event, Event::Accepted(told) if told.queue_position == place));
        live
    });
    for name in ["one", "two"] {
        daemon.cancel(name);
    }
    for live in running {
        assert_eq!(live.finish().end(), (Status::Cancelled, Some(CauseKind::Cancel)));
    }
    for live in waiting {
        assert_eq!(live.finish().expect_success().stdout(), "done\n");
    }
}

#[test]
fn executions_can_be_found_by_their_labels_and_shown() {
    let daemon = daemon!();
    for (label, source) in [("a", "print(1)"), ("b", "print(2)"), ("a", "1 / 0")] {
        daemon.run(ExecutionSpec {
            labels: BTreeMap::from([("kind".to_owned(), label.to_owned())]),
            ..small(source)
        });
    }
    let request = ExecutionsListRequest {
        labels: BTreeMap::from([("kind".to_owned(), "a".to_owned())]),
        ..ExecutionsListRequest::default()
    };
    let listed = daemon
        .wait(daemon.client().list(request))
        .unwrap()
        .into_inner()
        .executions;
    let results: Vec<_> = listed
        .iter()
        .map(|found| daemon.execution(&found.execution_id).result.unwrap())
        .collect();
    let ends: Vec<Status> = results.iter().map(brig_proto::v1::ExecutionResult::status).collect();
    assert_eq!(ends, [Status::Error, Status::Success], "newest first");
    assert_eq!(&results[1].stdout[..], b"1\n");
    let unknown = ExecutionsGetRequest {
        execution_id: "nobody".to_owned(),
    };
    assert_eq!(
        daemon.wait(daemon.client().get(unknown)).unwrap_err().code(),
        Answer::NotFound
    );
}

#[test]
fn a_message_that_is_too_large_is_refused_by_the_server() {
    let daemon = daemon!();
    let refused = daemon.refused(ExecutionSpec {
        inputs: (0..10)
            .map(|number| input(&format!("f{number}"), &[b'x'; 500 << 10]))
            .collect(),
        ..sh("true")
    });
    assert_eq!(refused.code, Answer::OutOfRange, "{refused:?}");
    assert_eq!(daemon.run(sh("echo fine")).stdout(), "fine\n");
}

#[test]
fn the_host_says_what_it_enforces() {
    let daemon = daemon!();
    let mut host = brig_proto::v1::host_client::HostClient::new(daemon.connect());
    let host = daemon
        .wait(host.get(brig_proto::v1::HostGetRequest::default()))
        .unwrap()
        .into_inner();
    assert!(!host.checks.is_empty() && !host.features.is_empty(), "{host:?}");
}
