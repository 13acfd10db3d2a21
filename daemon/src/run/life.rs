//! The life of an execution: wait for approval where that is needed, wait for a place, start, watch, collect, record.
//!
//! The list is [`live`]. Until the code starts, everything together has `start_timeout`, and what fails is told to the
//! caller as the status of its call; afterwards everything is told by the result.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use brig_jailer::api::{Enforced, Event, SessionUsage};
use brig_jailer::faults::{Point, point};
use brig_jailer::files::wire::Time;
use brig_proto::v1::{ExecutionStarted, NoticeKind};
use tokio::time::{Instant, timeout};
use tracing::{error, info, warn};

use crate::host::Host;
use crate::jailer::{Jail, Process};
use crate::kernel;
use crate::run::admit::{Conditions, Job, Work};
use crate::run::approval::{self, Admission, Decision};
use crate::run::clock::{Clock, Mark};
use crate::run::collect::{Collection, collect};
use crate::run::execution::{Execution, Stop, StopCause};
use crate::run::finish::{Ended, conclude, lost_at_start, rejected, stopped_early};
use crate::run::kept::Session;
use crate::run::pool::Ahead;
use crate::run::queue::{Permit, Place};
use crate::run::report::{self, Report};
use crate::run::start::{Started, Workspace, start};
use crate::run::watch::{Given, Pipes, Terms, watch};
use crate::status::Problem;

/// How long a program that was called off may take to end.
const CALL_OFF: Duration = Duration::from_secs(10);
/// How long is waited for a program that was asked for when somebody wants it to stop: it may run by then, and what has
/// run is not said never to have started.
const IN_FLIGHT: Duration = Duration::from_secs(1);
/// How long the jailer may take to count what a session uses.
const COUNT: Duration = Duration::from_secs(1);

/// Times of one execution, beside the code's own.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    pub queued: Duration,
    pub startup: Duration,
    pub ran: Duration,
    pub collect: Duration,
}

/// Where an execution takes place.
#[derive(Debug)]
pub enum Home<'h> {
    /// In a jail of its own, which stays here to be closed: one that has waited for it, else one that is made.
    Own {
        jail: &'h mut Option<Jail>,
        ahead: Option<Ahead>,
    },
    /// In a session that stays.
    Kept(&'h Arc<Session>),
}

/// A program that runs, or has ended while nobody was there.
#[derive(Debug)]
pub struct Running {
    pub process: Process,
    pub workspace: Workspace,
    pub enforced: Enforced,
    /// When it began, as files have it: none where a snapshot counts.
    pub since: Option<Time>,
    pub pipes: Pipes,
    pub terms: Terms,
    pub start: Mark,
    pub times: Times,
    /// Whether its end is in the ledger already.
    pub recorded: bool,
}

/// Why the code did not start.
pub(in crate::run) enum NotStarted {
    Stopped(StopCause),
    Failed(Problem),
    /// A reviewer said no, or nobody decided in time.
    Rejected(Arc<Decision>),
    /// Nobody can tell whether it ran.
    Lost(Problem),
}

