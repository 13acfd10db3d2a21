//! `brig run` against a daemon with scripted answers: what is shown, saved and sent, and the exit codes.

use std::collections::HashMap;
use std::path::Path;

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::{
    ExecutionResult, ExecutionStatus, OutputStream, ReviewState, RichDatum, RichResult, WantArtifacts, rich_datum,
};
use rustix::process::Signal;
use serde_json::Value;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::daemon::{Cut, Daemon, Script, Step, artifact, brig, chunk, ended, finished, step, wrote};
use crate::process::{await_output, code, eventually, signal, spawn, stderr};

#[test]
fn output_is_exact_and_the_summary_goes_to_stderr() {
    let daemon = Daemon::playing(vec![
        wrote(OutputStream::Stdout, b"\x1b[31m\xff\r\n"),
        wrote(OutputStream::Stderr, b"warned\n"),
        finished(ExecutionStatus::Success),
    ]);
    let output = daemon.run(&["run", "-c", "1"]);
    assert_eq!((code(&output), output.stdout.as_slice()), (0, &b"\x1b[31m\xff\r\n"[..]));
    assert_eq!(stderr(&output), "warned\nsuccess in 0 ms\n");
}

#[test]
fn quiet_leaves_the_output_of_the_job_alone() {
    let daemon = Daemon::playing(vec![
        wrote(OutputStream::Stderr, b"warned\n"),
        finished(ExecutionStatus::Success),
    ]);
    assert_eq!(stderr(&daemon.run(&["run", "-q", "-c", "1"])), "warned\n");
}

#[test]
fn the_value_of_the_last_expression_is_shown() {
    let text = RichDatum {
        r#type: "text/plain".into(),
        content: Some(rich_datum::Content::Text("45".into())),
    };
    let result = RichResult {
        main: true,
        data: vec![text],
        ..Default::default()
    };
    let daemon = Daemon::playing(vec![step(Event::Result(result)), finished(ExecutionStatus::Success)]);
    assert_eq!(daemon.run(&["run", "-c", "sum(range(10))"]).stdout, b"45\n");
}

