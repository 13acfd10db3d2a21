//! The life of a one-shot session: make, put files in, start, watch, collect, record, close.
//!
//! The list is [`run`]. Until the code starts, everything together has `start_timeout`, and what fails is told to the
//! caller as the status of its call; afterwards everything is told by the result. Closing happens behind the answer,
//! but is waited for by whoever waits for the daemon to end.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use brig_proto::v1::{ExecutionStarted, NoticeKind, StartKind};
use tokio::time::Instant;
use tracing::{Instrument, debug, error, info, info_span, warn};

use crate::host::Host;
use crate::jailer::Jail;
use crate::kernel;
use crate::run::admit::{Job, Work};
use crate::run::collect::{Collection, collect};
use crate::run::execution::{Execution, StopCause};
use crate::run::finish::{Ended, conclude, stopped_early};
use crate::run::listen::Claims;
use crate::run::queue::{Permit, Place};
use crate::run::report::{self, Report};
use crate::run::start::{Started, start};
use crate::run::watch::{Given, Terms, watch};
use crate::status::Problem;

/// How long a jail may take to go.
const CLOSE: Duration = Duration::from_secs(10);

/// Times of one execution, beside the code's own.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    pub queued: Duration,
    pub startup: Duration,
    pub ran: Duration,
    pub collect: Duration,
}

/// Why the code did not start.
enum NotStarted {
    Stopped(StopCause),
    Failed(Problem),
}

/// Runs an accepted execution to its end, and closes its session.
pub async fn run(host: Arc<Host>, execution: Arc<Execution>, job: Job, place: Place) {
    let span =
        info_span!("execution", id = %execution.id, session = %execution.session, tenant = %execution.principal.tenant);
    async {
        info!(policy = %execution.policy, template = %execution.template, "execution accepted");
        let mut jail = None;
        let permit = live(&host, &execution, job, place, &mut jail).await;
        host.registry.ended(&execution);
        if let Some(jail) = jail {
            close(jail).await;
        }
        // The place is free only now, so that there are never more jails than places.
        drop(permit);
    }
    .instrument(span)
    .await;
}

/// Everything up to the answer. Gives back what is to be held until the jail is gone.
async fn live(
    host: &Host,
    execution: &Arc<Execution>,
    mut job: Job,
    place: Place,
    jail: &mut Option<Jail>,
) -> Option<Permit> {
    let accepted = Instant::now();
    let deadline = accepted + Duration::from_millis(job.limits.start_timeout_ms);
    let mut times = Times::default();
    let permit = match within(execution, deadline, &job, "it waited for a place", wait(place)).await {
        Ok(permit) => permit,
        Err(why) => {
            not_started(
                host,
                execution,
                why,
                Times {
                    queued: accepted.elapsed(),
                    ..times
                },
            )
            .await;
            return None;
        }
    };
    times.queued = accepted.elapsed();
    tell_clamped(execution, &job);
    let starting = within(
        execution,
        deadline,
        &job,
        "its session was being made",
        start(host, &job, jail),
    )
    .await;
    times.startup = accepted.elapsed() - times.queued;
    match starting {
        Ok(started) => {
            job.inputs.clear();
            to_end(host, execution, &mut job, jail, started, times).await;
        }
        Err(why) => not_started(host, execution, why, times).await,
    }
    Some(permit)
}

async fn wait(place: Place) -> Result<Permit, Problem> {
    match place {
        Place::Now(permit) => Ok(permit),
        Place::Later(ticket) => Ok(ticket.wait().await),
    }
}

/// Bounds a part of the start by the deadline and by whoever wants the execution to stop.
async fn within<T>(
    execution: &Execution,
    deadline: Instant,
    job: &Job,
    doing: &'static str,
    work: impl Future<Output = Result<T, Problem>>,
) -> Result<T, NotStarted> {
    tokio::select! {
        biased;
        cause = execution.stop.told() => Err(NotStarted::Stopped(cause)),
        result = work => result.map_err(NotStarted::Failed),
        () = tokio::time::sleep_until(deadline) => {
            Err(NotStarted::Failed(Problem::StartTimeout(job.limits.start_timeout_ms, doing)))
        }
    }
}

