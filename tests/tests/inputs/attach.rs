//! Records in executions.

use brig_proto::v1::{ContextsCreateRequest, ExecutionSpec, ExecutionState, InputFile, Limits, SessionsCreateRequest};
use brig_tests::spec::{input, record, sh, small, with_limits};
use brig_tests::{Daemon, daemon, eventually, lanes, processes};

use super::{bytes, delete, get, hex, put, spec};

/// Prints the digest of a file.
fn digest_of(file: &str) -> ExecutionSpec {
    sh(&format!("sha256sum < {file} | cut -d ' ' -f 1"))
}

fn in_session(spec: ExecutionSpec) -> ExecutionSpec {
    ExecutionSpec {
        template: String::new(),
        ..spec
    }
}

fn keep(daemon: &Daemon, session: &str) {
    daemon.create(SessionsCreateRequest {
        session_id: session.to_owned(),
        template: "base".to_owned(),
        ..SessionsCreateRequest::default()
    });
}

#[test]
fn one_record_goes_into_several_sessions_at_once() {
    let daemon = daemon!();
    let bytes = bytes(3_000_000);
    let stored = put(&daemon, spec("shared"), &bytes).unwrap();
    assert_eq!(
        (stored.size_bytes, stored.sha256.as_str()),
        (3_000_000, hex(&bytes).as_str())
    );
    let sessions = ["a", "b", "c"];
    sessions.iter().for_each(|session| keep(&daemon, session));
    let given = InputFile {
        name: "shared.bin".to_owned(),
        path: "shared.bin".to_owned(),
        size_bytes: stored.size_bytes,
        sha256: stored.sha256.clone(),
    };
    // Each twice: what is there is replaced. And jobs of their own beside them.
    lanes(4, &["a", "b", "c", "", "", "a", "b", "c"], |&session| {
        let spec = ExecutionSpec {
            inputs: vec![record("", "shared")],
            ..digest_of("shared.bin")
        };
        let outcome = if session.is_empty() {
            daemon.run(spec)
        } else {
            daemon.execute(session, in_session(spec)).unwrap().finish()
        };
        let outcome = outcome.expect_success();
        assert_eq!(outcome.stdout().trim(), stored.sha256);
        assert_eq!(outcome.result.inputs, std::slice::from_ref(&given));
    });
}

#[test]
fn code_in_a_context_gets_records_too() {
    let daemon = daemon!();
    keep(&daemon, "kept");
    put(&daemon, spec("record"), b"abc").unwrap();
    let context = ContextsCreateRequest {
        session_id: "kept".to_owned(),
        ..ContextsCreateRequest::default()
    };
    let context = daemon.context(context).unwrap().context_id;
    let run = |source: &str, inputs| {
        let spec = ExecutionSpec {
            inputs,
            ..in_session(small(source))
        };
        let live = daemon.execute_in("kept", &context, spec).unwrap();
        live.finish().expect_success().stdout()
    };
    run("file = open('record.bin')", vec![record("", "record")]);
    delete(&daemon, "record").unwrap();
    assert_eq!(run("print(file.read())", Vec::new()), "abc\n");
}

#[test]
fn a_record_has_its_own_name_or_another_and_stands_beside_other_files() {
    let daemon = daemon!();
    let named = brig_proto::v1::InputSpec {
        name: "Q3 sales.csv".to_owned(),
        ..spec("sales")
    };
    put(&daemon, named, b"a,b\n").unwrap();
    let outcome = daemon.run(ExecutionSpec {
        inputs: vec![
            record("", "sales"),
            record("dir/other.csv", "sales"),
            input("q3_sales.csv", b"mine\n"),
        ],
        ..sh("cat q3_sales.csv q3_sales_2.csv other.csv")
    });
    let outcome = outcome.expect_success();
    assert_eq!(outcome.stdout(), "mine\na,b\na,b\n");
    let names: Vec<_> = outcome.result.inputs.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["Q3 sales.csv", "dir/other.csv", "q3_sales.csv"]);
}