#[test]
fn json_is_exactly_one_document() {
    let daemon = Daemon::playing(vec![
        wrote(OutputStream::Stdout, b"not here\n"),
        wrote(OutputStream::Stderr, b"nor here\n"),
        finished(ExecutionStatus::Timeout),
    ]);
    let output = daemon.run(&["run", "--json", "-c", "1"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((code(&output), document["status"].as_str()), (124, Some("timeout")));
    assert_eq!(stderr(&output), "");
}

#[test]
fn the_result_goes_to_a_file_beside_the_text_for_people() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("result.json");
    let daemon = Daemon::playing(vec![
        wrote(OutputStream::Stdout, b"a\n"),
        finished(ExecutionStatus::Success),
    ]);
    let output = daemon.run(&["run", "--result", file.to_str().unwrap(), "-c", "1"]);
    assert_eq!((code(&output), output.stdout.as_slice()), (0, &b"a\n"[..]));
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(document["status"], "success");
}

#[test]
fn a_result_file_that_cannot_be_written_is_refused_before_anything_runs() {
    let daemon = Daemon::playing(vec![finished(ExecutionStatus::Success)]);
    let output = daemon.run(&["run", "--result", "/nonexistent/result.json", "-c", "1"]);
    assert_eq!(code(&output), 2);
    assert_eq!(
        stderr(&output),
        "error: result: /nonexistent/result.json: No such file or directory (os error 2)\n"
    );
}

#[test]
fn jsonl_is_one_object_per_event_and_ends_with_the_result() {
    let daemon = Daemon::playing(vec![
        wrote(OutputStream::Stdout, b"a\n"),
        finished(ExecutionStatus::Success),
    ]);
    let output = daemon.run(&["run", "-o", "jsonl", "-c", "1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["accepted", "started", "output", "finished"]);
    assert_eq!(
        (&events[2]["text"], &events[3]["result"]["status"]),
        (&"a\n".into(), &"success".into())
    );
}

#[test]
fn a_refusal_names_the_field_and_nothing_else_is_on_stdout() {
    let mut details = ErrorDetails::with_error_info("UNKNOWN_POLICY", "brig", HashMap::new());
    details.add_bad_request_violation("policy", "\"dota\" does not exist; there are: data, strict");
    let daemon = Daemon::refusing(Status::with_error_details(Code::InvalidArgument, "refused", details));
    let text = daemon.run(&["run", "--policy", "dota", "-c", "1"]);
    assert_eq!(code(&text), 2);
    assert_eq!(
        stderr(&text),
        "error: policy: \"dota\" does not exist; there are: data, strict\n"
    );
    assert!(text.stdout.is_empty());
    let json: Value = serde_json::from_slice(&daemon.run(&["run", "--json", "-c", "1"]).stdout).unwrap();
    assert_eq!(json["status"], Value::Null);
    assert_eq!(
        (&json["refused"]["reason"], &json["refused"]["field"]),
        (&"unknown_policy".into(), &"policy".into())
    );
}

#[test]
fn no_daemon_is_69_and_says_how_to_start_one() {
    let output = brig(&["run", "-c", "1"])
        .env("BRIG_ENDPOINT", "unix:///nonexistent/x.sock")
        .output()
        .unwrap();
    assert_eq!(code(&output), 69);
    assert!(
        stderr(&output).contains("hint: start it: systemctl start brigd"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn options_become_the_request() {
    let daemon = Daemon::playing(vec![finished(ExecutionStatus::Success)]);
    let arguments = "run -q --policy strict --template base --timeout 1500ms --memory 256M --cpus 0.5 --disk 1G --pids 9 \
                     --max-output 64K --env TZ=UTC --user ann --label a=b=c --expect x.png --merge-stderr -- ls -l";
    assert_eq!(code(&daemon.run(&arguments.split_whitespace().collect::<Vec<_>>())), 0);
    let spec = daemon.asked().spec().clone();
    let limits = spec.limits.unwrap();
    assert_eq!(
        limits.timeout,
        Some(prost_types::Duration {
            seconds: 1,
            nanos: 500_000_000
        })
    );
    assert_eq!(
        (limits.memory_bytes, limits.disk_bytes),
        (Some(256 << 20), Some(1 << 30))
    );
    assert_eq!(
        (limits.cpus, limits.pids, limits.output_bytes),
        (Some(0.5), Some(9), Some(64 << 10))
    );
    assert_eq!(
        (spec.policy.as_str(), spec.template.as_str(), spec.merge_stderr),
        ("strict", "base", true)
    );
    assert_eq!(
        (spec.environment["TZ"].as_str(), spec.labels["a"].as_str()),
        ("UTC", "b=c")
    );
    assert_eq!(
        (
            spec.origin.unwrap().user.as_str(),
            spec.expected_outputs[0].path.as_str()
        ),
        ("ann", "x.png")
    );
    assert_eq!(spec.want_artifacts, i32::from(WantArtifacts::None));
    let Some(Work::Command(command)) = spec.work else {
        panic!("{:?}", spec.work)
    };
    assert_eq!(command.argv, ["ls", "-l"]);
}

#[test]
fn what_is_not_given_is_left_to_the_policy() {
    let daemon = Daemon::playing(vec![finished(ExecutionStatus::Success)]);
    daemon.run(&["run", "-q", "-c", "1"]);
    assert_eq!(daemon.asked().spec().limits, Some(brig_proto::v1::Limits::default()));
}

#[test]
fn inputs_are_sent_in_chunks_and_stdin_whole() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("big"), vec![7; 600 * 1024]).unwrap();
    std::fs::write(directory.path().join("in.txt"), "line\n").unwrap();
    let daemon = Daemon::playing(vec![finished(ExecutionStatus::Success)]);
    let mut command = daemon.brig(&["run", "-q", "--input", "big=data.bin", "--stdin", "in.txt", "-c", "1"]);
    assert_eq!(code(&command.current_dir(directory.path()).output().unwrap()), 0);
    let asked = daemon.asked();
    let spec = asked.spec();
    assert_eq!(
        (spec.inputs[0].name.as_str(), &spec.stdin[..]),
        ("data.bin", &b"line\n"[..])
    );
    let chunks: Vec<_> = asked
        .chunks
        .iter()
        .map(|chunk| (chunk.offset, chunk.data.len()))
        .collect();
    assert_eq!(chunks, [(0, 262_144), (262_144, 262_144), (524_288, 90_112)]);
}

#[test]
fn artifacts_are_saved_and_those_that_wait_for_review_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let (chart, script) = (
        artifact("a1", "plots/x.png", ReviewState::NotNeeded),
        artifact("a2", "run.sh", ReviewState::Pending),
    );
    let result = ExecutionResult {
        artifacts: vec![chart.clone(), script.clone()],
        ..ended(ExecutionStatus::Success)
    };
    let daemon = Daemon::playing(vec![
        step(Event::Artifact(chart)),
        chunk("a1", 0, b"hel", false),
        chunk("a1", 3, b"lo", true),
        step(Event::Artifact(script)),
        step(Event::Finished(result)),
    ]);
    let output = daemon
        .brig(&["run", "--out", "out", "-c", "1"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert_eq!(code(&output), 0);
    assert_eq!(
        std::fs::read(directory.path().join("out/plots/x.png")).unwrap(),
        b"hello"
    );
    let shown = stderr(&output);
    assert!(shown.lines().any(|line| line.ends_with("out/plots/x.png")), "{shown}");
    assert!(
        shown
            .lines()
            .any(|line| line.starts_with("run.sh") && line.ends_with("pending review")),
        "{shown}"
    );
    assert_eq!(daemon.asked().spec().want_artifacts, i32::from(WantArtifacts::Inline));
}

#[test]
fn an_artifact_that_would_lie_elsewhere_or_is_incomplete_is_not_saved_and_not_a_success() {
    let directory = tempfile::tempdir().unwrap();
    let (outside, half) = (
        artifact("a1", "../x", ReviewState::NotNeeded),
        artifact("a2", "half", ReviewState::NotNeeded),
    );
    let result = ExecutionResult {
        artifacts: vec![outside.clone(), half.clone()],
        ..ended(ExecutionStatus::Success)
    };
    let daemon = Daemon::playing(vec![
        step(Event::Artifact(outside)),
        chunk("a1", 0, b"hello", true),
        step(Event::Artifact(half)),
        chunk("a2", 0, b"hel", false),
        step(Event::Finished(result)),
    ]);
    let output = daemon
        .brig(&["run", "--out", "out", "-c", "1"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert_eq!(code(&output), 70);
    assert!(
        stderr(&output).contains("not saved: path \"../x\" of an artifact is refused"),
        "{}",
        stderr(&output)
    );
    assert!(!directory.path().join("x").exists());
    assert_eq!(std::fs::read_dir(directory.path().join("out")).unwrap().count(), 0);
}

#[test]
fn a_missing_output_is_3_only_if_it_was_required() {
    let result = ExecutionResult {
        missing_outputs: vec!["x.png".into()],
        ..ended(ExecutionStatus::Success)
    };
    let daemon = Daemon::playing(vec![step(Event::Finished(result))]);
    let lenient = daemon.run(&["run", "--expect", "x.png", "-c", "1"]);
    assert_eq!((code(&lenient), stderr(&lenient).contains("missing: x.png")), (0, true));
    assert_eq!(
        code(&daemon.run(&["run", "--expect", "x.png", "--require-outputs", "-c", "1"])),
        3
    );
}

#[test]
fn ctrl_c_cancels_and_waits_for_the_end() {
    let daemon = Daemon::playing(vec![
        wrote(OutputStream::Stdout, b"."),
        Step::AwaitCancel,
        wrote(OutputStream::Stdout, b"partial output\n"),
        finished(ExecutionStatus::Cancelled),
    ]);
    let mut child = spawn(&mut daemon.brig(&["run", "-c", "1"]));
    await_output(&mut child);
    signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (code(&output), output.stdout.as_slice()),
        (130, &b"partial output\n"[..])
    );
    assert_eq!(daemon.asked().cancelled, ["e1"]);
}

#[test]
fn the_second_ctrl_c_leaves_at_once() {
    let daemon = Daemon::playing(vec![wrote(OutputStream::Stdout, b"."), Step::Hang]);
    let mut child = spawn(&mut daemon.brig(&["run", "-c", "1"]));
    await_output(&mut child);
    signal(&child, Signal::INT);
    eventually("the first one cancels", || !daemon.asked().cancelled.is_empty());
    assert!(child.try_wait().unwrap().is_none(), "the first one waits");
    signal(&child, Signal::INT);
    assert_eq!(code(&child.wait_with_output().unwrap()), 130);
}

#[test]
fn a_reader_that_goes_away_cancels_the_job() {
    let steps = (0..64).map(|_| wrote(OutputStream::Stdout, &[b'y'; 8192]));
    let daemon = Daemon::playing(
        steps
            .chain([Step::AwaitCancel, finished(ExecutionStatus::Cancelled)])
            .collect(),
    );
    let mut child = spawn(&mut daemon.brig(&["run", "-q", "-c", "1"]));
    await_output(&mut child);
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(daemon.asked().cancelled, ["e1"]);
}

#[test]
fn a_connection_that_breaks_and_is_not_to_be_mended_is_70() {
    let daemon = Daemon::start(Script {
        steps: vec![finished(ExecutionStatus::Success)],
        cuts: vec![Cut::Broken(2)],
        ..Script::default()
    });
    let mut command = daemon.brig(&["run", "-c", "1"]);
    let output = command.env("BRIG_RECONNECT", "0").output().unwrap();
    assert_eq!(code(&output), 70);
    assert_eq!(
        stderr(&output),
        "error: the connection to the daemon broke after the start of the job: gone\n"
    );
    assert!(daemon.asked().attached.is_empty());
}

#[test]
fn a_result_that_cannot_be_written_is_no_success() {
    let daemon = Daemon::playing(vec![finished(ExecutionStatus::Success)]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(
        daemon
            .brig(&["run", "--json", "-c", "1"])
            .stdout(full)
            .status()
            .unwrap()
            .code(),
        Some(70)
    );
}

#[test]
fn a_line_that_cannot_be_read_is_2() {
    for arguments in [
        &["run"][..],
        &["run", "--timeout", "soon", "-c", "1"],
        &["run", "/nonexistent.py"],
        &["walk"],
    ] {
        assert_eq!(code(&brig(arguments).output().unwrap()), 2, "{arguments:?}");
    }
    assert!(!Path::new("/nonexistent.py").exists());
}
