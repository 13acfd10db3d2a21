//! The life of a session as the jailer sees it: starting, up, closing, gone.

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::EventFlags;

use super::birth::{self, Newborn};
use super::blueprint::{self, Filters};
use super::events::{Source, Timer, Token};
use super::executions::Execution;
use super::serve::Jailer;
use super::uids::Block;
use crate::api::{Cause, CloseReason, Enforced, Event, Make, Refusal};
use crate::cgroup::{HELPER_LEAF, Leaf, SessionGroups};
use crate::ids::Id;
use crate::plan::{FromInit, Plan, ToInit};
use crate::policy::{Policy, check_quantities};
use crate::step::{At, Step, StepError, SysError};
use crate::template::Template;
use crate::wire;

/// Making a jail takes milliseconds; a host that needs longer is not well.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How soon a group that was still busy is tried again.
const REMOVE_AGAIN: Duration = Duration::from_millis(3);

#[derive(Debug)]
pub(super) struct Session {
    pub(super) policy: Policy,
    pub(super) template: Template,
    pub(super) phase: Phase,
    pub(super) groups: SessionGroups,
    pub(super) executions: HashMap<Id, Execution>,
    control: OwnedFd,
    pidfd: OwnedFd,
    pid: i32,
    tokens: [Token; 2],
    block: Block,
    filter: String,
    reaped: bool,
    /// Kept open until brig-init has it.
    _files_leaf: Leaf,
}

/// Groups that belong to nothing any more. Their processes are dead, but may still be on their way out.
#[derive(Debug)]
pub(super) enum Remains {
    Session(SessionGroups),
    Leaf(Leaf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Starting,
    Up,
    Closing(CloseReason),
}

/// All of a jail that exists before its pid 1.
struct Foundations {
    policy: Policy,
    template: Template,
    plan: Plan,
    filter: String,
    block: Block,
}

impl Jailer {
    /// Makes a jail, or says why not; then nothing of it is left.
    pub(super) fn make(&mut self, request: Make) {
        let id = request.session.clone();
        let built = self.lay_foundations(&request).and_then(|foundations| {
            let block = foundations.block;
            self.build(&request, foundations)
                .inspect_err(|_| self.region.release(block))
        });
        match built {
            Ok(session) => {
                self.events.after(START_LIMIT, Timer::Start(id.clone()));
                let age = Duration::from_millis(request.quantities.max_age_ms);
                self.events.after(age, Timer::Age(id.clone()));
                tracing::info!(session = %id, policy = request.policy, template = request.template, "session starting");
                self.sessions.insert(id, session);
            }
            Err(refusal) => self.refuse(id, None, refusal),
        }
    }

    fn lay_foundations(&mut self, request: &Make) -> Result<Foundations, Refusal> {
        let invalid = |field: &str, message: String| Refusal::Invalid {
            field: field.to_owned(),
            message,
        };
        if let Some(missing) = self.missing.clone() {
            return Err(Refusal::HostCannot(missing));
        }
        if self.sessions.contains_key(&request.session) {
            return Err(invalid("session_id", format!("{} exists already", request.session)));
        }
        if self.sessions.len() as u64 >= self.ceilings.sessions {
            return Err(Refusal::Busy(format!(
                "{} sessions exist, which is the ceiling",
                self.sessions.len()
            )));
        }
        let policy = self
            .policies
            .get(&request.policy)
            .map_err(|error| invalid("policy", error.to_string()))?
            .clone();
        if policy.hash != request.policy_hash {
            return Err(invalid(
                "policy_hash",
                format!("{} was changed; reload both daemons", request.policy),
            ));
        }
        check_quantities(&policy, &self.ceilings, &request.quantities)?;
        let template = self.template(&request.template)?;
        let (filters, filter) = self.filters(&policy)?;
        let folder = template
            .tree
            .parent()
            .and_then(|path| path.file_name())
            .unwrap_or_default();
        let image = self.world.image(&folder.to_string_lossy()).at(Step::Mounts)?;
        let image = image.to_string_lossy();
        #[cfg_attr(not(feature = "faults"), expect(unused_mut, reason = "only faults change a plan"))]
        let mut plan = blueprint::plan(&request.session, &template, &image, &request.quantities, filters);
        #[cfg(feature = "faults")]
        super::faults::spoil(&mut plan);
        let block = self
            .region
            .allocate()
            .ok_or_else(|| Refusal::Busy("all uid blocks are in use".to_owned()))?;
        Ok(Foundations {
            policy,
            template,
            plan,
            filter,
            block,
        })
    }

