//! One-shot runs.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use brig_jailer::ids::Id;
use brig_proto::v1;
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::{
    CauseKind, ExecutionSpec, ExecutionState, ExecutionStatus, FileChunk, InputSource, Limits, NoticeKind, RunRequest,
    StreamedInput, input_source, run_request,
};
use tonic::Code;
use tonic_types::StatusExt;

use crate::support::jailer::Behaviour;
use crate::support::{Gate, daemon, drain, next, result, sh};

fn cause(result: &v1::ExecutionResult) -> CauseKind {
    result.cause.as_ref().unwrap().kind()
}

fn streamed(name: &str) -> InputSource {
    let source = Some(input_source::Source::Streamed(StreamedInput::default()));
    InputSource {
        name: name.to_owned(),
        source,
        mode: None,
    }
}

fn chunk(input: u32, offset: u64, data: &'static [u8]) -> RunRequest {
    RunRequest {
        part: Some(run_request::Part::FileChunk(FileChunk {
            input,
            offset,
            data: data.into(),
        })),
    }
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_run_tells_its_events_in_order_and_is_recorded() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    let events = daemon.sh("echo hello; echo oops >&2; exit 3").await;
    assert!(matches!(&events[0], Event::Accepted(accepted) if accepted.state() == ExecutionState::Running));
    assert!(matches!(events[1], Event::Started(_)));
    let result = result(&events).clone();
    assert_eq!(result.status(), ExecutionStatus::Error);
    assert_eq!(
        (result.exit_code, &result.stdout[..], &result.stderr[..]),
        (Some(3), &b"hello\n"[..], &b"oops\n"[..])
    );
    let jailer = daemon.jailer.clone();
    eventually("the jail is closed", || jailer.jails.load(Ordering::SeqCst) == 0).await;
    let (ledger, _directory) = daemon.ledger().await;
    let record = ledger
        .get(&Id::parse(&result.execution_id).unwrap())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        record.accept.work.body.content,
        b"/bin/sh\0-c\0echo hello; echo oops >&2; exit 3\0"
    );
    assert_eq!(record.finish.unwrap().status, "error");
}

#[tokio::test]
async fn a_run_that_is_cancelled_keeps_what_it_wrote() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    let mut stream = daemon
        .run(ExecutionSpec {
            execution_id: "mine".to_owned(),
            ..sh("echo first; sleep 60")
        })
        .await
        .unwrap();
    while !matches!(next(&mut stream).await, Event::Output(_)) {}
    let request = v1::ExecutionsCancelRequest {
        execution_id: "mine".to_owned(),
        ..Default::default()
    };
    let answer = daemon.client().await.cancel(request).await.unwrap().into_inner();
    assert_eq!(answer.state(), ExecutionState::Running);
    let events = drain(stream).await;
    let result = result(&events);
    assert_eq!(
        (result.status(), cause(result)),
        (ExecutionStatus::Cancelled, CauseKind::Cancel)
    );
    assert_eq!(&result.stdout[..], b"first\n");
}

#[tokio::test]
async fn what_runs_when_it_is_cancelled_has_started_though_nobody_had_said_so() {
    let Some(daemon) = daemon(Behaviour::TellsSpawnLate, 1).await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let up = folder.path().join("up");
    let stream = daemon
        .run(ExecutionSpec {
            execution_id: "mine".to_owned(),
            ..sh(&format!("echo first; echo > {}; sleep 60", up.display()))
        })
        .await
        .unwrap();
    daemon.until("it runs", |_| up.exists()).await;
    let request = v1::ExecutionsCancelRequest {
        execution_id: "mine".to_owned(),
        ..Default::default()
    };
    daemon.client().await.cancel(request).await.unwrap();
    let events = drain(stream).await;
    assert!(
        events.iter().any(|event| matches!(event, Event::Started(_))),
        "{events:?}"
    );
    let result = result(&events);
    assert_eq!(
        (result.status(), cause(result)),
        (ExecutionStatus::Cancelled, CauseKind::Cancel)
    );
    assert_eq!((&result.stdout[..], result.signal), (&b"first\n"[..], Some(9)));
}

