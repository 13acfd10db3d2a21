//! The program under a service manager: sockets that it is given, what it tells, reloading.
#![allow(clippy::unwrap_used, reason = "a test that can't go on should stop")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use brig_daemon::privileges::Identity;
use brig_jailer::api::{Event, Request, VERSION};
use brig_jailer::wire;
use brig_proto::v1::HostGetRequest;
use brig_proto::v1::host_client::HostClient;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tonic::transport::{Channel, Endpoint};

const BRIGD: &str = env!("CARGO_BIN_EXE_brigd");
const POLICY: &str = "template = \"base\"\n[syscalls]\ngroups = [\"base\"]\n";

fn is_root() -> bool {
    let root = nix::unistd::Uid::effective().is_root();
    let has = std::env::var("BRIG_TEST_HAS").unwrap_or_default();
    assert!(
        root || !has.contains("root"),
        "BRIG_TEST_HAS promises root, and this is not root"
    );
    root
}

/// How long something may take that takes a moment.
fn patience() -> Duration {
    let slow = std::env::var("BRIG_TEST_SLOW").ok().and_then(|slow| slow.parse().ok());
    Duration::from_secs(20) * slow.unwrap_or(1)
}

/// A jailer that greets, and answers what can be asked without a session.
#[derive(Debug, Default)]
struct Jailer {
    /// Whoever holds it, the jailer hangs.
    hung: Mutex<()>,
    refusal: Mutex<Option<String>>,
    reloads: Mutex<u32>,
}

impl Jailer {
    fn start(directory: &Path) -> Arc<Self> {
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let path = directory.join("jailer.sock");
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        chown(&path, Some(Identity::of_daemon().uid.as_raw()), None).unwrap();
        rustix::net::listen(&socket, 1).unwrap();
        let jailer = Arc::new(Self::default());
        let serving = Arc::clone(&jailer);
        std::thread::spawn(move || serving.serve(&rustix::net::accept(&socket).unwrap()));
        jailer
    }

    fn serve(&self, brigd: &OwnedFd) {
        let mut receiver = wire::Receiver::default();
        while let Ok(Some(request)) = receiver.receive::<Request>(brigd.as_fd()) {
            let _hung = self.hung.lock().unwrap();
            let answer = match request {
                Request::Hello { .. } => Event::Hello {
                    version: VERSION,
                    jailer_version: "test".to_owned(),
                },
                Request::Host => Event::Host(Box::default()),
                Request::Ping => Event::Pong,
                Request::Reload => {
                    *self.reloads.lock().unwrap() += 1;
                    let error = self.refusal.lock().unwrap().clone();
                    Event::Reloaded { error }
                }
                _ => continue,
            };
            wire::send(brigd.as_fd(), &answer, &[]).unwrap();
            if matches!(answer, Event::Hello { .. }) {
                wire::send(brigd.as_fd(), &Event::AllHeld, &[]).unwrap();
            }
        }
    }
}

/// A daemon under a service manager that is this test.
struct Service {
    directory: tempfile::TempDir,
    jailer: Arc<Jailer>,
    manager: UnixDatagram,
    brigd: Child,
}

impl Service {
    /// Starts it with a socket that was made for it, and a watchdog that wants a sign of life within `watchdog`.
    fn start(watchdog: Duration) -> Self {
        let directory = prepare();
        let listener = UnixListener::bind(directory.path().join("brigd.sock")).unwrap();
        Self::launch(directory, activated(listener, 1, "brigd"), watchdog)
    }

    fn launch(directory: tempfile::TempDir, mut brigd: Command, watchdog: Duration) -> Self {
        let jailer = Jailer::start(directory.path());
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_read_timeout(Some(patience())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        brigd
            .arg("--config")
            .arg(directory.path().join("brigd.toml"))
            .env("NOTIFY_SOCKET", path)
            .env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        Self {
            brigd: brigd.spawn().unwrap(),
            directory,
            jailer,
            manager,
        }
    }

    /// Waits for a message with a line that begins so; gives it.
    fn hear(&self, line: &str) -> String {
        loop {
            let mut buffer = [0; 4096];
            let length = self
                .manager
                .recv(&mut buffer)
                .unwrap_or_else(|_| panic!("{line} never came"));
            let message = String::from_utf8(buffer[..length].to_vec()).unwrap();
            if message.lines().any(|told| told.starts_with(line)) {
                return message;
            }
        }
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.directory.path().join(file), text).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.brigd.id().try_into().unwrap()), signal).unwrap();
    }

    /// Asks for a reload and waits for its end; gives all that was told meanwhile.
    fn reload(&self) -> String {
        self.signal(Signal::SIGHUP);
        let begun = self.hear("RELOADING=1");
        assert!(begun.lines().any(|line| line.starts_with("MONOTONIC_USEC=")), "{begun}");
        let mut told = String::new();
        loop {
            let message = self.hear("");
            told += &message;
            if message == "READY=1\n" {
                return told;
            }
        }
    }

    async fn client(&self) -> HostClient<Channel> {
        let address = format!("unix://{}", self.directory.path().join("brigd.sock").display());
        HostClient::new(Endpoint::try_from(address).unwrap().connect().await.unwrap())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Ended already where all went well.
        let _ = self.brigd.kill();
        let _ = self.brigd.wait();
    }
}