/// Everything up to the answer. Gives back what is to be held until the session is free of it.
pub async fn live(
    host: &Host,
    execution: &Arc<Execution>,
    mut job: Job,
    admission: Admission,
    home: Home<'_>,
) -> Option<Permit> {
    info!(policy = %execution.policy, template = %execution.template, "execution accepted");
    point(Point::DaemonAccepted);
    let mut times = Times::default();
    let place = match approval::admit(host, execution, admission).await {
        Ok(place) => place,
        Err(why) => {
            not_started(host, execution, why, times).await;
            return None;
        }
    };
    let clock = execution.clock();
    let accepted = clock.mark();
    let permit = match within(execution, accepted, &job, "it waited for a place", wait(place)).await {
        Ok(permit) => permit,
        Err(why) => {
            times.queued = clock.since(accepted);
            not_started(host, execution, why, times).await;
            return None;
        }
    };
    times.queued = clock.since(accepted);
    tell_clamped(execution, &job);
    let mut process = None;
    let memo = match execution.kept {
        Some(_) => execution.memo().encode(),
        None => Vec::new(),
    };
    let flight = Flight::new(&execution.stop);
    let starting = start(host, &job, memo, home, &mut process, &flight);
    let doing = match execution.kept {
        Some(_) => "its program was being started",
        None => "its session was being made",
    };
    let starting = bounded(execution, accepted, &job, doing, flight.stopped(), starting).await;
    times.startup = clock.since(accepted).saturating_sub(times.queued);
    match (starting, process) {
        (Ok(started), Some(process)) => {
            job.inputs.clear();
            if execution.kept.is_none() {
                host.pool.count(started.start);
            }
            let running = running(execution, &mut job, process, started, times);
            to_end(host, execution, &job.conditions, running).await;
        }
        (Err(why), process) => {
            let why = match (why, execution.stop.cause()) {
                (NotStarted::Failed(problem), cause)
                    if process.is_some() && problem.is_death() && !cause.is_some_and(is_of_the_session) =>
                {
                    NotStarted::Lost(problem)
                }
                // It was to stop, whatever came of its start.
                (NotStarted::Failed(problem), Some(cause)) => {
                    warn!(%problem, ?cause, "the start failed while it was being stopped");
                    NotStarted::Stopped(cause)
                }
                (why, _) => why,
            };
            not_started(host, execution, why, times).await;
            if let Some(process) = process
                && execution.kept.is_some()
            {
                call_off(process, &clock).await;
            }
        }
        (Ok(_), None) => {
            let problem = Problem::Configuration("a started program is not there".to_owned());
            not_started(host, execution, NotStarted::Failed(problem), times).await;
        }
    }
    Some(permit)
}

/// Whether the session ends with it: a program that was being started in it died by that.
fn is_of_the_session(cause: StopCause) -> bool {
    matches!(
        cause,
        StopCause::SessionClosed | StopCause::SessionAge | StopCause::Shutdown
    )
}

/// The order to start a program that may run as soon as it is given, and whoever wants it to stop meanwhile.
#[derive(Debug)]
pub struct Flight<'s> {
    stop: &'s Stop,
    in_flight: tokio::sync::watch::Sender<bool>,
}

impl<'s> Flight<'s> {
    fn new(stop: &'s Stop) -> Self {
        Self {
            stop,
            in_flight: tokio::sync::watch::Sender::new(false),
        }
    }

    /// Notes that the order is given, unless it is to stop: then this never ends, and whoever waits for the start hears of
    /// it.
    pub async fn begins(&self) {
        if self.stop.cause().is_some() {
            std::future::pending::<()>().await;
        }
        self.in_flight.send_replace(true);
    }

    /// Notes that nothing was started by it.
    pub fn failed(&self) {
        self.in_flight.send_replace(false);
    }

    /// Waits until it is to stop; once the order is given, until it had time to be answered.
    async fn stopped(&self) -> StopCause {
        let cause = self.stop.told().await;
        let mut in_flight = self.in_flight.subscribe();
        if *in_flight.borrow() {
            // The sender lives as long as this.
            drop(timeout(IN_FLIGHT, in_flight.wait_for(|in_flight| !in_flight)).await);
            // An answer that is there by now counts.
            tokio::task::yield_now().await;
        }
        cause
    }
}

/// Ends a program that was asked for and is not wanted, in a session that stays. One that stands still before it runs is
/// waited for.
pub async fn call_off(mut process: Process, clock: &Clock) {
    let calling_off = async {
        // If it runs already; before it runs, it can't be killed.
        process.kill().await;
        while let Some(message) = process.next().await {
            match message.event {
                Event::Spawned { .. } => process.kill().await,
                Event::Ended { .. } => return process.forget().await,
                _ => return,
            }
        }
    };
    tokio::select! {
        () = calling_off => {}
        () = clock.sleep(CALL_OFF) => warn!("a program that was called off did not end"),
    }
}

