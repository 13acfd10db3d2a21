//! A private brigd.

use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::host::{Places, can_run};
use crate::{Brig, Client, DEADLINE, way};

/// How much of the log a failure shows, in bytes.
const LOG_TAIL: usize = 16 << 10;

/// A brigd with a jailer of its own, in a directory of its own.
#[derive(Debug)]
pub struct Daemon {
    /// Shared with the daemon that follows it in the same directory.
    directory: Arc<TempDir>,
    child: Child,
    /// The daemon ends when this is closed: also when the test is killed.
    _tie: ChildStdout,
    log: File,
    client: Client,
}

impl Deref for Daemon {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Daemon {
    /// Starts one; `None` where this host can't run it.
    pub fn start() -> Option<Self> {
        Self::start_with(&Places::find().policies)
    }

    /// Starts one with other policies. Only root may be able to change them.
    pub fn start_with(policies: &Path) -> Option<Self> {
        can_run().then(|| Self::launch(directory(), policies, ""))
    }

    /// Starts one with a configuration of its own.
    pub fn start_configured(configuration: &str) -> Option<Self> {
        can_run().then(|| Self::launch(directory(), &Places::find().policies, configuration))
    }

    /// Starts one with other policies and a configuration of its own.
    pub fn start_as(policies: &Path, configuration: &str) -> Option<Self> {
        can_run().then(|| Self::launch(directory(), policies, configuration))
    }

    /// Starts one that gives up within seconds what nobody asks for any more, but for what is kept ready.
    pub fn start_forgetful() -> Option<Self> {
        can_run().then(|| Self::launch(directory(), &Places::find().policies, "[pool]\nidle = \"1s\""))
    }

    /// Starts the next one in the directory of this one, which must have ended.
    pub fn start_again(&self) -> Self {
        Self::launch(Arc::clone(&self.directory), &Places::find().policies, "")
    }

    fn launch(directory: Arc<TempDir>, policies: &Path, configuration: &str) -> Self {
        let places = Places::find();
        let log = tempfile::tempfile().unwrap();
        let file = directory.path().join("brigd.toml");
        let begun = if configuration.starts_with("[pool]") {
            ""
        } else {
            "[pool]"
        };
        std::fs::write(&file, format!("{configuration}\n{begun}\n{}", way::pool())).unwrap();
        let mut command = Command::new(places.program("brigd"));
        command.arg("--standalone").arg(directory.path());
        command.arg("--config").arg(file);
        command.arg("--policies").arg(policies);
        command.arg("--images").arg(&places.images);
        command
            .arg("--kernel")
            .arg(&places.kernel)
            .arg("--programs")
            .arg(&places.programs);
        command
            .args(["--ready-fd", "1", "--tied"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command.stderr(log.try_clone().unwrap());
        let mut child = command.spawn().unwrap();
        let Some(tie) = await_ready(&mut child) else {
            let _ended_already = child.kill();
            let status = child.wait().unwrap();
            panic!("brigd did not start: {status}: {}", tail(&log));
        };
        let client = Client::new(&directory.path().join("brigd.sock")).on_its_way();
        Self {
            directory,
            child,
            _tie: tie,
            log,
            client,
        }
    }

    /// Where socket, ledger and spool lie.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Process id of brigd.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        tail(&self.log)
    }

    /// Runs the command `brig` against it.
    pub fn brig(&self, arguments: &[&str]) -> Brig {
        Brig::command(&self.socket(), arguments).run()
    }

    /// Tells it to stop and waits until it has.
    pub fn stop(mut self) -> std::process::ExitStatus {
        self.terminate();
        self.child.wait().unwrap()
    }

    /// Kills it without a word, and reaps it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it ends by itself.
    pub fn wait_end(&mut self) -> Option<std::process::ExitStatus> {
        let deadline = Instant::now() + *DEADLINE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        None
    }

    /// Tells it to stop and waits until it has; another one may follow it in its directory.
    pub fn terminate(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ended_already = kill_process(Pid::from_child(&self.child), Signal::TERM);
            if self.wait_end().is_none() {
                let _ended_already = self.child.kill();
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of brigd:\n{}", self.log());
        }
        self.terminate();
        let _reaped_already = self.child.wait();
    }
}

fn directory() -> Arc<TempDir> {
    Arc::new(tempfile::Builder::new().prefix("brig-test-").tempdir().unwrap())
}

/// Waits for the line that says that it serves, and gives the pipe that it came by.
fn await_ready(child: &mut Child) -> Option<ChildStdout> {
    let mut stdout = child.stdout.take().unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut byte = [0];
        let mut line = Vec::new();
        while stdout.read(&mut byte).is_ok_and(|read| read == 1) && byte != *b"\n" {
            line.extend(byte);
        }
        let _nobody_waits = sender.send(line.starts_with(b"ready ").then_some(stdout));
    });
    receiver.recv_timeout(*DEADLINE).unwrap_or_default()
}

pub(crate) fn tail(log: &File) -> String {
    let length = log.metadata().map_or(0, |metadata| metadata.len());
    let mut bytes = vec![0; LOG_TAIL];
    let read = log
        .read_at(&mut bytes, length.saturating_sub(LOG_TAIL as u64))
        .unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}
