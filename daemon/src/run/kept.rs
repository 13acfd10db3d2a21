//! Kept sessions: live jails that callers use for many executions.
//!
//! A [`Session`] is what everybody shares of one: what it was made with, and where it is. Its jail belongs to one task,
//! [`life::run`], its file helper to another ([`helper`]); what its
//! calls on files have in common is in [`files`]. Whoever uses it holds a [`Use`], so that it is idle only when
//! nobody does. What ends or pauses it by itself is in [`timeout`], what callers' pauses do in [`pause`].

pub mod admit;
pub mod adopt;
pub mod execution;
pub mod files;
pub mod helper;
pub mod life;
pub mod memo;
pub mod pause;
pub mod timeout;
pub mod watchers;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use brig_jailer::api::{Enforced, Request};
use brig_jailer::ids::Id;
use brig_jailer::policy::{Policy, Resolved};
use brig_proto::v1;
use brig_proto::v1::{ClampedLimit, OnTimeout, Origin, Reason, SessionCloseReason, SessionState, StartKind};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;
use tonic::Status;
use tracing::debug;

use crate::jailer::Jailer;
use crate::principal::Principal;
use crate::run::admit::{ArtifactLimits, Image, Times};
use crate::run::clock::Clock;
use crate::run::context::Contexts;
use crate::run::execution::{effective_limits, span};
use crate::run::report;
use crate::status::Problem;

use files::FileCalls;
use helper::Helper;
use watchers::Watchers;

/// The most executions of one session that run or wait.
pub const EXECUTIONS_MAX: usize = 64;

/// A kept session, as long as somebody may ask for it.
#[derive(Debug)]
pub struct Session {
    pub id: Id,
    pub request: Option<Id>,
    /// Hash of the request: the same request_id must come with the same one.
    pub digest: [u8; 32],
    pub principal: Arc<Principal>,
    /// Who asked: the application's user, else the connection's.
    pub user: String,
    pub origin: Origin,
    pub policy: Arc<Policy>,
    pub template: Image,
    pub limits: Resolved,
    pub times: Times,
    pub artifacts: ArtifactLimits,
    pub clamped: Vec<ClampedLimit>,
    /// Variables of every execution.
    pub environment: BTreeMap<String, String>,
    pub create_time: SystemTime,
    /// When it is closed for good.
    pub end_time: SystemTime,
    /// Stands still while it is paused.
    pub clock: Clock,
    pub helper: Helper,
    pub files: FileCalls,
    pub contexts: Contexts,
    state: Mutex<State>,
    changes: watch::Sender<()>,
    /// Who is told of changes, from the moment on that it is accepted.
    watchers: OnceLock<Arc<Watchers>>,
}

/// What may change in a session while it lives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub expire_time: SystemTime,
    /// What it gets once more when it is resumed after its expiry.
    pub expire_after_ms: u64,
    pub idle_timeout_ms: u64,
    /// Whether it is paused, and not closed, when it expires or has been idle too long.
    pub pause_on_timeout: bool,
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug)]
struct State {
    phase: SessionState,
    /// Whether it is to be paused, or is.
    pausing: bool,
    /// Counts the changes that are told to who watches.
    revision: u64,
    reason: SessionCloseReason,
    close_time: Option<SystemTime>,
    settings: Settings,
    /// Counts the changes of these.
    edits: u64,
    /// Why it could not be made.
    refusal: Option<Status>,
    enforced: Option<Enforced>,
    /// Executions that run or wait.
    users: usize,
    /// Calls on files that go on.
    file_calls: usize,
    last_active: SystemTime,
    idle_since: Instant,
    /// When it was resumed last.
    resumed: Option<SystemTime>,
    /// Whether an execution has run, and whether one of code has.
    has_state: bool,
    /// How the first interpreter came to be, if there was one.
    start: StartKind,
}

/// Keeps a session from being idle.
#[derive(Debug)]
pub struct Use(Arc<Session>);

/// Keeps a session from being idle while a call on its files goes on.
#[derive(Debug)]
pub struct FileUse {
    session: Arc<Session>,
    _place: OwnedSemaphorePermit,
}

impl Settings {
    fn state(self) -> State {
        State {
            phase: SessionState::Creating,
            pausing: false,
            revision: 0,
            reason: SessionCloseReason::Unspecified,
            close_time: None,
            settings: self,
            edits: 0,
            refusal: None,
            enforced: None,
            users: 0,
            file_calls: 0,
            last_active: SystemTime::now(),
            idle_since: Instant::now(),
            resumed: None,
            has_state: false,
            start: StartKind::Unspecified,
        }
    }
}

