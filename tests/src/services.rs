//! brigd and brig-jailer as the two services that they are on a host: each can die and come back while the other lives.

use std::fs::File;
use std::io::Write;
use std::ops::Deref;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, OptionalExtension};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::daemon::tail;
use crate::host::{Places, can_run};
use crate::processes::{Process, process};
use crate::{Client, DEADLINE, way};

/// Who brigd runs as: a user that every host has.
const USER: &str = "nobody";
/// The number of that user. Source: base-passwd of Debian.
pub const UID: u32 = 65534;

/// One of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    Jailer,
    Daemon,
}

/// What differs from test to test.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Where the programs are.
    pub programs: PathBuf,
    /// How long sessions wait for a brigd that died, and for one that was stopped.
    pub grace: &'static str,
    pub handover_grace: &'static str,
    /// How long a brigd that is told to stop waits for one-shot runs.
    pub drain: &'static str,
    /// The policies that both read. Only root may be able to change them.
    pub policies: PathBuf,
    /// The images of templates. Only root may be able to change them either.
    pub images: PathBuf,
    /// The ceilings of the jailer; those of the defaults if there is no such file.
    pub ceilings: PathBuf,
    /// Further lines of brigd's table `limits`.
    pub limits: String,
    /// Lines of brigd's table `pool`, where that is not left to [`way`].
    pub pool: Option<String>,
    /// Where links are served; nowhere if that is empty.
    pub links: &'static str,
    /// Where the ledger lies, if not beside the rest; brigd's user must be able to write there.
    pub state: Option<PathBuf>,
}

/// The pair, in a directory of its own.
#[derive(Debug)]
pub struct Services {
    setup: Setup,
    client: Option<Client>,
    /// In the order of [`Service`]; brigd ends first.
    brigd: Option<Started>,
    jailer: Option<Started>,
    logs: [File; 2],
    directory: TempDir,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            programs: Places::find().programs,
            grace: "30s",
            handover_grace: "5m",
            drain: "1s",
            policies: Places::find().policies,
            images: Places::find().images,
            ceilings: "/nonexistent/ceilings.toml".into(),
            limits: String::new(),
            pool: None,
            links: "",
            state: None,
        }
    }
}

impl Deref for Services {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client.as_ref().expect("brigd was not started again")
    }
}

impl Services {
    /// Starts both; `None` where this host can't run them.
    pub fn start(setup: Setup) -> Option<Self> {
        if !can_run() {
            return None;
        }
        let directory = tempfile::Builder::new().prefix("brig-test-").tempdir().unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        for name in ["state", "run"] {
            let folder = directory.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            chown(&folder, Some(UID), Some(UID)).unwrap();
        }
        let mut services = Self {
            setup,
            client: None,
            brigd: None,
            jailer: None,
            logs: [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()],
            directory,
        };
        services.configure();
        services.launch(Service::Jailer);
        services.launch(Service::Daemon);
        Some(services)
    }

    /// Where everything lies.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts one that has ended.
    pub fn launch(&mut self, service: Service) {
        let mut started = self.begin(service);
        if !started.is_ready() {
            panic!("{service:?} did not start: {}", self.log(service));
        }
        *self.slot(service) = Some(started);
        if service == Service::Daemon {
            let client = Client::new(&self.directory.path().join("run/brigd.sock"));
            self.client = Some(match self.setup.pool {
                Some(_) => client,
                None => client.on_its_way(),
            });
        }
    }

    /// Starts one that will not come up, and waits for its end.
    pub fn launch_in_vain(&mut self, service: Service) {
        let mut started = self.begin(service);
        assert!(!started.is_ready(), "it serves");
        assert!(started.end().is_some(), "{}", self.log(service));
    }

    /// Sends a signal to one of them.
    pub fn signal(&self, service: Service, signal: Signal) {
        kill_process(Pid::from_child(self.child(service)), signal).unwrap();
    }

    /// Kills one of them without a word.
    pub fn kill(&mut self, service: Service) {
        self.signal(service, Signal::KILL);
        self.await_end(service);
    }

    /// Tells brigd to stop and waits until it has.
    pub fn stop(&mut self) {
        self.signal(Service::Daemon, Signal::TERM);
        let status = self.await_end(Service::Daemon);
        assert!(status.success(), "{status}: {}", self.log(Service::Daemon));
    }

    /// Waits for the end of one of them.
    pub fn await_end(&mut self, service: Service) -> ExitStatus {
        let status = self.slot(service).as_mut().unwrap().end();
        let status = status.unwrap_or_else(|| panic!("{service:?} did not end: {}", self.log(service)));
        self.forget(service);
        status
    }

    fn forget(&mut self, service: Service) {
        *self.slot(service) = None;
        if service == Service::Daemon {
            self.client = None;
        }
    }

    /// Whether one of them has ended and was not started again.
    pub fn is_down(&mut self, service: Service) -> bool {
        let slot = self.slot(service).as_mut();
        let down = slot.is_none_or(|started| started.child.try_wait().unwrap().is_some());
        if down {
            self.forget(service);
        }
        down
    }

    /// Whether it ended by the signal that can't be caught.
    pub fn was_killed(status: ExitStatus) -> bool {
        status.signal() == Some(Signal::KILL.as_raw())
    }

    /// One of them as a process.
    pub fn process(&self, service: Service) -> Process {
        process(self.child(service).id())
    }

    /// What one of them has logged.
    pub fn log(&self, service: Service) -> String {
        tail(&self.logs[service as usize])
    }

