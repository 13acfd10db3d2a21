//! The program itself: what it does before it serves, and what it has become when it does.
#![allow(clippy::unwrap_used, reason = "a test that can't go on should stop")]

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use brig_daemon::privileges::Identity;
use brig_jailer::api::{Event, Request, VERSION};
use brig_jailer::wire;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

const BRIGD: &str = env!("CARGO_BIN_EXE_brigd");

fn is_root() -> bool {
    let root = nix::unistd::Uid::effective().is_root();
    let has = std::env::var("BRIG_TEST_HAS").unwrap_or_default();
    assert!(
        root || !has.contains("root"),
        "BRIG_TEST_HAS promises root, and this is not root"
    );
    root
}

fn prepare(directory: &Path) {
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    let policies = directory.join("policies");
    std::fs::create_dir(&policies).unwrap();
    let policy = "template = \"base\"\n[syscalls]\ngroups = [\"base\"]\n";
    std::fs::write(policies.join("data.toml"), policy).unwrap();
    let state = directory.join("state");
    std::fs::create_dir(&state).unwrap();
    Identity::of_daemon().own(&state).unwrap();
    let path = directory.display();
    let text = format!(
        "socket = \"{path}/state/brigd.sock\"\nsocket_group = \"\"\njailer_socket = \"{path}/jailer.sock\"\n\
         state = \"{path}/state\"\npolicies = [\"{path}/policies\"]\nimages = \"{path}/images\"\n"
    );
    std::fs::write(directory.join("brigd.toml"), text).unwrap();
}

/// A jailer that greets and then does nothing.
fn jailer(directory: &Path) -> OwnedFd {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let path = directory.join("jailer.sock");
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    let identity = Identity::of_daemon();
    chown(&path, Some(identity.uid.as_raw()), None).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    socket
}

fn greet(socket: &OwnedFd) -> OwnedFd {
    use std::os::fd::AsFd;
    let brigd = rustix::net::accept(socket).unwrap();
    let (hello, _) = wire::receive::<Request>(brigd.as_fd()).unwrap().unwrap();
    assert_eq!(hello, Request::Hello { version: VERSION });
    wire::send(
        brigd.as_fd(),
        &Event::Hello {
            version: VERSION,
            jailer_version: "test".to_owned(),
        },
        &[],
    )
    .unwrap();
    wire::send(brigd.as_fd(), &Event::AllHeld, &[]).unwrap();
    brigd
}

fn status_line(status: &str, key: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_daemon_that_serves_holds_no_privilege_and_ends_when_the_jailer_does() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    prepare(directory.path());
    let socket = jailer(directory.path());
    let mut brigd = Command::new(BRIGD)
        .arg("--config")
        .arg(directory.path().join("brigd.toml"))
        .args(["--ready-fd", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let connection = greet(&socket);
    let mut ready = String::new();
    BufReader::new(brigd.stdout.take().unwrap())
        .read_line(&mut ready)
        .unwrap();
    assert_eq!(
        ready,
        format!("ready {}/state/brigd.sock\n", directory.path().display())
    );

    let status = std::fs::read_to_string(format!("/proc/{}/status", brigd.id())).unwrap();
    let uid = Identity::of_daemon().uid.to_string();
    assert_eq!(status_line(&status, "Uid:"), [uid.as_str(); 4].join(" "));
    assert_eq!(status_line(&status, "Groups:"), "");
    assert_eq!(status_line(&status, "NoNewPrivs:"), "1");
    let sets = ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"].map(|set| status_line(&status, set));
    assert_eq!(sets, ["0000000000000000"; 4]);

    drop((connection, socket));
    let mut log = String::new();
    brigd.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert_eq!(brigd.wait().unwrap().code(), Some(70));
    assert!(
        log.ends_with("brigd: brig-jailer went away; every session is lost\n"),
        "{log}"
    );
}

#[test]
fn a_private_daemon_without_root_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // The program may lie where only root can reach it; the copy can be run by anybody.
    let program = directory.path().join("brigd");
    // By a child: another test may be between fork and exec, and would hold an open copy for a moment.
    assert!(
        Command::new("cp")
            .args([BRIGD.as_ref(), program.as_path()])
            .status()
            .unwrap()
            .success()
    );
    let mut command = Command::new(&program);
    command.args(["--standalone", "/nonexistent"]);
    if is_root() {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(77));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("must be started by root"), "{message}");
}

#[test]
fn a_wrong_configuration_is_told_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("brigd.toml");
    std::fs::write(&file, "sokcet = \"/x\"\n").unwrap();
    let output = Command::new(BRIGD)
        .arg("--check-config")
        .arg("--config")
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(78));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("brigd.toml") && message.contains("unknown field `sokcet`"),
        "{message}"
    );
}

#[test]
fn the_printed_configuration_can_be_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let printed = Command::new(BRIGD)
        .args(["--print-config", "--standalone", "/x"])
        .output()
        .unwrap();
    let file = directory.path().join("brigd.toml");
    std::fs::write(&file, &printed.stdout).unwrap();
    let again = Command::new(BRIGD)
        .arg("--print-config")
        .arg("--config")
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(again.stdout).unwrap(),
        String::from_utf8(printed.stdout).unwrap()
    );
}
