//! The life of a context: its interpreter is started, lent, replaced and ended here.
//!
//! An interpreter that was used and is gone is replaced at once, so that the next execution finds one; one that is gone
//! before anybody used it is replaced when it is needed, and then whoever needs it is told why there is none.

use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant, SystemTime};

use brig_jailer::api::{End, Event, Exit, Spawn, Work};
use brig_proto::v1::{ContextState, Reason};
use tokio::sync::oneshot;
use tracing::{Instrument, debug, info, info_span, warn};

use super::{Context, Lease, Wanted};
use crate::host::Host;
use crate::jailer::{JailerError, Process};
use crate::kernel::context::Request;
use crate::run::admit::new_id;
use crate::run::kept::Session;
use crate::run::pump::{Line, Told};
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
    /// Whether an execution had it.
    pub is_used: bool,
    /// Laps that were asked for and not told.
    pub laps: u32,
}

impl Live {
    /// Begins another part of its life, with a wall time if code runs.
    pub(super) async fn lap(&mut self, timeout_ms: Option<u64>) {
        self.laps += 1;
        self.process.lap(timeout_ms).await;
    }
}

/// The task of a context.
struct Owner {
    host: Arc<Host>,
    session: Arc<Session>,
    context: Arc<Context>,
    live: Option<Live>,
    /// What became of the last interpreter, until an execution was told.
    lost: Option<String>,
}

/// Lives with a context to its end.
pub async fn run(host: Arc<Host>, session: Arc<Session>, context: Arc<Context>) {
    let span = info_span!("context", id = %context.id, session = %session.id);
    let mut owner = Owner {
        host,
        session,
        context,
        live: None,
        lost: None,
    };
    async {
        if owner.renew().await.is_ok() {
            owner.live().await;
        }
        owner.close().await;
    }
    .instrument(span)
    .await;
}

impl Owner {
    async fn live(&mut self) {
        let (context, session) = (Arc::clone(&self.context), Arc::clone(&self.session));
        let mut changes = context.changes.subscribe();
        loop {
            changes.mark_unchanged();
            if context.lock().is_closing || !session.is_up() {
                return;
            }
            if self.reset().await {
                continue;
            }
            if let Some(wanted) = context.take_next() {
                self.lend(wanted).await;
                continue;
            }
            tokio::select! {
                biased;
                _reason = session.told_to_end() => return,
                // The sender lives as long as the context.
                _ = changes.changed() => {}
                end = self.died() => {
                    self.lost = Some(format!("it ended between two executions ({})", how(end)));
                    self.bury().await;
                }
            }
        }
    }

    /// Waits until the interpreter dies; how, if anybody said.
    async fn died(&mut self) -> Option<End> {
        let Some(live) = &mut self.live else {
            return std::future::pending().await;
        };
        loop {
            tokio::select! {
                message = live.process.next() => match message.map(|message| message.event) {
                    Some(Event::Ended { end, .. }) => return Some(end),
                    None => return None,
                    // The usage of a part that nobody waited for.
                    Some(Event::Lapped { .. }) => live.laps = live.laps.saturating_sub(1),
                    Some(event) => debug!(?event, "jailer event passed over"),
                },
                told = live.line.told() => match told {
                    // The jailer tells the end. One that only closed its pipe is found out by the next execution.
                    Some(Told::Closed | Told::Broken(_)) | None => {
                        live.process.kill().await;
                        return end_of(&mut live.process).await;
                    }
                    Some(told) => debug!(?told, "context frame passed over"),
                },
            }
        }
    }

    /// Does what somebody asked for who wants a new interpreter.
    async fn reset(&mut self) -> bool {
        let number = {
            let state = self.context.lock();
            if state.resets_done == state.resets {
                return false;
            }
            state.resets
        };
        if let Some(live) = self.live.take() {
            end(live).await;
        }
        self.lost = None;
        // The refusal is told to whoever waits for the reset.
        let _ = self.renew().await;
        self.context.change(|state| state.resets_done = number);
        true
    }

    /// Lends the interpreter to an execution, until that gives it back.
    async fn lend(&mut self, wanted: Wanted) {
        let Wanted { execution, granted } = wanted;
        if self.live.is_none()
            && let Err(problem) = self.renew().await
        {
            // Who does not wait any more needs no answer.
            let _ = granted.send(Err(problem));
            return;
        }
        let (back, returned) = oneshot::channel();
        let lease = Lease {
            live: self.live.take(),
            lost: self.lost.take(),
            back: Some(back),
        };
        self.context.change(|state| {
            state.phase = ContextState::Busy;
            state.running = Some(execution);
            state.executions += 1;
        });
        let unwanted = granted.send(Ok(lease)).err().and_then(Result::ok);
        if let Some(mut lease) = unwanted {
            self.lost = lease.lost.take();
            drop(lease);
        }
        self.live = returned.await.unwrap_or_default();
        self.context.change(|state| {
            state.phase = ContextState::Idle;
            state.running = None;
            state.last_active = SystemTime::now();
        });
        self.renew_if_gone().await;
    }

    async fn renew_if_gone(&mut self) {
        let is_over = self.context.is_over() || !self.session.is_up();
        if self.live.is_none() && !is_over && !self.context.is_reset_due() {
            // Where it fails, the next execution tries again and is told.
            let _ = self.renew().await;
        }
    }

