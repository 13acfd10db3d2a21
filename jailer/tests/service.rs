//! brig-jailer under a service manager: the socket that it is given, and what it tells, though its /run is hidden.
#![allow(clippy::unwrap_used, reason = "a test that can't go on should stop")]

mod support;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use brig_jailer::api::{Event, Request, VERSION};
use brig_jailer::wire;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};

fn socket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn listening(path: &Path) -> OwnedFd {
    let socket = socket();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, 8).unwrap();
    socket
}

/// The jailer with a descriptor at number 3, as systemd passes it.
fn activated(socket: OwnedFd, path: &Path, name: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    // A number that nobody can know before the process is there.
    let script = "LISTEN_PID=$$; export LISTEN_PID; exec \"$0\" \"$@\" 3<&0 0</dev/null";
    command
        .args(["-c", script, env!("CARGO_BIN_EXE_brig-jailer"), "--client", "root"])
        .arg("--listen")
        .arg(path)
        .args(support::places())
        .stdin(Stdio::from(socket))
        .env("LISTEN_FDS", "1")
        .env("LISTEN_FDNAMES", name);
    command
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Ended already where all went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hear(manager: &UnixDatagram, line: &str) {
    loop {
        let mut buffer = [0; 4096];
        let length = manager
            .recv(&mut buffer)
            .unwrap_or_else(|_| panic!("{line} never came"));
        let message = String::from_utf8(buffer[..length].to_vec()).unwrap();
        if message.lines().any(|told| told == line) {
            return;
        }
    }
}

fn greet(path: &Path) -> OwnedFd {
    let client = socket();
    connect(&client, &SocketAddrUnix::new(path).unwrap()).unwrap();
    wire::send(client.as_fd(), &Request::Hello { version: VERSION }, &[]).unwrap();
    let (hello, _) = wire::receive::<Event>(client.as_fd()).unwrap().unwrap();
    assert!(matches!(hello, Event::Hello { version: VERSION, .. }), "{hello:?}");
    client
}

#[test]
fn a_jailer_with_a_socket_of_the_manager_tells_how_it_is_from_behind_its_own_run() {
    let directory = tempfile::tempdir_in("/run").unwrap();
    let [path, notify] = ["jailer.sock", "notify"].map(|name| directory.path().join(name));
    let manager = UnixDatagram::bind(&notify).unwrap();
    let patience = Duration::from_secs(20 * support::slow());
    manager.set_read_timeout(Some(patience)).unwrap();
    let mut command = activated(listening(&path), &path, "jailer");
    command.env("NOTIFY_SOCKET", &notify).env("WATCHDOG_USEC", "300000");
    let mut jailer = Ended(command.spawn().unwrap());
    hear(&manager, "READY=1");
    hear(&manager, "STATUS=0 sessions");
    hear(&manager, "WATCHDOG=1");
    hear(&manager, "WATCHDOG=1");
    drop(greet(&path));
    let pid = Pid::from_raw(jailer.0.id().try_into().unwrap());
    kill(pid, Signal::SIGTERM).unwrap();
    hear(&manager, "STOPPING=1");
    assert!(jailer.0.wait().unwrap().success());
    assert!(path.exists(), "it is the manager's");
}

#[test]
fn a_socket_that_is_not_the_jailers_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jailer.sock");
    let output = activated(listening(&path), &path, "brigd").output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    let message = String::from_utf8(output.stderr).unwrap();
    let expected = "descriptor 3 \"brigd\" of the service manager: only one is expected, named \"jailer\"";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn a_configuration_that_is_wrong_is_told_before_anybody_is_asked_to_reload() {
    let check = |ceilings: &Path| {
        let mut command = support::jailer();
        let places = support::places();
        // All but the last pair, which is another file of ceilings.
        command.arg("--check").args(&places[..places.len() - 1]).arg(ceilings);
        command.output().unwrap()
    };
    let directory = tempfile::tempdir().unwrap();
    let ceilings = directory.path().join("ceilings.toml");
    std::fs::write(&ceilings, "sessions = 10\n").unwrap();
    assert!(check(&ceilings).status.success());
    std::fs::write(&ceilings, "sessions = 0\n").unwrap();
    let output = check(&ceilings);
    assert_eq!(output.status.code(), Some(78));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("ceilings.toml:1: sessions: 0"), "{message}");
}