    fn filters(&mut self, policy: &Policy) -> Result<(Filters, String), Refusal> {
        if let Some(found) = self.filters.get(&policy.hash) {
            return Ok(found.clone());
        }
        let groups = &policy.rules.syscalls.groups;
        let refused = |error: crate::seccomp::SeccompError| Refusal::Invalid {
            field: "policy".to_owned(),
            message: format!("{}: syscalls.groups: {error}", policy.name),
        };
        let guest = self.groups.compile(&policy.name, groups).map_err(refused)?;
        let init = self.groups.compile_init(&policy.name, groups).map_err(refused)?;
        let made = (
            Filters {
                init: init.programs,
                guest: guest.programs.clone(),
            },
            guest.id(),
        );
        self.filters.insert(policy.hash.clone(), made.clone());
        Ok(made)
    }

    fn build(&mut self, request: &Make, foundations: Foundations) -> Result<Session, Refusal> {
        let Foundations {
            policy,
            template,
            plan,
            filter,
            block,
        } = foundations;
        #[cfg(feature = "faults")]
        super::faults::check(Step::Cgroups).at(Step::Cgroups)?;
        let mut groups = self
            .cgroups
            .session(&request.session, &request.quantities, block.root())
            .at(Step::Cgroups)?;
        let born = birth::give_birth(&self.programs, &groups, block).and_then(|newborn| {
            match self.bring_up(&request.session, &mut groups, &newborn, plan) {
                Ok((leaf, tokens)) => Ok((newborn, leaf, tokens)),
                Err(error) => {
                    abandon(&groups, &newborn);
                    Err(error)
                }
            }
        });
        match born {
            Ok((newborn, leaf, tokens)) => Ok(Session {
                policy,
                template,
                phase: Phase::Starting,
                groups,
                executions: HashMap::new(),
                control: newborn.control,
                pidfd: newborn.pidfd,
                pid: newborn.pid,
                tokens,
                block,
                filter,
                reaped: false,
                _files_leaf: leaf,
            }),
            Err(error) => {
                self.bury(Remains::Session(groups));
                Err(error.into())
            }
        }
    }

    /// Gives pid 1 its groups and its plan, and begins to listen to it.
    fn bring_up(
        &mut self,
        id: &Id,
        groups: &mut SessionGroups,
        newborn: &Newborn,
        plan: Plan,
    ) -> Result<(Leaf, [Token; 2]), StepError> {
        groups
            .settle(newborn.pid)
            .at(Step::Cgroups)
            .map_err(|error| last_words(newborn).unwrap_or(error))?;
        let leaf = groups.leaf(HELPER_LEAF).at(Step::Cgroups)?;
        wire::send(
            newborn.control.as_fd(),
            &ToInit::Plan(Box::new(plan)),
            &leaf.join_descriptors(),
        )
        .and_then(|()| Ok(rustix::io::ioctl_fionbio(&newborn.control, true)?))
        .map_err(|error| SysError::new("sendmsg(plan)", error.raw_os_error().unwrap_or(libc::EIO)))
        .at(Step::Clone)
        .map_err(|error| last_words(newborn).unwrap_or(error))?;
        let control = self
            .events
            .watch(newborn.control.as_fd(), Source::Control(id.clone()), EventFlags::IN);
        let pid1 = self
            .events
            .watch(newborn.pidfd.as_fd(), Source::Pid1(id.clone()), EventFlags::IN);
        Ok((leaf, [control.at(Step::Clone)?, pid1.at(Step::Clone)?]))
    }

