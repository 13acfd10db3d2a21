//! Docks: a zygote in a session of its own, and the sessions that it forks programs into.
//!
//! A zygote is an interpreter that has imported what its template names. It is a program of its session, the keeper,
//! with a uid of its own and without capabilities, sealed. The sessions of its dock are made below the user namespace and
//! the pid namespace of the keeper, and that uid owns theirs: so it can join them by the descriptors that it is sent, and no
//! others. It takes orders from the jailer alone ([`brig_fork::order`]), no byte from a session, and what it answers is not
//! believed: pid 1 of the session looks whether the process is its child, and that says itself that it is sealed.
//!
//! The dock lasts until its last session is gone, and its keeper too, without which they could not live; its zygote may be
//! gone long before.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use brig_fork::order::{ANSWER, Answer, NAMESPACES, Order, STREAMS};
use rustix::event::epoll::EventFlags;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};

use super::birth::{Nest, nested};
use super::events::{Source, Timer, Token};
use super::serve::Jailer;
use super::session::{Phase, Remains};
use super::uids::Block;
use crate::api::{Cause, CloseReason, Dock as Wanted, Make, Quantities, Refusal, Start};
use crate::cgroup::DockGroup;
use crate::faults::{Point, point};
use crate::ids::Id;
use crate::plan::{HOME, ToInit, ZYGOTE_UID, Zygote as Plan};
use crate::step::{At, Step, StepError, SysError};
use crate::wire;

/// How long a zygote may take to fork: one whose memory is all its own takes milliseconds.
const FORK_LIMIT: Duration = Duration::from_secs(5);
/// Orders that a zygote has at one time: one that it carries out, and the next one. Its socket holds these, however long
/// their filters are.
const ORDERS: usize = 2;

/// A zygote's session and those of its children.
#[derive(Debug)]
pub(super) struct Dock {
    pub(super) group: DockGroup,
    likeness: Likeness,
    /// The cgroup namespace of the keeper on a version 2 host, which begins at the dock: a fork into a group that its caller
    /// can't see fails there.
    pub(super) namespace: Option<OwnedFd>,
    /// Where its sessions are made, once there is a zygote.
    pub(super) nest: Option<Nest>,
    /// Sessions that are not gone yet, the keeper among them.
    sessions: usize,
    /// Uids of the keeper, and whether it has a workspace on disk: kept as long as one of them is anybody's owner.
    block: (Block, bool),
    zygote: Option<Zygote>,
    /// Why the keeper is to be closed when it is the last.
    retired: Option<CloseReason>,
}

/// What a zygote leaves to what it forks, beside filters.
#[derive(Debug)]
struct Likeness {
    policy: String,
    template: String,
    quantities: Quantities,
}

impl Likeness {
    fn of(request: &Make) -> Self {
        Self {
            policy: request.policy_hash.clone(),
            template: request.template.clone(),
            quantities: request.quantities,
        }
    }

    fn fits(&self, request: &Make) -> bool {
        self.policy == request.policy_hash
            && self.template == request.template
            && self.quantities.can_fork_under(&request.quantities)
    }
}

#[derive(Debug)]
struct Zygote {
    execution: Id,
    socket: OwnedFd,
    token: Token,
    /// Forks that were ordered and not answered.
    orders: HashMap<u64, (Id, Id)>,
    next: u64,
    /// Forks that are to be ordered when others are answered.
    waiting: VecDeque<Lent>,
}

/// A program that is ready but for its process: its session, its name, and what the process is to join and have.
#[derive(Debug)]
struct Lent(Id, Id, Vec<OwnedFd>);

impl Dock {
    /// Whether sessions can be made in it.
    fn forks(&self, is_up: bool) -> bool {
        is_up && self.retired.is_none() && self.nest.is_some() && self.zygote.is_some()
    }
}

