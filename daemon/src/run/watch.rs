//! A started program, watched to its end: pipes are emptied, the kernel is listened to, the deadline is held.
//!
//! Nothing of the guest is waited for without a limit: once the jailer has told the end, what is still in the pipes has
//! half a second, what is still in the kernel's pipe a tenth.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use brig_jailer::api::{Event, Request, Streams};
use brig_jailer::policy::{OnOutputLimit, Policy};
use brig_proto::v1::NoticeKind;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, warn};

use crate::jailer::Jail;
use crate::output::{Stream, pump};
use crate::run::execution::{Execution, StopCause};
use crate::run::finish::Ended;
use crate::run::listen::{Claims, KernelInput, KernelPipes, Listener};

/// How much later than the jailer brigd ends an execution that is out of time.
const SLACK: Duration = Duration::from_millis(500);
/// How long after the end the pipes may still bring something.
const PIPES: Duration = Duration::from_millis(500);
/// How long after the end the kernel's pipe may still bring something.
const FRAMES: Duration = Duration::from_millis(100);
/// How long a task may take to end that was told to. It ends at its next await, unless a call of its holds it.
const ABORT: Duration = Duration::from_secs(1);
/// How long the jailer may take to kill.
const KILL: Duration = Duration::from_secs(5);

/// The descriptors of a started program.
#[derive(Debug, Default)]
pub struct Pipes {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    pub kernel: Option<KernelPipes>,
}

/// What is given to the program.
#[derive(Debug, Default)]
pub struct Given {
    pub stdin: Option<Vec<u8>>,
    pub kernel: Option<KernelInput>,
}

impl Pipes {
    /// Takes the descriptors apart that came with `Spawned`; `None` if they are not as many as it said.
    pub fn new(streams: Streams, fds: Vec<OwnedFd>) -> Option<Self> {
        let mut fds = fds.into_iter();
        let mut take = |present: bool| if present { fds.next().map(Some) } else { Some(None) };
        let pipes = Self {
            stdin: take(streams.stdin)?,
            stdout: take(streams.stdout)?,
            stderr: take(streams.stderr)?,
            kernel: match (take(streams.request)?, take(streams.frames)?) {
                (Some(request), Some(frames)) => Some(KernelPipes { request, frames }),
                _ => None,
            },
        };
        let files = [streams.stdout, streams.stderr, streams.frames, true];
        (fds.count() == files.into_iter().filter(|present| *present).count()).then_some(pipes)
    }
}

/// Watches a program to its end; all that it wrote and showed is in the log then.
pub async fn watch(
    jail: &mut Jail,
    execution: &Arc<Execution>,
    policy: &Arc<Policy>,
    pipes: Pipes,
    given: Given,
    timeout_ms: u64,
) -> (Ended, Claims) {
    let deadline = Instant::now() + Duration::from_millis(timeout_ms) + SLACK;
    let claims = Arc::new(Mutex::new(Claims::default()));
    let watched = [&pipes.stdout, &pipes.stderr];
    let watched = watched.into_iter().flatten().filter_map(|fd| fd.try_clone().ok());
    let watched: Vec<OwnedFd> = watched.collect();
    let mut readers = read_pipes(execution, pipes.stdout, pipes.stderr);
    let follower = tokio::spawn({
        let log = Arc::clone(&execution.log);
        async move { log.follow_output().await }
    });
    let stdin = pipes
        .stdin
        .zip(given.stdin)
        .map(|(fd, bytes)| tokio::spawn(write_stdin(fd, bytes)));
    let kernel = pipes.kernel.zip(given.kernel).map(|(pipes, input)| {
        let listener = Listener {
            log: Arc::clone(&execution.log),
            policy: Arc::clone(policy),
            claims: claims.clone(),
            pipes: watched,
        };
        tokio::spawn(listener.listen(pipes, input))
    });
    let ended = until_end(jail, execution, policy, deadline).await;
    if let Some(stdin) = stdin {
        stdin.abort();
    }
    finish_kernel(kernel).await;
    finish_pipes(&mut readers, execution).await;
    // The follower ends once the output is finished and every chunk is in the log.
    let _ = follower.await;
    let claims = claims.lock().unwrap_or_else(PoisonError::into_inner).clone();
    (ended, claims)
}

fn read_pipes(execution: &Arc<Execution>, stdout: Option<OwnedFd>, stderr: Option<OwnedFd>) -> JoinSet<()> {
    let mut readers = JoinSet::new();
    for (fd, stream) in [(stdout, Stream::Stdout), (stderr, Stream::Stderr)] {
        let Some(fd) = fd else { continue };
        let output = Arc::clone(&execution.output);
        readers.spawn(async move {
            if let Err(error) = pump(fd, stream, &output).await {
                debug!(%error, ?stream, "pipe failed");
            }
        });
    }
    readers
}

