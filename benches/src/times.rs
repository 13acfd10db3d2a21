//! How long a peer takes: a program that is started, writes, and is gone.

use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How long anything may take that should take milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Spans from the request on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// Until the first byte of output is there.
    pub(crate) first_output: Duration,
    /// Until all of it is, and the code has ended.
    pub(crate) finished: Duration,
    /// Until nothing of it is left.
    pub(crate) torn_down: Duration,
}

impl Times {
    /// All of them, in their order.
    pub(crate) fn moments(&self) -> [Duration; 3] {
        [self.first_output, self.finished, self.torn_down]
    }
}

/// Runs a program that must succeed with this output, and waits until it is gone.
pub(crate) fn timed(mut command: Command, expected: &str) -> anyhow::Result<Times> {
    let errors = tempfile::NamedTempFile::new()?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors.reopen()?);
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let read = read_all(child.stdout.take().context("stdout is piped")?, start);
    let there = read.is_ok() && ready(pidfd.as_fd(), start)?;
    let torn_down = start.elapsed();
    if !there {
        child.kill()?;
    }
    let status = child.wait()?;
    let (written, first_output, finished) = read?;
    if !there || !status.success() || written != expected.as_bytes() {
        let said = std::fs::read_to_string(errors.path())?;
        bail!("{command:?}: {status}, {:?}, {said}", String::from_utf8_lossy(&written));
    }
    Ok(Times {
        first_output,
        finished,
        torn_down,
    })
}

/// Reads to the end; gives when the first byte and the end came.
fn read_all(mut pipe: impl Read + AsFd, start: Instant) -> anyhow::Result<(Vec<u8>, Duration, Duration)> {
    let (mut written, mut first) = (Vec::new(), None);
    let mut buffer = [0; 4096];
    loop {
        ensure!(ready(pipe.as_fd(), start)?, "no end after {PATIENCE:?}");
        let read = pipe.read(&mut buffer)?;
        let now = start.elapsed();
        if read == 0 {
            return Ok((written, first.unwrap_or(now), now));
        }
        first.get_or_insert(now);
        written.extend_from_slice(&buffer[..read]);
    }
}

/// Waits until a descriptor is; false if that takes too long.
fn ready(descriptor: impl AsFd, start: Instant) -> anyhow::Result<bool> {
    let left = Timespec::try_from(PATIENCE.saturating_sub(start.elapsed()))?;
    let mut waited = [PollFd::new(&descriptor, PollFlags::IN)];
    Ok(poll(&mut waited, Some(&left))? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn first_output_end_and_exit_are_told_apart() {
        let times = timed(sh("echo 1; sleep 0.5; echo 2; exec >&-; sleep 0.5"), "1\n2\n").unwrap();
        // Each may be seen late.
        let gap = Duration::from_millis(250);
        assert!(times.finished - times.first_output >= gap && times.torn_down - times.finished >= gap);
    }

    #[test]
    fn a_program_that_fails_says_why() {
        let error = timed(sh("echo 1; echo trouble >&2; exit 3"), "1\n").unwrap_err();
        assert!(error.to_string().contains("trouble"), "{error}");
        assert!(timed(sh("echo 2"), "1\n").is_err());
    }
}
