//! A started program, watched to its end: its [`pump`](crate::run::pump) runs, deadlines are held, limits are acted on.
//!
//! Nothing of the guest is waited for without a limit: once the jailer has told the end, what is still in the pipes has
//! half a second. It is the same for a program that an earlier brigd started: its log was restored, and its pipes come
//! from the jailer again.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use brig_jailer::api::{End, Event, Input, Streams};
use brig_jailer::policy::{OnOutputLimit, Policy};
use brig_proto::v1::NoticeKind;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error};

use crate::jailer::Process;
use crate::kernel;
use crate::run::execution::{Execution, StopCause};
use crate::run::finish::Ended;
use crate::run::journal::Kept;
use crate::run::listen::Claims;
use crate::run::pump::{Finish, Handle, Pumps};
use crate::run::stdin::Stdin;
use crate::run::terminal::{Size, Terminal};
use crate::run::waker::Waker;

/// How much later than the jailer brigd ends an execution that is out of time.
pub(in crate::run) const SLACK: Duration = Duration::from_millis(500);
/// How long after the end the pipes may still bring something.
const PIPES: Duration = Duration::from_millis(500);
/// How long the jailer may take to kill.
pub(in crate::run) const KILL: Duration = Duration::from_secs(5);

/// The descriptors of a started program.
#[derive(Debug, Default)]
pub struct Pipes {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// Where a Python kernel's request goes in.
    pub request: Option<OwnedFd>,
    /// Where its frames come out.
    pub frames: Option<OwnedFd>,
    /// A terminal in the place of all of them.
    pub terminal: Option<Terminal>,
    /// What goes into stdin, or is typed.
    pub input: Option<Arc<Stdin>>,
    /// What size the terminal is to have.
    pub size: Option<Arc<Size>>,
}

/// What is given to the program.
#[derive(Debug, Default)]
pub struct Given {
    pub stdin: Vec<u8>,
    pub kernel: Option<kernel::Run>,
}

/// How a program is watched.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Wall time that the program may take in all.
    pub timeout: Duration,
    /// What it has taken of that already.
    pub elapsed: Duration,
    /// How long it may write nothing.
    pub idle: Option<Duration>,
    /// How long a kernel may take to read its request.
    pub patience: Duration,
    /// Whether the jailer holds the session, and copies of the ways into its programs.
    pub held: bool,
    /// How it ended, if that is known.
    pub end: Option<End>,
}

impl Pipes {
    /// Takes the descriptors apart that came with `Spawned` or `HeldExecution`; `None` if they are not as many as it
    /// said.
    pub fn new(streams: Streams, fds: Vec<OwnedFd>) -> Option<(Self, Kept)> {
        let mut fds = fds.into_iter();
        let mut take = |present: bool| if present { fds.next().map(Some) } else { Some(None) };
        let ours = take(streams.terminal)?;
        let mut pipes = Self {
            stdin: take(streams.stdin)?,
            stdout: take(streams.stdout)?,
            stderr: take(streams.stderr)?,
            request: take(streams.request)?,
            frames: take(streams.frames)?,
            ..Self::default()
        };
        let kept = Kept {
            stdin: take(streams.input)?,
            stdout: take(streams.stdout || streams.terminal)?,
            stderr: take(streams.stderr)?,
            frames: take(streams.frames)?,
            journal: take(true)??,
        };
        if let Some(ours) = ours {
            let out = (fds.next()?, fds.next()?);
            let input = (fds.next()?, fds.next()?);
            pipes.terminal = Some(Terminal { ours, out, input });
        }
        fds.next().is_none().then_some((pipes, kept))
    }
}

impl Pipes {
    /// What has to wake the thread that moves their bytes.
    pub(super) fn wakers(&self) -> Vec<&Waker> {
        let input = self.input.iter().map(|input| &input.waker);
        input.chain(self.size.iter().map(|size| &size.waker)).collect()
    }
}

impl Given {
    /// Puts what the program is given where its pump finds it; the log is kept from here on.
    pub fn keep(&self, execution: &Execution, mut kept: Kept, outline: Vec<u8>) -> std::io::Result<()> {
        if let Some(file) = kept.stdin.take() {
            execution.stdin.begin(file, &self.stdin)?;
        }
        let request = self.kernel.as_ref().map(kernel::request).transpose()?;
        let request = request.unwrap_or_default();
        execution.log.keep(kept, &request, outline)
    }
}

/// Watches a program to its end; all that it wrote and showed is in the log then. The log has the files of the
/// execution: by [`Given::keep`], or because it was restored.
pub async fn watch(
    process: &mut Process,
    execution: &Arc<Execution>,
    policy: &Arc<Policy>,
    pumps: &Arc<Pumps>,
    mut pipes: Pipes,
    terms: Terms,
) -> (Ended, Claims) {
    pipes.input = Some(Arc::clone(&execution.stdin));
    pipes.size = Some(Arc::clone(&execution.size));
    let mut pump = pumps.start(&execution.log, policy, pipes, terms.patience);
    let ended = match terms.end {
        Some(end) => Ended::Told(end),
        None => until_end(process, execution, policy, pump.as_mut(), terms).await,
    };
    if let Some(pump) = pump {
        let finish = pump.finish(StdInstant::now() + PIPES).await;
        if matches!(finish, Finish::Early | Finish::Abandoned) {
            let message = "the output was not at its end when the code was; what came later is missing";
            execution.log.notice(NoticeKind::OutputDropped, message);
        }
    }
    // For a thread that could not, or will be late.
    execution.log.seal();
    execution.stdin.release();
    if execution.output.is_limited() && policy.limits.on_output_limit == OnOutputLimit::End {
        // Whatever came first: it was written before the end.
        execution.stop.tell(StopCause::Output);
    }
    (ended, execution.log.claims())
}

