//! An execution in a context: it waits for its turn, has the interpreter to itself, and gives it back.
//!
//! What the interpreter says about its end (`done`) is a claim of the guest. Nothing waits for it without a limit: the
//! jailer holds the wall time of the execution, and so does this.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant, SystemTime};

use brig_jailer::api::{Cause, End, Event, Exit, Lap};
use brig_jailer::policy::OnOutputLimit;
use brig_proto::v1::{ExecutionStarted, NoticeKind, StartKind};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{Instrument, debug, info, info_span, warn};

use super::interpreter::{Live, PIPES, how};
use super::{Expected, Interpreter, Lease, Turn};
use crate::host::Host;
use crate::jailer::Process;
use crate::kernel::DoneClaim;
use crate::kernel::context::Request;
use crate::run::admit::{Job, Work};
use crate::run::approval::{Pending, approved};
use crate::run::collect::{Collection, collect};
use crate::run::execution::{Execution, StopCause};
use crate::run::finish::{Ended, conclude};
use crate::run::inputs;
use crate::run::kept::{Session, Use};
use crate::run::life::{NotStarted, Times, counted, finish, not_started, tell_clamped, wait, within, worth_collecting};
use crate::run::pump::{Finish, Part, Told};
use crate::run::queue::{Permit, Place};
use crate::run::report::{self, Report};
use crate::run::start::{Workspace, prepare};
use crate::run::watch::{KILL, SLACK, due};
use crate::status::Problem;

/// How long code may go on that was asked to stop; half of it before it is asked by a signal.
const INTERRUPT: Duration = Duration::from_secs(2);
/// How long the jailer may take to tell what an execution used.
const LAP: Duration = Duration::from_secs(5);
/// How long an interpreter may live on that has closed its pipe.
const CLOSED: Duration = Duration::from_millis(500);
const SIGINT: i32 = 2;

/// How the interpreter let go of an execution.
enum Outcome {
    /// It says that it is done, and lives on.
    Done(DoneClaim),
    /// It is gone, or can't be used any more.
    Gone(Ended),
}

/// What an execution has while it runs.
struct Running<'r> {
    host: &'r Host,
    execution: &'r Arc<Execution>,
    job: &'r mut Job,
}

/// How an accepted execution comes to its turn.
#[derive(Debug)]
pub enum Admission {
    /// It waits for it; its place among all executions is there if the context was free.
    Direct(Turn, Option<Place>),
    /// A reviewer decides first.
    Reviewed(Pending, Expected),
}

/// What is there once an execution can begin.
struct Ready {
    lease: Lease,
    workspace: Workspace,
    since: Option<brig_jailer::files::wire::Time>,
}

/// Runs an execution to its end; the context stays.
///
/// Without inputs it gets ready while it is being recorded, and begins only if `recorded` says that it is; else it never
/// was.
pub async fn run(
    host: Arc<Host>,
    execution: Arc<Execution>,
    mut job: Job,
    admission: Admission,
    used: Use,
    recorded: oneshot::Receiver<()>,
) {
    let span =
        info_span!("execution", id = %execution.id, session = %execution.session, tenant = %execution.principal.tenant);
    async {
        let mut running = Running {
            host: &host,
            execution: &execution,
            job: &mut job,
        };
        let mut permit = None;
        if running.live(admission, used.session(), recorded, &mut permit).await {
            host.registry.ended(&execution);
        }
        drop(permit);
        // The session may be idle from here on.
        drop(used);
    }
    .instrument(span)
    .await;
}