    /// Removes groups, now or as soon as it can be done.
    pub(super) fn bury(&mut self, remains: Remains) {
        self.remains.push(remains);
        self.bury_remains();
    }

    pub(super) fn bury_remains(&mut self) {
        self.remains.retain(|remains| {
            let removed = match remains {
                Remains::Session(groups) => groups.remove(),
                Remains::Leaf(leaf) => leaf.remove(),
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
            FromInit::Failed(error) => {
                self.refuse(id.clone(), None, Refusal::Step(error));
                self.close(id, CloseReason::Died);
            }
            FromInit::Spawned { execution, pid } => self.spawned(id, &execution, pid, fds),
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
        session.phase = Phase::Up;
        tracing::info!(session = %id, "session up");
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
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if matches!(session.phase, Phase::Closing(_)) {
            return;
        }
        let cause = match reason {
            CloseReason::Asked => Cause::Asked,
            CloseReason::SessionAge => Cause::SessionAge,
            CloseReason::Died => Cause::Internal,
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
        match session.groups.remove() {
            Ok(()) => {
                if let Some(session) = self.sessions.remove(id) {
                    self.region.release(session.block);
                    self.events.forget(session.control.as_fd(), session.tokens[0]);
                }
                tracing::info!(session = %id, ?reason, "session closed");
                self.tell(
                    Event::Closed {
                        session: id.clone(),
                        reason,
                    },
                    Vec::new(),
                );
            }
            Err(error) => {
                tracing::debug!(session = %id, %error, "cgroup still busy");
                self.events.after(REMOVE_AGAIN, Timer::Remove(id.clone()));
            }
        }
    }
}

impl Session {
    /// Sends something to brig-init, which always reads; if it does not, the session is not well.
    pub(super) fn order(&self, message: &ToInit, fds: &[std::os::fd::BorrowedFd<'_>]) -> Result<(), SysError> {
        wire::send(self.control.as_fd(), message, fds)
            .map_err(|error| SysError::new("sendmsg(brig-init)", error.raw_os_error().unwrap_or(libc::EIO)))
    }

    /// Finds out what is on, by looking at the jail from outside.
    ///
    /// Capabilities and no_new_privs are looked at by each program itself before its exec, which fails otherwise.
    fn look(&self, landlock_abi: u32) -> Enforced {
        let kinds = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
        let own = |kind: &&str| {
            let of = |who: &str| fs::read_link(format!("/proc/{who}/ns/{kind}")).ok();
            of(&self.pid.to_string()).is_some_and(|theirs| Some(theirs) != of("self"))
        };
        let name = |kind: &str| {
            if kind == "mnt" {
                "mount".to_owned()
            } else {
                kind.to_owned()
            }
        };
        Enforced {
            namespaces: kinds.iter().filter(|kind| own(kind)).map(|kind| name(kind)).collect(),
            cgroup: self.groups.controllers().name().to_owned(),
            // Each was read back when it was set; otherwise the session would not exist.
            memory: true,
            cpu: true,
            pids: true,
            swap: self.groups.no_swap,
            landlock_abi,
            seccomp: self.filter.clone(),
            capabilities: "none".to_owned(),
            no_new_privs: true,
        }
    }
}

/// What a pid 1 that is gone already has said about it.
fn last_words(newborn: &Newborn) -> Option<StepError> {
    match wire::receive(newborn.control.as_fd()) {
        Ok(Some((FromInit::Failed(error), _))) => Some(error),
        _ => None,
    }
}

/// Kills a pid 1 that could not be brought up and waits for its end, which takes a few milliseconds at most: it has
/// started nothing.
fn abandon(groups: &SessionGroups, newborn: &Newborn) {
    use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
    let _dead_already = groups.kill();
    let _dead_already = pidfd_send_signal(&newborn.pidfd, Signal::KILL);
    let _reaped = waitid(WaitId::PidFd(newborn.pidfd.as_fd()), WaitIdOptions::EXITED);
}
