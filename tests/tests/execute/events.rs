//! What is told of a run, and in which order.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{
    ExecutionSpec, ExecutionState, ExecutionStatus as Status, ExpectedOutput, Origin, RunRequest, StartKind,
    run_request,
};
use brig_tests::document::mask;
use brig_tests::spec::{code, input, sh, small};
use brig_tests::way::{WAY, Way};
use brig_tests::{daemon, slow, way};
use serde_json::json;
use sha2::{Digest, Sha256};

#[test]
fn code_runs_and_its_events_come_in_order() {
    let daemon = daemon!();
    let outcome = daemon.run(code("open('out.txt', 'w').write('x')\nprint('hello')\n6 * 7"));
    assert_eq!(
        outcome.order(),
        ["accepted", "started", "output", "result", "artifact", "finished"]
    );
    assert_eq!(outcome.stdout(), "hello\n");
    assert_eq!(outcome.end(), (Status::Success, None));
}

#[test]
fn accepted_and_started_say_which_execution_and_which_process() {
    let daemon = daemon!();
    let mut live = daemon.begin(ExecutionSpec {
        execution_id: "mine".to_owned(),
        session_id: "ours".to_owned(),
        ..sh("echo $$; read x")
    });
    let Event::Accepted(accepted) = live.until(|_| true) else {
        panic!()
    };
    assert_eq!(
        (accepted.execution_id.as_str(), accepted.session_id.as_str()),
        ("mine", "ours")
    );
    let Event::Started(started) = live.until(|event| matches!(event, Event::Started(_))) else {
        panic!()
    };
    assert_eq!(started.start(), StartKind::Cold);
    let outcome = live.finish();
    assert_eq!(outcome.stdout(), format!("{}\n", started.pid));
    assert_eq!(outcome.result.execution_id, "mine");
    assert_eq!(outcome.result.session.unwrap().session_id, "ours");
}

