//! The life of a session as the jailer sees it: starting, up, closing, gone.

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;

use super::birth::{self, Newborn};
use super::blueprint::{self, Filters};
use super::events::{Source, Timer, Token};
use super::executions::Execution;
use super::held::{Ended, millis};
use super::serve::Jailer;
use super::uids::Block;
use crate::api::{
    Cause, CloseReason, Enforced, Event, Held, Make, Quantities, Refusal, SESSION_MEMO_MAX, SessionUsage,
};
use crate::cgroup::{IoPlan, Leaf, SessionGroups};
use crate::faults::{Point, point};
use crate::ids::Id;
use crate::plan::{FromInit, HOME, Plan, ToInit, WORKSPACES};
use crate::policy::{Policy, check_quantities};
use crate::step::{At, Step, StepError, SysError};
use crate::template::Template;
use crate::wire;

/// Making a jail takes milliseconds; a host that needs longer is not well.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long a killed file helper may take to be gone.
const HELPER_LIMIT: Duration = Duration::from_secs(5);
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

/// The file helper's group.
#[derive(Debug)]
struct Helper {
    leaf: Leaf,
    /// How many there were before.
    number: u32,
    /// How many of those have started that were ordered.
    started: u32,
    /// Whether the client waits for another one.
    wanted: bool,
    /// Watched while the helper is killed to be replaced.
    token: Option<Token>,
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
    on_disk: bool,
    io: Option<Box<IoPlan>>,
}