/// Waits for the end, and brings it about where it is due.
async fn until_end(
    process: &mut Process,
    execution: &Arc<Execution>,
    policy: &Policy,
    mut pump: Option<&mut Handle>,
    terms: Terms,
) -> Ended {
    let clock = execution.clock();
    let (start, left) = (clock.mark(), terms.timeout.saturating_sub(terms.elapsed) + SLACK);
    let ends_at_limit = policy.limits.on_output_limit == OnOutputLimit::End;
    let mut killed: Option<Instant> = None;
    let mut stopping = false;
    loop {
        let given_up = async {
            match killed {
                // A kill ends what stands still too.
                Some(killed) => sleep_until(killed + KILL).await,
                None => clock.reached(start, left).await,
            }
        };
        tokio::select! {
            message = process.next() => match message.map(|message| message.event) {
                Some(Event::Ended { end, .. }) => return Ended::Told(end),
                None => return Ended::Lost,
                // It had waited for work, and what it used then is told.
                Some(Event::Lapped { .. }) => {}
                Some(event) => debug!(?event, "jailer event unexpected"),
            },
            _cause = execution.stop.told(), if killed.is_none() => {
                execution.remember(process.jailer()).await;
                process.kill().await;
                killed = Some(Instant::now());
            }
            cause = due(execution, ends_at_limit, terms.idle), if !stopping => {
                stopping = true;
                execution.stop.tell(cause);
            }
            input = closed_input(&mut pump) => if terms.held {
                process.close_input(input).await;
            },
            () = given_up => match killed {
                Some(_) => return Ended::Unconfirmed,
                None => execution.stop.tell(StopCause::WallTime),
            },
        }
    }
}

/// Waits until brigd has a reason of its own to end the program.
pub(in crate::run) async fn due(execution: &Execution, ends_at_limit: bool, idle: Option<Duration>) -> StopCause {
    let silence = async {
        match idle {
            Some(idle) => execution.output.idle_for(idle).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        fault = execution.log.failed() => {
            error!(%fault, "execution can't go on");
            StopCause::Fault
        }
        () = execution.output.limit_reached(), if ends_at_limit => StopCause::Output,
        () = silence => StopCause::IdleTime(idle.map_or(0, millis)),
    }
}

/// Waits until a way into the program was closed.
async fn closed_input(pump: &mut Option<&mut Handle>) -> Input {
    let closed = match pump {
        Some(pump) => pump.inputs.recv().await,
        None => None,
    };
    match closed {
        Some(input) => input,
        // Nothing more comes.
        None => std::future::pending().await,
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
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
            input: false,
            stdout: true,
            stderr: false,
            request: true,
            frames: true,
        };
        let some = |count: usize| (0..count).map(|_| fd()).collect::<Vec<_>>();
        let (pipes, kept) = Pipes::new(streams, some(6)).unwrap();
        assert!(pipes.stdin.is_none() && pipes.stdout.is_some() && pipes.stderr.is_none() && pipes.frames.is_some());
        assert!(kept.stdout.is_some() && kept.stderr.is_none() && kept.frames.is_some());
        assert!(Pipes::new(streams, some(5)).is_none());
        assert!(Pipes::new(streams, some(7)).is_none());
    }

    #[test]
    fn ways_in_come_before_ways_out_and_pipes_before_files() {
        let streams = Streams {
            terminal: false,
            stdin: false,
            input: false,
            stdout: false,
            stderr: false,
            request: true,
            frames: true,
        };
        let fds: Vec<_> = (0..4).map(|_| fd()).collect();
        let numbers: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let (pipes, kept) = Pipes::new(streams, fds).unwrap();
        let found = [pipes.request, pipes.frames, kept.frames, Some(kept.journal)];
        assert_eq!(found.map(|fd| fd.unwrap().as_raw_fd()).to_vec(), numbers);
    }

    #[test]
    fn a_terminal_comes_first_and_its_pipes_last() {
        let streams = Streams {
            terminal: true,
            stdin: false,
            input: true,
            stdout: false,
            stderr: false,
            request: false,
            frames: false,
        };
        let fds: Vec<_> = (0..8).map(|_| fd()).collect();
        let numbers: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let (pipes, kept) = Pipes::new(streams, fds).unwrap();
        let Terminal { ours, out, input } = pipes.terminal.unwrap();
        let found = [
            ours,
            kept.stdin.unwrap(),
            kept.stdout.unwrap(),
            kept.journal,
            out.0,
            out.1,
            input.0,
            input.1,
        ];
        assert_eq!(found.map(|fd| fd.as_raw_fd()).to_vec(), numbers);
        assert!(Pipes::new(streams, (0..7).map(|_| fd()).collect()).is_none());
    }
}