/// From the start of the code to its result.
async fn to_end(
    host: &Host,
    execution: &Arc<Execution>,
    job: &mut Job,
    jail: &mut Option<Jail>,
    mut started: Started,
    mut times: Times,
) {
    let start_time = SystemTime::now();
    let start = Instant::now();
    // Before anything is told that the next brigd should know of.
    if let Err(error) = given(job).keep(execution, started.kept) {
        execution.log.fail(format!("journal: {error}"));
    }
    execution.log.started(
        ExecutionStarted {
            pid: started.pid,
            start: StartKind::Cold.into(),
        },
        start_time,
    );
    info!(pid = started.pid, "execution started");
    let terms = Terms {
        timeout: Duration::from_millis(job.limits.timeout_ms),
        elapsed: Duration::ZERO,
        idle: None,
        patience: Duration::from_millis(job.limits.start_timeout_ms),
        held: false,
        end: None,
    };
    let (ended, claims) = match jail {
        Some(jail) => watch(jail, execution, &job.policy, &host.pumps, started.pipes, terms).await,
        None => (Ended::Lost, Claims::default()),
    };
    times.ran = start.elapsed();
    let collecting = Instant::now();
    let collection = if worth_collecting(execution, ended) {
        collect(&mut started.files, job, &host.spool, &execution.log).await
    } else {
        Collection {
            missing: job.expected.iter().map(|output| output.path.to_string()).collect(),
            ..Collection::default()
        }
    };
    times.collect = collecting.elapsed();
    let facts = report::facts(execution, job, ended, &claims, collection.full(), times);
    let conclusion = conclude(&facts);
    let start_time = Some(start_time);
    let report = Report {
        execution,
        job: Some(job),
        conclusion,
        ended,
        claims,
        collection,
        times,
        start_time,
        enforced: Some(started.enforced),
    };
    finish(host, report).await;
}

/// After the end nobody of the session is left to ask, or nobody is there to hear.
fn worth_collecting(execution: &Execution, ended: Ended) -> bool {
    matches!(ended, Ended::Told(_)) && execution.stop.cause() != Some(StopCause::ClientGone)
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
            threads: u32::try_from(job.limits.cpu_millis.div_ceil(1000)).unwrap_or(1).max(1),
        }),
    };
    Given { stdin, kernel }
}

fn tell_clamped(execution: &Execution, job: &Job) {
    for clamped in &job.clamped {
        let message = format!(
            "{}: {} is above the maximum of the policy, {} holds",
            clamped.field, clamped.asked, clamped.given
        );
        execution.log.notice(NoticeKind::LimitClamped, message);
    }
}

/// Records and tells the end of an execution that started.
async fn finish(host: &Host, mut report: Report<'_>) {
    let mut result = report.result();
    if let Err(error) = host.ledger.finish(report.record(&result)).await {
        error!(%error, "ledger finish failed");
        report.conclusion = report::unrecorded(&error.to_string());
        result = report.result();
    }
    let (status, time) = (report.conclusion.status, SystemTime::now());
    info!(
        status = status.as_str_name(),
        ran_ms = report.times.ran.as_millis(),
        "execution finished"
    );
    report.execution.log.finish(result, time);
}

/// Records and tells the end of an execution whose code never started.
async fn not_started(host: &Host, execution: &Arc<Execution>, why: NotStarted, times: Times) {
    let conclusion = match &why {
        NotStarted::Stopped(cause) => stopped_early(*cause),
        NotStarted::Failed(problem) => report::not_started(problem),
    };
    let step = match &why {
        NotStarted::Failed(problem) => problem.step(),
        NotStarted::Stopped(_) => None,
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
        NotStarted::Failed(problem) => {
            warn!(%problem, reason = problem.reason().name(), "execution not started");
            execution.log.refuse(result, SystemTime::now(), problem.status());
        }
    }
}

async fn close(jail: Jail) {
    let start = Instant::now();
    if jail.close(CLOSE).await {
        debug!(ms = start.elapsed().as_millis(), "session closed");
    } else {
        warn!("session not confirmed closed");
    }
}
