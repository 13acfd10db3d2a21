//! Sessions that are made ahead: each has its jail, and in it an interpreter that has imported what the template names and
//! waits for its request. Nothing of any client has been in one; each is used once or not at all.
//!
//! A request gets one that asks for nothing that had to be known when it was made (`is_plain`, `Kind::of`); it takes its names along.
//! Everybody else, and whoever finds none, gets a session that is made for it. What was asked for is made again behind the
//! request ([`keep`]), and what is to be ready from the start is there before. The jailer makes such a session as any other,
//! by the same steps; what waits is closed by it when this daemon goes.
//!
//! Beside them wait holders: sessions without a program, for whoever asks for what can't be known before. The program is
//! forked by the zygote then, or started.

mod maker;
mod ready;
mod shelves;
mod zygotes;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brig_jailer::api::{Enforced, Event, Quantities, Request};
use brig_jailer::files::wire::Walk;
use brig_jailer::ids::Id;
use brig_jailer::policy::{Policy, RequestedLimits};
use brig_proto::v1::StartKind;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::config::{PoolLimits, Share};
use crate::files::{Files, FilesError};
use crate::jailer::{Jail, Process};
use crate::principal::Principal;
use crate::run::admit::{Image, Job, Work};
use crate::run::approval::Approval;
use crate::run::kept::Session;
use crate::run::session::CLOSE;
use crate::run::start::Program;
pub use maker::keep;
pub use ready::check as check_ready;
use shelves::{Lacking, Shelves};

/// How many holders wait, at most.
const HOLDERS: usize = 4;
/// How long it may take at most to make something ahead: it has only the processor time that nobody else wants.
const MOST: Duration = Duration::from_secs(120);
/// Endings of files that Python would find in the place of a module that is imported already.
const MODULES: [&str; 4] = [".py", ".pyc", ".so", ".zip"];
/// Files of the working directory that a library reads when it is imported.
const SETTINGS: [&str; 1] = ["matplotlibrc"];

/// All sessions that wait.
#[derive(Debug)]
pub struct Pool {
    shelves: Mutex<Shelves<Kind, Waiting>>,
    holders: Mutex<Shelves<Kind, Waiting>>,
    limits: Mutex<PoolLimits>,
    /// Sessions of zygotes that fork, by kind.
    docks: Mutex<Vec<(Kind, Id)>>,
    /// Whether all zygotes are to be thrown away.
    outdated: AtomicBool,
    /// Told when one was asked for.
    asked: Notify,
    /// What closes sessions that nobody wants.
    closing: TaskTracker,
    /// Sessions that were made when they were asked for, that a zygote forked a program into then, that had waited, and that
    /// could not be made ahead.
    cold: AtomicU64,
    forked: AtomicU64,
    pooled: AtomicU64,
    failed: AtomicU64,
    /// Zygotes that could not be made, or could not fork.
    zygotes_failed: AtomicU64,
}

/// What sessions that wait have in common.
#[derive(Debug, Clone)]
struct Kind {
    /// Whose they are: a tenant, a class of tenants, or everybody's.
    owner: String,
    policy: Arc<Policy>,
    template: Image,
    quantities: Quantities,
    /// Whether it is one of kept sessions: none of them waits, but a zygote forks the interpreters of their contexts.
    contexts: bool,
    /// Whether programs are started in it, and none is forked: it lies beside all zygotes.
    starts: bool,
}

impl Kind {
    /// How long a session of it can be used at most before it is asked for: long enough is left then.
    fn freshness(&self) -> Duration {
        Duration::from_millis(self.quantities.max_age_ms) * 3 / 4
    }

    /// How long it may take to make one: it has only the processor time that nobody else wants, and is not to be old by then.
    fn patience(&self) -> Duration {
        MOST.min(self.freshness() / 2)
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        (&self.owner, &self.policy.name, &self.policy.hash) == (&other.owner, &other.policy.name, &other.policy.hash)
            && (&self.template, self.quantities) == (&other.template, other.quantities)
            && (self.contexts, self.starts) == (other.contexts, other.starts)
    }
}

