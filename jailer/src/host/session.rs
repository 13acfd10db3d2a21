//! The life of a session as the jailer sees it: starting ([`make`]), up, closing, gone.

mod helper;
mod look;
mod make;
mod waiting;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use self::helper::Helper;
use super::birth;
use super::events::{Timer, Token};
use super::executions::Execution;
use super::held::{Ended, millis};
use super::serve::Jailer;
use super::uids::Block;
use crate::api::{Cause, CloseReason, Enforced, Event, Held, Quantities, Refusal, SessionUsage};
use crate::cgroup::{DockGroup, Leaf, SessionGroups};
use crate::faults::{Point, point};
use crate::ids::Id;
use crate::plan::{FromInit, Guest, ToInit};
use crate::policy::Policy;
use crate::step::SysError;
use crate::template::Template;
use crate::wire;

/// How soon a group that was still busy is tried again.
const REMOVE_AGAIN: Duration = Duration::from_millis(3);

#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: Id,
    pub(super) policy: Policy,
    pub(super) template: Template,
    pub(super) quantities: Quantities,
    pub(super) phase: Phase,
    pub(super) groups: SessionGroups,
    pub(super) executions: HashMap<Id, Execution>,
    /// Executions of a held session whose end is not recorded.
    pub(super) ended: HashMap<Id, Ended>,
    pub(super) held: bool,
    /// The client that asked for it, by number.
    pub(super) client: u64,
    /// Whether a client was told that it is up.
    pub(super) was_told: bool,
    pub(super) memo: Vec<u8>,
    pub(super) paused: Option<Instant>,
    /// Whether nobody has taken it yet.
    pub(super) waiting: bool,
    /// The session of the zygote that can fork into it; its own name if it is that.
    pub(super) dock: Option<Id>,
    /// What its programs have in common.
    pub(super) guest: Guest,
    made: Instant,
    enforced: Enforced,
    control: OwnedFd,
    pidfd: OwnedFd,
    pid: i32,
    tokens: [Token; 2],
    block: Block,
    /// Whether its working directory is on disk.
    on_disk: bool,
    filter: String,
    reaped: bool,
    helper: Helper,
}

/// Groups that belong to nothing any more. Their processes are dead, but may still be on their way out.
#[derive(Debug)]
pub(super) enum Remains {
    Session(SessionGroups),
    Leaf(Leaf),
    Dock(DockGroup),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Starting,
    Up,
    Closing(CloseReason),
}

impl Jailer {
    /// Removes groups, now or as soon as it can be done.
    pub(super) fn bury(&mut self, remains: Remains) {
        self.remains.push(remains);
        self.bury_remains();
    }

    pub(super) fn bury_remains(&mut self) {
        let cgroups = &self.cgroups;
        self.remains.retain(|remains| {
            let removed = match remains {
                Remains::Session(groups) => groups.remove(),
                Remains::Leaf(leaf) => leaf.remove(),
                Remains::Dock(dock) => cgroups.remove_dock(dock),
            };
            removed.is_err_and(|error| error.errno == libc::EBUSY)
        });
        if !self.remains.is_empty() {
            self.events.after(REMOVE_AGAIN, Timer::Remains);
        }
    }

    /// Reads what brig-init says.
    pub(super) fn hear(&mut self, id: &Id) {
        loop {
            let Some(session) = self.sessions.get(id) else { return };
            match wire::receive::<FromInit>(session.control.as_fd()) {
                Ok(Some((message, fds))) => self.heard(id, message, fds),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Ok(None) => {
                    // The end of pid 1 is told by its pidfd; this would otherwise be told again and again.
                    let token = session.tokens[0];
                    self.events.forget(session.control.as_fd(), token);
                    return;
                }
                Err(error) => {
                    tracing::error!(session = %id, %error, "message of brig-init refused");
                    return self.close(id, CloseReason::Died);
                }
            }
        }
    }

    fn heard(&mut self, id: &Id, message: FromInit, fds: Vec<OwnedFd>) {
        match message {
            FromInit::Ready { landlock_abi } => self.ready(id, landlock_abi, fds),
            FromInit::Files => self.helper_started(id, fds),
            FromInit::Failed(error) => {
                self.refuse(id.clone(), None, Refusal::Step(error));
                self.close(id, CloseReason::Died);
            }
            FromInit::Spawned { execution, pid } => self.spawned(id, &execution, pid, fds),
            FromInit::Lent { execution } => self.lent(id, &execution, fds),
            FromInit::SpawnFailed { execution, error } => self.spawn_failed(id, &execution, error),
            FromInit::Exited { execution, status } => self.exited(id, &execution, status),
        }
    }

