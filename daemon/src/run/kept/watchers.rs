//! Who watches sessions, and what they have not been told yet.
//!
//! Each watcher has a bounded queue of its own, so that none is kept waiting, or loses anything, because of another one.
//! What does not fit is lost, and the watcher is told so. Nothing is kept for who has gone away.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use brig_jailer::ids::Id;
use brig_proto::v1;
use brig_proto::v1::SessionState;
use prost::Message;
use tokio::sync::Notify;

use super::Session;
use crate::status::Problem;

/// The most watchers of one tenant, and of all.
pub const WATCHERS_MAX: usize = 16;
const ALL_MAX: usize = 64;
/// Changes that may wait for one watcher, and what they may take up together, in bytes.
const WAITING_MAX: usize = 256;
const BYTES_MAX: usize = 256 * 1024;

/// Everybody who watches.
#[derive(Debug, Default)]
pub struct Watchers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    watchers: HashMap<u64, Watcher>,
    over: bool,
}

/// Which sessions are watched.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Which {
    pub tenant: String,
    /// All of the tenant if there are none.
    pub ids: HashSet<Id>,
    pub labels: BTreeMap<String, String>,
}

/// A session that changed, as it was then.
#[derive(Debug, Clone)]
pub struct Change {
    pub id: Id,
    pub time: SystemTime,
    pub revision: u64,
    pub session: Arc<v1::Session>,
    bytes: usize,
}

/// What a watcher is told.
#[derive(Debug, Clone)]
pub enum Told {
    Change(Change),
    /// Changes were lost.
    Overflow,
}

#[derive(Debug)]
struct Watcher {
    which: Which,
    /// Those that matched when they were told last: a change after which they don't is told too.
    known: HashSet<Id>,
    waiting: VecDeque<Change>,
    bytes: usize,
    overflowed: bool,
    wake: Arc<Notify>,
}

/// A place among the watchers, free again when this is dropped.
#[derive(Debug)]
pub struct Watch {
    watchers: Arc<Watchers>,
    number: u64,
    wake: Arc<Notify>,
}