#[test]
fn records_that_do_not_fit_or_are_not_there_are_refused_before_anything_runs() {
    let daemon = daemon!();
    put(&daemon, spec("large"), &vec![0; 2 << 20]).unwrap();
    let small = Limits {
        disk_bytes: Some(3 << 20),
        ..Limits::default()
    };
    let with = |ids: &[&str]| ExecutionSpec {
        inputs: ids.iter().map(|id| record("", id)).collect(),
        ..sh("ls")
    };
    let refused = daemon.refused(with_limits(small, with(&["large", "large"])));
    assert_eq!(
        (refused.reason.as_str(), refused.fields),
        ("TOO_LARGE", vec!["inputs[1]".to_owned()])
    );
    let refused = daemon.refused(with(&["large", "none"]));
    assert_eq!(refused.reason, "INPUT_NOT_FOUND");
    assert!(refused.message.contains("inputs[1].input_id"), "{}", refused.message);
    assert_eq!(daemon.refused(with(&["No Id"])).fields, ["inputs[0].input_id"]);
}

#[test]
fn a_record_that_goes_while_the_execution_waits_is_told() {
    let Some(daemon) = Daemon::start_configured("[limits]\nrunning = 1\n") else {
        return;
    };
    put(&daemon, spec("gone"), b"abc").unwrap();
    let mut first = daemon.begin(ExecutionSpec {
        execution_id: "first".to_owned(),
        inputs: vec![record("", "gone")],
        ..sh("cat gone.bin; echo up; sleep 600")
    });
    first.until_written("abcup\n");
    let waiting = ExecutionSpec {
        execution_id: "waiting".to_owned(),
        inputs: vec![record("", "gone")],
        ..sh("cat gone.bin")
    };
    let second = daemon.begin(waiting);
    eventually("it waits", *brig_tests::DEADLINE, || {
        match daemon.execution("waiting").state() {
            ExecutionState::Queued => Ok(()),
            other => Err(other),
        }
    });
    delete(&daemon, "gone").unwrap();
    assert_eq!(get(&daemon, "gone").unwrap_err().reason, "INPUT_NOT_FOUND");
    daemon.cancel("first");
    first.finish();
    let refused = second.refusal().unwrap();
    assert_eq!(refused.reason, "INPUT_NOT_FOUND");
    assert!(refused.message.contains("inputs[0].input_id"), "{}", refused.message);
}

#[test]
fn a_request_is_answered_as_before_though_its_record_is_gone() {
    let daemon = daemon!();
    put(&daemon, spec("once"), b"abc").unwrap();
    let spec = ExecutionSpec {
        request_id: "same".to_owned(),
        inputs: vec![record("", "once")],
        ..sh("cat once.bin")
    };
    let first = daemon.run(spec.clone()).expect_success();
    delete(&daemon, "once").unwrap();
    let again = daemon.run(spec.clone()).expect_success();
    assert_eq!(again.result.execution_id, first.result.execution_id);
    let other = ExecutionSpec {
        request_id: "other".to_owned(),
        ..spec
    };
    assert_eq!(daemon.refused(other).reason, "INPUT_NOT_FOUND");
}

#[test]
fn a_large_record_comes_in_and_goes_out_while_the_daemon_does_not_grow() {
    const SIZE: u32 = 64 << 20;
    let daemon = daemon!();
    let brigd = processes::process(daemon.pid());
    let small = bytes(4 << 20);
    put(&daemon, spec("small"), &small).unwrap();
    let attached = |id: &str| ExecutionSpec {
        inputs: vec![record("data", id)],
        ..digest_of("data")
    };
    daemon.run(attached("small")).expect_success();
    let before = brigd.memory("VmRSS");
    let large = bytes(SIZE);
    put(&daemon, spec("large"), &large).unwrap();
    let uploaded = brigd.memory("VmHWM");
    let outcome = daemon.run(attached("large")).expect_success();
    assert_eq!(outcome.stdout().trim(), hex(&large));
    let attached = brigd.memory("VmHWM");
    println!("{before} bytes before, at most {uploaded} behind the upload and {attached} behind the run");
    assert!(
        attached.saturating_sub(before) < u64::from(SIZE) / 4,
        "{before} {uploaded} {attached}"
    );
}
