//! The JSON document of a result, from a message with something in every field, and from odd ones.

use brig_proto::result::ResultDocument;
use brig_proto::v1::{self, rich_datum::Content};
use prost_types::value::Kind;
use serde_json::{Value, json};

fn span(milliseconds: i32) -> Option<prost_types::Duration> {
    let nanos = milliseconds % 1000 * 1_000_000;
    Some(prost_types::Duration {
        seconds: (milliseconds / 1000).into(),
        nanos,
    })
}

fn time(nanos: i32) -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp {
        seconds: 1_767_225_600,
        nanos,
    })
}

fn stream_summary(written_bytes: u64, dropped_bytes: u64) -> Option<v1::StreamSummary> {
    Some(v1::StreamSummary {
        written_bytes,
        dropped_bytes,
        truncated: dropped_bytes > 0,
    })
}

fn chart() -> prost_types::Struct {
    let value = |kind| prost_types::Value { kind: Some(kind) };
    let points = prost_types::ListValue {
        values: vec![
            value(Kind::NumberValue(1.0)),
            value(Kind::NumberValue(0.5)),
            value(Kind::NumberValue(f64::NAN)),
        ],
    };
    let fields = [
        ("type".to_owned(), value(Kind::StringValue("line".to_owned()))),
        ("points".to_owned(), value(Kind::ListValue(points))),
    ];
    prost_types::Struct { fields: fields.into() }
}

/// A result with something in every field.
fn full() -> v1::ExecutionResult {
    let datum = |kind: &str, content| v1::RichDatum {
        r#type: kind.to_owned(),
        content: Some(content),
    };
    v1::ExecutionResult {
        status: v1::ExecutionStatus::Timeout.into(),
        stdout: "Loaded 12448 rows\n".into(),
        stderr: vec![b'a', 0xff, b'b'].into(),
        artifacts: vec![v1::Artifact {
            artifact_id: "a1".to_owned(),
            path: "chart.png".to_owned(),
            raw_path: Default::default(),
            r#type: "image/png".to_owned(),
            size_bytes: 84231,
            sha256: "00".repeat(32),
            change: v1::ArtifactChange::Created.into(),
            class: v1::ArtifactClass::Chart.into(),
            handling: v1::ArtifactHandling::Preview.into(),
            review: v1::ReviewState::NotNeeded.into(),
            flags: vec!["name_mismatch".to_owned()],
            details: Some(v1::ArtifactDetails {
                width: Some(1200),
                height: Some(800),
                ..Default::default()
            }),
        }],
        duration: span(30_012),
        execution_id: "e1".to_owned(),
        request_id: "r1".to_owned(),
        exit_code: Some(1),
        signal: Some(9),
        cause: Some(v1::Cause {
            kind: v1::CauseKind::WallTime.into(),
            limit: Some(30_000),
            used: Some(30_012),
            step: Some("exec".to_owned()),
            message: "the limit of 30 s was reached".to_owned(),
        }),
        error: Some(v1::ExecutionError {
            name: "KeyError".to_owned(),
            message: "'missing'".to_owned(),
            line: Some(7),
            traceback: "Traceback".to_owned(),
        }),
        hint: Some("read fewer rows".to_owned()),
        results: vec![v1::RichResult {
            main: true,
            display_id: Some("d1".to_owned()),
            data: vec![
                datum("text/plain", Content::Text("<Figure>".to_owned())),
                datum("image/png", Content::Binary(vec![0x89, b'P', b'N', b'G'].into())),
            ],
            chart: Some(chart()),
        }],
        inputs: vec![v1::InputFile {
            name: "Q3 sales (1).csv".to_owned(),
            path: "q3_sales_1.csv".to_owned(),
            size_bytes: 1,
            sha256: "11".repeat(32),
        }],
        missing_outputs: vec!["summary.json".to_owned()],
        output: Some(v1::OutputSummary {
            stdout: stream_summary(18, 0),
            stderr: stream_summary(9, 6),
        }),
        limits: Some(v1::EffectiveLimits {
            timeout: span(30_000),
            memory_bytes: 536_870_912,
            cpus: 1.0,
            pids: 128,
            disk_bytes: 536_870_912,
            output_bytes: 8_388_608,
        }),
        clamped: vec![v1::ClampedLimit {
            limit: "cpus".to_owned(),
            requested: 2.5,
            applied: 1.0,
        }],
        limits_hit: vec![v1::CauseKind::Memory.into()],
        usage: Some(v1::Usage {
            cpu_time: span(812),
            memory_peak_bytes: Some(96_468_992),
            processes_peak: Some(3),
            disk_bytes: 4096,
        }),
        timing: Some(v1::Timing {
            queued: span(2),
            startup: span(3),
            collect: span(1),
        }),
        create_time: time(123_456_789),
        end_time: time(0),
        session: Some(v1::SessionSummary {
            session_id: "s1".to_owned(),
            kept: true,
            context_id: Some("c1".to_owned()),
            has_state: true,
            start: v1::StartKind::Pool.into(),
            expire_time: time(0),
            left: Some(v1::SessionLeft {
                memory_bytes: 1 << 20,
                disk_bytes: 4096,
                inodes: Some(7),
                processes: 100,
            }),
        }),
        policy: "data@0123".to_owned(),
        template: "data@4567".to_owned(),
        tenant: "default".to_owned(),
        user: "ada".to_owned(),
        labels: [("team".to_owned(), "sales".to_owned())].into(),
        enforced: Some(v1::Enforced {
            namespaces: vec!["user".to_owned(), "mount".to_owned()],
            cgroup: "v2".to_owned(),
            memory: true,
            cpu: true,
            pids: true,
            swap: true,
            io: true,
            workspace: "tmpfs".to_owned(),
            landlock_abi: 7,
            seccomp: "python@89ab".to_owned(),
            capabilities: "none".to_owned(),
            no_new_privs: true,
        }),
    }
}

