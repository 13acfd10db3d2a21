//! A private daemon for one call: `brig run --standalone`.
//!
//! brig starts brigd, brigd starts brig-jailer and gives up root; brig waits for one line on a pipe that says the
//! daemon serves, runs its job over the socket in a directory made for it, and stops brigd again. On a host with
//! systemd all of it happens in a scope of its own with delegated control groups, so that no other unit's limits or
//! bookkeeping are touched.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::io::FdFlags;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::unix::pipe::Receiver;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::follow::interrupts::Interrupts;
use crate::programs::{self, Places};

/// Time for brigd to start serving; it opens a ledger and starts the jailer, which takes far less than a second.
const START: Duration = Duration::from_secs(30);
/// Time for brigd to end after SIGTERM; it has a jail at most to take down.
const STOP: Duration = Duration::from_secs(15);
/// How much of the daemon's log an error shows.
const LOG_TAIL: usize = 4096;
/// Set for the process inside the scope, so that it does not make another one.
const IN_SCOPE: &str = "BRIG_IN_SCOPE";

/// A running private daemon. It must be ended by [`stop`](Self::stop).
#[derive(Debug)]
pub(crate) struct PrivateDaemon {
    child: Child,
    /// Held open to the end: a daemon that is still writing its line must not find the pipe closed.
    ready: Receiver,
    directory: TempDir,
    log: File,
}

/// Continues in a scope of its own where systemd runs; returns where it does not, or in the scope.
///
/// Errors: not being root, and what `systemd-run` says.
pub(crate) fn enter_scope() -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        let message = "--standalone starts a daemon that makes its own jails, and needs root";
        return Err(Failure::new(Exit::NotPermitted, message)
            .hint("run it with sudo, or use the daemon of this host: systemctl start brigd"));
    }
    if !Path::new("/run/systemd/system").is_dir() || std::env::var_os(IN_SCOPE).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(|error| cannot_scope(&error))?;
    let mut command = Command::new("systemd-run");
    command
        .args(["--scope", "--quiet", "-p", "Delegate=yes", "--"])
        .arg(program)
        .args(std::env::args_os().skip(1));
    Err(cannot_scope(&command.env(IN_SCOPE, "1").exec()))
}

fn cannot_scope(error: &io::Error) -> Failure {
    let message = format!("systemd-run --scope -p Delegate=yes: {error}");
    Failure::new(Exit::Configuration, message)
}

impl PrivateDaemon {
    /// Starts brigd and waits until it serves.
    pub(crate) async fn start(places: &Places, interrupts: &Interrupts) -> Result<Self, Failure> {
        let program = programs::find("brigd", places.programs.as_deref())?;
        let directory = make_directory().map_err(|error| failed("directory of the private daemon", &error))?;
        let log = tempfile::tempfile().map_err(|error| failed("log of the private daemon", &error))?;
        let (ready, told) = ready_pipe().map_err(|error| failed("pipe of the private daemon", &error))?;
        let ready = Receiver::from_owned_fd(ready).map_err(|error| failed("pipe of the private daemon", &error))?;
        let mut command = Command::new(&program);
        command.arg("--standalone").arg(directory.path());
        command
            .arg("--ready-fd")
            .arg(told.as_raw_fd().to_string())
            // Also a SIGKILL of this process ends it.
            .arg("--tied")
            .args(places.arguments());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(
            log.try_clone()
                .map_err(|error| failed("log of the private daemon", &error))?,
        );
        // A group of its own: a Ctrl-C at the terminal is for brig, which cancels the job first.
        let child = command
            .process_group(0)
            .spawn()
            .map_err(|error| failed(&program.display().to_string(), &error))?;
        drop(told);
        interrupts.stop_too(Pid::from_raw(child.id().cast_signed()));
        let mut daemon = Self {
            child,
            ready,
            directory,
            log,
        };
        match daemon.wait_ready().await {
            Ok(()) => Ok(daemon),
            Err(failure) => {
                daemon.end().await.ok();
                Err(failure)
            }
        }
    }

