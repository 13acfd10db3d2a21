//! The jailer's loop.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::epoll::EventFlags;
use rustix::thread::CapabilitiesSecureBits;

use super::birth::Programs;
use super::blueprint::Filters;
use super::client::{Client, Gone};
use super::docks::Dock;
use super::doctor;
use super::events::{Events, Source, Timer};
use super::held::{Departed, Waiting};
use super::session::{Phase, Remains, Session};
use super::supervise::Supervision;
use super::uids::{REGIONS, Region};
use super::workspaces::Workspaces;
use super::world::World;
use super::{Entrance, Places};
use crate::api::{Cause, CloseReason, Event, Refusal, Request, VERSION};
use crate::cgroup::{Cgroups, Layout};
use crate::ids::Id;
use crate::policy::{Ceilings, PolicySet, Trust};
use crate::seccomp::Groups;
use crate::service::notify::Notifier;
use crate::step::SysError;
use crate::template::{Template, Templates};

/// Why the jailer can't work.
#[derive(Debug, thiserror::Error)]
pub enum JailerError {
    #[error("{0}")]
    Host(String),
    #[error(transparent)]
    Sys(#[from] SysError),
    #[error(transparent)]
    Load(#[from] crate::policy::LoadError),
    #[error(transparent)]
    Filter(#[from] crate::seccomp::SeccompError),
    #[error(transparent)]
    Layout(#[from] crate::cgroup::LayoutError),
}

/// Everything the jailer knows.
#[derive(Debug)]
pub(super) struct Jailer {
    pub(super) events: Events,
    pub(super) sessions: HashMap<Id, Session>,
    pub(super) policies: PolicySet,
    pub(super) groups: Groups,
    pub(super) ceilings: Ceilings,
    pub(super) filters: HashMap<String, (Filters, String)>,
    pub(super) world: World,
    pub(super) cgroups: Cgroups,
    pub(super) programs: Programs,
    pub(super) region: Region,
    /// By the session of their zygote.
    pub(super) docks: HashMap<Id, Dock>,
    pub(super) remains: Vec<Remains>,
    pub(super) workspaces: Workspaces,
    /// What this host lacks; no session is made then.
    pub(super) missing: Option<String>,
    /// Held sessions that are over, until it is recorded.
    pub(super) departed: HashMap<Id, Departed>,
    pub(super) client: Option<Client>,
    pub(super) grace: Waiting,
    pub(super) supervision: Supervision,
    templates: Templates,
    places: Places,
}

/// What root has written down about sessions.
struct Rules {
    policies: PolicySet,
    groups: Groups,
    ceilings: Ceilings,
}

impl Rules {
    fn load(places: &Places) -> Result<Self, JailerError> {
        let syscalls: Vec<_> = places.policies.iter().map(|folder| folder.join("syscalls")).collect();
        let rules = Self {
            policies: PolicySet::load(&places.policies, Trust::RootOwned)?,
            groups: Groups::load(&syscalls, Trust::RootOwned)?,
            ceilings: Ceilings::load(&places.ceilings, Trust::RootOwned)?,
        };
        // A filter that can't be made is a fault of the file, not of the session that would have it.
        for policy in rules.policies.iter() {
            rules.groups.compile(&policy.name, &policy.syscalls.groups)?;
            rules.groups.compile_zygote(&policy.name, &policy.syscalls.groups)?;
        }
        Ok(rules)
    }
}

/// Reads all that decides about jails; changes nothing.
pub fn check(places: &Places) -> Result<(), JailerError> {
    Rules::load(places)?;
    Templates::load(&places.images, Trust::RootOwned)?;
    Ok(())
}

/// Serves until told to stop, or, with a connected client, until that is gone. Nothing is left when it returns.
///
/// `notifier` is told once clients can be served; it must be connected already, since /run is hidden then.
pub fn serve(places: Places, entrance: Entrance, notifier: Notifier) -> Result<(), JailerError> {
    let signals = stop_signals()?;
    let mut events = Events::new()?;
    events.watch(signals.as_fd(), Source::Signals, EventFlags::IN)?;
    let mut jailer = Jailer::new(places, events, Supervision::new(notifier))?;
    let listener = match entrance {
        Entrance::Connected(socket) => {
            jailer.client = Some(Client::new(socket, &mut jailer.events)?);
            None
        }
        Entrance::Listening { socket, uid, grace } => {
            jailer.grace = Waiting::new(grace);
            jailer.events.watch(socket.as_fd(), Source::Listener, EventFlags::IN)?;
            Some((socket, uid))
        }
    };
    jailer.remove_workspaces();
    jailer.tell_ready();
    jailer.run(&signals, listener.as_ref());
    let _not_empty = jailer.cgroups.sweep();
    jailer.workspaces.close();
    Ok(())
}

/// Removes what other jailers have left that were killed: who takes their regions next may come late, or never.
fn sweep_others(cgroups: &Cgroups, region: &Region) {
    for number in 0..REGIONS {
        let name = Region::name_of(number);
        if cgroups.exists(&name) {
            region.while_free(number, || match cgroups.sweep_of(&name) {
                Ok(()) => tracing::warn!(group = name, "left by a jailer that was killed; removed"),
                Err(error) => tracing::warn!(group = name, %error, "left by a jailer that was killed"),
            });
        }
    }
}

impl Jailer {
    fn new(places: Places, events: Events, supervision: Supervision) -> Result<Self, JailerError> {
        let missing = doctor::missing(&doctor::report(&places));
        Self::set_up(places, events, supervision, missing.clone()).map_err(|error| match missing {
            Some(missing) => JailerError::Host(format!("{error}; this host lacks: {missing}")),
            None => error,
        })
    }

    fn set_up(
        places: Places,
        events: Events,
        supervision: Supervision,
        missing: Option<String>,
    ) -> Result<Self, JailerError> {
        keep_capabilities_across_uids()?;
        allow_many_descriptors()?;
        let layout = Layout::detect()?;
        let mut region = Region::take()?;
        let cgroups = Cgroups::open(layout, &Region::name_of(region.number()))?;
        sweep_others(&cgroups, &region);
        let rules = Rules::load(&places)?;
        let programs = Programs::load(&places.programs)?;
        let templates = Templates::load(&places.images, Trust::RootOwned)?;
        // Hides /run: what lies there is read before.
        let (world, workspaces) = World::enter(&places)?;
        let workspaces = Workspaces::new(workspaces, &mut region);
        Ok(Self {
            events,
            sessions: HashMap::new(),
            policies: rules.policies,
            groups: rules.groups,
            ceilings: rules.ceilings,
            filters: HashMap::new(),
            programs,
            templates,
            world,
            cgroups,
            region,
            docks: HashMap::new(),
            remains: Vec::new(),
            workspaces,
            missing,
            departed: HashMap::new(),
            supervision,
            client: None,
            grace: Waiting::default(),
            places,
        })
    }

    /// One turn: descriptors first, then time. Ends when there is nobody left to serve.
    fn run(&mut self, signals: &SignalFd, listener: Option<&(OwnedFd, u32)>) {
        let mut stopping = false;
        loop {
            self.tell_status();
            let (sources, timers) = self.events.wait();
            for source in sources {
                match source {
                    Source::Signals => {
                        while let Ok(Some(_)) = signals.read_signal() {}
                        stopping = true;
                        self.tell_stopping();
                    }
                    Source::Listener => self.accept(listener),
                    Source::Client => self.serve_client(),
                    Source::Control(id) => self.hear(&id),
                    Source::Pid1(id) => self.pid1_ended(&id),
                    Source::Leaf(id, execution) => self.look_at_leaf(&id, &execution),
                    Source::Helper(id) => self.look_at_helper(&id),
                    Source::Zygote(id) => self.hear_zygote(&id),
                    Source::Remover => self.workspace_removed(),
                }
            }
            for timer in timers {
                self.due(timer);
            }
            let alone = listener.is_none() && self.client.is_none();
            if stopping || alone {
                self.close_all();
                if self.sessions.is_empty() && self.remains.is_empty() && self.workspaces.cleared() {
                    return;
                }
            }
        }
    }

    fn due(&mut self, timer: Timer) {
        match timer {
            Timer::Start(id) => self.start_overdue(&id),
            Timer::Age(id) => self.age_due(&id),
            Timer::Deadline(id, execution) => self.deadline(&id, &execution),
            Timer::Cpu(id, execution) => self.cpu_look_due(&id, &execution),
            Timer::Helper(id) => self.helper_overdue(&id),
            Timer::Grace(client) => self.grace_over(client),
            Timer::Overdue(id, execution) => self.overdue(&id, &execution),
            Timer::Remove(id) => self.finish_close(&id),
            Timer::Fork(id, number) => self.fork_overdue(&id, number),
            Timer::Remains => self.bury_remains(),
            Timer::Workspaces => self.try_workspaces_again(),
            Timer::Watchdog => self.tell_life(),
            Timer::Status => self.status_may_be_told(),
        }
    }

    fn start_overdue(&mut self, id: &Id) {
        if self
            .sessions
            .get(id)
            .is_some_and(|session| session.phase == Phase::Starting)
        {
            self.refuse(
                id.clone(),
                None,
                Refusal::Busy("the jail did not come up in time".to_owned()),
            );
            self.close(id, CloseReason::Died);
        }
    }

    fn accept(&mut self, listener: Option<&(OwnedFd, u32)>) {
        let Some((socket, uid)) = listener else { return };
        let Ok(peer) = rustix::net::accept_with(socket, rustix::net::SocketFlags::CLOEXEC) else {
            return;
        };
        // The last client may be gone without its end having been seen yet.
        self.serve_client();
        let allowed = rustix::net::sockopt::socket_peercred(&peer)
            .is_ok_and(|credentials| credentials.uid.as_raw() == *uid || credentials.uid.is_root());
        if !allowed || self.client.is_some() {
            tracing::warn!(allowed, busy = self.client.is_some(), "connection refused");
            return;
        }
        match Client::new(peer, &mut self.events) {
            Ok(client) => {
                self.client = Some(client);
                self.grace.arrived();
            }
            Err(error) => tracing::error!(%error, "client could not be watched"),
        }
    }

    fn serve_client(&mut self) {
        loop {
            let Some(client) = &mut self.client else { return };
            if client.flush(&self.events).is_err() {
                return self.client_gone();
            }
            match client.receive() {
                Ok(Some(request)) => self.obey(request),
                Ok(None) => return,
                Err(Gone) => return self.client_gone(),
            }
        }
    }

    fn obey(&mut self, request: Request) {
        match request {
            Request::Hello { version } => {
                if let Some(client) = &mut self.client {
                    client.greeted = true;
                }
                let hello = Event::Hello {
                    version: VERSION,
                    jailer_version: env!("CARGO_PKG_VERSION").to_owned(),
                };
                self.tell(hello, Vec::new());
                if version == VERSION {
                    self.tell_held();
                } else {
                    tracing::error!(theirs = version, ours = VERSION, "client speaks another version");
                    self.client_gone();
                }
            }
            Request::Make(make) => self.make(make),
            Request::Spawn(spawn) => self.spawn(spawn),
            Request::Take { session, execution } => self.take(&session, execution.as_ref()),
            Request::Signal {
                session,
                execution,
                signal,
                group,
            } => self.signal(&session, execution, signal, group),
            Request::Lap {
                session,
                execution,
                timeout_ms,
            } => self.lap(&session, &execution, timeout_ms),
            Request::Pause { session, paused } => self.pause(&session, paused),
            Request::Kill { session, execution } => self.kill(&session, &execution, Cause::Asked),
            Request::CloseInput {
                session,
                execution,
                input,
            } => self.close_input(&session, &execution, input),
            Request::Close { session } => self.close(&session, CloseReason::Asked),
            Request::Files { session } => self.replace_helper(&session),
            Request::Memo {
                session,
                execution,
                memo,
            } => self.note(&session, execution.as_ref(), memo),
            Request::Forget { session, execution } => self.forget(&session, execution.as_ref()),
            Request::Handover => self.grace.planned(),
            Request::Reload => {
                let error = self.reload().err().map(|error| error.to_string());
                self.tell(Event::Reloaded { error }, Vec::new());
            }
            Request::Host => {
                let mut report = doctor::report(&self.places);
                report.sessions = self.wanted_sessions() as u64;
                self.tell(Event::Host(Box::new(report)), Vec::new());
            }
            Request::Ping => self.tell(Event::Pong, Vec::new()),
            Request::Usage { session } => self.tell_usage(session),
        }
    }

    /// Tells the client, if there is one.
    pub(super) fn tell(&mut self, event: Event, fds: Vec<OwnedFd>) {
        if let Some(client) = &mut self.client
            && client.greeted
            && client.send(&self.events, event, fds).is_err()
        {
            self.client_gone();
        }
    }

    pub(super) fn refuse(&mut self, session: Id, execution: Option<Id>, refusal: Refusal) {
        tracing::warn!(session = %session, error = %refusal, "refused");
        self.tell(
            Event::Refused {
                session,
                execution,
                refusal,
            },
            Vec::new(),
        );
    }

    pub(super) fn close_all(&mut self) {
        let ids: Vec<Id> = self.sessions.keys().cloned().collect();
        for id in ids {
            self.close(&id, CloseReason::Asked);
        }
    }

    /// Reads again what root may have changed. All or nothing; sessions keep what they were made with.
    fn reload(&mut self) -> Result<(), JailerError> {
        let rules = Rules::load(&self.places)?;
        (self.policies, self.groups, self.ceilings) = (rules.policies, rules.groups, rules.ceilings);
        self.filters.clear();
        tracing::info!("policies read again");
        Ok(())
    }

    /// Finds an image by its id. One that was built after the start is looked for in the store.
    pub(super) fn template(&mut self, id: &str) -> Result<Template, Refusal> {
        if !self.templates.iter().any(|template| template.id == id) {
            match Templates::load(&self.places.images, Trust::RootOwned) {
                Ok(templates) => self.templates = templates,
                Err(error) => tracing::error!(%error, "image store could not be read"),
            }
        }
        self.templates
            .iter()
            .find(|template| template.id == id)
            .cloned()
            .ok_or_else(|| Refusal::Invalid {
                field: "template".to_owned(),
                message: format!("{id} is not in the image store"),
            })
    }
}

/// The effective uid changes while a user namespace is made; the capabilities must not go with it.
fn keep_capabilities_across_uids() -> Result<(), SysError> {
    rustix::thread::set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP)
        .map_err(|error| SysError::new("prctl(PR_SET_SECUREBITS, NO_SETUID_FIXUP)", error.raw_os_error()))?;
    rustix::thread::set_thread_groups(&[]).map_err(|error| SysError::new("setgroups([])", error.raw_os_error()))
}

/// A session takes about fifteen; what the hard limit allows is used.
fn allow_many_descriptors() -> Result<(), SysError> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, limit)
        .map_err(|error| SysError::new(format!("setrlimit(NOFILE, {maximum:?})"), error.raw_os_error()))
}

fn stop_signals() -> Result<SignalFd, SysError> {
    let refused = |error: nix::Error| SysError::new("signalfd()", error as i32);
    let mut mask = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        mask.add(signal);
    }
    mask.thread_block().map_err(refused)?;
    SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(refused)
}
