//! What `brig run` says when nothing ran.

use brig_tests::{Brig, daemon, host};
use serde_json::json;

use crate::{folder, refusal, run, text};

#[test]
fn each_refusal_has_its_exit_code_and_is_one_document() {
    let daemon = daemon!();
    for (arguments, code, expected) in [
        (
            &["--policy", "dota", "-c", "1"][..],
            2,
            json!({"code": "invalid_argument", "reason": "unknown_policy", "field": "policy"}),
        ),
        (
            &["--expect", "../x", "-c", "1"],
            2,
            json!({"code": "invalid_argument", "reason": "invalid_path", "field": "expected_outputs[0].path"}),
        ),
        (
            &["--env", "LD_PRELOAD=x", "-c", "1"],
            77,
            json!({"code": "permission_denied", "reason": "policy_forbids", "field": "environment[\"LD_PRELOAD\"]"}),
        ),
    ] {
        let brig = run(&daemon, &[&["--json"], arguments].concat());
        let (exit, refused, message) = refusal(&brig);
        assert_eq!((exit, refused), (code, expected), "{message}");
        assert!(brig.stderr.starts_with("error: "), "{}", brig.stderr);
    }
}

#[test]
fn an_unknown_policy_or_template_lists_what_there_is() {
    let daemon = daemon!();
    let policy = run(&daemon, &["--policy", "dota", "-c", "1"]).expect(2);
    assert!(
        policy.stderr.contains("data, strict") && policy.stderr.contains("did you mean"),
        "{}",
        policy.stderr
    );
    assert!(policy.stdout.is_empty());
    let template = daemon.brig(&["run", "--template", "bose", "-c", "1"]).expect(2);
    assert!(
        template.stderr.contains("template") && template.stderr.contains("base"),
        "{}",
        template.stderr
    );
}

#[test]
fn a_wrong_command_line_is_two_and_one_document_if_that_was_asked_for() {
    if !host::can_run() {
        return;
    }
    for arguments in [
        &["run", "--timeout", "soon", "-c", "1"][..],
        &["run", "--memory", "12Q", "-c", "1"],
        &["run", "--timeout", "0", "-c", "1"],
        &["run", "--nonsense", "-c", "1"],
        &["run", "--env", "novalue", "-c", "1"],
        &["run", "/nonexistent/job.py"],
        &["run", "--input", "/nonexistent/data.csv", "-c", "1"],
        &["nonsense"],
    ] {
        let brig = Brig::alone(arguments).run();
        // What can be told wrong without a daemon is told before one is looked for; a zero is the daemon's to refuse.
        let expected = if arguments.contains(&"0") { [2, 69] } else { [2, 2] };
        assert!(
            expected.contains(&brig.code.unwrap()),
            "{arguments:?}: {:?} {}",
            brig.code,
            brig.stderr
        );
        assert!(!brig.stderr.is_empty() && brig.stdout.is_empty(), "{arguments:?}");
    }
    let json = Brig::alone(&["run", "--json", "--timeout", "soon", "-c", "1"]).run();
    assert_eq!(refusal(&json).0, 2);
}

#[test]
fn without_a_daemon_it_is_69_with_the_command_that_starts_one() {
    if !host::can_run() {
        return;
    }
    let brig = Brig::alone(&["run", "-c", "1"]).run().expect(69);
    assert!(
        brig.stderr.contains("no daemon at /nonexistent/brigd.sock"),
        "{}",
        brig.stderr
    );
    assert!(brig.stderr.contains("systemctl start brigd") && brig.stderr.contains("brig run --standalone"));
    let json = Brig::alone(&["run", "--json", "-c", "1"]).run();
    let (code, refused, _) = refusal(&json);
    assert_eq!(
        (code, refused),
        (69, json!({"code": "unavailable", "reason": null, "field": null}))
    );
}

#[test]
fn a_user_without_the_right_to_the_socket_is_told_so() {
    let daemon = daemon!();
    let brig = host::Places::find().program("brig");
    let mut command = std::process::Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(brig)
        .args(["run", "-c", "1"]);
    command.env("BRIG_ENDPOINT", format!("unix://{}", daemon.socket().display()));
    let output = command.output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(77),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("brig-clients"));
}

#[test]
fn a_private_daemon_with_a_broken_policy_is_a_matter_of_configuration() {
    if !host::can_run() {
        return;
    }
    let folder = folder();
    std::fs::write(folder.path().join("bad.toml"), "template = 3\n").unwrap();
    let arguments = ["run", "--standalone", "--policies", text(folder.path()), "-c", "1"];
    let brig = Brig::alone(&arguments).run().expect(78);
    assert!(brig.stderr.contains("bad.toml"), "{}", brig.stderr);
}

#[test]
fn paths_that_leave_the_working_directory_are_refused() {
    let daemon = daemon!();
    let folder = folder();
    let file = folder.path().join("x.csv");
    std::fs::write(&file, "x").unwrap();
    for name in ["../x.csv", "/etc/x", "a/../../x", ".."] {
        let input = format!("{}={name}", text(&file));
        let brig = run(&daemon, &["--json", "--input", &input, "-c", "1"]);
        let (code, refused, message) = refusal(&brig);
        assert_eq!(
            (code, &refused["reason"], &refused["field"]),
            (2, &json!("invalid_path"), &json!("inputs[0].name")),
            "{message}"
        );
    }
    for name in ["../x", "/etc/passwd", "a/../b"] {
        let brig = run(&daemon, &["--json", "--expect", name, "-c", "1"]);
        assert_eq!(refusal(&brig).1["field"], "expected_outputs[0].path");
    }
}

#[test]
fn too_much_code_and_too_large_inputs_are_refused_before_anything_runs() {
    let daemon = daemon!();
    let folder = folder();
    let script = folder.path().join("big.py");
    std::fs::write(&script, "#".repeat((1 << 20) + 1)).unwrap();
    let (code, refused, message) = refusal(&run(&daemon, &["--json", text(&script)]));
    assert_eq!((code, &refused["code"]), (2, &json!("invalid_argument")), "{message}");
    assert!(
        message.contains("1048576") || message.contains("1 MiB") || message.contains("1M"),
        "{message}"
    );
    let large = folder.path().join("large.bin");
    std::fs::File::create(&large).unwrap().set_len(3 << 20).unwrap();
    let brig = run(&daemon, &["--json", "--disk", "1M", "--input", text(&large), "-c", "1"]);
    let (code, refused, message) = refusal(&brig);
    assert_eq!((code, &refused["reason"]), (2, &json!("too_large")), "{message}");
}
