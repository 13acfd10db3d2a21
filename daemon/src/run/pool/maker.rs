//! Makes sessions ahead, one at a time, behind the requests that asked for them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use brig_jailer::api::{Dock, Enforced, Make, Refusal, Spawn, Start, Work};
use brig_jailer::faults::{Point, point};
use brig_jailer::ids::Id;
use brig_jailer::template::Template;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::unix::pipe::Receiver;
use tokio::time::{sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::ready::Wanted;
use super::zygotes::Zygotes;
use super::{Kind, Waiting};
use crate::files::Files;
use crate::host::Host;
use crate::jailer::{Jail, Process};
use crate::kernel::{Warm, warm_request};
use crate::run::admit::new_id;
use crate::run::session::CLOSE;
use crate::run::start::{Program, make, running};
use crate::status::Problem;

/// How often is looked whether what waits still lives and is wanted.
const LOOK: Duration = Duration::from_secs(5);
/// What was just asked for has the machine for so long.
const COURTESY: Duration = Duration::from_millis(20);
/// How long closing all may take at the end.
const END: Duration = Duration::from_secs(15);

/// Keeps as many sessions waiting as are wanted, until the daemon is about to stop; then closes them.
pub async fn keep(host: Arc<Host>) {
    let mut zygotes = Zygotes::default();
    let mut ready = Wanted::default();
    let mut next_look = Instant::now();
    while !host.draining.is_cancelled() {
        host.pool.tidy();
        let is_outdated = host.pool.outdated.swap(false, Ordering::SeqCst);
        if is_outdated {
            zygotes.clear();
        }
        // Templates are built without a word.
        if is_outdated || next_look <= Instant::now() {
            host.pool.ready(ready.kinds(&host, is_outdated));
            next_look = Instant::now() + LOOK;
        }
        let wanted = host.pool.lock().kinds();
        zygotes.tidy(&host, host.pool.rotate(), |kind| wanted.contains(kind));
        host.pool.publish(zygotes.docks());
        // One of each at a time: under a load that takes all that is made, the others and what is above have their turn too.
        let made = [
            fill(&host, &mut zygotes).await,
            fill_holder(&host, &zygotes).await,
            fill_zygote(&host, &mut zygotes).await,
        ];
        host.pool.publish(zygotes.docks());
        if made.contains(&true) {
            continue;
        }
        let best_before = host.pool.best_before().into_iter().chain(zygotes.best_before()).min();
        let next_turn = best_before.map_or(next_look, |old| old.min(next_look));
        tokio::select! {
            () = host.draining.cancelled() => break,
            () = host.pool.asked.notified() => sleep(COURTESY).await,
            () = sleep_until(next_turn.into()) => {}
        }
    }
    host.pool.publish(Vec::new());
    host.pool.empty();
    zygotes.clear();
    host.pool.closing.close();
    if timeout(END, host.pool.closing.wait()).await.is_err() {
        warn!(
            left = host.pool.closing.len(),
            "sessions that waited not confirmed closed"
        );
    }
}

/// Makes one session with a program, if one lacks; gives whether one did.
async fn fill(host: &Host, zygotes: &mut Zygotes) -> bool {
    let lacking = host.pool.lock().lacking(Instant::now());
    let Some(lacking) = lacking else { return false };
    match make_one(host, &lacking.kind, zygotes).await {
        Ok(waiting) => {
            info!(session = %waiting.jail.id(), policy = lacking.kind.policy.name, "session made ahead");
            host.pool.put(&lacking, waiting);
            point(Point::DaemonWaiting);
        }
        Err(Problem::Draining) => {}
        Err(problem) => host.pool.fail(&lacking.kind, &problem),
    }
    true
}

/// The same of sessions without a program.
async fn fill_holder(host: &Host, zygotes: &Zygotes) -> bool {
    let lacking = host.pool.holders().lacking(Instant::now());
    let Some(lacking) = lacking else { return false };
    if missing(host, zygotes).any(|kind| kind == lacking.kind) {
        // It would lie beside the dock that comes.
        return false;
    }
    let dock = zygotes.found(&lacking.kind).map_or(Dock::None, Dock::Of);
    match make_by(host, &lacking.kind, dock, false).await {
        Ok(holder) => {
            debug!(session = %holder.jail.id(), policy = lacking.kind.policy.name, "holder made");
            host.pool.put(&lacking, holder);
            point(Point::DaemonHolder);
        }
        Err(Problem::Draining) => {}
        Err(problem) => host.pool.fail_holder(&lacking.kind, &problem),
    }
    true
}

/// The same of zygotes, of kinds of which none waits.
async fn fill_zygote(host: &Host, zygotes: &mut Zygotes) -> bool {
    let Some(kind) = missing(host, zygotes).next() else {
        return false;
    };
    zygotes.dock(host, &kind).await;
    true
}

/// The kinds whose zygote is to be made now; none where all is made anew.
fn missing(host: &Host, zygotes: &Zygotes) -> impl Iterator<Item = Kind> {
    let wanted = host.pool.lock().kinds();
    let is_outdated = host.pool.outdated.load(Ordering::SeqCst);
    wanted
        .into_iter()
        .filter(move |kind| !is_outdated && zygotes.lacks(kind))
}

/// Makes one, by its zygote if there can be one; of what fails nothing is left.
async fn make_one(host: &Host, kind: &Kind, zygotes: &mut Zygotes) -> Result<Waiting, Problem> {
    let dock = zygotes.dock(host, kind).await;
    host.pool.publish(zygotes.docks());
    if let Some(dock) = dock {
        match make_by(host, kind, Dock::Of(dock), true).await {
            Err(problem) if !matches!(problem, Problem::Draining | Problem::Jail(Refusal::Busy(_))) => {
                zygotes.lost(host, kind, &problem);
            }
            made => {
                zygotes.worked(kind);
                return made;
            }
        }
    }
    make_by(host, kind, Dock::None, true).await
}

/// What exists of a session that is being made.
#[derive(Debug, Default)]
pub(super) struct Beginning {
    pub(super) jail: Option<Jail>,
    pub(super) process: Option<Process>,
}

/// What was made ahead was not there in time: what went on then.
pub(super) fn too_late(most: Duration, doing: &'static str) -> Problem {
    Problem::StartTimeout(u64::try_from(most.as_millis()).unwrap_or(u64::MAX), doing)
}

async fn make_by(host: &Host, kind: &Kind, dock: Dock, with_program: bool) -> Result<Waiting, Problem> {
    let (made_at, mut beginning) = (Instant::now(), Beginning::default());
    let below = match &dock {
        Dock::Of(id) => Some(id.clone()),
        _ => None,
    };
    let making = async {
        if with_program {
            let (files, enforced, program) = begin(host, kind, dock, &mut beginning).await?;
            return Ok((files, enforced, Some(program)));
        }
        let (_, enforced, files) = start_jail(host, kind, dock, &mut beginning).await?;
        Ok((files, enforced, None))
    };
    let most = kind.patience();
    let made = tokio::select! {
        made = timeout(most, making) => made.unwrap_or_else(|_elapsed| Err(too_late(most, "it was being made ahead"))),
        () = host.draining.cancelled() => Err(Problem::Draining),
    };
    match (made, beginning.jail) {
        (Ok((files, enforced, program)), Some(jail)) => Ok(Waiting {
            jail,
            files,
            enforced,
            program: beginning.process.zip(program),
            dock: below,
            best_before: made_at + kind.freshness(),
        }),
        (made, jail) => {
            if let Some(mut jail) = jail
                && !jail.close(CLOSE).await
            {
                warn!(session = %jail.id(), "session not confirmed closed");
            }
            Err(made.err().unwrap_or(Problem::JailDied("making a session ahead")))
        }
    }
}

type Made = (Files, Enforced, Program);

async fn begin(host: &Host, kind: &Kind, dock: Dock, beginning: &mut Beginning) -> Result<Made, Problem> {
    let template = template(host, kind)?;
    let start = if dock == Dock::None { Start::Exec } else { Start::Fork };
    let (session, enforced, files) = start_jail(host, kind, dock, beginning).await?;
    let spawned = host.jailer.spawn(interpreter(kind, session, start)).await?;
    let process = beginning.process.insert(spawned);
    let mut program = running(process).await?;
    if start == Start::Exec {
        tell(&program, &warm_frame(kind, &template, false)?)?;
    }
    program.pipes.frames = Some(until_said(&mut program).await?);
    // From here on it has no limit of time until it has something to run.
    process.lap(None).await;
    Ok((files, enforced, program))
}

/// Makes a session that waits.
pub(super) async fn start_jail(
    host: &Host,
    kind: &Kind,
    dock: Dock,
    beginning: &mut Beginning,
) -> Result<(Id, Enforced, Files), Problem> {
    let order = Make {
        session: new_id('s'),
        policy: kind.policy.name.clone(),
        policy_hash: kind.policy.hash.clone(),
        template: kind.template.id.clone(),
        quantities: kind.quantities,
        held: false,
        waiting: true,
        dock,
        memo: Vec::new(),
    };
    let session = order.session.clone();
    let (enforced, files) = make(&host.jailer, order, &mut beginning.jail).await?;
    Ok((session, enforced, files))
}

fn failed(message: String) -> Problem {
    Problem::Step {
        step: "kernel",
        message,
    }
}

/// Looks up what the template of a kind has imported ahead.
pub(super) fn template(host: &Host, kind: &Kind) -> Result<Arc<Template>, Problem> {
    let templates = host.store.templates();
    let templates = templates.map_err(|error| Problem::Configuration(error.to_string()))?;
    let found = templates.find(&kind.template.id);
    found.map_err(|problem| failed(problem.message))
}

/// The request to import what the template names.
pub(super) fn warm_frame(kind: &Kind, template: &Template, zygote: bool) -> Result<Vec<u8>, Problem> {
    let warm = Warm {
        imports: &template.imports,
        code: template.warm_up.as_deref(),
        threads: kind.quantities.threads(),
        zygote,
        context: kind.contexts,
    };
    warm_request(&warm).map_err(|error| failed(error.to_string()))
}

pub(super) fn interpreter(kind: &Kind, session: Id, start: Start) -> Spawn {
    Spawn {
        session,
        execution: new_id('e'),
        work: Work::Kernel,
        start,
        environment: Vec::new(),
        stdin: false,
        merge_stderr: false,
        timeout_ms: kind.policy.limits.timeout.max.millis(),
        terminal: None,
        cpu_time_ms: None,
        memo: Vec::new(),
    }
}

/// Writes the request into the empty pipe, whole or not at all.
///
/// Nothing of a guest's holds the pipe: no code has run in the session but the template's interpreter up to its first
/// read.
pub(super) fn tell(program: &Program, request: &[u8]) -> Result<(), Problem> {
    let Some(way_in) = &program.pipes.request else {
        return Err(failed("other descriptors came than were told".to_owned()));
    };
    let written = rustix::io::ioctl_fionbio(way_in, true).and_then(|()| rustix::io::write(way_in, request));
    match written {
        Ok(written) if written == request.len() => Ok(()),
        Ok(written) => Err(failed(format!(
            "request pipe: took {written} of {} bytes",
            request.len()
        ))),
        Err(error) => Err(failed(format!("request pipe: {error}"))),
    }
}

/// Waits until the program says something, which is left in the pipe that this gives back.
pub(super) async fn until_said(program: &mut Program) -> Result<OwnedFd, Problem> {
    let Some(way_out) = program.pipes.frames.take() else {
        return Err(failed("other descriptors came than were told".to_owned()));
    };
    until_readable(way_out)
        .await
        .map_err(|error| failed(format!("warm-up: {error}")))
}

/// Waits until there is something to be read, which is left there: reading a pipe takes its lock, asking whether there is
/// anything does not.
async fn until_readable(way_out: OwnedFd) -> std::io::Result<OwnedFd> {
    let pipe = Receiver::from_owned_fd(way_out)?;
    pipe.readable().await?;
    let way_out = pipe.into_nonblocking_fd()?;
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(way_out.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&now))?;
    if fds[0].revents().contains(PollFlags::IN) {
        Ok(way_out)
    } else {
        Err(std::io::Error::other("the interpreter ended"))
    }
}
