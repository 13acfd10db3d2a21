//! How many executions of one tenant may wait for approval, and how much they may hold.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::Limits;
use crate::run::admit::{Content, Job};
use crate::status::Problem;

/// Files that came with the requests of a tenant's executions that wait: each is an open descriptor.
const FILES_MAX: usize = 256;

/// Those that wait for approval.
#[derive(Debug)]
pub struct Approvals(Mutex<State>);

#[derive(Debug)]
struct State {
    most: Held,
    tenants: HashMap<String, Held>,
    one_shot: usize,
}

/// What executions that wait hold together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Held {
    executions: usize,
    files: usize,
    bytes: u64,
}

/// The part of one execution, as long as it waits.
#[derive(Debug)]
pub struct Pending {
    approvals: Arc<Approvals>,
    tenant: String,
    held: Held,
    one_shot: bool,
}

impl Held {
    fn of(job: &Job) -> Self {
        let stored = job.inputs.iter().filter_map(|input| match &input.content {
            Content::Stored(stored) => Some(stored.size()),
            _ => None,
        });
        Self {
            executions: 1,
            files: stored.clone().count(),
            bytes: stored.sum(),
        }
    }

    fn most(limits: &Limits) -> Self {
        Self {
            executions: limits.pending,
            files: FILES_MAX,
            bytes: limits.pending_bytes.bytes(),
        }
    }
}

impl Approvals {
    /// Nobody waits yet.
    pub fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            most: Held::most(limits),
            tenants: HashMap::new(),
            one_shot: 0,
        })))
    }

    /// Takes other limits. What waits stays.
    pub fn resize(&self, limits: &Limits) {
        self.lock().most = Held::most(limits);
    }

    /// Lets an execution of a tenant wait. One without a session of its own is `kept`.
    pub fn enter(self: &Arc<Self>, tenant: &str, job: &Job, kept: bool) -> Result<Pending, Problem> {
        let held = Held::of(job);
        let mut state = self.lock();
        let most = state.most;
        let there = state.tenants.get(tenant).copied().unwrap_or_default();
        if there.executions >= most.executions {
            return Err(Problem::PendingQuota(there.executions));
        }
        if there.files + held.files > most.files || there.bytes.saturating_add(held.bytes) > most.bytes {
            return Err(Problem::PendingBytes(most.bytes, most.files));
        }
        let sum = state.tenants.entry(tenant.to_owned()).or_default();
        sum.executions += held.executions;
        sum.files += held.files;
        sum.bytes += held.bytes;
        state.one_shot += usize::from(!kept);
        Ok(Pending {
            approvals: Arc::clone(self),
            tenant: tenant.to_owned(),
            held,
            one_shot: !kept,
        })
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.lock().tenants.values().map(|held| held.executions).sum()
    }

    /// How many wait for a session of their own.
    pub fn one_shot(&self) -> usize {
        self.lock().one_shot
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut state = self.approvals.lock();
        state.one_shot -= usize::from(self.one_shot);
        if let Some(sum) = state.tenants.get_mut(&self.tenant) {
            sum.executions -= self.held.executions;
            sum.files -= self.held.files;
            sum.bytes -= self.held.bytes;
            if sum.executions == 0 {
                state.tenants.remove(&self.tenant);
            }
        }
    }
}