/// A session that waits, and the program in it.
#[derive(Debug)]
pub struct Waiting {
    pub jail: Jail,
    pub files: Files,
    pub enforced: Enforced,
    /// None in a holder.
    pub program: Option<(Process, Program)>,
    /// The session of the zygote that it lies below.
    pub dock: Option<Id>,
    /// When another one takes its place at the latest.
    pub best_before: Instant,
}

/// A session that waits for one request alone; if that does not use it, nobody does.
#[derive(Debug)]
pub struct Reserved {
    waiting: Option<Box<Waiting>>,
    pool: Arc<Pool>,
}

/// The session that waited for a request, while that is accepted and queued.
#[derive(Debug)]
pub enum Ahead {
    Reserved(Reserved),
    /// Made ready beside.
    Readying(JoinHandle<Option<Ready>>),
}

/// A session that waits no more.
#[derive(Debug)]
pub struct Ready {
    reserved: Reserved,
    /// What came of the look at its files, if there was one.
    pub walked: Option<Result<bool, FilesError>>,
}

impl Pool {
    /// Makes an empty pool.
    pub fn new(limits: PoolLimits) -> Arc<Self> {
        Arc::new(Self {
            shelves: Mutex::new(Shelves::new(limits.sessions, limits.idle.duration())),
            holders: Mutex::new(Shelves::new(limits.sessions.min(HOLDERS), limits.idle.duration())),
            limits: Mutex::new(limits),
            docks: Mutex::new(Vec::new()),
            outdated: AtomicBool::new(false),
            asked: Notify::new(),
            closing: TaskTracker::new(),
            cold: AtomicU64::new(0),
            forked: AtomicU64::new(0),
            pooled: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            zygotes_failed: AtomicU64::new(0),
        })
    }

    /// Gives a job a session that waits, with its names, if one fits, or else a zygote, and a session for its program.
    pub fn serve(self: &Arc<Self>, job: &mut Job, principal: &Principal) {
        let Some((kind, is_usual)) = Kind::of(job, self.share(), principal) else {
            return;
        };
        let mut taken = None;
        if !is_usual {
            self.lock().note(&kind, Instant::now());
            job.dock = self.dock(&kind);
            self.asked.notify_one();
            return;
        }
        if !kind.starts {
            // Names can't be given to what has some; but such a job shall have a zygote the next time.
            if job.named == [false, false] {
                taken = self.lock().take(&kind, Instant::now());
            } else {
                self.lock().ask(&kind, Instant::now());
            }
            job.dock = self.dock(&kind);
        }
        if taken.is_none() && !job.named[1] {
            taken = self.hold(&kind);
        }
        self.asked.notify_one();
        if let Some(waiting) = taken {
            job.session = waiting.jail.id().clone();
            if let Some((process, _)) = &waiting.program {
                job.execution = process.id().clone();
            }
            job.ahead = Some(Ahead::Reserved(Reserved {
                waiting: Some(Box::new(waiting)),
                pool: Arc::clone(self),
            }));
        }
    }

    /// Takes a holder: of what is forked, one whose zygote forks.
    fn hold(&self, kind: &Kind) -> Option<Waiting> {
        let dock = self.dock(kind);
        let holder = self.holders().take(kind, Instant::now())?;
        if holder.dock == dock {
            return Some(holder);
        }
        self.put_away(holder);
        None
    }

    /// Where a kept session is made, so that a zygote can fork the interpreters of its contexts: below that one's session, if
    /// there is one.
    pub fn nest(&self, session: &Session) -> Option<Id> {
        self.dock(&Kind::of_contexts(session, self.share())?)
    }

