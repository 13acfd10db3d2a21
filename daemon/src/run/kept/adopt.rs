//! What outlived the last brigd: sessions that the jailer held are gone on with, and what ran in them.
//!
//! All is made again first; then what was not is recorded as lost; only then anything goes on. What can't be gone on
//! with is ended: a session whose memo can't be read, a program whose journal was not begun.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use brig_jailer::api::{self, Event, Request};
use tracing::{info, warn};

use super::helper::Inbox;
use super::memo::{ExecutionMemo, Outline};
use super::{Session, Use};
use crate::host::Host;
use crate::jailer::{Held, HeldExecution, Jail, Process};
use crate::ledger::{LedgerError, OpenEnds};
use crate::run::admit::Conditions;
use crate::run::clock::Clock;
use crate::run::context;
use crate::run::context::memo::ContextMemo;
use crate::run::execution::{Execution, NotRestored};
use crate::run::kept::{execution, life};
use crate::run::life::{Running, Times, call_off};
use crate::run::registry::{Entered, KEPT};
use crate::run::session::CLOSE;
use crate::run::start::Workspace;
use crate::run::watch::{Pipes, Terms};
use crate::slots::Slot;

/// What is done about one thing that was held.
enum Next {
    Session(Arc<Session>, Inbox, Slot, Jail),
    Context(Arc<Session>, Box<context::adopt::Adopted>),
    PutAway(Box<context::adopt::Remains>),
    Execution(Arc<Execution>, Box<(Conditions, Running)>, Use),
    /// It was recorded before that it is over, or that it is lost.
    Close(Jail),
    CallOff(Process, Clock),
    Forget(Process),
}

/// Takes over what outlived the last brigd, and marks all else that it left running as lost.
pub async fn adopt(host: &Arc<Host>, held: Vec<Held>) -> Result<(), LedgerError> {
    let mut adoption = Adoption {
        host,
        open: host.ledger.open_ends().await?,
        going: OpenEnds::default(),
        next: Vec::new(),
    };
    for held in held {
        adoption.take(held);
    }
    let Adoption { going, next, .. } = adoption;
    let (sessions, executions) = (going.sessions.len(), going.executions.len());
    host.ledger.settle(going).await?;
    if !next.is_empty() {
        info!(sessions, executions, "adopted from an earlier brigd");
    }
    next.into_iter().for_each(|next| next.begin(host));
    Ok(())
}

/// What is found out before anything goes on.
struct Adoption<'h> {
    host: &'h Arc<Host>,
    /// What the ledger knows no end of.
    open: OpenEnds,
    going: OpenEnds,
    next: Vec<Next>,
}

impl Adoption<'_> {
    fn take(&mut self, held: Held) {
        let Held {
            told,
            mut jail,
            executions,
        } = held;
        let (session, inbox) = match self.session(&told) {
            Ok(restored) => restored,
            Err(error) => {
                warn!(session = %told.session, %error, "session not adopted");
                // What runs in it ends with it.
                return self.next.push(Next::Close(jail));
            }
        };
        while let Some(message) = jail.said() {
            if let Event::Closed { reason, .. } = message.event {
                session.end(life::close_reason(reason));
            }
        }
        let is_context = |held: &HeldExecution| ContextMemo::is_one(&held.told.memo);
        let (contexts, executions): (Vec<_>, _) = executions.into_iter().partition(is_context);
        for held in executions {
            self.take_execution(&session, held);
        }
        // Those of a session that ends do so with it.
        if !session.is_over() {
            self.take_contexts(&session, contexts);
        }
        self.going.sessions.insert(session.id.clone());
        let place = self.host.session_places.take_over();
        self.next.push(Next::Session(session, inbox, place, jail));
    }

    fn session(&self, told: &api::Held) -> Result<(Arc<Session>, Inbox), NotRestored> {
        if !self.open.sessions.contains(&told.session) {
            return Err(NotRestored::Recorded);
        }
        let (session, inbox) = Session::restore(told)?;
        let session = Arc::new(session);
        match self.host.registry.enter_session(&session) {
            Ok(Entered::New) => Ok((session, inbox)),
            Ok(Entered::Known(other)) => Err(NotRestored::Taken(format!("{} came by the same request", other.id))),
            Err(problem) => Err(NotRestored::Taken(problem.to_string())),
        }
    }

    fn take_execution(&mut self, session: &Arc<Session>, held: HeldExecution) {
        let HeldExecution { told, fds, process } = held;
        let restored = restore(session, &told, fds);
        let entered = restored.and_then(|restored| {
            if restored.is_old() {
                return Ok(None);
            }
            self.enter(&restored.execution)?;
            Ok(Some(restored))
        });
        let next = match entered {
            Ok(None) => Next::Forget(process),
            Ok(Some(restored)) if restored.execution.log.is_finished() => {
                return self.host.registry.ended(&restored.execution);
            }
            Ok(Some(restored)) => {
                let recorded = !self.open.executions.contains(&told.execution);
                self.going.executions.insert(told.execution.clone());
                let running = running(session, &told, process, restored.pipes, &restored.outline, recorded);
                let what = Box::new((restored.conditions, running));
                Next::Execution(restored.execution, what, session.hold())
            }
            Err(error) => {
                warn!(session = %told.session, execution = %told.execution, %error, "execution not adopted");
                match told.end {
                    Some(_) => Next::Forget(process),
                    None => Next::CallOff(process, session.clock.clone()),
                }
            }
        };
        self.next.push(next);
    }

    fn take_contexts(&mut self, session: &Arc<Session>, held: Vec<HeldExecution>) {
        let (adopted, remains) = context::adopt::adopt(session, held);
        for adopted in adopted {
            session.contexts.restore(Arc::clone(&adopted.context));
            let session = Arc::clone(session);
            self.next.push(Next::Context(session, Box::new(adopted)));
        }
        let remains = remains.into_iter().map(Box::new);
        self.next.extend(remains.map(Next::PutAway));
    }

    fn enter(&self, execution: &Arc<Execution>) -> Result<(), NotRestored> {
        match self.host.registry.enter(execution) {
            Ok(Entered::New) => Ok(()),
            Ok(Entered::Known(other)) => Err(NotRestored::Taken(format!("{} came by the same request", other.id))),
            Err(problem) => Err(NotRestored::Taken(problem.to_string())),
        }
    }
}