impl Jailer {
    /// Finds the dock of a session that is to be made, or makes it.
    pub(super) fn enter_dock(&mut self, request: &Make, block: Block, on_disk: bool) -> Result<Option<Id>, Refusal> {
        let (session, wanted) = (&request.session, &request.dock);
        let id = match wanted {
            Wanted::None => return Ok(None),
            Wanted::Own => {
                let uid = block.root() + ZYGOTE_UID;
                let group = DockGroup::new(session, uid);
                let namespace = self.cgroups.make_dock(&group, nested::cgroup_namespace);
                let namespace = namespace.at(Step::Cgroups)?;
                let dock = Dock {
                    group,
                    likeness: Likeness::of(request),
                    namespace,
                    nest: None,
                    sessions: 0,
                    block: (block, on_disk),
                    zygote: None,
                    retired: None,
                };
                self.docks.insert(session.clone(), dock);
                session
            }
            Wanted::Of(id) => id,
        };
        let invalid = |message: String| Refusal::Invalid {
            field: "dock".to_owned(),
            message,
        };
        let keeper = self.sessions.get(id);
        let is_up = keeper.is_some_and(|keeper| keeper.phase == Phase::Up);
        let Some(dock) = self
            .docks
            .get_mut(id)
            .filter(|dock| *wanted == Wanted::Own || dock.forks(is_up))
        else {
            return Err(invalid(format!("session {id} has no zygote")));
        };
        if !dock.likeness.fits(request) {
            return Err(invalid(format!(
                "policy, template, open files or threads are not those of session {id}"
            )));
        }
        if dock.sessions == 1
            && let Some(Err(error)) = keeper.map(|keeper| keeper.groups.set_idle(false))
        {
            tracing::error!(session = %id, %error, "a zygote has only the processor time that nobody else wants");
        }
        dock.sessions += 1;
        Ok(Some(id.clone()))
    }

    /// A session is gone, or was not made: its uids can be another's, those of a keeper when its dock is empty.
    pub(super) fn leave_dock(&mut self, dock: Option<&Id>, block: Block, on_disk: bool) {
        let left = dock.and_then(|id| Some((id, self.docks.get_mut(id)?)));
        let Some((id, left)) = left else {
            return self.vacate(block, on_disk);
        };
        left.sessions -= 1;
        let (id, is_keeper, is_empty) = (id.clone(), left.block.0 == block, left.sessions == 0);
        let (left_over, retired) = (left.sessions, left.retired);
        if !is_keeper {
            self.vacate(block, on_disk);
        }
        if left_over == 1
            && let Some(reason) = retired
        {
            self.close(&id, reason);
        }
        if is_empty && let Some(dock) = self.docks.remove(&id) {
            if let Some(zygote) = dock.zygote {
                self.events.forget(zygote.socket.as_fd(), zygote.token);
            }
            self.bury(Remains::Dock(dock.group));
            self.vacate(dock.block.0, dock.block.1);
        }
    }

    /// Whether a session can't be closed yet, as others live below it. Its zygote is ended then, and itself behind them.
    pub(super) fn retire(&mut self, id: &Id, reason: CloseReason) -> bool {
        match self.docks.get_mut(id) {
            Some(dock) if dock.sessions > 1 && reason != CloseReason::Died => {
                dock.retired.get_or_insert(reason);
                self.lose_zygote(id);
                true
            }
            _ => false,
        }
    }

    /// Whether a program can be started the way that is asked for.
    pub(super) fn check_start(&self, session: &Id, start: Start, is_plain: bool) -> Result<(), Refusal> {
        let refused = |message: &str| {
            Err(Refusal::Invalid {
                field: "start".to_owned(),
                message: message.to_owned(),
            })
        };
        let Some(found) = self.sessions.get(session) else {
            return Ok(());
        };
        let (is_keeper, dock) = (found.dock.as_ref() == Some(session), found.dock.as_ref());
        let zygote = dock.and_then(|dock| self.docks.get(dock)?.zygote.as_ref());
        match start {
            Start::Exec if is_keeper => refused("nothing but a zygote is started in its session"),
            Start::Exec => Ok(()),
            _ if !is_plain => {
                refused("zygotes and what they fork are kernels with stdin closed and no variables of their own")
            }
            Start::Zygote if !is_keeper => refused("the session is not one for a zygote"),
            Start::Zygote if zygote.is_some() || !found.executions.is_empty() => refused("the session has a zygote"),
            Start::Fork if is_keeper || zygote.is_none() => refused("no zygote can reach the session"),
            Start::Zygote | Start::Fork => Ok(()),
        }
    }

