//! One interpreter of a context: started, and put away when it has ended.

use std::time::{Duration, Instant as StdInstant};

use brig_jailer::api::{End, Event, Exit, Refusal, Spawn, Start, Work};
use brig_proto::v1::Reason;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use super::adopt::Remains;
use super::{Context, Language};
use crate::host::Host;
use crate::jailer::{JailerError, Process};
use crate::kernel::context::Request;
use crate::run::admit::new_id;
use crate::run::kept::Session;
use crate::run::pump::{Line, Store, Told};
use crate::run::watch::Pipes;
use crate::status::{FieldProblem, Problem};

/// How long an interpreter may take to end that was killed.
const END: Duration = Duration::from_secs(10);
/// How long after the end of an interpreter its pipes may still bring something.
pub(super) const PIPES: Duration = Duration::from_millis(500);

/// An interpreter that lives.
#[derive(Debug)]
pub struct Live {
    pub process: Process,
    pub line: Line,
    pub pid: u32,
    /// Whether a zygote has forked it.
    pub forked: bool,
    /// Laps that were asked for and not told.
    pub laps: u32,
}

impl Live {
    /// Begins another part of its life, with a wall time if code runs.
    pub(super) async fn lap(&mut self, timeout_ms: Option<u64>) {
        self.laps += u32::from(timeout_ms.is_none());
        self.process.lap(timeout_ms).await;
    }
}

/// Puts away what nobody can go on with; the jailer still remembers it.
pub async fn put_away(host: &Host, remains: Remains) -> Process {
    let Remains {
        mut process,
        lives,
        pipes,
    } = remains;
    if lives {
        process.kill().await;
        end_of(&mut process).await;
    }
    host.pumps.let_go(pipes);
    process
}

/// Has a zygote fork an interpreter, if there is one that can, or starts one, and waits until it takes work.
pub(super) async fn start(host: &Host, session: &Session, context: &Context) -> Result<Live, Problem> {
    let is_plain = context.language == Language::Python && context.environment.is_empty();
    // After a reload a session may have a policy that no other one gets.
    let now = host.store.policy(&session.policy.name);
    if is_plain && now.is_ok_and(|now| now.hash == session.policy.hash) {
        host.pool.want_contexts(session);
    }
    if !is_plain || !session.contexts.can_fork() {
        return begin(host, session, context, Start::Exec).await;
    }
    match begin(host, session, context, Start::Fork).await {
        Err(Problem::Jail(Refusal::Invalid { field, .. })) if field == "start" => {
            debug!("the zygote is gone; an interpreter is started");
        }
        Err(problem) if is_of_the_fork(&problem) && !session.is_over() => {
            host.pool.zygote_failed();
            warn!(%problem, "not forked; an interpreter is started");
        }
        begun => return begun,
    }
    session.contexts.fork(false);
    begin(host, session, context, Start::Exec).await
}

/// Whether an interpreter that is started may do better.
fn is_of_the_fork(problem: &Problem) -> bool {
    match problem {
        Problem::Jail(refusal) => *refusal != Refusal::Paused,
        Problem::Step { .. } | Problem::JailDied(_) | Problem::StartTimeout(..) => true,
        _ => false,
    }
}

async fn begin(host: &Host, session: &Session, context: &Context, start: Start) -> Result<Live, Problem> {
    let most = session.limits.start_timeout_ms;
    let mut environment = session.environment.clone();
    environment.extend(context.environment.clone());
    let bytes = |(name, value): (String, String)| (name.into_bytes(), value.into_bytes());
    let spawn = Spawn {
        session: session.id.clone(),
        execution: new_id('c'),
        work: Work::Context,
        start,
        environment: environment.into_iter().map(bytes).collect(),
        stdin: false,
        merge_stderr: false,
        // What it takes to start is bounded below; the limit of an execution is none of it.
        timeout_ms: session.policy.limits.timeout.max.millis(),
        terminal: None,
        cpu_time_ms: session.times.cpu_ms,
        memo: context.memo_of_next().encode(),
    };
    let mut process = host.jailer.spawn(spawn).await?;
    let mut line = None;
    let starting = ready(host, session, context, &mut process, &mut line);
    let started = tokio::select! {
        started = starting => started,
        () = session.clock.sleep(Duration::from_millis(most)) => {
            Err(Problem::StartTimeout(most, "its interpreter was being started"))
        }
    };
    match (started, line) {
        (Ok(pid), Some(line)) => {
            let mut live = Live {
                process,
                line,
                pid,
                forked: start == Start::Fork,
                laps: 0,
            };
            // From here on it has no limit of time until it has something to run.
            live.lap(None).await;
            Ok(live)
        }
        (started, line) => {
            process.kill().await;
            end_of(&mut process).await;
            if let Some(line) = line {
                line.finish(StdInstant::now()).await;
            }
            process.forget().await;
            Err(started.err().unwrap_or(Problem::JailDied("starting an interpreter")))
        }
    }
}

