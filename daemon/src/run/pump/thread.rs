//! The life of a pump's thread: started, told to end, waited for, abandoned.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brig_jailer::api::{Input, Refusal};
use brig_jailer::policy::Policy;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{mpsc, watch};
use tracing::{debug, error, warn};

use super::line::{Mover, Store};
use super::spare::Spares;
use super::{Fault, Line, Pump};
use crate::run::log::Log;
use crate::run::watch::Pipes;
use crate::status::Problem;

/// How long a thread may take to end that was told to, unless a call of the guest's holds it.
const ABANDON: Duration = Duration::from_secs(1);
/// The most threads that guests may hold before no new work is taken.
pub const ABANDONED_MAX: usize = 64;

/// The pumps of all executions.
#[derive(Debug, Default)]
pub struct Pumps {
    abandoned: AtomicUsize,
    spares: Spares,
}

/// How a pump came to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// Everything that was written was read.
    Whole,
    /// Somebody still held the other end of a pipe.
    Early,
    /// A call failed that must not.
    Failed,
    /// A call of the guest's holds the thread.
    Abandoned,
}

/// A running pump. Dropping it tells it to end.
#[derive(Debug)]
pub struct Handle {
    orders: Arc<Orders>,
    pumps: Arc<Pumps>,
    finish: watch::Receiver<Option<Finish>>,
    /// Which ways into the program were closed: the jailer's copy is to be closed too.
    pub inputs: mpsc::Receiver<Input>,
}

/// What a thread is told.
#[derive(Debug)]
pub(super) struct Orders {
    state: Mutex<State>,
    wake: Arc<OwnedFd>,
}

#[derive(Debug, Default)]
struct State {
    /// Until when it may go on.
    end: Option<Instant>,
    /// The program goes on, and the next brigd reads on where this one stops.
    left: bool,
    life: Life,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Life {
    #[default]
    Running,
    Abandoned,
    Over,
}

impl Pumps {
    /// Refuses new work while guests hold too many threads.
    pub fn check(&self) -> Result<(), Problem> {
        let abandoned = self.abandoned();
        if abandoned < ABANDONED_MAX {
            return Ok(());
        }
        let message =
            format!("{abandoned} programs that have ended still hold their pipes; at most {ABANDONED_MAX} may");
        Err(Problem::Jail(Refusal::Busy(message)))
    }

    /// Counts the threads that were told to end and have not.
    pub fn abandoned(&self) -> usize {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// Starts the thread of an execution whose log has its files. What fails is told by the log too.
    pub(in crate::run) fn start(
        self: &Arc<Self>,
        log: &Arc<Log>,
        policy: &Arc<Policy>,
        pipes: Pipes,
        patience: Duration,
    ) -> Option<Handle> {
        let started = self.try_start(log, policy, pipes, patience);
        started.inspect_err(|fault| log.fail(fault.to_string())).ok()
    }

    fn try_start(
        self: &Arc<Self>,
        log: &Arc<Log>,
        policy: &Arc<Policy>,
        pipes: Pipes,
        patience: Duration,
    ) -> Result<Handle, Fault> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Fault::of("eventfd"))?);
        let past = log.past().ok_or(Fault {
            call: "journal",
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        for waker in pipes.wakers().into_iter().chain([log.output().waker()]) {
            waker.aim(Arc::downgrade(&wake));
        }
        let (pump, inputs) = Pump::new(Arc::clone(log), Arc::clone(policy), pipes, &past, patience)?;
        let (orders, finish) = self.spawn(wake, Some(Arc::clone(log)), pump)?;
        Ok(Handle {
            orders,
            pumps: Arc::clone(self),
            finish,
            inputs,
        })
    }

    /// Starts the thread of a context.
    pub(in crate::run) fn start_line(self: &Arc<Self>, pipes: Pipes, store: Store) -> Result<Line, Fault> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Fault::of("eventfd"))?);
        let (mover, desk, told) = Mover::new(pipes, store)?;
        let (orders, finish) = self.spawn(wake, None, mover)?;
        // Its way in is closed by nobody but its end.
        let (_, inputs) = mpsc::channel(1);
        let handle = Handle {
            orders,
            pumps: Arc::clone(self),
            finish,
            inputs,
        };
        Ok(Line::new(handle, desk, told))
    }

    /// Closes pipes that nobody reads, on a thread of its own: that takes their locks too.
    pub(in crate::run) fn let_go(self: &Arc<Self>, pipes: Pipes) {
        let pumps = Arc::clone(self);
        pumps.abandoned.fetch_add(1, Ordering::SeqCst);
        let spawned = self.spares.run(move || {
            drop(pipes);
            pumps.abandoned.fetch_sub(1, Ordering::SeqCst);
        });
        if let Err(error) = spawned {
            // The closure is gone, and with it the pipes.
            self.abandoned.fetch_sub(1, Ordering::SeqCst);
            error!(%error, "no thread to close pipes");
        }
    }

    fn spawn(self: &Arc<Self>, wake: Arc<OwnedFd>, log: Option<Arc<Log>>, work: impl Moves) -> Result<Spawned, Fault> {
        let state = Mutex::default();
        let orders = Arc::new(Orders { state, wake });
        let (told, finish) = watch::channel(None);
        let thread = Thread {
            orders: Arc::clone(&orders),
            pumps: Arc::clone(self),
            log,
            told,
        };
        let spawned = self.spares.run(move || thread.run(work));
        spawned.map_err(|source| Fault { call: "thread", source })?;
        Ok((orders, finish))
    }
}