#[tokio::test]
async fn code_that_is_cancelled_before_it_was_given_to_its_interpreter_does_not_run() {
    let Some(daemon) = daemon(Behaviour::TellsSpawnLate, 1).await else {
        return;
    };
    let spec = ExecutionSpec {
        execution_id: "mine".to_owned(),
        ..code("print(1)".to_owned(), Duration::from_secs(10))
    };
    let stream = daemon.run(spec).await.unwrap();
    daemon
        .until("its session is there", |daemon| {
            daemon.jailer.jails.load(Ordering::SeqCst) == 1
        })
        .await;
    let request = v1::ExecutionsCancelRequest {
        execution_id: "mine".to_owned(),
        ..Default::default()
    };
    daemon.client().await.cancel(request).await.unwrap();
    let events = drain(stream).await;
    let result = result(&events);
    assert_eq!(
        (result.status(), cause(result), result.results.len()),
        (ExecutionStatus::Cancelled, CauseKind::Cancel, 0)
    );
    assert!(
        !events.iter().any(|event| matches!(event, Event::Started(_))),
        "{events:?}"
    );
}

#[tokio::test]
async fn the_daemon_ends_what_the_jailer_forgets_to_end() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    let timeout = Some(prost_types::Duration { seconds: 2, nanos: 0 });
    let limits = Some(Limits {
        timeout,
        ..Limits::default()
    });
    let events = drain(
        daemon
            .run(ExecutionSpec {
                limits,
                ..sh("echo partial; sleep 60")
            })
            .await
            .unwrap(),
    )
    .await;
    let result = result(&events);
    assert_eq!(
        (result.status(), cause(result)),
        (ExecutionStatus::Timeout, CauseKind::WallTime)
    );
    assert_eq!(&result.stdout[..], b"partial\n");
    assert_eq!(result.cause.as_ref().unwrap().limit, Some(2000));
}

#[tokio::test]
async fn too_much_output_ends_a_run_where_the_policy_says_so() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    // One that writes until it is killed, and one that has ended before anybody could.
    for script in ["yes", "head -c 70000 /dev/zero"] {
        let spec = ExecutionSpec {
            policy: "ends".to_owned(),
            ..sh(script)
        };
        let events = drain(daemon.run(spec).await.unwrap()).await;
        let ended = result(&events);
        assert_eq!(
            (ended.status(), cause(ended)),
            (ExecutionStatus::OutputLimit, CauseKind::Output)
        );
        assert_eq!(ended.cause.as_ref().unwrap().limit, Some(65_536));
        let summary = ended.output.as_ref().unwrap().stdout.unwrap();
        assert_eq!(summary.written_bytes - summary.dropped_bytes, 65_536);
    }
    // Exactly as much as may be is not too much.
    let spec = ExecutionSpec {
        policy: "ends".to_owned(),
        ..sh("head -c 65536 /dev/zero")
    };
    let events = drain(daemon.run(spec).await.unwrap()).await;
    assert_eq!(result(&events).status(), ExecutionStatus::Success);
}

#[tokio::test]
async fn a_caller_that_goes_away_ends_its_run() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    let mut stream = daemon
        .run(ExecutionSpec {
            execution_id: "left".to_owned(),
            ..sh("sleep 60")
        })
        .await
        .unwrap();
    while !matches!(next(&mut stream).await, Event::Started(_)) {}
    drop(stream);
    let attach = v1::ExecutionsAttachRequest {
        execution_id: "left".to_owned(),
        after_sequence: 0,
    };
    let events = drain(daemon.client().await.attach(attach).await.unwrap().into_inner()).await;
    let result = result(&events);
    assert_eq!(
        (result.status(), cause(result)),
        (ExecutionStatus::Cancelled, CauseKind::ClientGone)
    );
    let jailer = daemon.jailer.clone();
    eventually("the jail is closed", || jailer.jails.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn a_run_that_goes_on_without_its_caller_can_be_attached_to() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    let on_disconnect = v1::OnDisconnect::Continue.into();
    let spec = ExecutionSpec {
        execution_id: "kept".to_owned(),
        on_disconnect,
        ..sh("echo a; sleep 0.5; echo b")
    };
    let mut stream = daemon.run(spec).await.unwrap();
    while !matches!(next(&mut stream).await, Event::Output(_)) {}
    drop(stream);
    let attach = v1::ExecutionsAttachRequest {
        execution_id: "kept".to_owned(),
        after_sequence: 1,
    };
    let events = drain(daemon.client().await.attach(attach).await.unwrap().into_inner()).await;
    assert_eq!(&result(&events).stdout[..], b"a\nb\n");
    assert!(
        !events.iter().any(|event| matches!(event, Event::Started(_))),
        "sequence 1 was known"
    );
}

