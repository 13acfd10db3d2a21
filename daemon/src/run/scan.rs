//! The scanner that a policy names: a command that looks at one file in a session of its own.
//!
//! The session is made for the file and closed behind it, never that which made the file, under a policy of its own
//! with a template that has the scanner. It gets a copy, and gives its exit code: 0 clean, 1 found something. Whatever
//! else happens, the file was not scanned. What the scanner writes goes nowhere.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brig_jailer::api::{Dock, End, Event, Exit, Make, Spawn, Start, Work};
use brig_jailer::files::wire::Put;
use brig_jailer::policy::{Policy, RequestedLimits, Resolved, Scanner};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::artifacts::{Scan, Stored};
use crate::files::Source;
use crate::host::Host;
use crate::jailer::{Jail, Jailer, Message};
use crate::run::admit::new_id;
use crate::run::session::CLOSE;
use crate::run::start::make;
use crate::slots::Slots;

/// Scans at one time: each has a session beside those that the queue lets run.
pub const SCANS_MAX: usize = 2;
/// How long the files of one execution may be scanned, waiting included.
const SCAN_ALL: Duration = Duration::from_secs(40);
/// The name of the file in the scanner's working directory.
const NAME: &[u8] = b"artifact";

/// What is needed to scan the files of one execution.
#[derive(Debug)]
pub struct Scans {
    jailer: Jailer,
    tasks: TaskTracker,
    places: Arc<Slots>,
    command: Vec<String>,
    /// What the scanner runs under, or why it can't.
    ground: Result<Ground, String>,
    left: Duration,
}

#[derive(Debug, Clone)]
struct Ground {
    policy: Arc<Policy>,
    template: String,
    limits: Resolved,
}

impl Scans {
    /// What a policy asks for, if it does.
    pub fn of(host: &Host, policy: &Policy) -> Option<Self> {
        let scanner = policy.artifacts.scanner.as_ref()?;
        let ground = Ground::find(host, scanner);
        if let Err(why) = &ground {
            warn!(policy = %policy.id(), scanner = %scanner.policy, %why, "scanner not usable");
        }
        Some(Self {
            jailer: host.jailer.clone(),
            tasks: host.tasks.clone(),
            places: Arc::clone(&host.scans),
            command: scanner.command.clone(),
            ground,
            left: SCAN_ALL,
        })
    }

    /// Has a file scanned.
    pub async fn scan(&mut self, stored: &Arc<Stored>) -> Scan {
        let ground = match &self.ground {
            Ok(ground) if !self.left.is_zero() => ground,
            _ => return Scan::Failed,
        };
        let start = Instant::now();
        let scan = tokio::time::timeout(self.left, self.scanned(ground, stored)).await;
        self.left = self.left.saturating_sub(start.elapsed());
        scan.unwrap_or_else(|_| {
            warn!("scanning the files of an execution takes too long");
            Scan::Failed
        })
    }

    /// A session that was asked for has to be closed, whoever still waits for the answer: it has a task of its own.
    async fn scanned(&self, ground: &Ground, stored: &Arc<Stored>) -> Scan {
        let place = self.places.take().await;
        let (sender, answer) = oneshot::channel();
        let (jailer, ground, command) = (self.jailer.clone(), ground.clone(), self.command.clone());
        let stored = Arc::clone(stored);
        self.tasks.spawn(async move {
            let (mut jail, mut held) = (None, Vec::new());
            let limits = &ground.limits;
            let most = Duration::from_millis(limits.start_timeout_ms + limits.timeout_ms);
            let running = run(&jailer, &ground, command, &stored, &mut jail, &mut held);
            let end = tokio::time::timeout(most, running).await;
            let end = end.unwrap_or_else(|_| Err(format!("no answer within {} ms", most.as_millis())));
            drop(stored);
            let scan = match end.and_then(verdict) {
                Ok(scan) => scan,
                Err(why) => {
                    warn!(%why, "a file was not scanned");
                    Scan::Failed
                }
            };
            // Nobody waits for it any more.
            let _ = sender.send(scan);
            close(jail).await;
            // Once nothing is left that could hold a pipe.
            let _ = tokio::task::spawn_blocking(move || drop(held)).await;
            drop(place);
        });
        answer.await.unwrap_or(Scan::Failed)
    }
}