    /// The file in which a test names what is to die.
    pub fn armed(&self) -> PathBuf {
        self.directory.path().join("armed")
    }

    /// The status that an execution has in the ledger: `None` without an accept row, empty without an end.
    pub fn recorded(&self, execution: &str) -> Option<String> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let ledger = Connection::open_with_flags(self.state().join("ledger.db"), flags).unwrap();
        let select = "SELECT coalesce(status, '') FROM executions WHERE execution = ?1
                      UNION ALL SELECT '' FROM promises WHERE data ->> 'execution' = ?1";
        ledger
            .query_row(select, [execution], |row| row.get(0))
            .optional()
            .unwrap()
    }

    fn state(&self) -> PathBuf {
        let beside = || self.directory.path().join("state");
        self.setup.state.clone().unwrap_or_else(beside)
    }

    fn slot(&mut self, service: Service) -> &mut Option<Started> {
        match service {
            Service::Jailer => &mut self.jailer,
            Service::Daemon => &mut self.brigd,
        }
    }

    fn child(&self, service: Service) -> &Child {
        let slot = match service {
            Service::Jailer => &self.jailer,
            Service::Daemon => &self.brigd,
        };
        &slot.as_ref().expect("it was started").child
    }

    fn configure(&self) {
        let directory = self.directory.path().display();
        let pool = self.setup.pool.as_deref().unwrap_or(way::pool());
        let text = format!(
            "socket = \"{directory}/run/brigd.sock\"\nsocket_group = \"\"\njailer_socket = \"{directory}/jailer.sock\"\n\
             state = {:?}\npolicies = [{:?}]\nimages = {:?}\n\n[pool]\n{}\n\n[links]\nlisten = {:?}\n\n[limits]\ndrain = {:?}\n{}",
            self.state(),
            self.setup.policies,
            self.setup.images,
            pool,
            self.setup.links,
            self.setup.drain,
            self.setup.limits
        );
        File::create(self.directory.path().join("brigd.toml"))
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    }

    fn begin(&self, service: Service) -> Started {
        let (places, directory) = (Places::find(), self.directory.path());
        let mut command;
        match service {
            Service::Jailer => {
                command = self.command(service, &[]);
                command.arg("--listen").arg(directory.join("jailer.sock"));
                command
                    .args(["--client", USER])
                    .arg("--ceilings")
                    .arg(&self.setup.ceilings);
                command.args(["--restart-grace", self.setup.grace]);
                command.args(["--handover-grace", self.setup.handover_grace]);
                command.arg("--policies").arg(&self.setup.policies);
                command.arg("--images").arg(&self.setup.images);
                command.arg("--kernel").arg(&places.kernel);
                command.arg("--programs").arg(&self.setup.programs);
            }
            Service::Daemon => {
                command = self.command(
                    service,
                    &["--reuid", USER, "--regid", &UID.to_string(), "--clear-groups"],
                );
                command.arg("--config").arg(directory.join("brigd.toml"));
            }
        }
        Started::new(command, Manager::new(&directory.join(format!("{service:?}.notify"))))
    }

    /// A program that dies with this thread.
    fn command(&self, service: Service, privileges: &[&str]) -> Command {
        let name = match service {
            Service::Jailer => "brig-jailer",
            Service::Daemon => "brigd",
        };
        let mut command = Command::new("setpriv");
        command.args(privileges).args(["--pdeathsig", "KILL"]);
        command.arg(self.setup.programs.join(name));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(self.logs[service as usize].try_clone().unwrap());
        command.env("BRIG_KILL_AT", self.armed());
        command
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for service in [Service::Jailer, Service::Daemon] {
                eprintln!("log of {service:?}:\n{}", self.log(service));
            }
        }
    }
}

/// Where a service says how it is, as it says it to a service manager. All of it is read: nobody who tells waits.
#[derive(Debug)]
struct Manager {
    path: PathBuf,
    socket: UnixDatagram,
    ready: mpsc::Receiver<()>,
}

impl Manager {
    fn new(path: &Path) -> Self {
        let _not_there = std::fs::remove_file(path);
        let socket = UnixDatagram::bind(path).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
        let (sender, ready) = mpsc::channel();
        let listener = socket.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut text = [0; 4096];
            // Source: sd_notify(3).
            while let Ok(length @ 1..) = listener.recv(&mut text) {
                if String::from_utf8_lossy(&text[..length])
                    .lines()
                    .any(|line| line == "READY=1")
                {
                    let _nobody_waits = sender.send(());
                }
            }
        });
        Self {
            path: path.to_owned(),
            socket,
            ready,
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ended_already = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

/// A service that was started.
#[derive(Debug)]
struct Started {
    child: Child,
    manager: Manager,
}

impl Started {
    fn new(mut command: Command, manager: Manager) -> Self {
        command.env("NOTIFY_SOCKET", &manager.path);
        let child = command.spawn().unwrap();
        Self { child, manager }
    }

    /// Waits until it is ready; false if it ended instead.
    fn is_ready(&mut self) -> bool {
        let deadline = Instant::now() + *DEADLINE;
        while Instant::now() < deadline {
            if self.manager.ready.recv_timeout(Duration::from_millis(5)).is_ok() {
                return true;
            }
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
        }
        false
    }

    /// Waits for its end for a while.
    fn end(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + *DEADLINE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ended_already = kill_process(Pid::from_child(&self.child), Signal::TERM);
            if self.end().is_none() {
                let _ended_already = self.child.kill();
            }
        }
        let _reaped_already = self.child.wait();
    }
}