impl Jailer {
    /// Makes a jail, or says why not; then nothing of it is left.
    pub(super) fn make(&mut self, request: Make) {
        let id = request.session.clone();
        let built = self.lay_foundations(&request).and_then(|foundations| {
            let (block, on_disk) = (foundations.block, foundations.on_disk);
            self.build(&request, foundations)
                .inspect_err(|_| self.vacate(block, on_disk))
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
        if self.sessions.contains_key(&request.session) || self.departed.contains_key(&request.session) {
            return Err(invalid("session_id", format!("{} exists already", request.session)));
        }
        if request.memo.len() > SESSION_MEMO_MAX {
            return Err(invalid("memo", format!("is larger than {SESSION_MEMO_MAX} bytes")));
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
        let io = self.io_plan(&policy, &image)?;
        let block = self
            .region
            .allocate()
            .ok_or_else(|| Refusal::Busy("all uid blocks are in use".to_owned()))?;
        let on_disk = self
            .furnish(&policy, block, &request.quantities)
            .inspect_err(|_| self.region.release(block))?;
        let workspace = on_disk.then(|| format!("{WORKSPACES}/{}", block.root()));
        #[cfg_attr(not(feature = "faults"), expect(unused_mut, reason = "only faults change a plan"))]
        let mut plan = blueprint::plan(
            &request.session,
            &template,
            &image.to_string_lossy(),
            workspace.as_deref(),
            &request.quantities,
            filters,
        );
        #[cfg(feature = "faults")]
        super::faults::spoil(&mut plan);
        Ok(Foundations {
            policy,
            template,
            plan,
            filter,
            block,
            on_disk,
            io,
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
            on_disk,
            io,
        } = foundations;
        #[cfg(feature = "faults")]
        super::faults::check(Step::Cgroups).at(Step::Cgroups)?;
        let charged = Quantities {
            disk_bytes: policy.limits.workspace.tmpfs_bytes(request.quantities.disk_bytes),
            ..request.quantities
        };
        let mut groups = self
            .cgroups
            .session(&request.session, &charged, block.root(), io)
            .at(Step::Cgroups)?;
        let born = birth::give_birth(&self.programs, &groups, block).and_then(|newborn| {
            match self.bring_up(&request.session, &mut groups, &newborn, plan) {
                Ok((leaf, tokens)) => Ok((newborn, Helper::first(leaf), tokens)),
                Err(error) => {
                    abandon(&groups, &newborn);
                    Err(error)
                }
            }
        });
        match born {
            Ok((newborn, helper, tokens)) => Ok(Session {
                id: request.session.clone(),
                policy,
                template,
                quantities: request.quantities,
                phase: Phase::Starting,
                groups,
                executions: HashMap::new(),
                ended: HashMap::new(),
                held: request.held,
                client: self.grace.clients(),
                was_told: false,
                memo: request.memo.clone(),
                paused: None,
                made: Instant::now(),
                enforced: Enforced::default(),
                control: newborn.control,
                pidfd: newborn.pidfd,
                pid: newborn.pid,
                tokens,
                block,
                on_disk,
                filter,
                reaped: false,
                helper,
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
        let leaf = groups.helper_leaf(0).at(Step::Cgroups)?;
        wire::send(
            newborn.control.as_fd(),
            &ToInit::Plan(Box::new(plan)),
            &leaf.join_descriptors(),
        )
        .and_then(|()| Ok(rustix::io::ioctl_fionbio(&newborn.control, true)?))
        .map_err(|error| SysError::new("sendmsg(plan)", error.raw_os_error().unwrap_or(libc::EIO)))
        .at(Step::Clone)
        .map_err(|error| last_words(newborn).unwrap_or(error))?;
        point(Point::JailerPlanSent);
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
            FromInit::Files => self.helper_started(id, fds),
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
        session.enforced = enforced.clone();
        session.phase = Phase::Up;
        session.was_told = true;
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

    /// Gives the client the helper that it asked for. One that an earlier client asked for ends with its socket.
    fn helper_started(&mut self, id: &Id, fds: Vec<OwnedFd>) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let helper = &mut session.helper;
        helper.started += 1;
        if std::mem::take(&mut helper.wanted) {
            self.tell(Event::Files { session: id.clone() }, fds);
        }
    }

    /// Kills the file helper; another one is started when it is dead.
    pub(super) fn replace_helper(&mut self, id: &Id) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.phase == Phase::Up) else {
            return;
        };
        let helper = &mut session.helper;
        helper.wanted = true;
        // One is on its way already, and nobody has it yet.
        if helper.token.is_some() || helper.started < helper.number {
            return;
        }
        if let Err(error) = session.helper.leaf.kill() {
            tracing::error!(session = %id, %error, "file helper could not be killed");
        }
        let source = Source::Helper(id.clone());
        match self.events.watch(session.helper.leaf.events(), source, EventFlags::PRI) {
            Ok(token) => session.helper.token = Some(token),
            Err(error) => {
                tracing::error!(session = %id, %error, "file helper can't be watched");
                return self.close(id, CloseReason::Died);
            }
        }
        self.events.after(HELPER_LIMIT, Timer::Helper(id.clone()));
        self.look_at_helper(id);
    }

    /// Orders another file helper once the last one is dead.
    pub(super) fn look_at_helper(&mut self, id: &Id) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let helper = &mut session.helper;
        if helper.leaf.populated() {
            return;
        }
        let Some(token) = helper.token.take() else { return };
        self.events.forget(helper.leaf.events(), token);
        match session.next_helper() {
            Ok(last) => self.bury(Remains::Leaf(last)),
            Err(error) => {
                tracing::error!(session = %id, %error, "file helper not ordered");
                self.close(id, CloseReason::Died);
            }
        }
    }

    /// A file helper that a kill does not end holds what a guest has done to a file; the session goes with it.
    pub(super) fn helper_overdue(&mut self, id: &Id) {
        let stuck = |session: &Session| session.helper.token.is_some();
        if self.sessions.get(id).is_some_and(stuck) {
            tracing::error!(session = %id, "file helper does not end");
            self.close(id, CloseReason::Died);
        }
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
                    self.vacate(session.block, session.on_disk);
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

impl Helper {
    fn first(leaf: Leaf) -> Self {
        Self {
            leaf,
            number: 0,
            started: 0,
            wanted: false,
            token: None,
        }
    }
}

impl Session {
    /// The client that asked for another file helper is gone.
    pub(super) fn forget_helper(&mut self) {
        self.helper.wanted = false;
    }

    /// Orders the next file helper, in a group of its own; gives the group of the last one back.
    fn next_helper(&mut self) -> Result<Leaf, SysError> {
        let number = self.helper.number + 1;
        let leaf = self.groups.helper_leaf(number)?;
        let last = std::mem::replace(&mut self.helper.leaf, leaf);
        self.helper.number = number;
        self.order(&ToInit::Files, &self.helper.leaf.join_descriptors())?;
        Ok(last)
    }

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

    /// What it uses now. Its file helper is none of its processes.
    pub(super) fn usage(&self) -> Result<SessionUsage, SysError> {
        let helper = self.helper.leaf.processes()?;
        let usage = self.groups.usage()?;
        Ok(SessionUsage {
            processes: usage.processes.saturating_sub(helper),
            ..usage
        })
    }

    /// Its quota was read back when it was made.
    fn look_at_workspace(&self) -> String {
        match mounted_kind(self.pid, HOME).as_deref() {
            None => "unknown",
            Some("tmpfs") => "tmpfs",
            Some(_) => "disk",
        }
        .to_owned()
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
            io: self.groups.limits_io(),
            workspace: self.look_at_workspace(),
            landlock_abi,
            seccomp: self.filter.clone(),
            capabilities: "none".to_owned(),
            no_new_privs: true,
        }
    }
}

/// The kind of file system that a process sees at a mount point.
fn mounted_kind(pid: i32, point: &str) -> Option<String> {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok()?;
    let line = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(point))?;
    let (_, kind) = line.split_once(" - ")?;
    kind.split(' ').next().map(ToOwned::to_owned)
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