impl Session {
    /// Says that its jail is up.
    pub fn made(&self, enforced: Enforced) {
        self.change(|state| {
            state.enforced = Some(enforced);
            state.touch();
            if state.phase == SessionState::Creating {
                state.phase = SessionState::Running;
            }
        });
    }

    /// Says why it could not be made.
    pub fn refuse(&self, refusal: Status) {
        self.change(|state| state.refusal = Some(refusal));
    }

    /// Has it end. The first reason counts.
    pub fn end(&self, reason: SessionCloseReason) {
        self.change(|state| state.close(reason));
    }

    /// Says that nothing of it is left.
    pub fn ended(&self) {
        self.change(|state| {
            state.phase = SessionState::Closed;
            state.close_time = Some(SystemTime::now());
            // Nobody is left whose time could stand still.
            self.clock.go();
        });
    }

    /// Uses it for an execution.
    pub fn enter(self: &Arc<Self>) -> Result<Use, Problem> {
        let mut state = self.lock();
        match state.phase {
            SessionState::Running if !state.pausing => {}
            SessionState::Running | SessionState::Paused => return Err(self.paused_problem()),
            _ => return Err(self.closed_problem()),
        }
        if state.users >= EXECUTIONS_MAX {
            return Err(Problem::SessionBusy(self.id.to_string(), state.users));
        }
        state.users += 1;
        state.touch();
        Ok(Use(Arc::clone(self)))
    }

    /// Uses it for an execution that ran in it before.
    pub fn hold(self: &Arc<Self>) -> Use {
        self.lock().users += 1;
        Use(Arc::clone(self))
    }

    /// Lets the jailer know what changed; returns when it will have it whatever happens.
    pub async fn remember(self: &Arc<Self>, jailer: &Jailer) {
        if self.phase() == SessionState::Closed {
            return;
        }
        let session = Arc::clone(self);
        let late = move || Request::Memo {
            session: session.id.clone(),
            execution: None,
            memo: session.memo(),
        };
        if let Err(error) = jailer.ask_late(late).await {
            debug!(%error, "memo not sent");
        }
    }

    /// Uses it for a call on its files.
    pub fn enter_files(self: &Arc<Self>) -> Result<FileUse, Problem> {
        if !self.is_up() {
            return Err(self.closed_problem());
        }
        let place = self.files.place();
        let place = place.ok_or_else(|| {
            let what = "calls on its files go on already";
            Problem::FileQuota(self.id.to_string(), files::CALLS_MAX, what)
        })?;
        self.change(|state| {
            state.file_calls += 1;
            state.touch();
        });
        Ok(FileUse {
            session: Arc::clone(self),
            _place: place,
        })
    }

    /// Notes that somebody looks at it, which does not keep it from being idle afterwards.
    pub fn looked_at(&self) {
        self.change(State::touch);
    }

    /// Notes that an execution started: of code with how its interpreter came to be.
    pub fn used(&self, start: Option<StartKind>) {
        self.change(|state| {
            state.has_state = true;
            if state.start == StartKind::Unspecified {
                state.start = start.unwrap_or(state.start);
            }
            state.touch();
        });
    }

    /// Counts the executions that run or wait.
    pub fn executions(&self) -> usize {
        self.lock().users
    }

    /// Where it is.
    pub fn phase(&self) -> SessionState {
        self.lock().phase
    }

    /// Why it ends or has ended.
    pub fn reason(&self) -> SessionCloseReason {
        self.lock().reason
    }

    /// Whether it is there, running or paused.
    pub fn is_up(&self) -> bool {
        self.lock().lives()
    }