impl Which {
    /// Whether a session is one of them.
    pub fn matches(&self, session: &Session) -> bool {
        let named = self.ids.is_empty() || self.ids.contains(&session.id);
        if session.principal.tenant != self.tenant || !named {
            return false;
        }
        let labels = session.settings().labels;
        self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

impl Watchers {
    /// Begins to watch; gives the sessions that match, of all that there are. Those that are closed are told only to who
    /// asked for them by name.
    pub fn watch(
        self: &Arc<Self>,
        which: Which,
        all: impl FnOnce() -> Vec<Arc<Session>>,
    ) -> Result<(Watch, Vec<Arc<Session>>), Problem> {
        let mut state = self.lock();
        if state.over {
            return Err(Problem::Draining);
        }
        let tenant = state
            .watchers
            .values()
            .filter(|other| other.which.tenant == which.tenant);
        let (others, most) = (tenant.count(), state.watchers.len());
        if others >= WATCHERS_MAX || most >= ALL_MAX {
            return Err(Problem::WatchQuota(others));
        }
        // Under the lock, so that every change is either seen here or told.
        let wanted = |session: &Arc<Session>| {
            which.matches(session) && (session.phase() != SessionState::Closed || which.ids.contains(&session.id))
        };
        let mut first = all();
        first.retain(wanted);
        let (number, wake) = (state.next, Arc::new(Notify::new()));
        state.next += 1;
        let watcher = Watcher {
            which,
            known: first.iter().map(|session| session.id.clone()).collect(),
            waiting: VecDeque::new(),
            bytes: 0,
            overflowed: false,
            wake: Arc::clone(&wake),
        };
        state.watchers.insert(number, watcher);
        let watch = Watch {
            watchers: Arc::clone(self),
            number,
            wake,
        };
        Ok((watch, first))
    }

    /// Tells of a session as it is now.
    pub fn changed(&self, session: &Session) {
        let mut state = self.lock();
        let mut change = None;
        for watcher in state.watchers.values_mut() {
            let matches = watcher.which.matches(session);
            let known = watcher.known.contains(&session.id);
            if !matches && !known {
                continue;
            }
            // Made under the lock: of two changes at one time, the later one is told last.
            let change: &Change = change.get_or_insert_with(|| Change::of(session));
            if matches && change.session.state() != SessionState::Closed {
                watcher.known.insert(session.id.clone());
            } else {
                watcher.known.remove(&session.id);
            }
            watcher.push(change.clone());
        }
    }

    /// Has all watching end.
    pub fn end(&self) {
        let mut state = self.lock();
        state.over = true;
        state.watchers.values().for_each(|watcher| watcher.wake.notify_one());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Change {
    fn of(session: &Session) -> Self {
        let (shown, revision) = session.show_with_revision();
        Self {
            id: session.id.clone(),
            time: SystemTime::now(),
            revision,
            bytes: shown.encoded_len(),
            session: Arc::new(shown),
        }
    }
}

impl Watcher {
    fn push(&mut self, change: Change) {
        self.wake.notify_one();
        if self.waiting.len() >= WAITING_MAX || self.bytes + change.bytes > BYTES_MAX {
            // What waits is old by now.
            self.waiting.clear();
            self.bytes = 0;
            self.overflowed = true;
        }
        if !self.overflowed {
            self.bytes += change.bytes;
            self.waiting.push_back(change);
        }
    }

    fn pop(&mut self) -> Option<Told> {
        if std::mem::take(&mut self.overflowed) {
            return Some(Told::Overflow);
        }
        let change = self.waiting.pop_front()?;
        self.bytes -= change.bytes;
        Some(Told::Change(change))
    }
}

impl Watch {
    /// What is to be told next; `None` when the daemon ends.
    pub async fn next(&mut self) -> Option<Told> {
        loop {
            {
                let mut state = self.watchers.lock();
                let next = state.watchers.get_mut(&self.number).and_then(Watcher::pop);
                if next.is_some() || state.over {
                    return next;
                }
            }
            self.wake.notified().await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watchers.lock().watchers.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use brig_jailer::api::Enforced;
    use brig_proto::v1::StartKind;

    use super::super::memo::tests::{policy, session};
    use super::*;

    fn of(tenant: &str) -> Which {
        Which {
            tenant: tenant.to_owned(),
            ..Which::default()
        }
    }

    fn living() -> Arc<Session> {
        let session = session(policy("data"), BTreeMap::new());
        session.made(Enforced::default());
        Arc::new(session)
    }

    /// What waits for a watcher.
    fn waiting(watch: &Watch) -> Vec<Told> {
        let mut state = watch.watchers.lock();
        let watcher = state.watchers.get_mut(&watch.number).unwrap();
        std::iter::from_fn(|| watcher.pop()).collect()
    }

    #[tokio::test]
    async fn nobody_is_told_of_another_tenants_sessions() {
        let (watchers, session) = (Arc::<Watchers>::default(), living());
        let tenant = session.principal.tenant.clone();
        let all = || vec![Arc::clone(&session)];
        let (own, first) = watchers.watch(of(&tenant), all).unwrap();
        assert_eq!(first.len(), 1);
        let named = Which {
            ids: [session.id.clone()].into(),
            ..of("another")
        };
        let strangers = [of("another"), named].map(|which| watchers.watch(which, all).unwrap());
        session.tell(&watchers);
        session.pause();
        session.paused(true);
        session.end(brig_proto::v1::SessionCloseReason::Asked);
        assert_eq!(waiting(&own).len(), 3);
        for (stranger, first) in strangers {
            assert_eq!((first.len(), waiting(&stranger).len()), (0, 0));
        }
    }

    #[tokio::test]
    async fn a_use_alone_is_no_change() {
        let (watchers, session) = (Arc::<Watchers>::default(), living());
        let (watch, _) = watchers.watch(of(&session.principal.tenant), Vec::new).unwrap();
        session.used(Some(StartKind::Cold));
        session.tell(&watchers);
        assert_eq!(waiting(&watch).len(), 1);
        drop(session.enter().unwrap());
        session.looked_at();
        session.used(Some(StartKind::Cold));
        assert_eq!(waiting(&watch).len(), 0);
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_what_is_lost_is_told_once() {
        let (watchers, session) = (Arc::<Watchers>::default(), living());
        session.tell(&watchers);
        let (slow, _) = watchers.watch(of(&session.principal.tenant), Vec::new).unwrap();
        let (mut fast, _) = watchers.watch(of(&session.principal.tenant), Vec::new).unwrap();
        for _ in 0..10_000 {
            session.set(session.settings());
            assert!(matches!(fast.next().await, Some(Told::Change(_))));
        }
        let told = waiting(&slow);
        assert!(matches!(told[0], Told::Overflow), "{:?}", told[0]);
        assert!(told.len() <= 1 + WAITING_MAX);
        assert!(told[1..].iter().all(|told| matches!(told, Told::Change(_))));
        session.set(session.settings());
        assert!(matches!(waiting(&slow)[..], [Told::Change(_)]));
    }

    #[tokio::test]
    async fn who_goes_away_leaves_nothing_and_all_end_with_the_daemon() {
        let watchers = Arc::<Watchers>::default();
        let some: Vec<_> = (0..WATCHERS_MAX)
            .map(|_| watchers.watch(of("t"), Vec::new).unwrap())
            .collect();
        assert!(matches!(
            watchers.watch(of("t"), Vec::new),
            Err(Problem::WatchQuota(WATCHERS_MAX))
        ));
        let (mut other, _) = watchers.watch(of("other"), Vec::new).unwrap();
        drop(some);
        assert_eq!(watchers.lock().watchers.len(), 1);
        watchers.end();
        assert!(other.next().await.is_none());
        assert!(matches!(watchers.watch(of("t"), Vec::new), Err(Problem::Draining)));
    }
}