    /// Has a zygote for the contexts of such sessions from now on.
    pub fn want_contexts(&self, session: &Session) {
        if let Some(kind) = Kind::of_contexts(session, self.share()) {
            self.lock().note(&kind, Instant::now());
            self.asked.notify_one();
        }
    }

    /// Takes other limits, and throws away what waits: policies and templates may be others.
    pub fn replace(&self, limits: PoolLimits) {
        self.lock().resize(limits.sessions, limits.idle.duration());
        self.holders()
            .resize(limits.sessions.min(HOLDERS), limits.idle.duration());
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
        self.outdated.store(true, Ordering::SeqCst);
        self.publish(Vec::new());
        self.empty();
        // The maker may have seen it before all was thrown away.
        self.outdated.store(true, Ordering::SeqCst);
        self.asked.notify_one();
    }

    /// Counts a session by how it came to be.
    pub fn count(&self, start: StartKind) {
        let counter = match start {
            StartKind::Pool => &self.pooled,
            StartKind::Forked => &self.forked,
            _ => &self.cold,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Sessions since the start of the daemon, by how they came to be.
    pub fn starts(&self) -> BTreeMap<String, u64> {
        let named = [("cold", &self.cold), ("forked", &self.forked), ("pool", &self.pooled)];
        named
            .map(|(name, count)| (name.to_owned(), count.load(Ordering::Relaxed)))
            .into()
    }

    /// Sessions that could not be made ahead, or ended before anybody wanted them.
    pub fn failures(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Zygotes that could not be made, or could not fork.
    pub fn zygote_failures(&self) -> u64 {
        self.zygotes_failed.load(Ordering::Relaxed)
    }

    /// Counts one that could not be made, or could not fork.
    pub fn zygote_failed(&self) {
        self.zygotes_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// How many wait with a program.
    pub fn waiting(&self) -> usize {
        self.lock().len()
    }

    /// How many wait without one.
    pub fn holding(&self) -> usize {
        self.holders().len()
    }

    /// Says which zygotes fork now: none that is to be thrown away.
    fn publish(&self, docks: Vec<(Kind, Id)>) {
        let mut known = self.docks.lock().unwrap_or_else(PoisonError::into_inner);
        *known = if self.outdated.load(Ordering::SeqCst) {
            Vec::new()
        } else {
            docks
        };
    }

    fn dock(&self, kind: &Kind) -> Option<Id> {
        let docks = self.docks.lock().unwrap_or_else(PoisonError::into_inner);
        docks.iter().find(|(other, _)| other == kind).map(|(_, id)| id.clone())
    }

    fn share(&self) -> Share {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).share
    }

    fn rotate(&self) -> Duration {
        let limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.rotate.duration()
    }

    /// Has these kinds there, whoever asks for what, and no others.
    fn ready(&self, kinds: Vec<Kind>) {
        let wanted = |kind: Kind| {
            let waits = usize::from(!kind.contexts);
            (kind, waits)
        };
        let kinds: Vec<_> = kinds.into_iter().map(wanted).collect();
        self.lock().keep(&kinds, Instant::now());
    }

    fn put(self: &Arc<Self>, lacking: &Lacking<Kind>, made: Waiting) {
        let mut shelves = if made.program.is_some() {
            self.lock()
        } else {
            self.holders()
        };
        let unwanted = shelves.put(lacking, made);
        drop(shelves);
        unwanted.into_iter().for_each(|waiting| self.put_away(waiting));
    }

    /// Notes that one could not be made, or has ended. The first of several is told to people.
    fn fail(&self, kind: &Kind, why: &dyn std::fmt::Display) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let (policy, template) = (kind.policy.id(), &kind.template.id);
        let failures = self.lock().failed(kind, Instant::now());
        match failures {
            1 => {
                warn!(policy, template, why = %why, "no session made ahead; sessions are made when they are asked for")
            }
            again => debug!(policy, template, again, why = %why, "no session made ahead"),
        }
    }

    /// The same of one without a program, whose want costs whoever asks some milliseconds.
    fn fail_holder(&self, kind: &Kind, why: &dyn std::fmt::Display) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let (policy, template) = (kind.policy.id(), &kind.template.id);
        self.holders().failed(kind, Instant::now());
        debug!(policy, template, why = %why, "no holder");
    }

    /// Puts away what has ended or is not wanted any more.
    fn tidy(&self) {
        let now = Instant::now();
        for shelves in [Self::lock, Self::holders] {
            // The jailer closes what is too old: that is no failure.
            let old = shelves(self).ended(|waiting| waiting.best_before <= now);
            old.into_iter().for_each(|(_, waiting)| self.put_away(waiting));
        }
        let ended = self.lock().ended(Waiting::has_ended);
        for (kind, waiting) in ended {
            self.fail(&kind, &"it ended before anybody wanted it");
            self.put_away(waiting);
        }
        let ended = self.holders().ended(Waiting::has_ended);
        for (kind, waiting) in ended {
            self.fail_holder(&kind, &"it ended before anybody wanted it");
            self.put_away(waiting);
        }
        for shelves in [Self::lock, Self::holders] {
            let surplus = shelves(self).surplus(now);
            surplus.into_iter().for_each(|waiting| self.put_away(waiting));
        }
        // They would keep the session of a zygote that is no more.
        let docks = self.docks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let forks = |dock: &Id| docks.iter().any(|(_, id)| id == dock);
        let stranded = self
            .holders()
            .ended(|holder| holder.dock.as_ref().is_some_and(|dock| !forks(dock)));
        stranded.into_iter().for_each(|(_, waiting)| self.put_away(waiting));
    }

    /// When the first of those that wait is to be put away.
    fn best_before(&self) -> Option<Instant> {
        let first = |shelves: &Shelves<Kind, Waiting>| shelves.waiting().map(|waiting| waiting.best_before).min();
        first(&self.lock()).into_iter().chain(first(&self.holders())).min()
    }

    fn empty(&self) {
        for shelves in [Self::lock, Self::holders] {
            let all = shelves(self).clear();
            all.into_iter().for_each(|waiting| self.put_away(waiting));
        }
    }

    /// Closes a session that nobody wants, behind the caller.
    fn put_away(&self, mut waiting: Waiting) {
        // Without a runtime the daemon is at its end, and the jailer closes it.
        if let Ok(runtime) = Handle::try_current() {
            let closing = async move { waiting.close().await };
            self.closing.spawn_on(closing, &runtime);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shelves<Kind, Waiting>> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holders(&self) -> MutexGuard<'_, Shelves<Kind, Waiting>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kind {
    /// The kind of a job whose session, or program, could be made before, and whether its session could: it has no limits but
    /// those of its policy. Else its program can be forked into a session of its own.
    fn of(job: &Job, share: Share, principal: &Principal) -> Option<(Self, bool)> {
        // Nothing is made for what a reviewer has not approved.
        if Approval::asked_by(&job.policy).is_some() {
            return None;
        }
        let kind = Self {
            owner: owner(share, principal),
            policy: Arc::clone(&job.policy),
            template: job.template.clone(),
            quantities: usual(&job.policy)?,
            contexts: false,
            starts: !is_plain(job),
        };
        let asked = job.limits.quantities();
        let is_usual = asked == kind.quantities;
        (is_usual || !kind.starts && kind.quantities.can_fork_under(&asked)).then_some((kind, is_usual))
    }

    /// The kind of a kept session that asks for nothing that its contexts would have had to know: no variables, and no
    /// limits that a fork can't have.
    fn of_contexts(session: &Session, share: Share) -> Option<Self> {
        let policy = Arc::clone(&session.policy);
        let quantities = usual(&policy)?;
        let is_plain = session.environment.is_empty() && quantities.can_fork_under(&session.limits.quantities());
        is_plain.then(|| Self {
            owner: owner(share, &session.principal),
            policy,
            template: session.template.clone(),
            quantities,
            contexts: true,
            starts: false,
        })
    }
}

/// Whether a job's interpreter could be there before: it asks for no variables, or input for the program, and brings no file
/// that would have been found in the place of a module.
fn is_plain(job: &Job) -> bool {
    matches!(job.work, Work::Code { .. })
        && job.environment.is_empty()
        && job.stdin.is_none()
        && !job.merge_stderr
        && job.times.cpu_ms.is_none()
        && !job.inputs.iter().any(|input| is_read_at_import(&input.path))
}

/// The limits of whoever asks for none.
fn usual(policy: &Policy) -> Option<Quantities> {
    let usual = policy.resolve(&RequestedLimits::default()).ok();
    usual.map(|(usual, _)| usual.quantities())
}

fn owner(share: Share, principal: &Principal) -> String {
    match share {
        Share::Tenant => principal.tenant.clone(),
        Share::Class => principal.class.clone(),
        Share::All => String::new(),
    }
}

/// Whether a session or its program has ended.
fn has_ended(mut process: Option<&mut Process>, jail: &mut Jail) -> bool {
    let is_end = |event: &Event| matches!(event, Event::Closed { .. } | Event::Ended { .. });
    let said = std::iter::from_fn(|| {
        process
            .as_mut()
            .and_then(|process| process.said())
            .or_else(|| jail.said())
    });
    said.into_iter().any(|message| is_end(&message.event))
}

fn is_read_at_import(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    MODULES.iter().any(|ending| name.ends_with(ending)) || SETTINGS.contains(&name)
}

impl Waiting {
    /// Whether its session or its program has ended.
    fn has_ended(&mut self) -> bool {
        has_ended(self.program.as_mut().map(|(process, _)| process), &mut self.jail)
    }

    async fn close(&mut self) {
        if !self.jail.close(CLOSE).await && !self.jail.jailer().is_gone() {
            warn!(session = %self.jail.id(), "session not confirmed closed");
        }
    }
}

impl Ahead {
    /// Begins to make the session ready, behind the caller: it has its place already, and no file goes in.
    pub fn begin(self, walk: Walk) -> Self {
        match self {
            Self::Reserved(reserved) => {
                let tracker = reserved.pool.closing.clone();
                Self::Readying(tracker.spawn(reserved.claim(Some(walk))))
            }
            begun @ Self::Readying(_) => begun,
        }
    }

    /// The session, ready; `None` if it has ended meanwhile, and nothing of it is left.
    pub async fn ready(self) -> Option<Ready> {
        match self {
            Self::Reserved(reserved) => reserved.claim(None).await,
            Self::Readying(ready) => ready.await.ok().flatten(),
        }
    }

    /// Closes the session, which nobody wants any more.
    pub async fn close(self) {
        let closing = async {
            if let Some(mut waiting) = self.ready().await.and_then(Ready::into_waiting) {
                waiting.close().await;
            }
        };
        if tokio::time::timeout(CLOSE, closing).await.is_err() {
            warn!("a session that nobody wants was not confirmed closed");
        }
    }
}

impl Ready {
    /// The session, which whoever takes it out must close.
    pub fn into_waiting(mut self) -> Option<Box<Waiting>> {
        self.reserved.waiting.take()
    }
}

impl Reserved {
    /// Makes the session an ordinary one, and looks at its files meanwhile, if that is asked for.
    async fn claim(mut self, walk: Option<Walk>) -> Option<Ready> {
        let waiting = self.waiting.as_mut()?;
        let Waiting {
            jail, files, program, ..
        } = waiting.as_mut();
        let taking = take(jail, program.as_ref().map(|(process, _)| process.id().clone()));
        let walking = async {
            match walk {
                Some(walk) => Some(files.snapshot(walk).await),
                None => None,
            }
        };
        let (is_taken, walked) = tokio::join!(taking, walking);
        if is_taken {
            return Some(Ready { reserved: self, walked });
        }
        waiting.close().await;
        self.waiting = None;
        None
    }
}

/// Has the jailer make a session an ordinary one.
async fn take(jail: &mut Jail, execution: Option<Id>) -> bool {
    let request = Request::Take {
        session: jail.id().clone(),
        execution,
    };
    if jail.ask(request).await.is_err() {
        return false;
    }
    while let Some(message) = jail.next().await {
        match message.event {
            Event::Taken { .. } => return true,
            Event::Closed { .. } => return false,
            event => debug!(?event, "jailer event passed over"),
        }
    }
    false
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            self.pool.put_away(*waiting);
        }
    }
}

#[cfg(test)]
mod tests {
    use brig_jailer::policy::Resolved;