    /// Whether it ends or has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.phase(), SessionState::Closing | SessionState::Closed)
    }

    pub fn enforced(&self) -> Enforced {
        self.lock().enforced.clone().unwrap_or_default()
    }

    pub fn settings(&self) -> Settings {
        self.lock().settings.clone()
    }

    /// How long it may live, as it is set now.
    pub fn age_limit(&self) -> Duration {
        let expire_time = self.lock().settings.expire_time;
        expire_time.duration_since(self.create_time).unwrap_or_default()
    }

    /// Changes what may change.
    pub fn set(&self, settings: Settings) {
        self.change(|state| {
            state.settings = settings;
            state.edits += 1;
            state.touch();
        });
    }

    /// Waits until something of it changes after the last look of this receiver.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Waits until it can be used.
    pub async fn ready(&self) -> Result<(), Status> {
        let ready = |state: &State| match state.phase {
            SessionState::Unspecified | SessionState::Creating => None,
            SessionState::Running | SessionState::Paused => Some(Ok(())),
            SessionState::Closing | SessionState::Closed => match &state.refusal {
                Some(status) => Some(Err(status.clone())),
                None => Some(Err(self.closed_problem().into())),
            },
        };
        self.until(ready).await
    }

    /// Waits until nothing of it is left.
    pub async fn gone(&self) {
        self.until(|state| (state.phase == SessionState::Closed).then_some(()))
            .await;
    }

    /// Waits until it is to end.
    pub async fn told_to_end(&self) -> SessionCloseReason {
        let told = |state: &State| {
            let over = matches!(state.phase, SessionState::Closing | SessionState::Closed);
            over.then_some(state.reason)
        };
        self.until(told).await
    }

    /// Waits until no execution uses it.
    pub async fn unused(&self) {
        self.until(|state| (state.users == 0).then_some(())).await;
    }

    /// What a call on it is told when it is over.
    pub fn closed_problem(&self) -> Problem {
        Problem::SessionClosed(self.id.to_string())
    }

    /// Shows it as it is now.
    pub fn show(&self) -> v1::Session {
        self.show_with_revision().0
    }

    /// The same, and how many changes it had.
    pub fn show_with_revision(&self) -> (v1::Session, u64) {
        let state = self.lock();
        let settings = &state.settings;
        let shown = v1::Session {
            session_id: self.id.to_string(),
            state: state.phase.into(),
            close_reason: state.reason.into(),
            create_time: Some(self.create_time.into()),
            expire_time: Some(settings.expire_time.into()),
            last_active_time: Some(state.last_active.into()),
            close_time: state.close_time.map(Into::into),
            labels: settings.labels.clone(),
            origin: Some(self.origin.clone()),
            tenant: self.principal.tenant.clone(),
            user: self.user.clone(),
            policy: self.policy.id(),
            template: self.template.id.clone(),
            limits: Some(effective_limits(&self.limits)),
            clamped: self.clamped.clone(),
            idle_timeout: Some(span(Duration::from_millis(settings.idle_timeout_ms))),
            on_timeout: if settings.pause_on_timeout {
                OnTimeout::Pause
            } else {
                OnTimeout::Close
            }
            .into(),
            network: Some(v1::NetworkSpec {
                mode: v1::NetworkMode::None.into(),
                hosts: Vec::new(),
            }),
            has_state: state.has_state,
            start: state.start.into(),
            enforced: state.enforced.as_ref().map(report::enforced),
            usage: None,
            one_shot: false,
            end_time: Some(self.end_time.into()),
        };
        (shown, state.revision)
    }

    async fn until<T>(&self, holds: impl Fn(&State) -> Option<T>) -> T {
        let mut changes = self.changes.subscribe();
        loop {
            changes.mark_unchanged();
            if let Some(found) = holds(&self.lock()) {
                return found;
            }
            // The sender lives as long as the session, which the caller holds.
            let _ = changes.changed().await;
        }
    }

    /// Tells these of each change from now on, and that it is there.
    pub fn tell(&self, watchers: &Arc<Watchers>) {
        let watchers = self.watchers.get_or_init(|| Arc::clone(watchers));
        watchers.changed(self);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let is_told = {
            let mut state = self.lock();
            let before = state.outline();
            change(&mut state);
            let is_told = state.outline() != before;
            state.revision += u64::from(is_told);
            is_told
        };
        self.changes.send_replace(());
        if is_told && let Some(watchers) = self.watchers.get() {
            watchers.changed(self);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The first reason counts.
    fn close(&mut self, reason: SessionCloseReason) {
        if self.lives() || self.phase == SessionState::Creating {
            (self.phase, self.reason) = (SessionState::Closing, reason);
        }
    }

    /// What is worth telling to who watches, if it changes: all but when it was used last.
    fn outline(&self) -> impl PartialEq + use<> {
        let made = self.enforced.is_some();
        (self.phase, self.reason, self.edits, self.has_state, self.start, made)
    }

    fn touch(&mut self) {
        self.last_active = SystemTime::now();
        self.idle_since = Instant::now();
    }
}

impl Use {
    pub fn session(&self) -> &Arc<Session> {
        &self.0
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.change(|state| {
            state.users -= 1;
            state.touch();
        });
    }
}

impl FileUse {
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for FileUse {
    fn drop(&mut self) {
        self.session.change(|state| {
            state.file_calls -= 1;
            state.touch();
        });
    }
}

/// What is said of a session that is not there, to whoever it is not there for.
pub fn not_found(field: &str, id: &str) -> Problem {
    Problem::NotFound {
        kind: "session",
        name: id.chars().take(60).collect(),
        why: format!("{field}: not of this tenant, or closed more than 10 minutes ago"),
        reason: Reason::SessionNotFound,
    }
}
