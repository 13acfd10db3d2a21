//! A real jailer as a child process, and what a client of it needs.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "shared by test programs that each use a part"
)]

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use brig_jailer::api::{
    Check, Dock, End, Enforced, Event, HostReport, Make, Quantities, Refusal, Request, Spawn, Start, Streams, VERSION,
    Work,
};
use brig_jailer::ids::Id;
use brig_jailer::policy::{PolicySet, Trust};
use brig_jailer::template::Templates;
use brig_jailer::wire;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, socketpair};

pub fn id(text: &str) -> Id {
    Id::parse(text).unwrap()
}

/// A folder of the source tree, or the place that the environment names.
fn place(variable: &str, default: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| PathBuf::from(default), PathBuf::from)
}

pub fn policies() -> PathBuf {
    place("BRIG_POLICIES", concat!(env!("CARGO_MANIFEST_DIR"), "/../policies"))
}

pub fn images() -> PathBuf {
    place("BRIG_IMAGES", "/var/lib/brig/images")
}

/// The folder of the static programs, as the Makefile builds them.
pub fn programs() -> PathBuf {
    place(
        "BRIG_PROGRAMS",
        concat!(env!("CARGO_MANIFEST_DIR"), "/../target/programs"),
    )
}

/// How many times slower than usual this machine is: deadlines of tests are that much longer.
pub fn slow() -> u64 {
    std::env::var("BRIG_TEST_SLOW").map_or(1, |text| text.parse().unwrap())
}

pub fn jailer() -> Command {
    Command::new(env!("CARGO_BIN_EXE_brig-jailer"))
}

/// The arguments by which the jailer finds what it needs.
pub fn places() -> Vec<OsString> {
    let kernel = concat!(env!("CARGO_MANIFEST_DIR"), "/../rootfs/kernel");
    let pairs: [(&str, OsString); 5] = [
        ("--policies", policies().into()),
        ("--images", images().into()),
        ("--programs", programs().into()),
        ("--kernel", kernel.into()),
        ("--ceilings", "/nonexistent/ceilings.toml".into()),
    ];
    pairs
        .into_iter()
        .flat_map(|(name, value)| [name.into(), value])
        .collect()
}

/// A jailer that serves this test alone.
#[derive(Debug)]
pub struct Rig {
    pub process: Child,
    socket: OwnedFd,
}

/// A jail that is up.
#[derive(Debug)]
pub struct Up {
    pub enforced: Enforced,
    pub files: OwnedFd,
}

/// A program that was started.
#[derive(Debug)]
pub struct Running {
    pub streams: Streams,
    pub fds: Vec<OwnedFd>,
}

/// What a program has left.
#[derive(Debug)]
pub struct Outcome {
    pub end: End,
    pub stdout: String,
    pub stderr: String,
}

impl Rig {
    pub fn start() -> Self {
        Self::with_fault("")
    }

    /// With one step spoiled; needs the feature `faults`.
    pub fn with_fault(fault: &str) -> Self {
        Self::launch(|command| command.env("BRIG_FAULT", fault))
    }

    /// With other arguments, or another environment.
    pub fn launch(change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let mut rig = Self::begin(jailer(), change);
        assert!(rig.greet().is_empty());
        rig
    }