    /// Puts an interpreter away that died, and gets another one if it had been used.
    async fn bury(&mut self) {
        let Some(live) = self.live.take() else { return };
        let is_used = live.is_used;
        warn!("interpreter died");
        live.line.finish(StdInstant::now() + PIPES).await;
        live.process.forget().await;
        if is_used {
            let _ = self.renew().await;
        }
    }

    /// Starts another interpreter.
    async fn renew(&mut self) -> Result<(), Problem> {
        let started = start(&self.host, &self.session, &self.context).await;
        let started = started.map_err(|problem| {
            if self.session.is_up() {
                problem
            } else {
                self.session.closed_problem()
            }
        });
        self.context.change(|state| match &started {
            Ok(_) => {
                state.phase = ContextState::Idle;
                state.generation += 1;
                state.executions = 0;
                state.refusal = None;
            }
            Err(problem) => state.refusal = Some(problem.status()),
        });
        match started {
            Ok(live) => {
                info!(pid = live.pid, "interpreter started");
                self.live = Some(live);
                Ok(())
            }
            Err(problem) => {
                if self.session.is_up() {
                    warn!(%problem, "interpreter not started");
                }
                Err(problem)
            }
        }
    }

    async fn close(&mut self) {
        self.context.change(|state| {
            state.is_closing = true;
            // Who waits is told by the end of its channel.
            state.waiting.clear();
        });
        if let Some(live) = self.live.take() {
            end(live).await;
        }
        self.context.change(|state| state.phase = ContextState::Closed);
        info!("context closed");
    }
}

impl Context {
    fn take_next(&self) -> Option<Wanted> {
        let mut state = self.lock();
        let next = state.waiting.pop_front();
        if next.is_some() {
            state.tell_places();
        }
        next
    }

    fn is_reset_due(&self) -> bool {
        let state = self.lock();
        state.resets_done < state.resets
    }
}

/// Starts an interpreter and waits until it takes work.
async fn start(host: &Host, session: &Session, context: &Context) -> Result<Live, Problem> {
    let most = session.limits.start_timeout_ms;
    let mut environment = session.environment.clone();
    environment.extend(context.environment.clone());
    let bytes = |(name, value): (String, String)| (name.into_bytes(), value.into_bytes());
    let spawn = Spawn {
        session: session.id.clone(),
        execution: new_id('c'),
        work: Work::Context,
        environment: environment.into_iter().map(bytes).collect(),
        stdin: false,
        merge_stderr: false,
        timeout_ms: session.limits.timeout_ms,
        terminal: None,
        cpu_time_ms: session.times.cpu_ms,
        // It does not outlive this brigd: the next one ends what has no memo.
        memo: Vec::new(),
    };
    let mut process = host.jailer.spawn(spawn).await?;
    let mut line = None;
    let starting = ready(host, session, context, &mut process, &mut line);
    let started = tokio::time::timeout(Duration::from_millis(most), starting).await;
    let started = started.unwrap_or(Err(Problem::StartTimeout(most, "its interpreter was being started")));
    match (started, line) {
        (Ok(pid), Some(line)) => Ok(Live {
            process,
            line,
            pid,
            is_used: false,
            laps: 0,
        }),
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
    let (pid, pipes) = match message.event {
        Event::Spawned { pid, streams, .. } => {
            let pipes = Pipes::new(streams, message.fds);
            let (pipes, _kept) = pipes.ok_or_else(|| failed("other descriptors came than were told".to_owned()))?;
            (pid, pipes)
        }
        Event::Refused { refusal, .. } => return Err(Problem::Jail(refusal)),
        _ => return Err(Problem::JailDied("starting an interpreter")),
    };
    let line = host
        .pumps
        .start_line(pipes)
        .map_err(|fault| failed(fault.to_string()))?;
    let line = slot.insert(line);
    let request = Request::Start {
        language: context.language.name(),
        directory: &context.directory,
        threads: u32::try_from(session.limits.cpu_millis.div_ceil(1000))
            .unwrap_or(1)
            .max(1),
    };
    line.send(request.frame().map_err(|error| failed(error.to_string()))?);
    loop {
        tokio::select! {
            told = line.told() => match told {
                Some(Told::Ready) => return Ok(pid),
                Some(Told::Refused(message)) => return Err(refused_start(message)),
                Some(Told::Done(_)) => {}
                Some(Told::Broken(broken)) => return Err(failed(broken.to_string())),
                Some(Told::Closed) | None => return Err(failed("the interpreter ended at its start".to_owned())),
            },
            message = process.next() => match message.map(|message| message.event) {
                Some(Event::Ended { end, .. }) => {
                    return Err(failed(format!("the interpreter ended at its start ({})", how(Some(end)))));
                }
                None => return Err(Problem::JailDied("starting an interpreter")),
                Some(event) => debug!(?event, "jailer event passed over"),
            },
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

/// Ends an interpreter.
pub(super) async fn end(mut live: Live) {
    live.process.kill().await;
    end_of(&mut live.process).await;
    live.line.finish(StdInstant::now()).await;
    live.process.forget().await;
}

/// Waits for the end of a process that was killed.
async fn end_of(process: &mut Process) -> Option<End> {
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