pub(in crate::run) async fn wait(place: Place) -> Result<Permit, Problem> {
    match place {
        Place::Now(permit) => Ok(permit),
        Place::Later(ticket) => Ok(ticket.wait().await),
    }
}

/// Bounds a part of the start by `start_timeout` and by whoever wants the execution to stop.
pub(in crate::run) async fn within<T>(
    execution: &Execution,
    accepted: Mark,
    job: &Job,
    doing: &'static str,
    work: impl Future<Output = Result<T, Problem>>,
) -> Result<T, NotStarted> {
    bounded(execution, accepted, job, doing, execution.stop.told(), work).await
}

/// The same where whoever wants it to stop is heard in a way of its own.
async fn bounded<T>(
    execution: &Execution,
    accepted: Mark,
    job: &Job,
    doing: &'static str,
    stopped: impl Future<Output = StopCause>,
    work: impl Future<Output = Result<T, Problem>>,
) -> Result<T, NotStarted> {
    let clock = execution.clock();
    let most = job.limits.start_timeout_ms;
    tokio::select! {
        biased;
        cause = stopped => Err(NotStarted::Stopped(cause)),
        result = work => result.map_err(NotStarted::Failed),
        () = clock.reached(accepted, Duration::from_millis(most)) => {
            Err(NotStarted::Failed(Problem::StartTimeout(most, doing)))
        }
    }
}

/// Takes down that the code has started.
fn running(execution: &Arc<Execution>, job: &mut Job, process: Process, started: Started, times: Times) -> Running {
    let (start, start_time) = (execution.clock().mark(), SystemTime::now());
    let outline = execution.outline(&job.conditions, started.since, times).encode();
    // Before anything is told that the next brigd should know of.
    if let Err(error) = given(job).keep(execution, started.program.kept, outline) {
        execution.log.fail(format!("journal: {error}"));
    }
    execution.log.started(
        ExecutionStarted {
            pid: started.program.pid,
            start: execution.begin(started.start).into(),
        },
        start_time,
    );
    if let Some(session) = &execution.kept {
        let is_code = matches!(job.work, Work::Code { .. });
        session.used(is_code.then_some(started.start));
    }
    info!(
        pid = started.program.pid,
        start = started.start.as_str_name(),
        "execution started"
    );
    let terms = Terms {
        timeout: Duration::from_millis(job.limits.timeout_ms),
        elapsed: Duration::ZERO,
        idle: job.times.idle_ms.map(Duration::from_millis),
        patience: Duration::from_millis(job.limits.start_timeout_ms),
        held: execution.kept.is_some(),
        end: None,
    };
    Running {
        process,
        workspace: started.workspace,
        enforced: started.enforced,
        since: started.since,
        pipes: started.program.pipes,
        terms,
        start,
        times,
        recorded: false,
    }
}

/// From the start of the code to its result.
pub async fn to_end(host: &Host, execution: &Arc<Execution>, conditions: &Conditions, running: Running) {
    let Running {
        mut process,
        mut workspace,
        enforced,
        since,
        pipes,
        terms,
        start,
        mut times,
        recorded,
    } = running;
    let (ended, claims) = watch(&mut process, execution, &conditions.policy, &host.pumps, pipes, terms).await;
    times.ran = match terms.end {
        Some(_) => terms.elapsed,
        None => execution.clock().since(start),
    };
    point(Point::DaemonEnded);
    let collecting = Instant::now();
    let collection = if matches!(ended, Ended::Told(_)) && worth_collecting(execution) {
        let counted = counted(host, execution);
        let keep = host.keep(&conditions.policy);
        let collected = collect(&mut workspace, since, conditions, execution, keep);
        let (collection, counted) = tokio::join!(collected, counted);
        Collection { counted, ..collection }
    } else {
        Collection {
            missing: conditions
                .expected
                .iter()
                .map(|output| output.path.to_string())
                .collect(),
            ..Collection::default()
        }
    };
    times.collect = collecting.elapsed();
    point(Point::DaemonCollected);
    let facts = report::facts(&host.store, execution, conditions, ended, &claims, &collection, times);
    let conclusion = conclude(&facts);
    let report = Report {
        execution,
        job: Some(conditions),
        conclusion,
        ended,
        claims,
        collection,
        times,
        start_time: execution.log.progress().start_time,
        enforced: Some(enforced),
    };
    finish(host, report, recorded).await;
}

