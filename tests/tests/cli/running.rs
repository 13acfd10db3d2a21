//! `brig run`: what it shows, and how it exits.

use brig_tests::document::violations;
use brig_tests::{Brig, DEADLINE, Daemon, daemon, processes};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{SMALL, folder, run, schema, text};

/// Waits until the job has come to its `sleep`.
fn await_sleep(daemon: &Daemon) {
    processes::await_named(daemon.pid(), "sleep", 1, *DEADLINE);
}

#[test]
fn a_job_speaks_on_stdout_and_brig_on_stderr() {
    let daemon = daemon!();
    let brig = run(
        &daemon,
        &["-c", "import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7"],
    )
    .expect(0);
    assert_eq!(brig.text(), "out\n42\n");
    assert!(
        brig.stderr.starts_with("err\n") && brig.stderr.contains("success in "),
        "{}",
        brig.stderr
    );
    let quiet = run(&daemon, &["-q", "-c", "print('out')"]).expect(0);
    assert_eq!((quiet.text().as_str(), quiet.stderr.as_str()), ("out\n", ""));
}

#[test]
fn nothing_is_coloured_in_a_pipe_and_guest_bytes_are_exact() {
    let daemon = daemon!();
    let brig = run(
        &daemon,
        &[
            "-c",
            "import os\nos.write(1, b'\\x1b[31mred\\xff\\0\\r\\n')\nraise ValueError('\\x1b[2J')",
        ],
    )
    .expect(1);
    assert_eq!(brig.stdout, b"\x1b[31mred\xff\0\r\n");
    let own: Vec<&str> = brig
        .stderr
        .lines()
        .filter(|line| !line.contains("ValueError"))
        .collect();
    assert!(!own.join("").contains('\u{1b}'), "{own:?}");
}

#[test]
fn scripts_files_and_standard_input_run_with_their_arguments() {
    let daemon = daemon!();
    let folder = folder();
    let script = folder.path().join("job.py");
    std::fs::write(&script, "import sys\nprint(sys.argv)").unwrap();
    let file = run(&daemon, &["-q", text(&script), "a", "--json"]).expect(0);
    assert_eq!(file.text(), "['job.py', 'a', '--json']\n");
    let inline = run(
        &daemon,
        &["-q", "-c", "import sys; print(sys.argv[1:])", "--", "-x", "y"],
    )
    .expect(0);
    assert_eq!(inline.text(), "['-x', 'y']\n");
    let words = [&SMALL[..], &["-q", "-"]].concat();
    let piped = Brig::command(&daemon.socket(), &words)
        .stdin(b"print('from stdin')")
        .run()
        .expect(0);
    assert_eq!(piped.text(), "from stdin\n");
    let program = run(&daemon, &["-q", "--", "sh", "-c", "echo $0 $1", "x", "y z"]).expect(0);
    assert_eq!(program.text(), "x y z\n");
    let words = [&SMALL[..], &["-q", "--stdin", "-", "--", "wc", "-c"]].concat();
    let counted = Brig::command(&daemon.socket(), &words)
        .stdin(&[b'x'; 70_000])
        .run()
        .expect(0);
    assert_eq!(counted.text(), "70000\n");
}

#[test]
fn each_end_has_its_exit_code() {
    let daemon = daemon!();
    for (arguments, code) in [
        (&["-c", "pass"][..], 0),
        (&["-c", "import sys; sys.exit(0)"], 0),
        (&["-c", "import sys; sys.exit(5)"], 1),
        (&["-c", "1 / 0"], 1),
        (&["--", "sh", "-c", "exit 77"], 1),
        (&["--", "sh", "-c", "kill -9 $$"], 1),
        (&["--expect", "no.csv", "-c", "pass"], 0),
        (&["--expect", "no.csv", "--require-outputs", "-c", "pass"], 3),
        (&["--expect", "no.csv", "--require-outputs", "-c", "1 / 0"], 1),
        (&["--timeout", "300ms", "-c", "while True: pass"], 124),
        (
            &["--memory", "48M", "--disk", "1M", "-c", "x = bytearray(300 << 20)"],
            137,
        ),
    ] {
        run(&daemon, arguments).expect(code);
    }
}

#[test]
fn the_json_document_is_as_its_schema_says_for_every_kind_of_end() {
    let daemon = daemon!();
    let schema = schema("result");
    for (arguments, status) in [
        (&["-c", "open('a.csv', 'w').write('a\\n1\\n')\n7"][..], "success"),
        (&["-c", "1 / 0"], "error"),
        (&["--timeout", "300ms", "-c", "while True: pass"], "timeout"),
        (
            &["--memory", "48M", "--disk", "1M", "-c", "x = bytearray(300 << 20)"],
            "out_of_memory",
        ),
        (&["--", "sh", "-c", "printf '\\377'; kill -9 $$"], "killed"),
        (
            &["--timeout", "9h", "--expect", "x", "--label", "a=b", "-c", "pass"],
            "success",
        ),
    ] {
        let document = run(&daemon, &[&["--json"], arguments].concat()).json();
        assert_eq!(document["status"], status);
        assert_eq!(violations(&schema, &document), Vec::<String>::new(), "{arguments:?}");
    }
}

#[test]
fn json_lines_tell_each_event_and_end_with_the_result() {
    let daemon = daemon!();
    let brig = run(&daemon, &["-o", "jsonl", "-c", "print('x')"]).expect(0);
    let lines: Vec<Value> = brig
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names: Vec<&str> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["accepted", "started", "output", "finished"]);
    assert_eq!(lines[3]["result"]["status"], "success");
}

#[test]
fn control_c_cancels_the_job_and_shows_what_it_wrote() {
    let daemon = daemon!();
    let words = [&SMALL[..], &["--json", "--", "sh", "-c", "echo up; sleep 60"]].concat();
    let child = Brig::command(&daemon.socket(), &words).spawn();
    await_sleep(&daemon);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), &document["status"], &document["stdout"]),
        (Some(130), &json!("cancelled"), &json!("up\n"))
    );
}

#[test]
fn a_daemon_that_dies_mid_run_is_told_as_lost() {
    let mut daemon = daemon!();
    let words = [&SMALL[..], &["--", "sh", "-c", "echo up; sleep 60"]].concat();
    let mut line = Brig::command(&daemon.socket(), &words);
    // Nobody starts it again.
    line.command.env("BRIG_RECONNECT", "0");
    let child = line.spawn();
    await_sleep(&daemon);
    daemon.kill();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(70),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_closed_pipe_behind_brig_does_not_upset_it() {
    let daemon = daemon!();
    let words = [&SMALL[..], &["--", "sh", "-c", "yes | head -c 3000000"]].concat();
    let mut child = Brig::command(&daemon.socket(), &words).spawn();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
}