    /// pid 1 has made everything ready for a program that is started elsewhere.
    pub(super) fn lent(&mut self, id: &Id, name: &Id, fds: Vec<OwnedFd>) {
        let execution = self.execution(id, name);
        let is_ordered = execution.is_some_and(|execution| execution.start == Start::Fork);
        if !is_ordered {
            return;
        }
        let keeper = self.sessions.get(id).and_then(|session| session.dock.clone());
        let zygote = keeper.as_ref().and_then(|keeper| self.zygote(keeper));
        let (Some(keeper), Some(zygote)) = (keeper, zygote) else {
            return self.take_back(id, name, fork_failed(None));
        };
        zygote.waiting.push_back(Lent(id.clone(), name.clone(), fds));
        self.order_forks(&keeper);
    }

    fn zygote(&mut self, keeper: &Id) -> Option<&mut Zygote> {
        self.docks.get_mut(keeper)?.zygote.as_mut()
    }

    /// Orders what waits, as far as the zygote may have more orders.
    fn order_forks(&mut self, keeper: &Id) {
        while let Some(zygote) = self.zygote(keeper)
            && zygote.orders.len() < ORDERS
            && let Some(Lent(session, execution, fds)) = zygote.waiting.pop_front()
        {
            if let Err(error) = self.order_fork(keeper, &session, &execution, &fds) {
                self.take_back(&session, &execution, error);
            }
        }
    }

    fn take_back(&self, id: &Id, name: &Id, error: StepError) {
        let Some(session) = self.sessions.get(id) else { return };
        let order = ToInit::TakeBack {
            execution: name.clone(),
            error,
        };
        if let Err(error) = session.order(&order, &[]) {
            tracing::warn!(session = %id, %error, "brig-init not told that a program does not start");
        }
    }

    /// What pid 1 needs to start a zygote: its filter, and its end of the socket whose other one is kept.
    pub(super) fn hatch(&mut self, id: &Id, name: &Id) -> Result<(Plan, OwnedFd), StepError> {
        let Some(session) = self.sessions.get(id) else {
            return Err(fork_failed(None));
        };
        let groups = &session.policy.rules.syscalls.groups;
        let filter = self.groups.compile_zygote(&session.policy.name, groups);
        let filter = filter.map_err(|error| SysError::new(format!("seccomp: {error}"), libc::EINVAL));
        let filter = filter.at(Step::Seccomp)?.programs;
        let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .and_then(|(ours, theirs)| rustix::io::ioctl_fionbio(&ours, true).map(|()| (ours, theirs)))
            .map_err(|error| SysError::new("socketpair(SEQPACKET)", error.raw_os_error()))
            .at(Step::Streams)?;
        let source = Source::Zygote(id.clone());
        let token = self
            .events
            .watch(socket.as_fd(), source, EventFlags::IN)
            .at(Step::Fork)?;
        if let Some(dock) = self.docks.get_mut(id) {
            dock.zygote = Some(Zygote {
                execution: name.clone(),
                socket,
                token,
                orders: HashMap::new(),
                next: 1,
                waiting: VecDeque::new(),
            });
        }
        Ok((Plan { filter }, theirs))
    }

    /// A zygote runs: sessions can be made below the namespaces that pid 1 has sent, which are taken from the others.
    pub(super) fn hatched(&mut self, id: &Id, fds: &mut Vec<OwnedFd>) -> Result<(), SysError> {
        let (Some(session), Some(dock)) = (self.sessions.get(id), self.docks.get_mut(id)) else {
            return Ok(());
        };
        let (Some(pid), Some(user)) = (fds.pop(), fds.pop()) else {
            return Err(SysError::new("recvmsg(zygote): namespaces are missing", libc::EPROTO));
        };
        let group = session.groups.init_directory()?;
        dock.nest = Some(Nest { user, pid, group });
        point(Point::JailerHatched);
        Ok(())
    }

    fn adopt(&self, id: &Id, name: &Id, pid: i32) -> Result<(), StepError> {
        let Some(session) = self.sessions.get(id) else {
            return Ok(());
        };
        let order = ToInit::Adopt {
            execution: name.clone(),
            pid,
        };
        session.order(&order, &[]).at(Step::Fork)
    }