/// Asks what a session that stays uses after the end; what can't be told at once is left out.
pub(in crate::run) async fn counted(host: &Host, execution: &Execution) -> Option<SessionUsage> {
    let session = execution.kept.as_ref()?;
    let asked = tokio::time::timeout(COUNT, host.jailer.usage(session.id.clone()));
    asked.await.ok()?.ok()?
}

/// After the end nobody of the session is left to ask, or nobody is there to hear.
pub(in crate::run) fn worth_collecting(execution: &Execution) -> bool {
    let is_up = execution.kept.as_ref().is_none_or(|session| session.is_up());
    is_up && execution.stop.cause() != Some(StopCause::ClientGone)
}

fn given(job: &mut Job) -> Given {
    let stdin = job.stdin.take().unwrap_or_default();
    let kernel = match &mut job.work {
        Work::Command { .. } => None,
        Work::Code {
            source,
            filename,
            arguments,
        } => Some(kernel::Run {
            code: std::mem::take(source),
            argv: std::iter::once(filename.clone())
                .chain(std::mem::take(arguments))
                .collect(),
            filename: filename.clone(),
            threads: job.limits.quantities().threads(),
        }),
    };
    Given { stdin, kernel }
}

pub(in crate::run) fn tell_clamped(execution: &Execution, job: &Job) {
    for clamped in &job.clamped {
        let message = format!(
            "{}: {} is above the maximum of the policy, {} holds",
            clamped.field, clamped.asked, clamped.given
        );
        execution.log.notice(NoticeKind::LimitClamped, message);
    }
}

/// Records and tells the end of an execution that started.
pub(in crate::run) async fn finish(host: &Host, mut report: Report<'_>, recorded: bool) {
    let mut result = report.result();
    if !recorded && let Err(error) = host.ledger.finish(report.record(&result)).await {
        error!(%error, "ledger finish failed");
        report.conclusion = report::unrecorded(&error.to_string());
        result = report.result();
    }
    point(Point::DaemonRecorded);
    let (status, time) = (report.conclusion.status, SystemTime::now());
    info!(
        status = status.as_str_name(),
        ran_ms = report.times.ran.as_millis(),
        "execution finished"
    );
    report.execution.log.finish(result, time);
}

/// Records and tells the end of an execution whose code never started.
pub(in crate::run) async fn not_started(host: &Host, execution: &Arc<Execution>, why: NotStarted, times: Times) {
    let conclusion = match &why {
        NotStarted::Stopped(cause) => stopped_early(*cause),
        NotStarted::Failed(problem) => report::not_started(problem),
        NotStarted::Rejected(decision) => rejected(decision),
        NotStarted::Lost(problem) => lost_at_start(problem),
    };
    let step = match &why {
        NotStarted::Failed(problem) | NotStarted::Lost(problem) => problem.step(),
        NotStarted::Stopped(_) | NotStarted::Rejected(_) => None,
    };
    let report = Report::of_nothing(execution, conclusion, times);
    let mut result = report.result();
    if let (Some(cause), Some(step)) = (&mut result.cause, step) {
        cause.step = Some(step.to_owned());
    }
    if let Err(error) = host.ledger.finish(report.record(&result)).await {
        error!(%error, "ledger finish failed");
    }
    match why {
        NotStarted::Stopped(cause) => {
            info!(?cause, "execution stopped before its start");
            execution.log.finish(result, SystemTime::now());
        }
        NotStarted::Rejected(_) => {
            info!("execution rejected");
            execution.log.finish(result, SystemTime::now());
        }
        NotStarted::Failed(problem) | NotStarted::Lost(problem) => {
            warn!(%problem, reason = problem.reason().name(), "execution not started");
            execution.log.refuse(result, SystemTime::now(), problem.status());
        }
    }
}
