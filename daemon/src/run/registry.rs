//! The executions and kept sessions that can be asked for: those that live, and for a while those that ended.

mod sessions;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brig_jailer::ids::Id;
use brig_proto::v1::Reason;

use crate::config::Role;
use crate::principal::Principal;
use crate::run::execution::Execution;
use crate::run::kept::Session;
use crate::run::kept::watchers::Watchers;
use crate::run::log::Held;
use crate::status::Problem;

/// How long an execution can be asked for after its end.
pub const KEPT: Duration = Duration::from_secs(10 * 60);
/// How many that ended are kept at most.
const KEPT_MAX: usize = 1024;
/// How many that ended in kept sessions the jailer holds for the next brigd, so that a client that was cut off hears of
/// the end from that.
const HELD_MAX: usize = 128;
/// How much those that ended may take up together.
pub const KEPT_HELD: Held = Held {
    memory_bytes: 32 * 1024 * 1024,
    files: 1024,
    file_bytes: 1024 * 1024 * 1024,
};

/// All executions that are known.
#[derive(Debug)]
pub struct Registry {
    /// How much those that ended may take up together; the oldest are forgotten before it is more.
    most: Held,
    state: Mutex<State>,
    /// Who watches the sessions.
    pub watchers: Arc<Watchers>,
}

#[derive(Debug, Default)]
struct State {
    executions: HashMap<Id, Arc<Execution>>,
    sessions: HashMap<Id, Arc<Session>>,
    /// What a request made, by tenant and request.
    requests: HashMap<(String, Id), Made>,
    /// Sessions that ended, oldest first.
    closed: VecDeque<(Id, Instant)>,
    /// Ended executions, oldest first, with what they hold.
    ended: VecDeque<Ended>,
    held: Held,
    /// Ended executions of kept sessions that the jailer holds, with their sessions, oldest first; and those that it
    /// shall forget.
    with_jailer: VecDeque<(Id, Id)>,
    unwanted: Vec<(Id, Id)>,
}

/// What a request made.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Made {
    Execution(Id),
    Session(Id),
}

#[derive(Debug)]
struct Ended {
    execution: Id,
    time: Instant,
    held: Held,
}

/// What something new met.
#[derive(Debug)]
pub enum Entered<T> {
    New,
    /// The same request came before, and made this.
    Known(Arc<T>),
}

impl Registry {
    /// Makes an empty registry; those that ended may take up `most` together.
    pub fn new(most: Held) -> Self {
        Self {
            most,
            state: Mutex::default(),
            watchers: Arc::default(),
        }
    }

    /// Enters an execution, unless the same request made one before.
    pub fn enter(&self, execution: &Arc<Execution>) -> Result<Entered<Execution>, Problem> {
        let mut state = self.lock();
        state.forget_old(Instant::now(), &self.most);
        let tenant = &execution.principal.tenant;
        if let Some(request) = &execution.request
            && let Some(made) = state.requests.get(&(tenant.clone(), request.clone()))
        {
            return match made {
                Made::Execution(id) => same(state.executions.get(id), request, |known| {
                    known.digest == execution.digest
                }),
                Made::Session(_) => Err(reused(request)),
            };
        }
        state.check_free(execution)?;
        state.executions.insert(execution.id.clone(), Arc::clone(execution));
        if let Some(request) = &execution.request {
            let made = Made::Execution(execution.id.clone());
            state.requests.insert((tenant.clone(), request.clone()), made);
        }
        Ok(Entered::New)
    }

    /// Whether a request of this tenant is known, with this payload or another.
    pub fn knows(&self, principal: &Principal, request: Option<&Id>) -> bool {
        let key = |request: &Id| (principal.tenant.clone(), request.clone());
        let mut state = self.lock();
        state.forget_old(Instant::now(), &self.most);
        request.is_some_and(|request| state.requests.contains_key(&key(request)))
    }

    /// Takes an execution out that was refused after all.
    pub fn withdraw(&self, execution: &Execution) {
        self.lock().remove(&execution.id);
    }

    /// Starts the time after which an execution is forgotten.
    pub fn ended(&self, execution: &Execution) {
        let mut state = self.lock();
        let held = execution.holds();
        state.held.add(&held);
        if execution.kept.is_some() {
            let held = (execution.id.clone(), execution.session.clone());
            state.with_jailer.push_back(held);
        }
        state.ended.push_back(Ended {
            execution: execution.id.clone(),
            time: Instant::now(),
            held,
        });
        state.forget_old(Instant::now(), &self.most);
    }

    /// Takes the executions that the jailer shall forget, with their sessions.
    pub fn take_unwanted(&self) -> Vec<(Id, Id)> {
        std::mem::take(&mut self.lock().unwanted)
    }

