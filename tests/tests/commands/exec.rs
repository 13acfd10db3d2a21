//! `brig exec` and `brig execution attach`, at a terminal and in a pipe.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use brig_tests::pty::Pty;
use brig_tests::{Brig, Daemon, daemon};
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};

use super::session;

fn brig(daemon: &Daemon, line: &[&str]) -> Command {
    Brig::command(&daemon.socket(), line).command
}

fn at_pty(daemon: &Daemon, line: &[&str]) -> Pty {
    Pty::start(&brig(daemon, line), 91, 33)
}

#[test]
fn a_shell_at_a_terminal_is_like_one_at_home() {
    let daemon = daemon!();
    session(&daemon, "s1");
    let mut pty = at_pty(
        &daemon,
        &[
            "exec", "-it", "-e", "TZ=UTC", "-w", "/tmp", "s1", "--", "bash", "--norc",
        ],
    );
    pty.expect("$ ");
    assert!(!pty.is_cooked());
    pty.keys("stty size; pwd; echo $TERM\n");
    pty.expect("33 91\r\n/tmp\r\nxterm\r\n");
    pty.resize(100, 40);
    pty.keys("until [ \"$(stty size)\" = '40 100' ]; do sleep 0.1; done; echo fi''ts\n");
    pty.expect("fits\r\n");
    // Ctrl-C goes to the program.
    // What a program writes says that the shell has given it the terminal.
    pty.keys("echo go''es; cat\n");
    pty.expect("goes\r\n");
    pty.keys("echoed\n");
    pty.expect("echoed\r\nechoed\r\n");
    pty.keys("\x03");
    pty.expect("^C");
    pty.expect("$ ");
    pty.keys("exit 42\n");
    assert_eq!(pty.end().code(), Some(42));
    assert!(pty.is_cooked(), "{:?}", pty.shown());
}

#[test]
fn what_is_left_runs_on_and_can_be_come_back_to() {
    let daemon = daemon!();
    session(&daemon, "s1");
    let mut pty = at_pty(&daemon, &["exec", "-it", "s1", "--", "python3", "-i", "-q"]);
    pty.expect(">>> ");
    pty.keys("word = 'kept'\n");
    pty.expect(">>> ");
    // Ctrl-P alone is the program's: it shows the last line again.
    pty.keys("\x10\x01print(\x05)\x10\x11");
    pty.expect("left it running; come back: brig execution attach ");
    assert_eq!(pty.end().code(), Some(0));
    assert!(pty.is_cooked());
    let listed = daemon
        .brig(&["execution", "list", "--session", "s1", "--json"])
        .expect(0)
        .json();
    assert_eq!(listed["executions"][0]["state"], "running");
    let id = listed["executions"][0]["execution_id"].as_str().unwrap().to_owned();
    assert_eq!(
        daemon
            .brig(&["execution", "list", "--session", "other", "--json"])
            .expect(0)
            .json()["executions"],
        serde_json::json!([])
    );
    let mut back = Pty::start(&brig(&daemon, &["execution", "attach", &id]), 70, 20);
    back.expect(">>> ");
    back.keys("\x15print(word, __import__('os').get_terminal_size().columns)\n");
    back.expect("\nkept 70\r\n");
    back.keys("exit()\n");
    assert_eq!(back.end().code(), Some(0));
    assert!(back.is_cooked());
}