    use super::*;

    #[test]
    fn files_that_python_reads_at_an_import_are_told_from_data() {
        for path in ["x.py", "a/b/__init__.py", "m.cpython-311.so", "lib.zip", "matplotlibrc"] {
            assert!(is_read_at_import(path), "{path}");
        }
        for path in ["data.csv", "py", "a/notes.txt", "x.py.txt"] {
            assert!(!is_read_at_import(path), "{path}");
        }
    }

    #[test]
    fn tenants_have_what_they_share_and_nothing_else_in_common() {
        let job = Job {
            work: Work::Code {
                source: String::new(),
                filename: "main.py".to_owned(),
                arguments: Vec::new(),
            },
            ..crate::run::testing::job("e1")
        };
        let who = |tenant: &str, class: &str| Principal {
            tenant: tenant.to_owned(),
            class: class.to_owned(),
            ..(*crate::run::testing::principal()).clone()
        };
        let is_common = |share, one: &Principal, other: &Principal| {
            Kind::of(&job, share, one).unwrap() == Kind::of(&job, share, other).unwrap()
        };
        let (one, two, three) = (who("one", "a"), who("two", "a"), who("three", "b"));
        assert!(is_common(Share::Tenant, &one, &one) && !is_common(Share::Tenant, &one, &two));
        assert!(is_common(Share::Class, &one, &two) && !is_common(Share::Class, &two, &three));
        assert!(is_common(Share::All, &two, &three));
    }

