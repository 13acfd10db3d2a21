//! `brig run --standalone` with a program in brigd's place: that it is started, awaited, stopped, and what is left.
//!
//! Root only, as the option is; without root the refusal is what there is to see.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use brig_proto::v1::ExecutionStatus;

use crate::daemon::{Daemon, brig, finished};

/// Passes its socket on and serves until SIGTERM.
const SERVES: &str = r#"#!/bin/sh
echo "$@" > "$RECORD"
ln -s "$SOCKET" "$2/brigd.sock"
trap 'echo stopped >> "$RECORD"; exit 0' TERM
echo ready > "/proc/$$/fd/$4"
while :; do sleep 0.02; done
"#;

/// Says what is wrong, and ends.
const FAILS: &str = "#!/bin/sh\necho 'limits.queue: 0 is not accepted' >&2\nexit 78\n";

fn run(program: &str, daemon: &Daemon, place: &Path) -> Output {
    let brigd = place.join("brigd");
    // By a child: another test may be between fork and exec, and would hold it open for writing for a moment.
    let script = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let written = Command::new("sh")
        .args(["-c", script])
        .arg(&brigd)
        .arg(program)
        .status();
    assert!(written.unwrap().success());
    brig(&["run", "--standalone", "--images", "/images", "-c", "1"])
        .env("BRIG_PROGRAMS", place)
        .env("BRIG_IN_SCOPE", "1")
        .env("SOCKET", daemon.socket())
        .env("RECORD", place.join("record"))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_private_daemon_is_started_and_stopped_and_its_directory_removed() {
    let place = tempfile::tempdir().unwrap();
    let daemon = Daemon::playing(vec![finished(ExecutionStatus::Success)]);
    let output = run(SERVES, &daemon, place.path());
    if !rustix::process::geteuid().is_root() {
        assert_eq!(output.status.code(), Some(77));
        return;
    }
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let record = std::fs::read_to_string(place.path().join("record")).unwrap();
    let lines: Vec<&str> = record.lines().collect();
    let words: Vec<&str> = lines[0].split(' ').collect();
    assert_eq!(
        (words[0], words[2], words[4], words[5], words[6]),
        ("--standalone", "--ready-fd", "--tied", "--images", "/images")
    );
    assert_eq!(lines[1], "stopped");
    assert!(!Path::new(words[1]).exists());
}

#[test]
fn a_private_daemon_that_does_not_start_says_why() {
    let place = tempfile::tempdir().unwrap();
    let daemon = Daemon::playing(vec![]);
    let output = run(FAILS, &daemon, place.path());
    if !rustix::process::geteuid().is_root() {
        assert_eq!(output.status.code(), Some(77));
        return;
    }
    assert_eq!(output.status.code(), Some(78));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.ends_with("limits.queue: 0 is not accepted\n"), "{said}");
}
