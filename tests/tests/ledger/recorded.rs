//! What was asked and what came of it is on disk, in the ledger's own file.

use std::collections::BTreeMap;
use std::time::Duration;

use brig_proto::v1::{ExecutionSpec, Origin};
use brig_tests::spec::{code, command, input, sh, small, timeout};
use brig_tests::{daemon, eventually, slow};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{entries, open};

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn an_execution_is_recorded_before_it_runs() {
    let daemon = daemon!();
    let source = "print('up')\nimport time\ntime.sleep(60)";
    let mut live = daemon.begin(ExecutionSpec {
        execution_id: "early".to_owned(),
        session_id: "box".to_owned(),
        request_id: "ask".to_owned(),
        labels: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
        origin: Some(Origin {
            user: "ann".to_owned(),
            conversation: "talk".to_owned(),
            request: "r".to_owned(),
        }),
        inputs: vec![input("in put.csv", b"a\n")],
        ..small(source)
    });
    live.until_written("up\n");
    // It is there before the code is, and an entry a moment later.
    let recorded = "SELECT 1 FROM promises WHERE data ->> 'execution' = 'early'
                    UNION ALL SELECT 1 FROM entries WHERE execution = 'early'";
    assert!(open(&daemon).prepare(recorded).unwrap().exists([]).unwrap());
    eventually("the accept is an entry", Duration::from_secs(10) * slow(), || {
        (entries(&daemon, "accept").len() == 1).then_some(()).ok_or("it is not")
    });
    let accepted = entries(&daemon, "accept");
    assert_eq!((accepted.len(), entries(&daemon, "finish").len()), (1, 0));
    let entry = &accepted[0];
    assert_eq!(entry["execution"], "early");
    assert_eq!(
        (&entry["session"], &entry["request"], &entry["tenant"]),
        (&json!("box"), &json!("ask"), &json!("default"))
    );
    assert_eq!(
        entry["origin"],
        json!({"user": "ann", "conversation": "talk", "request": "r"})
    );
    assert_eq!(entry["labels"], json!({"a": "b"}));
    assert_eq!(
        (&entry["policy"], entry["policy_hash"].as_str().unwrap().len()),
        (&json!("data"), 64)
    );
    assert_eq!(
        entry["work"],
        json!({"kind": "code", "body": {"sha256": sha256(source), "bytes": source.len()}})
    );
    let file = json!({"name": "in put.csv", "path": "in_put.csv", "size_bytes": 2, "sha256": sha256("a\n")});
    assert_eq!(entry["inputs"], json!([file]));
    let body: Vec<u8> = open(&daemon)
        .query_row(
            "SELECT content FROM bodies WHERE execution = 'early' AND part = 'code'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(body, source.as_bytes());
}

#[test]
fn the_end_is_recorded_before_it_is_told() {
    let daemon = daemon!();
    let outcome = daemon.run(ExecutionSpec {
        execution_id: "ended".to_owned(),
        ..sh("echo out; echo err >&2; echo x >made.csv; exit 4")
    });
    let finished = entries(&daemon, "finish");
    assert_eq!(finished.len(), 1);
    let entry = &finished[0];
    assert_eq!(
        (&entry["execution"], &entry["status"], &entry["exit_code"]),
        (&json!("ended"), &json!("error"), &json!(4))
    );
    assert_eq!((&entry["cause"], &entry["signal"]), (&Value::Null, &Value::Null));
    assert_eq!((&entry["stdout_bytes"], &entry["stderr_bytes"]), (&json!(4), &json!(4)));
    assert_eq!(entry["stdout"], json!({"sha256": sha256("out\n"), "bytes": 4}));
    let artifact = &outcome.result.artifacts[0];
    assert_eq!(
        entry["artifacts"],
        json!([{"artifact": artifact.artifact_id, "path": "made.csv", "sha256": sha256("x\n"), "size_bytes": 2,
            "class": "data", "handling": "download", "review": "not_needed"}])
    );
    let row: (String, i64, i64) = open(&daemon)
        .query_row(
            "SELECT status, accept_number, finish_number FROM executions WHERE execution = 'ended'",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .unwrap();
    assert_eq!(row, ("error".to_owned(), 1, 2));
}

#[test]
fn causes_and_limits_are_recorded_as_they_were_told() {
    let daemon = daemon!();
    daemon.run(ExecutionSpec {
        limits: timeout(200),
        ..sh("sleep 60")
    });
    daemon.run(sh("kill -9 $$"));
    let entries = entries(&daemon, "finish");
    let told: Vec<_> = entries
        .iter()
        .map(|entry| (entry["status"].clone(), entry["cause"].clone()))
        .collect();
    assert_eq!(
        told,
        [
            (json!("timeout"), json!("wall_time")),
            (json!("killed"), json!("signal"))
        ]
    );
    assert_eq!(entries[0]["limits_hit"], json!(["wall_time"]));
}

#[test]
fn refused_requests_are_recorded_with_reason_and_field() {
    let daemon = daemon!();
    daemon.refused(ExecutionSpec {
        policy: "dota".to_owned(),
        request_id: "bad1".to_owned(),
        ..code("1")
    });
    daemon.refused(ExecutionSpec {
        environment: BTreeMap::from([("LD_PRELOAD".to_owned(), "x".to_owned())]),
        ..code("1")
    });
    let refused = entries(&daemon, "refused");
    let told: Vec<_> = refused
        .iter()
        .map(|entry| (entry["reason"].clone(), entry["field"].as_str().unwrap()))
        .collect();
    assert_eq!(
        told,
        [
            (json!("unknown_policy"), "policy"),
            (json!("policy_forbids"), "environment[\"LD_PRELOAD\"]")
        ]
    );
    assert_eq!(
        (&refused[0]["policy"], &refused[0]["request"]),
        (&json!("dota"), &json!("bad1"))
    );
    assert_eq!(entries(&daemon, "accept").len(), 0);
}

#[test]
fn what_could_not_start_has_an_end_too() {
    let daemon = daemon!();
    daemon.refused(command(&["no-such-program"]));
    let finished = entries(&daemon, "finish");
    assert_eq!((finished.len(), &finished[0]["status"]), (1, &json!("failed")));
    assert_eq!(finished[0]["start_time_ms"], Value::Null);
}

#[test]
fn hostile_text_stays_one_entry() {
    let daemon = daemon!();
    let evil = "\"}\n{\"kind\":\"accept\"}\u{1b}[2J\u{2028}'; DROP TABLE entries; --";
    daemon.run(ExecutionSpec {
        labels: BTreeMap::from([("k".to_owned(), evil.to_owned())]),
        origin: Some(Origin {
            user: evil.to_owned(),
            ..Origin::default()
        }),
        ..sh("true")
    });
    let accepted = entries(&daemon, "accept");
    assert_eq!((accepted.len(), accepted[0]["labels"]["k"].as_str()), (1, Some(evil)));
    assert_eq!(accepted[0]["origin"]["user"], evil);
}

#[test]
fn the_ledger_is_nobody_elses() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let daemon = daemon!();
    let metadata = std::fs::metadata(daemon.directory().join("ledger.db")).unwrap();
    assert_eq!(
        metadata.permissions().mode() & 0o077,
        0,
        "{:o}",
        metadata.permissions().mode()
    );
    assert_ne!(metadata.uid(), 0, "brigd is not root when it makes it");
}