#[test]
fn a_result_with_something_everywhere_is_written_whole() {
    let enforced = json!({"namespaces": ["user", "mount"], "cgroup": "v2", "memory": true, "cpu": true, "pids": true,
        "swap": true, "io": true, "workspace": "tmpfs",
        "landlock_abi": 7, "seccomp": "python@89ab", "capabilities": "none", "no_new_privs": true});
    let expected = json!({
        "status": "timeout", "stdout": "Loaded 12448 rows\n", "stderr": "a\u{fffd}b",
        "artifacts": [{"artifact_id": "a1", "path": "chart.png", "type": "image/png", "size_bytes": 84231,
            "sha256": "00".repeat(32), "change": "created", "class": "chart", "handling": "preview",
            "review": "not_needed", "flags": ["name_mismatch"], "details": {"width": 1200, "height": 800}}],
        "duration_ms": 30012,
        "execution_id": "e1", "request_id": "r1", "exit_code": 1, "signal": 9,
        "cause": {"kind": "wall_time", "limit": 30000, "used": 30012, "step": "exec",
            "message": "the limit of 30 s was reached"},
        "error": {"name": "KeyError", "message": "'missing'", "line": 7, "traceback": "Traceback"},
        "hint": "read fewer rows",
        "results": [{"main": true, "display_id": "d1", "data": {"text/plain": "<Figure>", "image/png": "iVBORw=="},
            "chart": {"type": "line", "points": [1, 0.5, null]}}],
        "inputs": [{"name": "Q3 sales (1).csv", "path": "q3_sales_1.csv", "size_bytes": 1, "sha256": "11".repeat(32)}],
        "missing_outputs": ["summary.json"],
        "output": {"stdout": {"bytes": 18, "dropped": 0, "truncated": false, "lossy": false},
            "stderr": {"bytes": 9, "dropped": 6, "truncated": true, "lossy": true}},
        "limits": {"timeout_ms": 30000, "memory_bytes": 536_870_912, "cpus": 1.0, "pids": 128,
            "disk_bytes": 536_870_912, "output_bytes": 8_388_608},
        "clamped": [{"limit": "cpus", "requested": 2.5, "applied": 1}], "limits_hit": ["memory"],
        "usage": {"cpu_ms": 812, "memory_peak_bytes": 96_468_992, "processes_peak": 3, "disk_bytes": 4096},
        "timing": {"queued_ms": 2, "startup_ms": 3, "collect_ms": 1},
        "create_time": "2026-01-01T00:00:00.123Z", "end_time": "2026-01-01T00:00:00Z",
        "session": {"session_id": "s1", "kept": true, "context_id": "c1", "has_state": true, "start": "pool",
            "expire_time": "2026-01-01T00:00:00Z",
            "left": {"memory_bytes": 1_048_576, "disk_bytes": 4096, "inodes": 7, "processes": 100}},
        "policy": "data@0123", "template": "data@4567", "tenant": "default", "user": "ada",
        "labels": {"team": "sales"},
        "enforced": enforced,
    });
    let document = ResultDocument::from_proto(&full());
    assert_eq!(serde_json::to_value(&document).unwrap(), expected);
    assert_eq!(serde_json::from_value::<ResultDocument>(expected).unwrap(), document);
}

#[test]
fn what_never_started_has_no_start_and_no_code() {
    let result = v1::ExecutionResult {
        status: v1::ExecutionStatus::Rejected.into(),
        ..Default::default()
    };
    let document = serde_json::to_value(ResultDocument::from_proto(&result)).unwrap();
    assert_eq!(document["status"], "rejected");
    assert_eq!(document["session"]["start"], Value::Null);
    assert_eq!(document["exit_code"], Value::Null);
    assert_eq!(document["usage"]["processes_peak"], Value::Null);
}

#[test]
fn a_status_of_tomorrow_is_unknown_and_not_a_wrong_one() {
    let result = v1::ExecutionResult {
        status: 4711,
        ..Default::default()
    };
    let document = serde_json::to_value(ResultDocument::from_proto(&result)).unwrap();
    assert_eq!(document["status"], "unknown");
}
