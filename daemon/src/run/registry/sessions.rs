//! The kept sessions of the registry.

use std::sync::Arc;
use std::time::Instant;

use brig_jailer::ids::Id;

use super::{Entered, KEPT, KEPT_MAX, Made, Registry, State, reused, same, taken};
use crate::config::Role;
use crate::principal::Principal;
use crate::run::kept::watchers::{Watch, Which};
use crate::run::kept::{Session, not_found};
use crate::status::Problem;

impl Registry {
    /// Enters a session, unless the same request made one before.
    pub fn enter_session(&self, session: &Arc<Session>) -> Result<Entered<Session>, Problem> {
        let mut state = self.lock();
        state.forget_old(Instant::now(), &self.most);
        let tenant = &session.principal.tenant;
        if let Some(request) = &session.request
            && let Some(made) = state.requests.get(&(tenant.clone(), request.clone()))
        {
            return match made {
                Made::Session(id) => same(state.sessions.get(id), request, |known| known.digest == session.digest),
                Made::Execution(_) => Err(reused(request)),
            };
        }
        if state.has_session(&session.id) {
            return Err(taken("session", &session.id));
        }
        state.sessions.insert(session.id.clone(), Arc::clone(session));
        if let Some(request) = &session.request {
            let made = Made::Session(session.id.clone());
            state.requests.insert((tenant.clone(), request.clone()), made);
        }
        Ok(Entered::New)
    }

    /// Takes a session out that was refused after all.
    pub fn withdraw_session(&self, session: &Session) {
        self.lock().remove_session(&session.id);
    }

    /// Starts the time after which a session is forgotten.
    pub fn session_ended(&self, session: &Session) {
        let mut state = self.lock();
        state.closed.push_back((session.id.clone(), Instant::now()));
        state.forget_old(Instant::now(), &self.most);
    }

    /// Finds a session that this principal may see.
    pub fn session(&self, principal: &Principal, id: &str) -> Result<Arc<Session>, Problem> {
        let mut state = self.lock();
        state.forget_old(Instant::now(), &self.most);
        let found = Id::parse(id)
            .ok()
            .and_then(|id| state.sessions.get(&id))
            .filter(|found| principal.tenant == found.principal.tenant || principal.may(Role::Operator));
        found.cloned().ok_or_else(|| not_found("session_id", id))
    }

    /// Begins to watch sessions; gives those that are there.
    pub fn watch(&self, which: Which) -> Result<(Watch, Vec<Arc<Session>>), Problem> {
        self.watchers.watch(which, || self.sessions())
    }

    /// All sessions, newest first.
    pub fn sessions(&self) -> Vec<Arc<Session>> {
        let mut state = self.lock();
        state.forget_old(Instant::now(), &self.most);
        let mut found: Vec<_> = state.sessions.values().cloned().collect();
        found.sort_by(|a, b| (b.create_time, &b.id).cmp(&(a.create_time, &a.id)));
        found
    }
}

impl State {
    pub(super) fn forget_old_sessions(&mut self, now: Instant) {
        while let Some((id, time)) = self.closed.front() {
            if now.duration_since(*time) < KEPT && self.closed.len() <= KEPT_MAX {
                return;
            }
            let id = id.clone();
            self.closed.pop_front();
            self.remove_session(&id);
        }
    }

    fn remove_session(&mut self, id: &Id) {
        if let Some(session) = self.sessions.remove(id)
            && let Some(request) = &session.request
        {
            let key = (session.principal.tenant.clone(), request.clone());
            self.requests.remove(&key);
        }
    }
}