type Spawned = (Arc<Orders>, watch::Receiver<Option<Finish>>);

impl Handle {
    /// Has the thread look at what is new for it.
    pub(super) fn wake(&self) {
        self.orders.wake();
    }

    /// Tells the pump to end at the end of the pipes, or at `end` at the latest, and waits for that. A thread that a
    /// guest holds is abandoned.
    pub async fn finish(mut self, end: Instant) -> Finish {
        self.orders.tell(end);
        let late = tokio::time::Instant::from_std(end + ABANDON);
        let over = tokio::time::timeout_at(late, self.finish.wait_for(Option::is_some)).await;
        match over {
            Ok(Ok(finish)) => finish.clone().unwrap_or(Finish::Failed),
            // The thread panicked.
            Ok(Err(_)) => Finish::Failed,
            Err(_elapsed) => {
                warn!("a guest holds a pipe; the thread that reads it is left to itself");
                Finish::Abandoned
            }
        }
    }
}

impl Drop for Handle {
    /// Where nobody waits for the end, brigd stops before its program does.
    fn drop(&mut self) {
        self.orders.lock().left = true;
        self.orders.tell(Instant::now());
        let mut state = self.orders.lock();
        if state.life == Life::Running {
            state.life = Life::Abandoned;
            self.pumps.abandoned.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Orders {
    fn tell(&self, end: Instant) {
        {
            let mut state = self.lock();
            state.end = Some(state.end.map_or(end, |before| before.min(end)));
        }
        self.wake();
    }

    fn wake(&self) {
        // It is full only when nobody has looked for a very long time, and then it wakes just as well.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    /// Until when the pump may go on, if it was told to end.
    pub(super) fn end(&self) -> Option<Instant> {
        self.lock().end
    }

    fn is_left(&self) -> bool {
        self.lock().left
    }

    /// Can be read when there is something new.
    pub(super) fn wakes(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Notes that what is new was seen.
    pub(super) fn seen(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a thread does.
pub(super) trait Moves: Send + 'static {
    /// Moves bytes until all that is written was read, or until it is told to end. Whether everything was read.
    fn run(&mut self, orders: &Orders) -> Result<bool, Fault>;
}

impl Moves for Pump {
    fn run(&mut self, orders: &Orders) -> Result<bool, Fault> {
        Self::run(self, orders)
    }
}

/// The thread itself.
struct Thread {
    orders: Arc<Orders>,
    pumps: Arc<Pumps>,
    /// The log of its execution; the thread of a context has one for each.
    log: Option<Arc<Log>>,
    told: watch::Sender<Option<Finish>>,
}

impl Thread {
    fn run(self, mut pump: impl Moves) {
        let ran = pump.run(&self.orders);
        if let (Ok(_), Some(log), false) = (&ran, &self.log, self.orders.is_left()) {
            // Here, because it copies what is kept.
            log.seal();
        }
        // Closing a pipe takes its lock too.
        drop(pump);
        let finish = match ran {
            Ok(true) => Finish::Whole,
            Ok(false) => Finish::Early,
            Err(fault) => {
                error!(%fault, "output can't be kept");
                self.fail(fault.to_string());
                Finish::Failed
            }
        };
        self.over();
        self.told.send_replace(Some(finish));
    }

    fn fail(&self, fault: String) {
        if let Some(log) = &self.log {
            log.fail(fault);
        }
    }

    fn over(&self) {
        let mut state = self.orders.lock();
        if state.life == Life::Abandoned {
            self.pumps.abandoned.fetch_sub(1, Ordering::SeqCst);
            debug!("a pump that was left to itself ended");
        }
        state.life = Life::Over;
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if self.told.borrow().is_none() {
            self.over();
            self.fail("the thread that reads the output panicked".to_owned());
        }
    }
}
