//! Kept sessions: live jails that callers use for many executions.
//!
//! A [`Session`] is what everybody shares of one: what it was made with, and where it is. Its jail belongs to one task,
//! [`life::run`], its file helper to another ([`helper`]); what its
//! calls on files have in common is in [`files`]. Whoever uses it holds a [`Use`], so that it is idle only when
//! nobody does.

pub mod admit;
pub mod adopt;
pub mod execution;
pub mod files;
pub mod helper;
pub mod life;
pub mod memo;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use crate::run::context::Contexts;
use crate::run::execution::{effective_limits, span};
use crate::run::report;
use crate::status::Problem;

use files::FileCalls;
use helper::Helper;

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
    pub helper: Helper,
    pub files: FileCalls,
    pub contexts: Contexts,
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

/// What may change in a session while it lives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub expire_time: SystemTime,
    pub idle_timeout_ms: u64,
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug)]
struct State {
    phase: SessionState,
    reason: SessionCloseReason,
    close_time: Option<SystemTime>,
    settings: Settings,
    /// Why it could not be made.
    refusal: Option<Status>,
    enforced: Option<Enforced>,
    /// Executions that run or wait.
    users: usize,
    /// Calls on files that go on.
    file_calls: usize,
    last_active: SystemTime,
    idle_since: Instant,
    /// Whether an execution has run, and whether one of code has.
    has_state: bool,
    ran_code: bool,
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

/// Why a session is to end, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    pub at: Instant,
    pub reason: SessionCloseReason,
}

impl Settings {
    fn state(self) -> State {
        State {
            phase: SessionState::Creating,
            reason: SessionCloseReason::Unspecified,
            close_time: None,
            settings: self,
            refusal: None,
            enforced: None,
            users: 0,
            file_calls: 0,
            last_active: SystemTime::now(),
            idle_since: Instant::now(),
            has_state: false,
            ran_code: false,
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
        self.change(|state| {
            if matches!(state.phase, SessionState::Creating | SessionState::Running) {
                (state.phase, state.reason) = (SessionState::Closing, reason);
            }
        });
    }

    /// Says that nothing of it is left.
    pub fn ended(&self) {
        self.change(|state| {
            state.phase = SessionState::Closed;
            state.close_time = Some(SystemTime::now());
        });
    }

    /// Uses it for an execution.
    pub fn enter(self: &Arc<Self>) -> Result<Use, Problem> {
        let mut state = self.lock();
        if state.phase != SessionState::Running {
            return Err(self.closed_problem());
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

    /// Notes that an execution started.
    pub fn used(&self, by_code: bool) {
        self.change(|state| {
            state.has_state = true;
            state.ran_code |= by_code;
            state.touch();
        });
    }

    /// Where it is.
    pub fn phase(&self) -> SessionState {
        self.lock().phase
    }

    /// Why it ends or has ended.
    pub fn reason(&self) -> SessionCloseReason {
        self.lock().reason
    }

    /// Whether an execution can run in it.
    pub fn is_up(&self) -> bool {
        self.phase() == SessionState::Running
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
            state.touch();
        });
    }

    /// When it ends if nobody uses it, and why.
    pub fn due(&self) -> Due {
        let state = self.lock();
        let left = state.settings.expire_time.duration_since(SystemTime::now());
        let expired = Due {
            at: Instant::now() + left.unwrap_or_default(),
            reason: SessionCloseReason::Expired,
        };
        let idle = Due {
            at: state.idle_since + Duration::from_millis(state.settings.idle_timeout_ms),
            reason: SessionCloseReason::Idle,
        };
        if state.users == 0 && state.file_calls == 0 && idle.at < expired.at {
            idle
        } else {
            expired
        }
    }

    /// Has it end if it is time for it: somebody may have used it, or given it more time, meanwhile.
    pub fn end_if_due(&self) {
        let due = self.due();
        if due.at <= Instant::now() {
            self.end(due.reason);
        }
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
        let state = self.lock();
        let settings = &state.settings;
        v1::Session {
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
            on_timeout: OnTimeout::Close.into(),
            network: Some(v1::NetworkSpec {
                mode: v1::NetworkMode::None.into(),
                hosts: Vec::new(),
            }),
            has_state: state.has_state,
            start: if state.ran_code {
                StartKind::Cold
            } else {
                StartKind::Unspecified
            }
            .into(),
            enforced: state.enforced.as_ref().map(report::enforced),
            usage: None,
            one_shot: false,
            end_time: Some(self.end_time.into()),
        }
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

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changes.send_replace(());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
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