#[test]
fn the_whole_document_of_a_small_run_is_as_promised() {
    let daemon = daemon!();
    let spec = ExecutionSpec {
        request_id: "ask1".to_owned(),
        // What is named is forked.
        execution_id: match *WAY {
            Way::Forked => "asked".to_owned(),
            _ => String::new(),
        },
        inputs: vec![input("Q3 sales (1).csv", b"a,b\n1,2\n")],
        labels: BTreeMap::from([("job".to_owned(), "nightly".to_owned())]),
        origin: Some(Origin {
            user: "ann".to_owned(),
            ..Origin::default()
        }),
        expected_outputs: vec![ExpectedOutput {
            path: "missing.csv".to_owned(),
            ..ExpectedOutput::default()
        }],
        ..small("print(len(open('q3_sales_1.csv').read()))\nopen('made.csv', 'w').write('x,y\\n1,2\\n')\n'done'")
    };
    let mut document = daemon.run(spec).document();
    mask(&mut document);
    // What the host enforces beyond the least is its own matter.
    let enforced = document["enforced"].as_object_mut().unwrap();
    let (cgroup, swap) = (enforced.remove("cgroup").unwrap(), enforced.remove("swap").unwrap());
    assert!((cgroup == "v1" || cgroup == "v2") && swap.is_boolean());
    let disk = document["usage"].as_object_mut().unwrap().remove("disk_bytes").unwrap();
    assert!(disk.as_u64().unwrap() > 0);
    let sha256 = |text: &str| {
        Sha256::digest(text)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let enforced = json!({"namespaces": ["user", "mount", "pid", "net", "ipc", "uts", "cgroup"], "memory": true,
        "cpu": true, "pids": true, "io": false, "workspace": "tmpfs",
        "landlock_abi": "<number>", "seccomp": "data@<hash>", "capabilities": "none", "no_new_privs": true});
    assert_eq!(
        document,
        json!({
            "status": "success", "stdout": "8\n", "stderr": "",
            "artifacts": [{"artifact_id": "<id>", "path": "made.csv", "type": "text/csv", "size_bytes": 8,
                "sha256": sha256("x,y\n1,2\n"), "change": "created", "class": "data", "handling": "download",
                "review": "not_needed", "flags": [], "details": {"rows": 1, "columns": 2}}],
            "duration_ms": "<number>", "execution_id": "<id>", "request_id": "ask1", "exit_code": 0, "signal": null,
            "cause": null, "error": null,
            "hint": "Write the expected file \"missing.csv\" to the working directory under exactly that path.",
            "results": [{"main": true, "display_id": null, "data": {"text/plain": "'done'"}, "chart": null}],
            "inputs": [{"name": "Q3 sales (1).csv", "path": "q3_sales_1.csv", "size_bytes": 8,
                "sha256": sha256("a,b\n1,2\n")}],
            "missing_outputs": ["missing.csv"],
            "output": {"stdout": {"bytes": 2, "dropped": 0, "truncated": false, "lossy": false},
                "stderr": {"bytes": 0, "dropped": 0, "truncated": false, "lossy": false}},
            "limits": {"timeout_ms": (30_000 * u64::from(slow())).min(300_000), "memory_bytes": 536_870_912, "cpus": 1.0, "pids": 128,
                "disk_bytes": 536_870_912, "output_bytes": 8_388_608},
            "clamped": [], "limits_hit": [],
            "usage": {"cpu_ms": "<number>", "memory_peak_bytes": "<number>", "processes_peak": "<number>"},
            "timing": {"queued_ms": "<number>", "startup_ms": "<number>", "collect_ms": "<number>"},
            "create_time": "<time>", "end_time": "<time>",
            "session": {"session_id": "<id>", "kept": false, "context_id": null, "has_state": false, "left": null, "start": way::start_word(),
                "expire_time": null},
            "policy": "data@<hash>", "template": "base@<hash>", "tenant": "default", "user": "ann",
            "labels": {"job": "nightly"},
            "enforced": enforced,
        })
    );
}

#[test]
fn usage_and_times_are_measured() {
    let daemon = daemon!();
    let started = Instant::now();
    let result = daemon
        .run(small(
            "x = bytearray(50 << 20)\nimport time\nwhile time.process_time() < 0.3: pass",
        ))
        .expect_success()
        .result;
    let usage = result.usage.unwrap();
    let cpu: Duration = usage.cpu_time.unwrap().try_into().unwrap();
    let ran: Duration = result.duration.unwrap().try_into().unwrap();
    assert!(
        cpu >= Duration::from_millis(290) && cpu < Duration::from_secs(3),
        "{cpu:?}"
    );
    assert!(ran >= cpu / 2 && ran <= started.elapsed(), "{ran:?}");
    let peak = usage.memory_peak_bytes.unwrap();
    assert!((50 << 20..200 << 20).contains(&peak), "{peak}");
}

#[test]
fn streams_are_told_apart_and_merged_on_request() {
    let daemon = daemon!();
    let script = "for i in 1 2 3; do echo o$i; echo e$i >&2; done";
    let outcome = daemon.run(sh(script));
    assert_eq!(
        (outcome.stdout(), outcome.stderr()),
        ("o1\no2\no3\n".into(), "e1\ne2\ne3\n".into())
    );
    let merged = daemon.run(ExecutionSpec {
        merge_stderr: true,
        ..sh(script)
    });
    assert_eq!(
        (merged.stdout(), merged.stderr()),
        ("o1\ne1\no2\ne2\no3\ne3\n".into(), String::new())
    );
}

#[test]
fn output_comes_while_the_program_runs_and_not_at_its_end() {
    let daemon = daemon!();
    let mut live = daemon.begin(ExecutionSpec {
        execution_id: "slow".to_owned(),
        ..small("print('now')\nimport time\ntime.sleep(60)")
    });
    live.until_written("now\n");
    assert_eq!(daemon.execution("slow").state(), ExecutionState::Running);
    daemon.cancel("slow");
    live.finish();
}

#[test]
fn the_answer_carries_the_id_of_the_execution() {
    let daemon = daemon!();
    let part = Some(run_request::Part::Spec(ExecutionSpec {
        execution_id: "echoed".to_owned(),
        ..sh("true")
    }));
    let answer = daemon
        .wait(daemon.client().run(tokio_stream::iter([RunRequest { part }])))
        .unwrap();
    assert_eq!(answer.metadata().get("brig-execution-id").unwrap(), "echoed");
}
