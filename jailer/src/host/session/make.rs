//! Making a jail: what must exist before its pid 1, pid 1 itself, its plan.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;

use super::helper::Helper;
use super::{Phase, Remains, Session};
use crate::api::{Dock, Enforced, Make, Quantities, Refusal, SESSION_MEMO_MAX};
use crate::cgroup::{IoPlan, Leaf, SessionGroups};
use crate::faults::{Point, point};
use crate::host::birth::{self, Newborn, Place};
use crate::host::blueprint::{self, Filters};
use crate::host::events::{Source, Timer, Token};
use crate::host::serve::Jailer;
use crate::host::uids::Block;
use crate::ids::Id;
use crate::plan::{FromInit, Plan, ToInit, WORKSPACES};
use crate::policy::{Policy, check_quantities};
use crate::step::{At, Step, StepError, SysError};
use crate::template::Template;
use crate::wire;

/// Making a jail takes milliseconds; a host that needs longer is not well.
const START_LIMIT: Duration = Duration::from_secs(10);

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
    pub(in crate::host) fn make(&mut self, request: Make) {
        let id = request.session.clone();
        let built = self.lay_foundations(&request).and_then(|foundations| {
            let (block, on_disk) = (foundations.block, foundations.on_disk);
            let dock = self
                .enter_dock(&request, block, on_disk)
                .inspect_err(|_| self.vacate(block, on_disk))?;
            self.build(&request, foundations, dock.clone())
                .inspect_err(|_| self.leave_dock(dock.as_ref(), block, on_disk))
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
        self.find_room(request.waiting)?;
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
        let (mut filters, filter) = self.filters(&policy)?;
        if request.dock == Dock::Own {
            filters.init = self.keeper_filter(&policy)?;
        }
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
            request.dock == Dock::Own,
        );
        #[cfg(feature = "faults")]
        crate::host::faults::spoil(&mut plan);
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

    fn keeper_filter(&self, policy: &Policy) -> Result<Vec<Vec<u8>>, Refusal> {
        let groups = &policy.rules.syscalls.groups;
        let filter = self.groups.compile_keeper(&policy.name, groups);
        let filter = filter.map_err(|error| Refusal::Invalid {
            field: "policy".to_owned(),
            message: format!("{}: syscalls.groups: {error}", policy.name),
        });
        Ok(filter?.programs)
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

    fn build(&mut self, request: &Make, foundations: Foundations, dock: Option<Id>) -> Result<Session, Refusal> {
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
        crate::host::faults::check(Step::Cgroups).at(Step::Cgroups)?;
        let charged = Quantities {
            disk_bytes: policy.limits.workspace.tmpfs_bytes(request.quantities.disk_bytes),
            ..request.quantities
        };
        let dock_group = dock.as_ref().and_then(|dock| Some(self.docks.get(dock)?.group.clone()));
        let mut groups = self
            .cgroups
            .session(&request.session, &charged, block.root(), io, dock_group.as_ref())
            .at(Step::Cgroups)?;
        let guest = plan.guest.clone();
        let map = match request.dock {
            Dock::Own => self.region.keeper_map(block),
            Dock::None | Dock::Of(_) => block.map(),
        };
        let entered = dock.as_ref().and_then(|dock| self.docks.get(dock));
        let place = match (&request.dock, entered) {
            (Dock::Own, Some(dock)) => dock.namespace.as_ref().map_or(Place::Plain, Place::Keeper),
            (Dock::Of(_), Some(dock)) => dock.nest.as_ref().map_or(Place::Plain, Place::Nested),
            _ => Place::Plain,
        };
        let born = birth::give_birth(&self.programs, &groups, block, &map, &place).and_then(|newborn| {
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
                waiting: request.waiting,
                dock,
                guest,
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