/// An execution that was made again.
struct Restored {
    execution: Arc<Execution>,
    conditions: Conditions,
    pipes: Pipes,
    outline: Outline,
}

impl Restored {
    /// Whether it ended so long ago that it would have been forgotten.
    fn is_old(&self) -> bool {
        let progress = self.execution.log.progress();
        progress
            .end_time
            .is_some_and(|time| time.elapsed().unwrap_or_default() >= KEPT)
    }
}

fn restore(session: &Arc<Session>, told: &api::HeldExecution, fds: Vec<OwnedFd>) -> Result<Restored, NotRestored> {
    if told.pid == 0 {
        return Err(NotRestored::NotStarted);
    }
    let memo = ExecutionMemo::decode(&told.memo)?;
    let (pipes, kept) = Pipes::new(told.streams, fds).ok_or(NotRestored::Descriptors)?;
    let outline = Outline::decode(&kept.outline()?)?;
    let restored = Execution::restore(told.execution.clone(), session, outline.clone(), memo, kept);
    let (execution, conditions) = restored?;
    if !execution.log.is_finished()
        && let Some(cause) = life::stop_cause(session.reason())
    {
        execution.stop.tell(cause);
    }
    Ok(Restored {
        execution: Arc::new(execution),
        conditions,
        pipes,
        outline,
    })
}

fn running(
    session: &Arc<Session>,
    told: &api::HeldExecution,
    process: Process,
    pipes: Pipes,
    outline: &Outline,
    recorded: bool,
) -> Running {
    let (timeout, ran) = (
        Duration::from_millis(outline.limits.timeout_ms),
        Duration::from_millis(told.age_ms),
    );
    // The jailer's deadline counts.
    let left = told.left_ms.map_or(timeout, Duration::from_millis);
    let elapsed = if told.end.is_some() {
        ran
    } else {
        timeout.saturating_sub(left)
    };
    Running {
        process,
        workspace: Workspace::Kept(Arc::clone(session)),
        enforced: session.enforced(),
        since: outline.since,
        pipes,
        terms: Terms {
            timeout,
            elapsed,
            idle: outline.times.idle_ms.map(Duration::from_millis),
            patience: Duration::from_millis(outline.limits.start_timeout_ms),
            held: true,
            end: told.end,
        },
        start: session.clock.mark().before(ran),
        times: Times {
            queued: outline.queued,
            startup: outline.startup,
            ..Times::default()
        },
        recorded,
    }
}

impl Next {
    fn begin(self, host: &Arc<Host>) {
        match self {
            Self::Session(session, inbox, place, jail) => {
                info!(session = %session.id, state = session.phase().as_str_name(), "session adopted");
                host.spawn_kept(life::resume(Arc::clone(host), session, inbox, place, jail));
            }
            Self::Execution(execution, what, used) => {
                info!(session = %execution.session, execution = %execution.id, "execution adopted");
                if execution.is_interrupted() {
                    tokio::spawn(Arc::clone(&execution).end_interrupted());
                }
                let (conditions, running) = *what;
                let place = host.queue.take_over();
                let task = execution::resume(Arc::clone(host), execution, conditions, running, place, used);
                host.spawn_kept(task);
            }
            Self::Context(session, adopted) => {
                info!(session = %session.id, context = %adopted.context.id, "context adopted");
                host.spawn_kept(context::life::resume(Arc::clone(host), session, *adopted));
            }
            Self::PutAway(remains) => {
                let of = Arc::clone(host);
                host.spawn_kept(async move { context::interpreter::put_away(&of, *remains).await.forget().await });
            }
            Self::Close(jail) => host.spawn_kept(close(jail)),
            Self::CallOff(process, clock) => host.spawn_kept(async move {
                process.kill().await;
                call_off(process, &clock).await;
            }),
            Self::Forget(process) => host.spawn_kept(async move { process.forget().await }),
        }
    }
}

/// Ends a session that is over as far as the ledger knows.
async fn close(mut jail: Jail) {
    if !jail.close(CLOSE).await {
        warn!(session = %jail.id(), "session not confirmed closed");
    }
    let session = jail.id().clone();
    // A jailer that is gone has forgotten.
    let _ = jail
        .ask(Request::Forget {
            session,
            execution: None,
        })
        .await;
}
