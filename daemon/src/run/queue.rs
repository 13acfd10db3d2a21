//! Who may run, and who waits: first come, first served, within the limits of the configuration.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brig_proto::v1::ExecutionState;

use crate::config::Limits;
use crate::run::log::Log;
use crate::slots::{Slot, Slots};
use crate::status::Problem;

/// The places of executions.
#[derive(Debug)]
pub struct Queue {
    slots: Arc<Slots>,
    waiting_max: AtomicUsize,
    waiting: Mutex<VecDeque<Arc<Log>>>,
}

/// A place to run; it is free again when this is dropped, which is when the jail is gone.
#[derive(Debug)]
pub struct Permit(#[expect(dead_code, reason = "held for its drop")] Slot);

/// What an execution got.
#[derive(Debug)]
pub enum Place {
    Now(Permit),
    Later(Ticket),
}

/// A place in the queue.
#[derive(Debug)]
pub struct Ticket {
    queue: Arc<Queue>,
    log: Arc<Log>,
}

impl Queue {
    /// Makes an empty queue.
    pub fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            slots: Slots::new(limits.running),
            waiting_max: AtomicUsize::new(limits.queue),
            waiting: Mutex::new(VecDeque::new()),
        })
    }

    /// Takes other limits. What runs and what waits stays.
    pub fn resize(&self, limits: &Limits) {
        self.slots.resize(limits.running);
        self.waiting_max.store(limits.queue, Ordering::Relaxed);
    }

    /// Takes a place for an execution and tells its log which.
    pub fn enter(self: &Arc<Self>, log: &Arc<Log>) -> Result<Place, Problem> {
        self.take(log, self.waiting_max.load(Ordering::Relaxed))
    }

    /// Takes a place for an execution that was accepted before and has waited elsewhere: it is not refused.
    pub fn join(self: &Arc<Self>, log: &Arc<Log>) -> Result<Place, Problem> {
        self.take(log, usize::MAX)
    }

    /// Gives a place to what runs already.
    pub fn take_over(&self) -> Permit {
        Permit(self.slots.take_over())
    }

    /// Whether nobody would have to wait now.
    pub fn has_room(&self) -> bool {
        self.lock().is_empty() && self.slots.has_room()
    }

    /// How many run, and how many wait.
    pub fn load(&self) -> (usize, usize) {
        (self.slots.taken(), self.lock().len())
    }

    fn take(self: &Arc<Self>, log: &Arc<Log>, waiting_max: usize) -> Result<Place, Problem> {
        let mut waiting = self.lock();
        if waiting.is_empty()
            && let Some(slot) = self.slots.try_take()
        {
            log.place(ExecutionState::Running, 0);
            return Ok(Place::Now(Permit(slot)));
        }
        if waiting.len() >= waiting_max {
            return Err(Problem::QueueFull(waiting.len()));
        }
        waiting.push_back(Arc::clone(log));
        log.place(ExecutionState::Queued, position(waiting.len()));
        Ok(Place::Later(Ticket {
            queue: Arc::clone(self),
            log: Arc::clone(log),
        }))
    }

    fn leave(&self, log: &Arc<Log>) {
        let mut waiting = self.lock();
        waiting.retain(|other| !Arc::ptr_eq(other, log));
        for (index, log) in waiting.iter().enumerate() {
            log.place(ExecutionState::Queued, position(index + 1));
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Log>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// Waits for a place to run. Dropping the call gives the place in the queue up.
    pub async fn wait(self) -> Permit {
        let slot = self.queue.slots.take().await;
        self.log.place(ExecutionState::Running, 0);
        Permit(slot)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.queue.leave(&self.log);
    }
}

fn position(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use brig_jailer::ids::Id;

    use crate::output::Output;

    use super::*;

    fn log(name: &str) -> Arc<Log> {
        let id = Id::parse(name).unwrap();
        Arc::new(Log::new(id.clone(), id, Output::new(1)))
    }

    fn queue(running: usize, queue: usize) -> Arc<Queue> {
        Queue::new(&Limits {
            running,
            queue,
            ..Limits::default()
        })
    }

    fn place(log: &Log) -> (ExecutionState, u32) {
        let progress = log.progress();
        (progress.state, progress.queue_position)
    }

    #[tokio::test]
    async fn who_waits_is_told_its_position_and_moves_up() {
        let queue = queue(1, 2);
        let [a, b, c, d] = ["a", "b", "c", "d"].map(log);
        let Place::Now(running) = queue.enter(&a).unwrap() else {
            panic!("a place was free")
        };
        let Place::Later(second) = queue.enter(&b).unwrap() else {
            panic!("no place was free")
        };
        let Place::Later(_third) = queue.enter(&c).unwrap() else {
            panic!("no place was free")
        };
        assert_eq!([place(&a), place(&b), place(&c)].map(|place| place.1), [0, 1, 2]);
        assert!(matches!(queue.enter(&d), Err(Problem::QueueFull(2))));
        assert_eq!(queue.load(), (1, 2));
        drop(running);
        let _running = second.wait().await;
        assert_eq!(place(&b), (ExecutionState::Running, 0));
        assert_eq!(place(&c), (ExecutionState::Queued, 1));
    }

    #[tokio::test]
    async fn who_gives_up_makes_room() {
        let queue = queue(1, 1);
        let [a, b, c] = ["a", "b", "c"].map(log);
        let _running = queue.enter(&a).unwrap();
        let waiting = queue.enter(&b).unwrap();
        drop(waiting);
        assert!(matches!(queue.enter(&c), Ok(Place::Later(_))));
    }
}