fn prepare() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let state = directory.path().join("state");
    std::fs::create_dir(&state).unwrap();
    Identity::of_daemon().own(&state).unwrap();
    std::fs::create_dir_all(directory.path().join("policies/syscalls")).unwrap();
    let group = "allow = [{ syscall = \"read\", why = \"a test\" }]\n";
    std::fs::write(directory.path().join("policies/syscalls/base.toml"), group).unwrap();
    std::fs::write(directory.path().join("policies/data.toml"), POLICY).unwrap();
    std::fs::write(directory.path().join("brigd.toml"), config(directory.path(), "")).unwrap();
    directory
}

fn config(directory: &Path, rest: &str) -> String {
    let path = directory.display();
    format!(
        "socket = \"{path}/brigd.sock\"\nsocket_group = \"\"\njailer_socket = \"{path}/jailer.sock\"\n\
         state = \"{path}/state\"\npolicies = [\"{path}/policies\"]\nimages = \"{path}/images\"\n{rest}"
    )
}

/// brigd with a descriptor of its own at number 3, as systemd passes it.
fn activated(socket: impl Into<OwnedFd>, count: u32, names: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    // A number that nobody can know before the process is there.
    let script = "LISTEN_PID=$$; export LISTEN_PID; exec \"$0\" \"$@\" 3<&0 0</dev/null";
    command
        .args(["-c", script, BRIGD])
        .stdin(Stdio::from(socket.into()))
        .env("LISTEN_FDS", count.to_string())
        .env("LISTEN_FDNAMES", names);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_with_a_socket_of_the_manager_tells_how_it_is_and_leaves_the_socket() {
    if !is_root() {
        return;
    }
    let mut service = Service::start(Duration::from_millis(300));
    service.hear("READY=1");
    service.hear("STATUS=0 running, 0 queued, 0 sessions");
    service.hear("WATCHDOG=1");
    service.hear("WATCHDOG=1");
    let answer = service.client().await.get(HostGetRequest::default()).await.unwrap();
    assert_eq!(answer.into_inner().jailer_version, "test");
    service.signal(Signal::SIGTERM);
    let stopping = service.hear("STOPPING=1");
    // The drain of the default, and what the end may take beside it.
    assert!(stopping.contains("EXTEND_TIMEOUT_USEC=57000000\n"), "{stopping}");
    assert_eq!(service.brigd.wait().unwrap().code(), Some(0));
    assert!(service.directory.path().join("brigd.sock").exists());
}

#[test]
fn links_are_followed_at_a_second_socket_of_the_manager() {
    if !is_root() {
        return;
    }
    let directory = prepare();
    let links = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = links.local_addr().unwrap();
    let on = format!("[links]\nlisten = \"{address}\"\n");
    std::fs::write(directory.path().join("brigd.toml"), config(directory.path(), &on)).unwrap();
    let listener = UnixListener::bind(directory.path().join("brigd.sock")).unwrap();
    let mut brigd = Command::new("/bin/sh");
    let script = "LISTEN_PID=$$; export LISTEN_PID; exec \"$0\" \"$@\" 3<&0 0</dev/null 4>&1 1>/dev/null";
    brigd
        .args(["-c", script, BRIGD])
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stdout(Stdio::from(OwnedFd::from(links)))
        .env("LISTEN_FDS", "2")
        .env("LISTEN_FDNAMES", "brigd:brigd-links");
    let mut service = Service::launch(directory, brigd, Duration::from_secs(60));
    service.hear("READY=1");
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(patience())).unwrap();
    client
        .write_all(b"GET /artifact/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{answer}");
    service.signal(Signal::SIGTERM);
    assert_eq!(service.brigd.wait().unwrap().code(), Some(0));
}