#[tokio::test]
async fn the_same_request_twice_is_one_execution_and_another_payload_is_refused() {
    let Some(daemon) = daemon(Behaviour::Works, 2).await else {
        return;
    };
    let spec = ExecutionSpec {
        request_id: "r1".to_owned(),
        ..sh("sleep 0.3; echo once")
    };
    let (first, second) = tokio::join!(daemon.run(spec.clone()), daemon.run(spec.clone()));
    let (first, second) = tokio::join!(drain(first.unwrap()), drain(second.unwrap()));
    assert_eq!(result(&first).execution_id, result(&second).execution_id);
    let later = drain(daemon.run(spec.clone()).await.unwrap()).await;
    assert_eq!(result(&later), result(&first));
    let other = daemon
        .run(ExecutionSpec {
            request_id: "r1".to_owned(),
            ..sh("echo other")
        })
        .await
        .unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists);
    assert_eq!(
        other.get_error_details().error_info().unwrap().reason,
        "REQUEST_ID_REUSED"
    );
}

#[tokio::test]
async fn who_waits_is_told_and_who_is_too_many_is_refused() {
    let Some(daemon) = daemon(Behaviour::Works, 1).await else {
        return;
    };
    let gate = Gate::new();
    let mut running = daemon.run(sh(&gate.script())).await.unwrap();
    while !matches!(next(&mut running).await, Event::Started(_)) {}
    let mut waiting = daemon.run(sh("echo second")).await.unwrap();
    let Event::Accepted(accepted) = next(&mut waiting).await else {
        panic!("accepted comes first")
    };
    assert_eq!((accepted.state(), accepted.queue_position), (ExecutionState::Queued, 1));
    let _third = daemon.run(sh("true")).await.unwrap();
    let refused = daemon.run(sh("true")).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.get_error_details().retry_info().is_some());
    gate.open();
    assert_eq!(&result(&drain(waiting).await).stdout[..], b"second\n");
}

#[tokio::test]
async fn what_waits_too_long_is_refused_with_the_reason() {
    let Some(daemon) = daemon(Behaviour::Works, 1).await else {
        return;
    };
    let mut running = daemon.run(sh("sleep 5")).await.unwrap();
    while !matches!(next(&mut running).await, Event::Started(_)) {}
    let start_timeout = Some(prost_types::Duration {
        seconds: 0,
        nanos: 100_000_000,
    });
    let limits = Some(Limits {
        start_timeout,
        ..Limits::default()
    });
    let mut waiting = daemon.run(ExecutionSpec { limits, ..sh("true") }).await.unwrap();
    assert!(matches!(next(&mut waiting).await, Event::Accepted(_)));
    let status = waiting.message().await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(status.get_error_details().error_info().unwrap().reason, "START_TIMEOUT");
}

#[tokio::test]
async fn a_jail_that_cannot_be_made_is_told_with_its_step_and_recorded_as_failed() {
    let Some(daemon) = daemon(Behaviour::RefusesToMake, 1).await else {
        return;
    };
    let mut stream = daemon
        .run(ExecutionSpec {
            execution_id: "broken".to_owned(),
            ..sh("true")
        })
        .await
        .unwrap();
    assert!(matches!(next(&mut stream).await, Event::Accepted(_)));
    let status = stream.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert_eq!(
        status.get_error_details().error_info().unwrap().metadata["step"],
        "mounts"
    );
    let get = v1::ExecutionsGetRequest {
        execution_id: "broken".to_owned(),
    };
    let execution = daemon
        .client()
        .await
        .get(get)
        .await
        .unwrap()
        .into_inner()
        .execution
        .unwrap();
    let result = execution.result.unwrap();
    assert_eq!(result.status(), ExecutionStatus::Failed);
    assert_eq!(result.cause.unwrap().step.as_deref(), Some("mounts"));
}

