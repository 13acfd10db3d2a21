//! The contexts of a session.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brig_proto::v1::Reason;

use super::Context;
use crate::run::registry::{Entered, reused};
use crate::status::Problem;

/// The most contexts of one session that live.
const CONTEXTS_MAX: usize = 16;
/// The most contexts of one session that are remembered, ended ones included.
const REMEMBERED_MAX: usize = 64;

/// The contexts of a session.
#[derive(Debug, Default)]
pub struct Contexts {
    all: Mutex<Vec<Arc<Context>>>,
    /// Whether a zygote can fork their interpreters, as far as is known.
    forked: AtomicBool,
}

impl Contexts {
    /// Says whether a zygote can fork their interpreters.
    pub fn fork(&self, forked: bool) {
        self.forked.store(forked, Ordering::Relaxed);
    }

    /// Whether one can, as far as is known.
    pub fn can_fork(&self) -> bool {
        self.forked.load(Ordering::Relaxed)
    }

    /// Enters a context, unless the same request made one before.
    pub fn enter(&self, context: &Arc<Context>) -> Result<Entered<Context>, Problem> {
        let mut all = self.lock();
        if let Some(request) = &context.request
            && let Some(known) = all.iter().find(|known| known.request.as_ref() == Some(request))
        {
            return if known.digest == context.digest {
                Ok(Entered::Known(Arc::clone(known)))
            } else {
                Err(reused(request))
            };
        }
        if all.iter().any(|known| known.id == context.id) {
            return Err(Problem::Exists {
                kind: "context",
                name: context.id.to_string(),
                why: "was used before in this session; leave the id out or choose another one",
                reason: Reason::IdTaken,
            });
        }
        let living = living(&all);
        if living >= CONTEXTS_MAX {
            return Err(Problem::ContextQuota(context.session.to_string(), living));
        }
        if all.len() >= REMEMBERED_MAX
            && let Some(oldest) = all.iter().position(|known| known.is_over())
        {
            all.remove(oldest);
        }
        all.push(Arc::clone(context));
        Ok(Entered::New)
    }

    /// Enters a context that an earlier brigd made.
    pub fn restore(&self, context: Arc<Context>) {
        self.lock().push(context);
    }

    /// Takes a context out that could not be made, so that its name and its request are free.
    pub fn withdraw_unmade(&self, context: &Arc<Context>) {
        if context.lock().generation == 0 {
            self.lock().retain(|known| !Arc::ptr_eq(known, context));
        }
    }

    /// Finds a context.
    pub fn get(&self, id: &str) -> Result<Arc<Context>, Problem> {
        let found = self.lock().iter().find(|known| known.id.as_str() == id).cloned();
        found.ok_or_else(|| Problem::NotFound {
            kind: "context",
            name: id.chars().take(60).collect(),
            why: "context_id: not in this session, or closed a while ago".to_owned(),
            reason: Reason::ContextNotFound,
        })
    }

    /// Counts those that are not over.
    pub fn living(&self) -> usize {
        living(&self.lock())
    }

    /// All of them, newest first.
    pub fn list(&self) -> Vec<Arc<Context>> {
        self.lock().iter().rev().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Context>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn living(all: &[Arc<Context>]) -> usize {
    all.iter().filter(|known| !known.is_over()).count()
}