    /// Starts a program that is, or becomes, the jailer, and says nothing to it.
    pub fn begin(mut command: Command, change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).unwrap();
        command.arg("--fd").arg(theirs.as_raw_fd().to_string());
        let process = Self::spawn(command, change);
        drop(theirs);
        Self { process, socket }
    }

    /// One that listens, so that another client can come after the first.
    pub fn listening(path: &Path, restart_grace: &str) -> Self {
        let path_text = path.to_str().unwrap();
        let arguments = [
            "--listen",
            path_text,
            "--client",
            "root",
            "--restart-grace",
            restart_grace,
        ];
        let process = Self::spawn(jailer(), |command| command.args(arguments));
        let deadline = Instant::now() + Duration::from_secs(20 * slow());
        let socket = loop {
            match dial(path) {
                Ok(socket) => break socket,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut rig = Self { process, socket };
        assert!(rig.greet().is_empty());
        rig
    }

    /// Goes away, so that nobody is there.
    pub fn leave(&mut self) {
        // A program that another thread is starting may have a copy of it until it is executed.
        let _gone_already = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        self.socket = File::open("/dev/null").unwrap().into();
    }

    /// Comes back; what was held.
    pub fn come_back(&mut self, path: &Path) -> Vec<(Event, Vec<OwnedFd>)> {
        self.leave();
        self.socket = dial(path).unwrap();
        self.greet()
    }

    fn spawn(mut command: Command, change: impl FnOnce(&mut Command) -> &mut Command) -> Child {
        command.args(places());
        command.env(
            "BRIG_LOG",
            std::env::var("BRIG_LOG").unwrap_or_else(|_| "error".to_owned()),
        );
        change(&mut command).spawn().unwrap()
    }

    /// Says hello; what is told then, up to `AllHeld`.
    pub fn greet(&mut self) -> Vec<(Event, Vec<OwnedFd>)> {
        self.send(&Request::Hello { version: VERSION });
        assert!(matches!(self.next().0, Event::Hello { version: VERSION, .. }));
        let told = std::iter::from_fn(|| Some(self.next()).filter(|(event, _)| *event != Event::AllHeld));
        told.collect()
    }

    pub fn send(&self, request: &Request) {
        for packet in wire::packets(request).unwrap() {
            wire::send_bytes(self.socket.as_fd(), &packet).unwrap();
        }
    }

    /// Sends what no client has a reason to send.
    pub fn send_with_descriptor(&self, request: &Request) -> std::io::Result<()> {
        wire::send(self.socket.as_fd(), request, &[self.socket.as_fd()])
    }

    /// The next event, whatever it is.
    pub fn next(&mut self) -> (Event, Vec<OwnedFd>) {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: 20 * slow().cast_signed(),
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut fds, Some(&timeout)).unwrap(), 1, "the jailer says nothing");
        match wire::receive(self.socket.as_fd()) {
            Ok(Some(message)) => message,
            other => panic!("the jailer is gone: {:?}, {:?}", other.err(), self.process.wait()),
        }
    }

    /// The next event, or what the jailer has said when it ended instead; its stderr must be a pipe.
    pub fn next_or_end(&mut self) -> Result<Event, String> {
        match wire::receive(self.socket.as_fd()) {
            Ok(Some((event, _))) => Ok(event),
            _ => {
                let said = read_all(self.process.stderr.take().unwrap().into());
                Err(format!("{}: {said}", self.process.wait().unwrap()))
            }
        }
    }

    pub fn host(&mut self) -> HostReport {
        self.send(&Request::Host);
        match self.next().0 {
            Event::Host(report) => *report,
            other => panic!("{other:?}"),
        }
    }

    /// One line of it.
    pub fn check(&mut self, what: &str) -> Check {
        let checks = self.host().checks;
        checks.into_iter().find(|check| check.what == what).unwrap()
    }

    pub fn request(policy: &str, session: &str, quantities: Quantities) -> Make {
        let set = PolicySet::load(&[policies()], Trust::RootOwned).unwrap();
        let policy = set.get(policy).unwrap();
        let templates = Templates::load(&images(), Trust::RootOwned).unwrap();
        Make {
            session: id(session),
            policy: policy.name.clone(),
            policy_hash: policy.hash.clone(),
            template: templates.get("base").unwrap().id.clone(),
            quantities,
            held: false,
            waiting: false,
            dock: Dock::None,
            memo: Vec::new(),
        }
    }

    pub fn make(&mut self, session: &str) -> Up {
        self.try_make(Self::request("data", session, quantities())).unwrap()
    }

    pub fn try_make(&mut self, make: Make) -> Result<Up, Refusal> {
        self.send(&Request::Make(make));
        match self.next() {
            (Event::Made { enforced, .. }, mut fds) => Ok(Up {
                enforced,
                files: fds.remove(0),
            }),
            (Event::Refused { refusal, .. }, _) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    pub fn try_spawn(&mut self, spawn: Spawn) -> Result<Running, Refusal> {
        self.send(&Request::Spawn(spawn));
        match self.next() {
            (Event::Spawned { streams, .. }, fds) => Ok(Running { streams, fds }),
            (Event::Refused { refusal, .. }, _) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    /// Runs a shell script to its end.
    pub fn sh(&mut self, session: &str, execution: &str, script: &str) -> Outcome {
        self.run(command(session, execution, &["sh", "-c", script]))
    }

    /// Runs a Python script to its end.
    pub fn python(&mut self, session: &str, execution: &str, script: &str) -> Outcome {
        self.run(command(session, execution, &["python3", "-c", script]))
    }

    pub fn run(&mut self, spawn: Spawn) -> Outcome {
        let running = self.try_spawn(spawn).unwrap();
        let pipes = usize::from(running.streams.stdout) + usize::from(running.streams.stderr);
        let mut readers: Vec<_> = running
            .fds
            .into_iter()
            .take(pipes)
            .map(|fd| std::thread::spawn(move || read_all(fd)))
            .collect();
        let end = self.ended();
        let stdout = readers.remove(0).join().unwrap();
        let stderr = readers.pop().map(|reader| reader.join().unwrap()).unwrap_or_default();
        Outcome { end, stdout, stderr }
    }

    pub fn ended(&mut self) -> End {
        match self.next().0 {
            Event::Ended { end, .. } => end,
            other => panic!("{other:?}"),
        }
    }

    pub fn close(&mut self, session: &str) {
        self.send(&Request::Close { session: id(session) });
        loop {
            match self.next().0 {
                Event::Closed { .. } => return,
                Event::Ended { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Lets the jailer end as it does when its client goes, and waits for that.
    pub fn stop(mut self) {
        drop(std::mem::replace(
            &mut self.socket,
            File::open("/dev/null").unwrap().into(),
        ));
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Rig {
    /// A test that failed must not leave a jailer; its jails die with it.
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _reaped_already = self.process.wait();
    }
}

pub fn quantities() -> Quantities {
    Quantities {
        memory_bytes: 256 << 20,
        cpu_millis: 1000,
        pids: 64,
        disk_bytes: 32 << 20,
        inodes: 2000,
        open_files: 256,
        max_age_ms: 60_000 * slow(),
    }
}

/// A folder with a policy of its own, named `x`, and what asks for a session with it.
pub fn own_policy(session: &str, limits: &str) -> (tempfile::TempDir, Make) {
    let folder = tempfile::Builder::new().prefix("brig-test-").tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let text = format!("template = \"base\"\n[syscalls]\ngroups = [\"base\", \"python\"]\n[limits]\n{limits}\n");
    fs::write(folder.path().join("x.toml"), text).unwrap();
    let set = PolicySet::load(&[policies(), folder.path().to_owned()], Trust::RootOwned).unwrap();
    let policy = set.get("x").unwrap();
    let make = Make {
        policy: policy.name.clone(),
        policy_hash: policy.hash.clone(),
        ..Rig::request("data", session, quantities())
    };
    (folder, make)
}

pub fn command(session: &str, execution: &str, argv: &[&str]) -> Spawn {
    Spawn {
        session: id(session),
        execution: id(execution),
        work: Work::Command {
            argv: argv.iter().map(|part| part.as_bytes().to_vec()).collect(),
            directory: None,
        },
        start: Start::Exec,
        environment: Vec::new(),
        stdin: false,
        merge_stderr: false,
        terminal: None,
        timeout_ms: 10_000 * slow(),
        cpu_time_ms: None,
        memo: Vec::new(),
    }
}

fn dial(path: &Path) -> rustix::io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

pub fn read_all(fd: OwnedFd) -> String {
    let mut bytes = Vec::new();
    File::from(fd).read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits until this is true; the jailer has nothing to say about it.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20 * slow());
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
