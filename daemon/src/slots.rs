//! A number of places that a reload may change while some are taken.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places.
#[derive(Debug)]
pub struct Slots {
    semaphore: Arc<Semaphore>,
    bounds: Mutex<Bounds>,
}

#[derive(Debug, Clone, Copy)]
struct Bounds {
    max: usize,
    /// Places that are taken though there are no longer so many; they go when they are given back.
    surplus: usize,
}

/// A place; free again when it is dropped.
#[derive(Debug)]
pub struct Slot {
    permit: Option<OwnedSemaphorePermit>,
    slots: Arc<Slots>,
}

impl Slots {
    /// Makes places, all of them free.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            semaphore: Arc::new(Semaphore::new(max)),
            bounds: Mutex::new(Bounds { max, surplus: 0 }),
        })
    }

    /// Waits for a place; who waits longest has the next one.
    pub async fn take(self: &Arc<Self>) -> Slot {
        let permit = Arc::clone(&self.semaphore).acquire_owned().await;
        self.slot(permit.expect("the semaphore is never closed"))
    }

    /// Takes a place that is free.
    pub fn try_take(self: &Arc<Self>) -> Option<Slot> {
        let permit = Arc::clone(&self.semaphore).try_acquire_owned().ok()?;
        Some(self.slot(permit))
    }

    /// How many places are taken.
    pub fn taken(&self) -> usize {
        let bounds = self.lock();
        (bounds.max + bounds.surplus).saturating_sub(self.semaphore.available_permits())
    }

    /// Changes how many places there are. Those that are taken stay so.
    pub fn resize(&self, max: usize) {
        let mut bounds = self.lock();
        if max >= bounds.max {
            let more = max - bounds.max;
            let paid = more.min(bounds.surplus);
            bounds.surplus -= paid;
            self.semaphore.add_permits(more - paid);
        } else {
            let fewer = bounds.max - max;
            bounds.surplus += fewer - self.semaphore.forget_permits(fewer);
        }
        bounds.max = max;
    }

    fn slot(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Slot {
        Slot {
            permit: Some(permit),
            slots: Arc::clone(self),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Bounds> {
        self.bounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut bounds = self.slots.lock();
        if bounds.surplus > 0
            && let Some(permit) = self.permit.take()
        {
            bounds.surplus -= 1;
            permit.forget();
        }
        // Else given back here, before somebody can look.
        self.permit = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_that_are_taken_stay_taken_when_there_are_fewer() {
        let slots = Slots::new(3);
        let mut taken: Vec<_> = (0..3).map(|_| slots.try_take().unwrap()).collect();
        slots.resize(1);
        assert_eq!(slots.taken(), 3);
        taken.truncate(1);
        assert_eq!(slots.taken(), 1);
        assert!(slots.try_take().is_none(), "one place, and it is taken");
        taken.clear();
        assert_eq!(slots.taken(), 0);
        let _one = slots.try_take().unwrap();
        assert!(slots.try_take().is_none());
    }

    #[tokio::test]
    async fn free_places_go_first_and_more_let_in_who_waits() {
        let slots = Slots::new(2);
        let _first = slots.try_take().unwrap();
        slots.resize(1);
        assert!(slots.try_take().is_none());
        let waiting = tokio::spawn({
            let slots = Arc::clone(&slots);
            async move { slots.take().await }
        });
        slots.resize(2);
        let _second = waiting.await.unwrap();
        assert_eq!(slots.taken(), 2);
    }

    #[tokio::test]
    async fn more_after_fewer_pays_for_what_is_taken() {
        let slots = Slots::new(2);
        let taken = [slots.try_take().unwrap(), slots.try_take().unwrap()];
        slots.resize(1);
        slots.resize(2);
        assert!(slots.try_take().is_none());
        drop(taken);
        let _both = [slots.try_take().unwrap(), slots.try_take().unwrap()];
        assert!(slots.try_take().is_none());
    }
}