    /// Finds an execution that this principal may see.
    pub fn get(&self, principal: &Principal, field: &str, id: &str) -> Result<Arc<Execution>, Problem> {
        let mut state = self.lock();
        state.forget_old(Instant::now(), &self.most);
        let found = Id::parse(id)
            .ok()
            .and_then(|id| state.executions.get(&id))
            .filter(|found| sees(principal, found));
        found.cloned().ok_or_else(|| Problem::NotFound {
            kind: "execution",
            name: id.chars().take(60).collect(),
            why: format!(
                "{field}: not of this tenant, or forgotten, at the latest {} minutes after its end",
                KEPT.as_secs() / 60
            ),
            reason: Reason::ExecutionNotFound,
        })
    }

    /// All executions that this principal may see, newest first.
    pub fn list(&self, principal: &Principal) -> Vec<Arc<Execution>> {
        let mut state = self.lock();
        state.forget_old(Instant::now(), &self.most);
        let mut found: Vec<_> = state
            .executions
            .values()
            .filter(|found| sees(principal, found))
            .cloned()
            .collect();
        found.sort_by(|a, b| (b.create_time, &b.id).cmp(&(a.create_time, &a.id)));
        found
    }

    /// Those that have not ended.
    pub fn living(&self) -> Vec<Arc<Execution>> {
        let state = self.lock();
        let ended: std::collections::HashSet<_> = state.ended.iter().map(|ended| &ended.execution).collect();
        state
            .executions
            .iter()
            .filter(|(id, _)| !ended.contains(id))
            .map(|(_, execution)| execution.clone())
            .collect()
    }

    /// Those of a kept session that have not ended.
    pub fn of_session(&self, session: &Id) -> Vec<Arc<Execution>> {
        let mut living = self.living();
        living.retain(|execution| execution.session == *session);
        living
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sees(principal: &Principal, execution: &Execution) -> bool {
    principal.tenant == execution.principal.tenant || principal.may(Role::Operator)
}

/// What a request made that came before, if this is the same one.
fn same<T>(known: Option<&Arc<T>>, request: &Id, is_same: impl Fn(&T) -> bool) -> Result<Entered<T>, Problem> {
    let known = known.filter(|known| is_same(known));
    known.cloned().map(Entered::Known).ok_or_else(|| reused(request))
}

pub fn reused(request: &Id) -> Problem {
    Problem::Exists {
        kind: "request",
        name: request.to_string(),
        why: "was made before with another payload; a new request needs a new request_id",
        reason: Reason::RequestIdReused,
    }
}

/// What is told of a session id that is not free.
pub fn session_taken(name: &Id) -> Problem {
    taken("session", name)
}

/// What is told of an execution id that is not free.
pub fn execution_taken(name: &Id) -> Problem {
    taken("execution", name)
}

fn taken(kind: &'static str, name: &Id) -> Problem {
    Problem::Exists {
        kind,
        name: name.to_string(),
        why: "was used before; leave the id out or choose another one",
        reason: Reason::IdTaken,
    }
}

impl State {
    /// Ids are directories and host names in the end, so they are unique among all tenants.
    fn check_free(&self, execution: &Execution) -> Result<(), Problem> {
        if self.executions.contains_key(&execution.id) {
            return Err(taken("execution", &execution.id));
        }
        if execution.kept.is_none() && self.has_session(&execution.session) {
            return Err(taken("session", &execution.session));
        }
        Ok(())
    }

    fn has_session(&self, id: &Id) -> bool {
        self.sessions.contains_key(id) || self.executions.values().any(|execution| execution.session == *id)
    }

    fn forget_old(&mut self, now: Instant, most: &Held) {
        self.forget_old_sessions(now);
        let surplus = self.with_jailer.len().saturating_sub(HELD_MAX);
        self.unwanted.extend(self.with_jailer.drain(..surplus));
        while let Some(oldest) = self.ended.front() {
            let old = now.duration_since(oldest.time) >= KEPT;
            if !old && self.ended.len() <= KEPT_MAX && self.held.fits(most) {
                return;
            }
            let id = oldest.execution.clone();
            self.held.take(&oldest.held);
            self.ended.pop_front();
            self.remove(&id);
        }
    }

    fn remove(&mut self, id: &Id) {
        if let Some(index) = self.with_jailer.iter().position(|(execution, _)| execution == id) {
            self.unwanted.extend(self.with_jailer.remove(index));
        }
        if let Some(execution) = self.executions.remove(id)
            && let Some(request) = &execution.request
        {
            let key = (execution.principal.tenant.clone(), request.clone());
            self.requests.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