impl Ground {
    fn find(host: &Host, scanner: &Scanner) -> Result<Self, String> {
        let policy = host.store.policy(&scanner.policy).map_err(|problem| problem.message)?;
        let templates = host.store.templates().map_err(|error| error.to_string())?;
        let template = templates.find(&policy.template).map_err(|problem| problem.message)?;
        let limits = policy.resolve(&RequestedLimits::default());
        let (limits, _clamped) = limits.map_err(|error| error.to_string())?;
        Ok(Self {
            policy,
            template: template.id.clone(),
            limits,
        })
    }
}

async fn run(
    jailer: &Jailer,
    ground: &Ground,
    command: Vec<String>,
    stored: &Stored,
    jail: &mut Option<Jail>,
    held: &mut Vec<OwnedFd>,
) -> Result<End, String> {
    let session = new_id('s');
    let order = Make {
        session: session.clone(),
        policy: ground.policy.name.clone(),
        policy_hash: ground.policy.hash.clone(),
        template: ground.template.clone(),
        quantities: ground.limits.quantities(),
        held: false,
        waiting: false,
        dock: Dock::None,
        memo: Vec::new(),
    };
    let made = make(jailer, order, jail).await;
    let (_enforced, mut files) = made.map_err(|problem| problem.to_string())?;
    let put = Put {
        path: NAME.to_vec(),
        size: stored.size(),
        mode: 0o444,
        mtime: None,
        make_parents: false,
        overwrite: false,
    };
    let sum = files.put(put, Source::Spool(stored)).await;
    let sum = sum.map_err(|error| format!("the file could not be put in: {error}"))?;
    if sum.sha256 != stored.sha256() {
        return Err("what was put in is not what was stored".to_owned());
    }
    let spawn = Spawn {
        session,
        execution: new_id('e'),
        work: Work::Command {
            argv: command.into_iter().map(String::into_bytes).collect(),
            directory: None,
        },
        start: Start::Exec,
        environment: Vec::new(),
        stdin: false,
        merge_stderr: true,
        terminal: None,
        timeout_ms: ground.limits.timeout_ms,
        cpu_time_ms: None,
        memo: Vec::new(),
    };
    let mut process = jailer.spawn(spawn).await.map_err(|error| error.to_string())?;
    while let Some(Message { event, fds }) = process.next().await {
        match event {
            // It may write as much as a pipe holds; its end is told without a reader.
            Event::Spawned { .. } => held.extend(fds),
            Event::Ended { end, .. } => return Ok(end),
            Event::Refused { refusal, .. } => return Err(refusal.to_string()),
            other => debug!(?other, "jailer event unexpected"),
        }
    }
    Err("its session is gone".to_owned())
}

/// What the end of the scanner says.
fn verdict(end: End) -> Result<Scan, String> {
    if end.oom_kills > 0 {
        return Err("processes of the scanner ran out of memory".to_owned());
    }
    match (end.cause, end.exit) {
        (None, Exit::Code(0)) => Ok(Scan::Clean),
        (None, Exit::Code(1)) => Ok(Scan::Found),
        (None, exit) => Err(format!("the scanner ended by {exit:?}")),
        (Some(cause), _) => Err(format!("the scanner was ended for {cause:?}")),
    }
}

async fn close(jail: Option<Jail>) {
    if let Some(mut jail) = jail
        && !jail.close(CLOSE).await
    {
        warn!("session of a scanner not confirmed closed");
    }
}

#[cfg(test)]
mod tests {
    use brig_jailer::api::{Cause, Usage};

    use super::*;

    #[test]
    fn only_an_exit_code_of_its_own_is_an_answer() {
        let end = |exit, cause| {
            verdict(End {
                exit,
                cause,
                usage: Usage::default(),
                oom_kills: 0,
                pids_refused: 0,
            })
            .ok()
        };
        assert_eq!(end(Exit::Code(0), None), Some(Scan::Clean));
        assert_eq!(end(Exit::Code(1), None), Some(Scan::Found));
        for (exit, cause) in [
            (Exit::Code(2), None),
            (Exit::Code(-1), None),
            (Exit::Signal(9), None),
            (Exit::Unknown, None),
            (Exit::Code(0), Some(Cause::WallTime)),
            (Exit::Code(1), Some(Cause::Memory)),
        ] {
            assert_eq!(end(exit, cause), None, "{exit:?} {cause:?}");
        }
    }
}