    /// The socket where the daemon serves.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("brigd.sock")
    }

    /// The end of what the daemon logged. The daemon writes to the same open file, so its offset is left alone.
    fn log_tail(&self) -> String {
        let length = self.log.metadata().map_or(0, |metadata| metadata.len());
        let mut tail = vec![0; LOG_TAIL];
        let read = self
            .log
            .read_at(&mut tail, length.saturating_sub(LOG_TAIL as u64))
            .unwrap_or(0);
        String::from_utf8_lossy(&tail[..read]).trim().to_owned()
    }

    /// Stops the daemon, waits until it is gone, removes its directory, and gives the end of its log.
    pub(crate) async fn stop(mut self) -> (String, Result<(), Failure>) {
        let stopped = self.end().await;
        let log = self.log_tail();
        let removed = self.directory.close();
        let result = match (stopped, removed) {
            (Err(error), _) => Err(failed("end of the private daemon", &error)),
            (Ok(None), _) => Err(Failure::new(
                Exit::Failed,
                "the private brigd did not stop and was killed",
            )),
            (_, Err(error)) => Err(failed("directory of the private daemon", &error)),
            _ => Ok(()),
        };
        (log, result)
    }

    async fn wait_ready(&mut self) -> Result<(), Failure> {
        let mut line = Vec::new();
        let mut pipe = BufReader::new(&mut self.ready).take(1024);
        match tokio::time::timeout(START, pipe.read_until(b'\n', &mut line)).await {
            Ok(Ok(_)) if line.ends_with(b"\n") => Ok(()),
            Ok(_) => Err(self.ended_early().await),
            Err(_) => Err(self.did_not_start(Exit::Failed, &format!("did not serve within {} s", START.as_secs()))),
        }
    }

    async fn ended_early(&mut self) -> Failure {
        match self.wait(Instant::now() + STOP).await {
            Ok(Some(status)) => {
                let exit = match status.code() {
                    Some(77) => Exit::NotPermitted,
                    Some(2 | 78) => Exit::Configuration,
                    _ => Exit::Failed,
                };
                self.did_not_start(exit, &format!("ended at its start ({status})"))
            }
            _ => self.did_not_start(Exit::Failed, "closed its pipe without a word"),
        }
    }

    fn did_not_start(&self, exit: Exit, what: &str) -> Failure {
        let log = self.log_tail();
        let separator = if log.is_empty() { "" } else { ":\n" };
        Failure::new(exit, format!("the private brigd {what}{separator}{log}"))
    }

    /// Asks the process to end, kills it if it does not; `None` means that it had to be killed.
    async fn end(&mut self) -> io::Result<Option<ExitStatus>> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(Some(status));
        }
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            rustix::process::kill_process(pid, Signal::TERM)?;
        }
        if let Some(status) = self.wait(Instant::now() + STOP).await? {
            return Ok(Some(status));
        }
        // The jailer sees its socket close and takes everything down that this brigd had.
        self.child.kill()?;
        self.child.wait()?;
        Ok(None)
    }

    async fn wait(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Adds what the daemon logged to a failure that is not the caller's fault.
pub(crate) fn explain(failure: Failure, log: &str) -> Failure {
    if failure.exit != Exit::Failed || log.is_empty() {
        return failure;
    }
    failure.hint(format!("the end of the daemon's log:\n{log}"))
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, format!("{what}: {error}"))
}

/// Makes a directory that brigd can reach once it is no longer root.
fn make_directory() -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder
        .prefix("brig-standalone-")
        .permissions(Permissions::from_mode(0o755));
    let run = Path::new("/run/brig");
    if run.is_dir() {
        builder.tempdir_in(run)
    } else {
        builder.tempdir()
    }
}

/// Makes the pipe on which brigd says that it serves; its end survives the exec.
fn ready_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ready, told) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::fcntl_setfd(&told, FdFlags::empty())?;
    rustix::io::ioctl_fionbio(&ready, true)?;
    Ok((ready, told))
}