impl Running<'_> {
    /// Whether it ever was.
    async fn live(
        &mut self,
        admission: Admission,
        session: &Arc<Session>,
        recorded: oneshot::Receiver<()>,
        permit: &mut Option<Permit>,
    ) -> bool {
        let execution = self.execution;
        let mut times = Times::default();
        let ready = {
            let ready = self.get_ready(admission, session, permit, &mut times);
            let (mut ready, mut recorded) = (pin!(ready), pin!(recorded));
            tokio::select! {
                biased;
                recorded = &mut recorded => match recorded {
                    Ok(()) => ready.await,
                    Err(_refused) => return false,
                },
                done = &mut ready => match recorded.await {
                    Ok(()) => done,
                    Err(_refused) => return false,
                },
            }
        };
        info!(policy = %execution.policy, template = %execution.template, "execution accepted");
        match ready {
            Ok(ready) => self.run_in(ready, times).await,
            Err(why) => not_started(self.host, execution, why, times).await,
        }
        true
    }

    /// Waits for its turn and its place, and gets everything ready.
    async fn get_ready(
        &self,
        admission: Admission,
        session: &Arc<Session>,
        permit: &mut Option<Permit>,
        times: &mut Times,
    ) -> Result<Ready, NotStarted> {
        let execution = self.execution;
        let (mut turn, place) = self.admit(admission).await?;
        let clock = execution.clock();
        let accepted = clock.mark();
        // Those before it in its context have limits of their own.
        let lease = tokio::select! {
            biased;
            cause = execution.stop.told() => Err(NotStarted::Stopped(cause)),
            lease = turn.wait() => lease.map_err(NotStarted::Failed),
        };
        drop(turn);
        // From here on it is its own start that takes time.
        let turned = clock.mark();
        let placed = match &lease {
            Ok(_) => {
                let place = place.map_or_else(|| self.host.queue.join(&execution.log), Ok);
                let waiting = async { wait(place?).await };
                within(execution, turned, self.job, "it waited for a place", waiting).await
            }
            Err(_) => Err(NotStarted::Stopped(StopCause::Cancel)),
        };
        times.queued = clock.since(accepted);
        let mut lease = lease?;
        *permit = Some(placed?);
        tell_clamped(execution, self.job);
        let mut workspace = Workspace::Kept(Arc::clone(session));
        let preparing = async {
            session.runs().await?;
            let records = inputs::open(self.job, self.host).await?;
            let (prepared, ()) = tokio::join!(prepare(self.job, &records, &mut workspace), lease.get_ready());
            prepared
        };
        let prepared = within(execution, turned, self.job, "its inputs were being put", preparing).await;
        times.startup = clock.since(accepted).saturating_sub(times.queued);
        let since = prepared?;
        Ok(Ready {
            lease,
            workspace,
            since,
        })
    }

    /// Waits until it may take its turn.
    async fn admit(&self, admission: Admission) -> Result<(Turn, Option<Place>), NotStarted> {
        match admission {
            Admission::Direct(turn, place) => Ok((turn, place)),
            Admission::Reviewed(pending, expected) => {
                approved(self.host, self.execution).await?;
                drop(pending);
                // Only the end of the context is in the way, which ends all that is expected in it.
                let queued = expected.queue().map_err(|_over| NotStarted::Stopped(StopCause::Cancel));
                Ok((queued?.0, None))
            }
        }
    }

    async fn run_in(&mut self, ready: Ready, mut times: Times) {
        let Ready {
            mut lease,
            mut workspace,
            since,
        } = ready;
        let execution = self.execution;
        let Some(mut live) = lease.interpreter.take_live() else {
            let problem = Problem::Configuration("a lent interpreter is not there".to_owned());
            return not_started(self.host, execution, NotStarted::Failed(problem), times).await;
        };
        let request = match self.request() {
            Ok(request) => request,
            Err(error) => {
                lease.interpreter = Interpreter::Lives(live);
                let problem = Problem::Step {
                    step: "kernel",
                    message: error.to_string(),
                };
                return not_started(self.host, execution, NotStarted::Failed(problem), times).await;
            }
        };
        self.job.inputs.clear();
        let clock = execution.clock();
        let (start, start_time) = (clock.mark(), SystemTime::now());
        self.tell_start(&live, lease.context.start(), lease.begin(), start_time);
        live.lap(Some(self.job.limits.timeout_ms)).await;
        live.line.begin(Part {
            id: execution.id.to_string(),
            log: Arc::clone(&execution.log),
            policy: Arc::clone(&self.job.policy),
            request,
        });
        let outcome = self.watch(&mut live).await;
        times.ran = clock.since(start);
        let collecting = Instant::now();
        let (ended, collection) = match outcome {
            Outcome::Done(done) => {
                // What it left is looked at while the jailer counts.
                let collecting = self.collect(&mut workspace, since, true);
                tokio::join!(self.done(&mut lease, live, done), collecting)
            }
            Outcome::Gone(ended) => {
                lease.interpreter = Interpreter::Ended(self.gone(*live, ended).await);
                let is_told = matches!(ended, Ended::Told(_));
                (ended, self.collect(&mut workspace, since, is_told).await)
            }
        };
        times.collect = collecting.elapsed();
        // The next one in the context need not wait for the ledger.
        drop(lease);
        self.report(ended, collection, times, start_time, workspace).await;
    }

    /// Takes what it left, if its end is told.
    async fn collect(
        &self,
        workspace: &mut Workspace,
        since: Option<brig_jailer::files::wire::Time>,
        is_told: bool,
    ) -> Collection {
        let (execution, conditions) = (self.execution, &self.job.conditions);
        execution.log.seal();
        let output_ends = self.job.policy.limits.on_output_limit == OnOutputLimit::End;
        if output_ends && execution.output.is_limited() {
            execution.stop.tell(StopCause::Output);
        }
        if !is_told || !worth_collecting(execution) {
            return Collection {
                missing: conditions
                    .expected
                    .iter()
                    .map(|output| output.path.to_string())
                    .collect(),
                ..Collection::default()
            };
        }
        let keep = self.host.keep(&self.job.policy);
        let collected = collect(workspace, since, conditions, execution, keep);
        let (collection, counted) = tokio::join!(collected, counted(self.host, execution));
        Collection { counted, ..collection }
    }

    async fn report(
        &self,
        ended: Ended,
        collection: Collection,
        times: Times,
        start_time: SystemTime,
        workspace: Workspace,
    ) {
        let claims = self.execution.log.claims();
        let ended = with_claim(ended, claims.error.is_some());
        let facts = report::facts(
            &self.host.store,
            self.execution,
            &self.job.conditions,
            ended,
            &claims,
            &collection,
            times,
        );
        let conclusion = conclude(&facts);
        let enforced = match &workspace {
            Workspace::Kept(session) => Some(session.enforced()),
            Workspace::Own(_) => None,
        };
        let report = Report {
            execution: self.execution,
            job: Some(&self.job.conditions),
            conclusion,
            ended,
            claims,
            collection,
            times,
            start_time: Some(start_time),
            enforced,
        };
        finish(self.host, report, false).await;
    }

    /// The frame that asks for the execution.
    fn request(&self) -> std::io::Result<Vec<u8>> {
        let code = match &self.job.work {
            Work::Code { source, .. } => source.as_str(),
            Work::Command { .. } => "",
        };
        let request = Request::Run {
            id: self.execution.id.as_str(),
            code,
            environment: &self.execution.spec.environment,
        };
        request.frame()
    }

    fn tell_start(&self, live: &Live, start: StartKind, lost: Option<String>, time: SystemTime) {
        let execution = self.execution;
        let started = ExecutionStarted {
            pid: live.pid,
            start: execution.begin(start).into(),
        };
        execution.log.started(started, time);
        if let Some(lost) = lost {
            self.tell_replaced(&lost);
        }
        if let Some(session) = &execution.kept {
            session.used(Some(start));
        }
        info!(pid = live.pid, "execution started");
    }

    fn tell_replaced(&self, why: &str) {
        let message = format!("the interpreter of the context was replaced: {why}; its state is gone");
        self.execution.log.notice(NoticeKind::ContextReplaced, message);
    }

    /// Waits for the end, and brings it about where it is due.
    async fn watch(&self, live: &mut Live) -> Outcome {
        let (execution, job) = (self.execution, &self.job);
        let idle = job.times.idle_ms.map(Duration::from_millis);
        let ends_at_limit = job.policy.limits.on_output_limit == OnOutputLimit::End;
        let clock = execution.clock();
        let (start, most) = (clock.mark(), Duration::from_millis(job.limits.timeout_ms) + SLACK);
        let mut asked: Option<Instant> = None;
        let mut signalled = false;
        let mut kill_at: Option<Instant> = None;
        let mut killed: Option<Instant> = None;
        let mut stopping = false;
        let mut told_to_stop = false;
        let mut line_over = false;
        loop {
            let signal_at = asked.filter(|_| !signalled).map(|asked| asked + INTERRUPT / 2);
            let given_up = killed.map(|killed| killed + KILL);
            let next = async {
                match given_up.or(kill_at) {
                    // A kill ends what stands still too.
                    Some(time) => sleep_until(time).await,
                    None => clock.reached(start, most).await,
                }
            };
            tokio::select! {
                message = live.process.next() => match message.map(|message| message.event) {
                    Some(Event::Ended { end, .. }) => return Outcome::Gone(Ended::Told(end)),
                    // What was used since the last execution.
                    Some(Event::Lapped { .. }) => live.laps = live.laps.saturating_sub(1),
                    Some(event) => debug!(?event, "jailer event unexpected"),
                    None => return Outcome::Gone(Ended::Lost),
                },
                told = live.line.told(), if !line_over => match told {
                    Some(Told::Done(done)) => return Outcome::Done(done),
                    Some(Told::Broken(broken)) => {
                        warn!(%broken, "context frames broken");
                        execution.stop.tell(StopCause::Frames);
                    }
                    Some(Told::Closed) => kill_at = Some(Instant::now() + CLOSED),
                    Some(Told::Ready | Told::Refused(_)) => {}
                    None => {
                        line_over = true;
                        execution.stop.tell(StopCause::Fault);
                    }
                },
                () = execution.interrupt_told(), if asked.is_none() => asked = Some(interrupt(live, execution)),
                cause = execution.stop.told(), if !told_to_stop => {
                    told_to_stop = true;
                    let now = Instant::now();
                    // Who only does not want it any more may want its state.
                    let gently = matches!(cause, StopCause::Cancel | StopCause::ClientGone);
                    if gently && asked.is_none() {
                        asked = Some(interrupt(live, execution));
                    }
                    let patience = if gently { INTERRUPT } else { Duration::ZERO };
                    kill_at = Some(kill_at.unwrap_or(now + patience).min(now + patience));
                }
                cause = due(execution, ends_at_limit, idle), if !stopping => {
                    stopping = true;
                    execution.stop.tell(cause);
                }
                () = at(signal_at) => {
                    signalled = true;
                    live.process.signal(SIGINT).await;
                }
                () = next => {
                    if killed.is_some() {
                        return Outcome::Gone(Ended::Unconfirmed);
                    }
                    if kill_at.is_none() {
                        execution.stop.tell(StopCause::WallTime);
                    } else {
                        execution.stop.tell(StopCause::Frames);
                    }
                    live.process.kill().await;
                    killed = Some(Instant::now());
                    told_to_stop = true;
                }
            }
        }
    }

    /// Takes down what was used, and gives the interpreter back.
    async fn done(&self, lease: &mut Lease, mut live: Box<Live>, done: DoneClaim) -> Ended {
        live.lap(None).await;
        let mut end = End {
            exit: Exit::Code(done.exit_code),
            cause: None,
            usage: brig_jailer::api::Usage::default(),
            oom_kills: 0,
            pids_refused: 0,
        };
        let stop = self.execution.stop.cause();
        // Code that ended well before it was stopped was not stopped.
        if stop.is_some() && done.exit_code != 0 {
            end.cause = Some(Cause::Asked);
        }
        let lap = match timeout(LAP, lapped(&mut live)).await {
            Ok(Ok(lap)) => lap,
            Ok(Err(died)) => {
                if let Some(died) = died {
                    end.usage = died.usage;
                    end.oom_kills = died.oom_kills;
                    end.pids_refused = died.pids_refused;
                }
                self.tell_replaced(&format!("it ended ({})", how(died)));
                lease.interpreter = Interpreter::Ended(put_away(*live).await.1);
                return Ended::Told(end);
            }
            // Its state is what it says, whatever it used.
            Err(_elapsed) => {
                warn!("jailer does not tell what was used");
                Lap::default()
            }
        };
        end.usage = lap.usage;
        end.oom_kills = lap.oom_kills;
        end.pids_refused = lap.pids_refused;
        if done.kept {
            self.execution.seat_kept();
        } else {
            self.tell_replaced("the shell ended");
        }
        self.give_back(lease, live, done.kept).await;
        Ended::Told(end)
    }

    /// Gives the interpreter back, which waits for work: the next brigd could go on with it from here on.
    async fn give_back(&self, lease: &mut Lease, live: Box<Live>, state_kept: bool) {
        lease.context.waits(state_kept);
        lease.context.remember(&live.process).await;
        lease.interpreter = Interpreter::Lives(live);
    }

    /// Takes what is still in the pipes of an interpreter that is gone.
    async fn gone(&self, live: Live, ended: Ended) -> Process {
        let (finish, process) = put_away(live).await;
        if let Finish::Early | Finish::Abandoned = finish {
            let message = "the output was not at its end when the interpreter was; what came later is missing";
            self.execution.log.notice(NoticeKind::OutputDropped, message);
        }
        let why = match (self.execution.stop.cause(), ended) {
            (Some(StopCause::Interrupt), _) => "it did not stop after an interrupt".to_owned(),
            (Some(StopCause::Cancel | StopCause::ClientGone), _) => "it did not stop when it was cancelled".to_owned(),
            (Some(StopCause::Frames), _) => "what came by its pipe of frames were none".to_owned(),
            (_, Ended::Told(end)) if end.cause == Some(Cause::WallTime) => "its time was over".to_owned(),
            (_, Ended::Told(end)) => format!("it ended ({})", how(Some(end))),
            (_, Ended::Lost | Ended::Unconfirmed) => "it is lost".to_owned(),
        };
        self.tell_replaced(&why);
        process
    }
}