#[test]
fn the_terminal_is_as_it_was_however_the_command_ends() {
    let daemon = daemon!();
    session(&daemon, "s1");
    for (signal, code) in [(Signal::HUP, 129), (Signal::QUIT, 131)] {
        let mut pty = at_pty(
            &daemon,
            &["exec", "-it", "s1", "--", "sh", "-c", "echo ready; sleep 600"],
        );
        pty.expect("ready");
        assert!(!pty.is_cooked());
        kill_process(Pid::from_raw(i32::try_from(pty.pid()).unwrap()).unwrap(), signal).unwrap();
        let status = pty.end();
        assert_eq!((status.code(), status.signal()), (Some(code), None));
        assert!(pty.is_cooked());
    }
    // SIGTERM cancels the program, and a second one leaves at once.
    let mut pty = at_pty(
        &daemon,
        &["exec", "-it", "s1", "--", "sh", "-c", "echo ready; sleep 600"],
    );
    pty.expect("ready");
    kill_process(Pid::from_raw(i32::try_from(pty.pid()).unwrap()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(pty.end().code(), Some(137));
    assert!(pty.is_cooked());
    // The daemon goes away for good.
    let mut pty = {
        let mut command = brig(
            &daemon,
            &["exec", "-it", "s1", "--", "sh", "-c", "echo ready; sleep 600"],
        );
        command.env("BRIG_RECONNECT", "0");
        Pty::start(&command, 80, 24)
    };
    pty.expect("ready");
    drop(daemon);
    assert!(matches!(pty.end().code(), Some(125 | 137)), "{:?}", pty.shown());
    assert!(pty.is_cooked());
}

#[test]
fn what_needs_a_terminal_says_so_and_detached_needs_none() {
    let daemon = daemon!();
    session(&daemon, "s1");
    let refused = daemon.brig(&["exec", "-it", "s1", "--", "sh"]).expect(125);
    assert_eq!(
        refused.stderr,
        "error: tty: standard input is not a terminal; leave out -t to do without one\n"
    );
    let both = daemon.brig(&["exec", "-t", "--json", "s1", "--", "sh"]).expect(125);
    assert!(
        both.json()["refused"]["message"]
            .as_str()
            .unwrap()
            .contains("leave out -t")
    );
    let line = ["exec", "-dit", "s1", "--", "sh", "-c", "stty size; read line; exit 6"];
    let id = daemon.brig(&line).expect(0).text().trim().to_owned();
    let mut live = daemon.attach(&id, 0).unwrap();
    live.until_written("24 80\r\n");
    super::say(&daemon, &id, "go\n");
    let outcome = live.finish();
    assert_eq!(
        (outcome.result.exit_code, outcome.stdout().as_str()),
        (Some(6), "24 80\r\ngo\r\n")
    );
}

#[test]
fn a_pipe_goes_through_whole_with_the_program_s_exit_code() {
    let daemon = daemon!();
    session(&daemon, "s1");
    let place = tempfile::tempdir().unwrap();
    let data: Vec<u8> = (0..30_000_000_usize).map(|i| (i / 5).to_le_bytes()[0]).collect();
    let file = place.path().join("data");
    std::fs::write(&file, &data).unwrap();
    let mut command = brig(&daemon, &["exec", "-i", "s1", "--", "sh", "-c", "cat; exit 9"]);
    let output = command.stdin(std::fs::File::open(&file).unwrap()).output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(9),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(Sha256::digest(&output.stdout) == Sha256::digest(&data));
    // Nobody has to read it.
    let mut command = brig(
        &daemon,
        &["exec", "-i", "s1", "--", "sh", "-c", "exec <&-; echo early; exit 8"],
    );
    let output = command.stdin(std::fs::File::open(&file).unwrap()).output().unwrap();
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(8), &b"early\n"[..])
    );
    // Ours is at its end from the start.
    let mut command = brig(&daemon, &["exec", "-i", "s1", "--", "wc", "-c"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"0\n"[..]));
    for (line, code) in [
        (&["exec", "-i", "s1", "--", "nothing"][..], 127),
        (&["exec", "-i", "s1", "--", "/etc/passwd"], 126),
        (&["exec", "-i", "s2", "--", "true"], 125),
        (&["exec", "-i", "s1", "--", "sh", "-c", "kill -9 $$"], 137),
    ] {
        daemon.brig(line).expect(code);
    }
}

#[test]
fn background_commands_are_listed_come_back_to_and_signalled() {
    let daemon = daemon!();
    session(&daemon, "s1");
    let script = "trap 'echo told; exit 3' USR1; echo serving; while :; do sleep 0.1; done";
    let id = daemon
        .brig(&["exec", "-d", "s1", "--", "sh", "-c", script])
        .expect(0)
        .text();
    let id = id.trim();
    let mut live = daemon.attach(id, 0).unwrap();
    live.until_written("serving\n");
    daemon.brig(&["execution", "signal", id, "USR1", "--group"]).expect(0);
    assert_eq!(live.finish().result.exit_code, Some(3));
    let shown = daemon.brig(&["execution", "attach", "-q", id]).expect(1);
    assert_eq!(shown.text(), "serving\ntold\n");
    let listed = daemon
        .brig(&["execution", "list", "--session", "s1", "--json"])
        .expect(0)
        .json();
    assert_eq!(listed["executions"][0]["exit_code"], 3);
}