#[tokio::test]
async fn a_jailer_that_does_not_answer_does_not_hold_the_caller() {
    let Some(daemon) = daemon(Behaviour::NeverAnswersMake, 1).await else {
        return;
    };
    let start = Instant::now();
    let mut stream = daemon.run(sh("true")).await.unwrap();
    assert!(matches!(next(&mut stream).await, Event::Accepted(_)));
    assert_eq!(stream.message().await.unwrap_err().code(), Code::DeadlineExceeded);
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn a_jailer_that_dies_ends_the_daemon_after_its_answers() {
    let Some(daemon) = daemon(Behaviour::DiesAtSpawn, 1).await else {
        return;
    };
    let mut stream = daemon.run(sh("true")).await.unwrap();
    assert!(matches!(next(&mut stream).await, Event::Accepted(_)));
    let status = stream.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.get_error_details().error_info().unwrap().reason, "JAILER_GONE");
    let served = tokio::time::timeout(Duration::from_secs(10), daemon.served)
        .await
        .unwrap()
        .unwrap();
    assert!(served.unwrap_err().to_string().contains("brig-jailer went away"));
}

#[tokio::test]
async fn what_ran_when_the_jailer_died_is_lost() {
    let Some(daemon) = daemon(Behaviour::DiesAfterSpawn, 1).await else {
        return;
    };
    let events = drain(daemon.run(sh("sleep 2")).await.unwrap()).await;
    let result = result(&events);
    assert_eq!(
        (result.status(), cause(result)),
        (ExecutionStatus::Lost, CauseKind::Internal)
    );
}

#[tokio::test]
async fn a_process_that_keeps_the_pipe_open_does_not_hold_the_answer() {
    let Some(daemon) = daemon(Behaviour::Works, 1).await else {
        return;
    };
    let start = Instant::now();
    let events = daemon.sh("sleep 10 & echo done").await;
    assert!(start.elapsed() < Duration::from_secs(8));
    assert_eq!(&result(&events).stdout[..], b"done\n");
    let told = |event: &Event| matches!(event, Event::Notice(notice) if notice.kind() == NoticeKind::OutputDropped);
    assert!(events.iter().any(told));
}

#[tokio::test]
async fn output_past_the_cap_is_counted_and_told_and_does_not_block_the_code() {
    let Some(daemon) = daemon(Behaviour::Works, 1).await else {
        return;
    };
    let events = daemon.sh("head -c 1000000 /dev/zero").await;
    let result = result(&events);
    let stdout = result.output.unwrap().stdout.unwrap();
    assert_eq!(
        (stdout.written_bytes, stdout.dropped_bytes),
        (1_000_000, 1_000_000 - 64 * 1024)
    );
    assert_eq!(result.limits_hit, [i32::from(CauseKind::Output)]);
    assert_eq!(result.status(), ExecutionStatus::Success);
}

#[tokio::test]
async fn an_expected_file_that_is_missing_is_listed_with_a_hint_and_changes_no_status() {
    let Some(daemon) = daemon(Behaviour::Works, 1).await else {
        return;
    };
    let expected_outputs = vec![v1::ExpectedOutput {
        path: "./out/a.csv".to_owned(),
        ..Default::default()
    }];
    let events = drain(
        daemon
            .run(ExecutionSpec {
                expected_outputs,
                ..sh("true")
            })
            .await
            .unwrap(),
    )
    .await;
    let result = result(&events);
    assert_eq!(
        (result.status(), result.missing_outputs.as_slice()),
        (ExecutionStatus::Success, &["out/a.csv".to_owned()][..])
    );
    assert!(result.hint.as_ref().unwrap().contains("\"out/a.csv\""));
}