async fn write_stdin(fd: OwnedFd, bytes: Vec<u8>) {
    // A program that does not read its input is none of our business.
    if let Ok(mut pipe) = pipe::Sender::from_owned_fd(fd) {
        let _ = pipe.write_all(&bytes).await;
    }
}

/// Waits for the end, and brings it about where it is due.
async fn until_end(jail: &mut Jail, execution: &Execution, policy: &Policy, deadline: Instant) -> Ended {
    let mut killed: Option<Instant> = None;
    let mut told_limit = false;
    loop {
        let given_up = killed.map_or(deadline, |killed| killed + KILL);
        tokio::select! {
            message = jail.next() => match message.map(|message| message.event) {
                Some(Event::Ended { execution: id, end, .. }) if id == execution.id => return Ended::Told(end),
                Some(Event::Closed { .. }) | None => return Ended::Lost,
                Some(event) => debug!(?event, "jailer event unexpected"),
            },
            _cause = execution.stop.told(), if killed.is_none() => killed = kill(jail, execution).await,
            () = execution.output.limit_reached(), if !told_limit => {
                told_limit = true;
                limit_reached(execution, policy);
            }
            () = sleep_until(given_up) => match killed {
                Some(_) => return Ended::Unconfirmed,
                None => execution.stop.tell(StopCause::WallTime),
            },
        }
    }
}

fn limit_reached(execution: &Execution, policy: &Policy) {
    let message = format!(
        "output beyond {} bytes of a stream is dropped",
        execution.limits.output_bytes
    );
    execution.log.notice(NoticeKind::OutputDropped, message);
    if policy.limits.on_output_limit == OnOutputLimit::End {
        execution.stop.tell(StopCause::Output);
    }
}

async fn kill(jail: &Jail, execution: &Execution) -> Option<Instant> {
    let request = Request::Kill {
        session: jail.id().clone(),
        execution: execution.id.clone(),
    };
    if let Err(error) = jail.ask(request).await {
        debug!(%error, "kill not sent");
    }
    Some(Instant::now())
}

async fn finish_kernel(kernel: Option<JoinHandle<()>>) {
    if let Some(mut kernel) = kernel
        && timeout(FRAMES, &mut kernel).await.is_err()
    {
        kernel.abort();
        if timeout(ABORT, kernel).await.is_err() {
            warn!("listening to the kernel does not end; its task is left to itself");
        }
    }
}

async fn finish_pipes(readers: &mut JoinSet<()>, execution: &Execution) {
    let emptied = timeout(PIPES, async { while readers.join_next().await.is_some() {} }).await;
    if emptied.is_err() {
        readers.abort_all();
        if timeout(ABORT, async { while readers.join_next().await.is_some() {} })
            .await
            .is_err()
        {
            warn!("reading the output does not end; its task is left to itself");
            readers.detach_all();
        }
        let message = "the output was not at its end when the code was; what came later is missing";
        execution.log.notice(NoticeKind::OutputDropped, message);
    }
    execution.output.finish();
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn fd() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn descriptors_must_be_those_that_were_told() {
        let streams = Streams {
            terminal: false,
            stdin: false,
            stdout: true,
            stderr: false,
            request: true,
            frames: true,
        };
        let some = |count: usize| (0..count).map(|_| fd()).collect::<Vec<_>>();
        let pipes = Pipes::new(streams, some(6)).unwrap();
        assert!(pipes.stdin.is_none() && pipes.stdout.is_some() && pipes.stderr.is_none() && pipes.kernel.is_some());
        assert!(Pipes::new(streams, some(5)).is_none());
        assert!(Pipes::new(streams, some(7)).is_none());
    }

    #[test]
    fn the_way_to_the_kernel_comes_before_the_way_back() {
        let streams = Streams {
            terminal: false,
            stdin: false,
            stdout: false,
            stderr: false,
            request: true,
            frames: true,
        };
        let (request, frames) = (fd(), fd());
        let numbers = [request.as_raw_fd(), frames.as_raw_fd()];
        let pipes = Pipes::new(streams, vec![request, frames, fd(), fd()])
            .unwrap()
            .kernel
            .unwrap();
        assert_eq!([pipes.request.as_raw_fd(), pipes.frames.as_raw_fd()], numbers);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_listener_that_a_call_holds_is_left_to_itself() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let kernel = tokio::spawn(async move {
            let _ = held.recv();
        });
        let start = Instant::now();
        finish_kernel(Some(kernel)).await;
        assert!(start.elapsed() < ABORT + Duration::from_secs(1));
        drop(release);
    }
}