/// Asks the code of an execution, and no other, to stop.
fn interrupt(live: &Live, execution: &Execution) -> Instant {
    let request = Request::Interrupt {
        id: execution.id.as_str(),
    };
    match request.frame() {
        Ok(frame) => live.line.send(frame),
        Err(error) => warn!(%error, "interrupt not sent"),
    }
    Instant::now()
}

/// Waits until all laps that were asked for are told, and gives the last. Fails if the process ended.
async fn lapped(live: &mut Live) -> Result<Lap, Option<End>> {
    loop {
        match live.process.next().await.map(|message| message.event) {
            Some(Event::Lapped { lap, .. }) => {
                live.laps = live.laps.saturating_sub(1);
                if live.laps == 0 {
                    return Ok(lap);
                }
            }
            Some(Event::Ended { end, .. }) => return Err(Some(end)),
            Some(event) => debug!(?event, "jailer event unexpected"),
            None => return Err(None),
        }
    }
}

/// Waits for the last of its output.
async fn put_away(live: Live) -> (Finish, Process) {
    let finish = live.line.finish(StdInstant::now() + PIPES).await;
    (finish, live.process)
}

/// Code that failed did not exit with 0, whatever it says.
fn with_claim(ended: Ended, failed: bool) -> Ended {
    match ended {
        Ended::Told(end) if failed && end.exit == Exit::Code(0) => Ended::Told(End {
            exit: Exit::Code(1),
            ..end
        }),
        other => other,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