#[tokio::test]
async fn stdin_is_what_was_given_and_then_its_end() {
    let Some(daemon) = daemon(Behaviour::Works, 1).await else {
        return;
    };
    let events = drain(
        daemon
            .run(ExecutionSpec {
                stdin: "abc".into(),
                ..sh("cat; echo .")
            })
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(&result(&events).stdout[..], b"abc.\n");
}

fn code(source: String, timeout: Duration) -> ExecutionSpec {
    let limits = Some(Limits {
        timeout: Some(timeout.try_into().unwrap()),
        ..Limits::default()
    });
    ExecutionSpec {
        work: Some(Work::Code(v1::Code {
            source,
            ..Default::default()
        })),
        limits,
        ..ExecutionSpec::default()
    }
}

#[tokio::test]
async fn code_goes_to_its_kernel_whole_and_results_come_back() {
    let Some(daemon) = daemon(Behaviour::Works, 1).await else {
        return;
    };
    let spec = code("#".repeat(1 << 20), Duration::from_secs(10));
    let events = drain(daemon.run(spec).await.unwrap()).await;
    let result = result(&events);
    let came: usize = std::str::from_utf8(&result.stdout).unwrap().trim().parse().unwrap();
    assert!(came > 1 << 20, "{came}");
    assert_eq!(result.status(), ExecutionStatus::Success);
    assert_eq!(result.results[0].data[0].r#type, "text/plain");
}

#[tokio::test]
async fn a_kernel_that_never_reads_its_request_ends_when_it_is_due() {
    let Some(daemon) = daemon(Behaviour::KernelNeverReads, 1).await else {
        return;
    };
    let start = Instant::now();
    let spec = code("#".repeat(1 << 20), Duration::from_millis(200));
    let events = drain(daemon.run(spec).await.unwrap()).await;
    let result = result(&events);
    assert_eq!(
        (result.status(), cause(result)),
        (ExecutionStatus::Timeout, CauseKind::WallTime)
    );
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn inputs_go_in_under_safe_names_before_the_code_starts() {
    let Some(daemon) = daemon(Behaviour::Works, 1).await else {
        return;
    };
    let spec = ExecutionSpec {
        inputs: vec![streamed("Q3 sales (1).csv"), streamed("b")],
        ..sh("true")
    };
    let first = RunRequest {
        part: Some(run_request::Part::Spec(spec)),
    };
    let messages = [first, chunk(0, 0, b"a,"), chunk(0, 2, b"b"), chunk(1, 0, b"x")];
    let stream = daemon
        .client()
        .await
        .run(tokio_stream::iter(messages))
        .await
        .unwrap()
        .into_inner();
    let events = drain(stream).await;
    let inputs: Vec<_> = result(&events)
        .inputs
        .iter()
        .map(|input| (input.path.clone(), input.size_bytes))
        .collect();
    assert_eq!(inputs, [("q3_sales_1.csv".to_owned(), 3), ("b".to_owned(), 1)]);
    let stored = daemon.jailer.files.stored.lock().unwrap().clone();
    assert_eq!(
        stored,
        [
            ("q3_sales_1.csv".to_owned(), b"a,b".to_vec()),
            ("b".to_owned(), b"x".to_vec())
        ]
    );
}

#[tokio::test]
async fn chunks_out_of_turn_are_refused_before_anything_runs() {
    let Some(daemon) = daemon(Behaviour::Works, 1).await else {
        return;
    };
    let spec = ExecutionSpec {
        inputs: vec![streamed("a")],
        ..sh("true")
    };
    let first = RunRequest {
        part: Some(run_request::Part::Spec(spec)),
    };
    let refused = daemon
        .client()
        .await
        .run(tokio_stream::iter([first, chunk(0, 5, b"x")]))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(refused.get_error_details().error_info().unwrap().reason, "STREAM_ORDER");
    assert_eq!(daemon.jailer.jails.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn every_wrong_field_is_named_and_what_exists_is_listed() {
    let Some(daemon) = daemon(Behaviour::Works, 1).await else {
        return;
    };
    let limits = Some(Limits {
        pids: Some(0),
        ..Limits::default()
    });
    let spec = ExecutionSpec {
        policy: "dat".to_owned(),
        execution_id: "Bad-Id".to_owned(),
        ..sh("true")
    };
    let refused = daemon.run(spec).await.unwrap_err();
    let details = refused.get_error_details();
    let fields = &details.bad_request().unwrap().field_violations;
    assert_eq!(
        fields.iter().map(|field| field.field.as_str()).collect::<Vec<_>>(),
        ["execution_id", "policy"]
    );
    assert!(fields[1].description.contains("there are: data"), "{:?}", fields[1]);
    let refused = daemon.run(ExecutionSpec { limits, ..sh("true") }).await.unwrap_err();
    assert!(
        refused.message().starts_with("limits.pids: 0 is not a limit"),
        "{}",
        refused.message()
    );
    let environment = [("LD_PRELOAD".to_owned(), "x".to_owned())].into();
    let refused = daemon
        .run(ExecutionSpec {
            environment,
            ..sh("true")
        })
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn quantities_above_the_maximum_are_clamped_and_told() {
    let Some(daemon) = daemon(Behaviour::Works, 1).await else {
        return;
    };
    let timeout = Some(prost_types::Duration { seconds: 500, nanos: 0 });
    let limits = Some(Limits {
        timeout,
        cpus: Some(64.0),
        ..Limits::default()
    });
    let events = drain(daemon.run(ExecutionSpec { limits, ..sh("true") }).await.unwrap()).await;
    let clamped: Vec<_> = result(&events)
        .clamped
        .iter()
        .map(|c| (c.limit.as_str(), c.requested, c.applied))
        .collect();
    assert_eq!(clamped, [("timeout_ms", 500_000.0, 20_000.0), ("cpus", 64.0, 2.0)]);
}

#[tokio::test]
async fn a_daemon_that_is_told_to_stop_loses_what_does_not_end_in_time_and_refuses_what_is_new() {
    let Some(daemon) = daemon(Behaviour::Works, 1).await else {
        return;
    };
    let mut stream = daemon.run(sh("echo here; sleep 60")).await.unwrap();
    while !matches!(next(&mut stream).await, Event::Output(_)) {}
    let request = RunRequest {
        part: Some(run_request::Part::Spec(sh("true"))),
    };
    let mut client = daemon.client().await;
    daemon.shutdown.cancel();
    let refused = client.run(tokio_stream::iter([request])).await.unwrap_err();
    assert_eq!(refused.get_error_details().error_info().unwrap().reason, "DRAINING");
    let events = drain(stream).await;
    assert_eq!(
        (result(&events).status(), cause(result(&events))),
        (ExecutionStatus::Lost, CauseKind::Internal)
    );
    daemon.served.await.unwrap().unwrap();
    assert_eq!(daemon.jailer.jails.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn executions_are_listed_newest_first_by_pages() {
    let Some(daemon) = daemon(Behaviour::Works, 1).await else {
        return;
    };
    for name in ["one", "two", "three"] {
        drain(
            daemon
                .run(ExecutionSpec {
                    execution_id: name.to_owned(),
                    ..sh("true")
                })
                .await
                .unwrap(),
        )
        .await;
    }
    let mut client = daemon.client().await;
    let ask = |page_token| v1::ExecutionsListRequest {
        page_size: 2,
        page_token,
        ..Default::default()
    };
    let first = client.list(ask(String::new())).await.unwrap().into_inner();
    let ids: Vec<_> = first
        .executions
        .iter()
        .map(|execution| execution.execution_id.as_str())
        .collect();
    assert_eq!(ids, ["three", "two"]);
    let second = client.list(ask(first.next_page_token)).await.unwrap().into_inner();
    assert_eq!(
        (
            second.executions[0].execution_id.as_str(),
            second.next_page_token.as_str()
        ),
        ("one", "")
    );
}

#[tokio::test]
async fn what_is_not_built_says_so_and_the_host_says_what_is() {
    let Some(daemon) = daemon(Behaviour::Works, 1).await else {
        return;
    };
    let channel = daemon.channel().await;
    let mut packages = v1::packages_client::PackagesClient::new(channel.clone());
    let refused = packages.list(v1::PackagesListRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    assert!(refused.message().starts_with("Packages.List is not built yet"));
    let mut host = v1::host_client::HostClient::new(channel);
    let shown = host.get(v1::HostGetRequest {}).await.unwrap().into_inner();
    assert!(shown.features.contains(&"run".to_owned()));
    assert_eq!(shown.templates, ["base@0123456789ab"]);
    assert_eq!(shown.principal.unwrap().tenant, "default");
}