#[test]
fn a_part_that_does_not_answer_ends_the_signs_of_life_and_is_named() {
    if !is_root() {
        return;
    }
    let service = Service::start(Duration::from_secs(3));
    service.hear("WATCHDOG=1");
    let hung = service.jailer.hung.lock().unwrap();
    let status = service.hear("STATUS=0 running, 0 queued, 0 sessions; does not answer");
    assert!(status.ends_with("does not answer: brig-jailer\n"), "{status}");
    // Two more looks fail, and neither gives a sign of life.
    service.manager.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
    let mut buffer = [0; 4096];
    while let Ok(length) = service.manager.recv(&mut buffer) {
        assert!(!buffer[..length].starts_with(b"WATCHDOG"));
    }
    service.manager.set_read_timeout(Some(patience())).unwrap();
    drop(hung);
    service.hear("WATCHDOG=1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_takes_all_or_nothing() {
    if !is_root() {
        return;
    }
    let service = Service::start(Duration::from_secs(60));
    service.hear("READY=1");
    let mut client = service.client().await;
    let policies = |answer: brig_proto::v1::HostGetResponse| -> Vec<String> {
        let names = answer
            .policies
            .iter()
            .map(|id| id.split('@').next().unwrap().to_owned());
        names.collect()
    };
    let mut get = async || {
        client
            .get(HostGetRequest::default())
            .await
            .map(|answer| policies(answer.into_inner()))
    };
    assert_eq!(get().await.unwrap(), ["data"]);

    service.write("policies/extra.toml", POLICY);
    let told = service.reload();
    assert!(!told.contains("refused"), "{told}");
    assert_eq!(get().await.unwrap(), ["data", "extra"]);

    // A bad policy: what there was stays, and brig-jailer is not asked.
    service.write("policies/third.toml", POLICY);
    service.write("policies/extra.toml", "tmplate = \"base\"\n");
    let told = service.reload();
    assert!(
        told.contains("last reload refused") && told.contains("tmplate"),
        "{told}"
    );
    assert_eq!(get().await.unwrap(), ["data", "extra"]);
    assert_eq!(*service.jailer.reloads.lock().unwrap(), 1);

    // A bad configuration.
    service.write("policies/extra.toml", POLICY);
    let bad = config(service.directory.path(), "[limits]\nrunning = 0\n");
    service.write("brigd.toml", &bad);
    let told = service.reload();
    assert!(told.contains("limits.running: 0 is not in 1 to 10000"), "{told}");
    assert_eq!(get().await.unwrap(), ["data", "extra"]);

    // A jailer that refuses its part.
    service.write("brigd.toml", &config(service.directory.path(), ""));
    *service.jailer.refusal.lock().unwrap() = Some("ceilings.toml: no".to_owned());
    let told = service.reload();
    assert!(told.contains("brig-jailer: ceilings.toml: no"), "{told}");
    assert_eq!(get().await.unwrap(), ["data", "extra"]);

    // Good again; and the connection is no client of the new configuration.
    *service.jailer.refusal.lock().unwrap() = None;
    let nobody = "[[client]]\nuid = 4000000\n";
    service.write("brigd.toml", &config(service.directory.path(), nobody));
    let told = service.reload();
    assert!(!told.contains("refused"), "{told}");
    assert_eq!(get().await.unwrap_err().code(), tonic::Code::Unauthenticated);
    service.write("brigd.toml", &config(service.directory.path(), ""));
    service.reload();
    assert_eq!(get().await.unwrap(), ["data", "extra", "third"]);
}

#[test]
fn descriptors_that_nobody_asked_for_are_named() {
    if !is_root() {
        return;
    }
    let directory = prepare();
    let refused = |name: &str, names: &str, count| {
        let path = directory.path().join(name);
        let _ = std::fs::remove_file(&path);
        let mut brigd = activated(UnixListener::bind(&path).unwrap(), count, names);
        let brigd = brigd.arg("--config").arg(directory.path().join("brigd.toml"));
        let output = brigd.output().unwrap();
        assert_eq!(output.status.code(), Some(78));
        String::from_utf8(output.stderr).unwrap()
    };
    let message = refused("brigd.sock", "broker", 1);
    assert!(
        message.contains("descriptor 3 \"broker\"") && message.contains("named \"brigd\""),
        "{message}"
    );
    let message = refused("other.sock", "brigd", 1);
    assert!(message.contains("other.sock, configured is"), "{message}");
    let message = refused("brigd.sock", "brigd-links", 1);
    assert!(message.contains("brigd.sock, configured is nothing"), "{message}");
    let message = refused("brigd.sock", "brigd:brigd", 1);
    assert!(message.contains("LISTEN_FDNAMES"), "{message}");
}

#[test]
fn a_configuration_that_is_wrong_fails_the_step_before_a_reload_and_tells_the_manager() {
    let directory = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(directory.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(patience())).unwrap();
    let file = directory.path().join("brigd.toml");
    std::fs::write(&file, "socket_group = \"no-such-group\"\n").unwrap();
    let output = Command::new(BRIGD)
        .arg("--check-config")
        .arg("--config")
        .arg(&file)
        .env("NOTIFY_SOCKET", directory.path().join("notify"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(78));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("socket_group: there is no group \"no-such-group\""),
        "{message}"
    );
    let mut buffer = [0; 4096];
    let length = manager.recv(&mut buffer).unwrap();
    let told = String::from_utf8_lossy(&buffer[..length]).into_owned();
    assert!(told.starts_with("STATUS=last reload refused: socket_group"), "{told}");
}