    fn order_fork(&mut self, keeper: &Id, id: &Id, name: &Id, fds: &[OwnedFd]) -> Result<(), StepError> {
        let failed = |call: &str, errno| StepError {
            step: Step::Fork,
            source: SysError::new(call, errno),
        };
        if fds.len() != NAMESPACES.len() + STREAMS + 2 {
            return Err(failed("recvmsg(lent): other descriptors", libc::EPROTO));
        }
        // They may have ended while they waited.
        let Some(session) = self.sessions.get(id) else {
            return Ok(());
        };
        let Some(execution) = session.executions.get(name) else {
            return Ok(());
        };
        let zygote = self.docks.get_mut(keeper).and_then(|dock| dock.zygote.as_mut());
        let zygote = zygote.ok_or_else(|| failed("sendmsg(zygote): it is gone", libc::ESRCH))?;
        let leaf = execution.leaf.join_descriptors();
        let filter = &session.guest.filter;
        let (number, tasks) = (zygote.next, leaf.len() - 1);
        let order = Order::new(number, tasks, HOME.as_bytes(), filter.iter().map(Vec::as_slice))
            .ok_or_else(|| failed("sendmsg(zygote): filter too long", libc::E2BIG))?;
        let body = filter.concat();
        let (namespaces, others) = fds.split_at(NAMESPACES.len());
        let descriptors: Vec<BorrowedFd<'_>> = namespaces
            .iter()
            .map(AsFd::as_fd)
            .chain(leaf)
            .chain(others.iter().map(AsFd::as_fd))
            .collect();
        wire::send_packet(zygote.socket.as_fd(), &order.to_bytes(), &body, &descriptors)
            .map_err(|error| failed("sendmsg(zygote)", error.raw_os_error().unwrap_or(libc::EIO)))?;
        zygote.next += 1;
        zygote.orders.insert(number, (id.clone(), name.clone()));
        self.events.after(FORK_LIMIT, Timer::Fork(keeper.clone(), number));
        point(Point::JailerForkOrdered);
        Ok(())
    }

    /// A zygote has answered, or is gone.
    pub(super) fn hear_zygote(&mut self, keeper: &Id) {
        loop {
            let Some(zygote) = self.docks.get_mut(keeper).and_then(|dock| dock.zygote.as_mut()) else {
                return;
            };
            let mut bytes = [0; ANSWER + 1];
            let answer = match rustix::net::recv(&zygote.socket, &mut bytes, RecvFlags::TRUNC) {
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => continue,
                Ok((_, length)) if length == ANSWER => Answer::from_bytes(&bytes[..ANSWER]),
                _ => None,
            };
            let order = answer.and_then(|answer| Some((zygote.orders.remove(&answer.number)?, answer.pid)));
            let Some(((session, execution), pid)) = order else {
                return self.lose_zygote(keeper);
            };
            point(Point::JailerForked);
            let outcome = match pid {
                1.. => self.adopt(&session, &execution, pid),
                _ => Err(fork_failed(pid.checked_neg().filter(|errno| (1..4096).contains(errno)))),
            };
            if let Err(error) = outcome {
                self.take_back(&session, &execution, error);
            }
            self.order_forks(keeper);
        }
    }

    pub(super) fn fork_overdue(&mut self, keeper: &Id, number: u64) {
        let zygote = self.docks.get(keeper).and_then(|dock| dock.zygote.as_ref());
        if zygote.is_some_and(|zygote| zygote.orders.contains_key(&number)) {
            tracing::error!(session = %keeper, "a zygote does not fork");
            self.lose_zygote(keeper);
        }
    }

    /// Its socket is closed, it is killed if it lives, and what it was to fork is refused. The sessions of its dock go on.
    fn lose_zygote(&mut self, keeper: &Id) {
        let Some(zygote) = self.docks.get_mut(keeper).and_then(|dock| dock.zygote.take()) else {
            return;
        };
        self.events.forget(zygote.socket.as_fd(), zygote.token);
        self.kill(keeper, &zygote.execution, Cause::Internal);
        let waiting = zygote
            .waiting
            .into_iter()
            .map(|Lent(session, execution, _)| (session, execution));
        for (session, execution) in zygote.orders.into_values().chain(waiting) {
            self.take_back(&session, &execution, fork_failed(None));
        }
    }
}

fn fork_failed(errno: Option<i32>) -> StepError {
    StepError {
        step: Step::Fork,
        source: SysError::new("fork() of a zygote", errno.unwrap_or(libc::ESRCH)),
    }
}
