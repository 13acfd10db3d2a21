//! Makes sessions ahead, one at a time, behind the requests that asked for them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use brig_jailer::api::{Enforced, Make, Spawn, Work};
use brig_jailer::faults::{Point, point};
use brig_jailer::ids::Id;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::unix::pipe::Receiver;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

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
/// How long one may take: it has only the processor time that nobody else wants.
const MOST: Duration = Duration::from_secs(120);
/// How long closing all may take at the end.
const END: Duration = Duration::from_secs(15);

/// Keeps as many sessions waiting as are wanted, until the daemon is about to stop; then closes them.
pub async fn keep(host: Arc<Host>) {
    loop {
        tokio::select! {
            () = host.draining.cancelled() => break,
            () = host.pool.asked.notified() => sleep(COURTESY).await,
            () = sleep(LOOK) => {}
        }
        host.pool.tidy();
        fill(&host).await;
    }
    host.pool.empty();
    host.pool.closing.close();
    if timeout(END, host.pool.closing.wait()).await.is_err() {
        warn!(
            left = host.pool.closing.len(),
            "sessions that waited not confirmed closed"
        );
    }
}

async fn fill(host: &Host) {
    while !host.draining.is_cancelled() {
        let lacking = host.pool.lock().lacking(std::time::Instant::now());
        let Some(lacking) = lacking else { return };
        match make_one(host, &lacking.kind).await {
            Ok(waiting) => {
                info!(session = %waiting.jail.id(), policy = lacking.kind.policy.name, "session made ahead");
                host.pool.put(&lacking, waiting);
                point(Point::DaemonWaiting);
            }
            Err(Problem::Draining) => return,
            Err(problem) => host.pool.fail(&lacking.kind, &problem),
        }
    }
}

/// Makes one; of what fails nothing is left.
async fn make_one(host: &Host, kind: &Kind) -> Result<Waiting, Problem> {
    let (mut jail, mut process) = (None, None);
    let making = begin(host, kind, &mut jail, &mut process);
    let made = tokio::select! {
        made = timeout(MOST, making) => made.unwrap_or_else(|_elapsed| {
            let most = u64::try_from(MOST.as_millis()).unwrap_or(u64::MAX);
            Err(Problem::StartTimeout(most, "it was being made ahead"))
        }),
        () = host.draining.cancelled() => Err(Problem::Draining),
    };
    match (made, jail, process) {
        (Ok((files, enforced, program)), Some(jail), Some(process)) => Ok(Waiting {
            jail,
            files,
            enforced,
            process,
            program,
        }),
        (made, jail, _) => {
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

async fn begin(
    host: &Host,
    kind: &Kind,
    jail: &mut Option<Jail>,
    process: &mut Option<Process>,
) -> Result<Made, Problem> {
    let failed = |message: String| Problem::Step {
        step: "kernel",
        message,
    };
    let templates = host.store.templates();
    let templates = templates.map_err(|error| Problem::Configuration(error.to_string()))?;
    let template = templates
        .find(&kind.template.id)
        .map_err(|problem| failed(problem.message))?;
    let order = Make {
        session: new_id('s'),
        policy: kind.policy.name.clone(),
        policy_hash: kind.policy.hash.clone(),
        template: kind.template.id.clone(),
        quantities: kind.quantities,
        held: false,
        waiting: true,
        memo: Vec::new(),
    };
    let session = order.session.clone();
    let (enforced, files) = make(&host.jailer, order, jail).await?;
    let process = process.insert(host.jailer.spawn(interpreter(kind, session)).await?);
    let mut program = running(process).await?;
    let warm = Warm {
        imports: &template.imports,
        code: template.warm_up.as_deref(),
        threads: u32::try_from(kind.quantities.cpu_millis.div_ceil(1000))
            .unwrap_or(1)
            .max(1),
    };
    let request = warm_request(&warm).map_err(|error| failed(error.to_string()))?;
    let (Some(way_in), Some(way_out)) = (&program.pipes.request, program.pipes.frames.take()) else {
        return Err(failed("other descriptors came than were told".to_owned()));
    };
    tell(way_in, &request).map_err(|error| failed(format!("request pipe: {error}")))?;
    program.pipes.frames = Some(
        until_said(way_out)
            .await
            .map_err(|error| failed(format!("warm-up: {error}")))?,
    );
    // From here on it has no limit of time until it has something to run.
    process.lap(None).await;
    Ok((files, enforced, program))
}

fn interpreter(kind: &Kind, session: Id) -> Spawn {
    Spawn {
        session,
        execution: new_id('e'),
        work: Work::Kernel,
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
fn tell(way_in: &OwnedFd, request: &[u8]) -> std::io::Result<()> {
    rustix::io::ioctl_fionbio(way_in, true)?;
    let written = rustix::io::write(way_in, request)?;
    if written == request.len() {
        Ok(())
    } else {
        Err(std::io::Error::other(format!(
            "took {written} of {} bytes",
            request.len()
        )))
    }
}

/// Waits until there is something to be read, which is left there: reading a pipe takes its lock, asking whether there is
/// anything does not.
async fn until_said(way_out: OwnedFd) -> std::io::Result<OwnedFd> {
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