    fn ready(&mut self, id: &Id, landlock_abi: u32, fds: Vec<OwnedFd>) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if session.phase != Phase::Starting {
            return;
        }
        let enforced = session.look(landlock_abi);
        session.enforced = enforced.clone();
        session.phase = Phase::Up;
        session.was_told = true;
        if session.waiting
            && let Err(error) = session.groups.set_idle(true)
        {
            tracing::error!(session = %id, %error, "a session that waits has processor time as any other");
        }
        tracing::info!(session = %id, "session up");
        point(Point::JailerReady);
        self.tell(
            Event::Made {
                session: id.clone(),
                enforced,
            },
            fds,
        );
    }

    /// Begins to end a session. Everything in it is dead when this returns, or will be in a moment.
    pub(super) fn close(&mut self, id: &Id, reason: CloseReason) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        if matches!(session.phase, Phase::Closing(_)) || self.retire(id, reason) {
            return;
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let cause = match reason {
            CloseReason::Asked => Cause::Asked,
            CloseReason::SessionAge => Cause::SessionAge,
            CloseReason::Abandoned | CloseReason::Died => Cause::Internal,
        };
        for execution in session.executions.values_mut() {
            execution.cause.get_or_insert(cause);
        }
        session.phase = Phase::Closing(reason);
        if let Err(error) = session.groups.kill() {
            tracing::error!(session = %id, %error, "session could not be killed");
        }
        self.finish_close(id);
    }

    /// pid 1 is dead. Without it nothing of the jail can live.
    pub(super) fn pid1_ended(&mut self, id: &Id) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if !session.reaped && birth::reap(session.pidfd.as_fd()) {
            session.reaped = true;
            let token = session.tokens[1];
            self.events.forget(session.pidfd.as_fd(), token);
        }
        self.hear(id);
        self.close(id, CloseReason::Died);
        self.finish_close(id);
    }

    /// Removes what is left once pid 1 is reaped and no process is alive; else tries again later.
    pub(super) fn finish_close(&mut self, id: &Id) {
        let Some(session) = self.sessions.get(id) else { return };
        let Phase::Closing(reason) = session.phase else { return };
        if !session.reaped {
            return;
        }
        if session.groups.populated() {
            return self.events.after(REMOVE_AGAIN, Timer::Remove(id.clone()));
        }
        self.end_all_executions(id);
        let Some(session) = self.sessions.get(id) else { return };
        point(Point::JailerBeforeRemoval);
        match session.groups.remove() {
            Ok(()) => {
                tracing::info!(session = %id, ?reason, "session closed");
                let closed = Event::Closed {
                    session: id.clone(),
                    reason,
                };
                self.tell_about(id, closed);
                if let Some(session) = self.sessions.remove(id) {
                    self.events.forget_timers(id);
                    self.leave_dock(session.dock.as_ref(), session.block, session.on_disk);
                    self.events.forget(session.control.as_fd(), session.tokens[0]);
                    self.depart(id.clone(), session, reason);
                }
            }
            Err(error) => {
                tracing::debug!(session = %id, %error, "cgroup still busy");
                self.events.after(REMOVE_AGAIN, Timer::Remove(id.clone()));
            }
        }
    }
}

impl Session {
    /// What the next client is told about it.
    pub(super) fn description(&self) -> Held {
        Held {
            session: self.id.clone(),
            memo: self.memo.clone(),
            policy: self.policy.name.clone(),
            policy_hash: self.policy.hash.clone(),
            template: self.template.id.clone(),
            quantities: self.quantities,
            enforced: self.enforced.clone(),
            age_ms: millis(self.made.elapsed()),
            paused: self.paused.is_some(),
        }
    }

    /// Sends something to brig-init, which always reads; if it does not, the session is not well.
    pub(super) fn order(&self, message: &ToInit, fds: &[std::os::fd::BorrowedFd<'_>]) -> Result<(), SysError> {
        wire::send(self.control.as_fd(), message, fds)
            .map_err(|error| SysError::new("sendmsg(brig-init)", error.raw_os_error().unwrap_or(libc::EIO)))
    }

    /// What it uses now. Its file helper is none of its processes: threads of it that come and go are never counted.
    pub(super) fn usage(&self) -> Result<SessionUsage, SysError> {
        let executions = self.executions.values();
        let processes = executions
            .map(|execution| execution.leaf.processes())
            .sum::<Result<u64, _>>()?;
        self.groups.usage(processes)
    }
}