async fn ready(
    host: &Host,
    session: &Session,
    context: &Context,
    process: &mut Process,
    slot: &mut Option<Line>,
) -> Result<u32, Problem> {
    let failed = |message: String| Problem::Step {
        step: "kernel",
        message,
    };
    let message = process.next().await.ok_or(Problem::Jailer(JailerError::Gone))?;
    let (pid, pipes, kept) = match message.event {
        Event::Spawned { pid, streams, .. } => {
            let pipes = Pipes::new(streams, message.fds);
            let (pipes, kept) = pipes.ok_or_else(|| failed("other descriptors came than were told".to_owned()))?;
            (pid, pipes, kept)
        }
        Event::Refused { refusal, .. } => return Err(Problem::Jail(refusal)),
        _ => return Err(Problem::JailDied("starting an interpreter")),
    };
    let store = Store::begin(kept, context.outline()).map_err(|error| failed(error.to_string()))?;
    let line = host
        .pumps
        .start_line(pipes, store)
        .map_err(|fault| failed(fault.to_string()))?;
    let line = slot.insert(line);
    let request = Request::Start {
        language: context.language.name(),
        directory: &context.directory,
        threads: session.limits.quantities().threads(),
    };
    line.send(request.frame().map_err(|error| failed(error.to_string()))?);
    let mut ended: Option<(End, Instant)> = None;
    let failed_at = |end: Option<End>| {
        let how = end.map(|end| format!(" ({})", how(Some(end)))).unwrap_or_default();
        failed(format!("the interpreter ended at its start{how}"))
    };
    loop {
        let late = async {
            match ended {
                Some((_, by)) => sleep_until(by).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            told = line.told() => match told {
                Some(Told::Ready) => return Ok(pid),
                Some(Told::Refused(message)) => return Err(refused_start(message)),
                Some(Told::Done(_)) => {}
                Some(Told::Broken(broken)) => return Err(failed(broken.to_string())),
                Some(Told::Closed) | None => return Err(failed_at(ended.map(|(end, _)| end))),
            },
            message = process.next(), if ended.is_none() => match message.map(|message| message.event) {
                // What it has said before may not have been read yet; the pipe's end follows.
                Some(Event::Ended { end, .. }) => ended = Some((end, Instant::now() + PIPES)),
                None => return Err(Problem::JailDied("starting an interpreter")),
                Some(event) => debug!(?event, "jailer event passed over"),
            },
            () = late => return Err(failed_at(ended.map(|(end, _)| end))),
        }
    }
}

/// What the kernel can't do that was asked for: the directory is the only thing that may not be there.
fn refused_start(message: String) -> Problem {
    Problem::Fields(vec![FieldProblem {
        field: "directory".to_owned(),
        message,
        reason: Reason::InvalidValue,
    }])
}

/// Ends an interpreter, which the jailer still remembers.
pub(super) async fn end(mut live: Live) -> Process {
    live.process.kill().await;
    end_of(&mut live.process).await;
    live.line.finish(StdInstant::now()).await;
    live.process
}

/// Waits for the end of a process that was killed.
pub(super) async fn end_of(process: &mut Process) -> Option<End> {
    let ending = async {
        while let Some(message) = process.next().await {
            match message.event {
                // Before it ran, it could not be killed.
                Event::Spawned { .. } => process.kill().await,
                Event::Ended { end, .. } => return Some(end),
                Event::Refused { .. } => return None,
                _ => {}
            }
        }
        None
    };
    let ended = tokio::time::timeout(END, ending).await;
    ended.unwrap_or_else(|_elapsed| {
        warn!("an interpreter that was killed did not end");
        None
    })
}

/// How an interpreter ended, for people.
pub(super) fn how(end: Option<End>) -> String {
    match end.map(|end| (end.exit, end.oom_kills)) {
        Some((Exit::Signal(9), 1..)) => "out of memory".to_owned(),
        Some((Exit::Signal(signal), _)) => format!("signal {signal}"),
        Some((Exit::Code(code), _)) => format!("exit code {code}"),
        Some((Exit::Unknown, _)) | None => "nobody knows how".to_owned(),
    }
}