    #[test]
    fn what_had_to_be_known_before_is_started_and_with_limits_of_its_own_it_is_forked() {
        let plain = || Job {
            work: Work::Code {
                source: String::new(),
                filename: "main.py".to_owned(),
                arguments: Vec::new(),
            },
            ..crate::run::testing::job("e1")
        };
        let principal = crate::run::testing::principal();
        let starts = |job: &Job| Kind::of(job, Share::All, &principal).map(|(kind, is_usual)| (kind.starts, is_usual));
        assert_eq!(starts(&plain()), Some((false, true)));
        let changes: [fn(&mut Job); 4] = [
            |job| job.environment = vec![(b"A".to_vec(), b"b".to_vec())],
            |job| job.stdin = Some(Vec::new()),
            |job| job.merge_stderr = true,
            |job| job.conditions.times.cpu_ms = Some(1),
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut job = plain();
            change(&mut job);
            assert_eq!(starts(&job), Some((true, true)), "{number}");
            job.conditions.limits.memory_bytes += 1;
            assert_eq!(starts(&job), None, "{number}");
        }
        for (change, expected) in [
            (|limits| limits.memory_bytes += 1, Some((false, false))),
            // A process has these from its zygote.
            (|limits| limits.open_files -= 1, None),
            (|limits| limits.cpu_millis += 5_000, None),
        ] as [(fn(&mut Resolved), _); 3]
        {
            let mut greedy = plain();
            change(&mut greedy.conditions.limits);
            assert_eq!(starts(&greedy), expected);
        }
    }
}
