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
    /// None if it was taken beyond all that there are.
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

    /// Whether a place is free.
    pub fn has_room(&self) -> bool {
        self.semaphore.available_permits() > 0
    }

    /// Takes a place that is free.
    pub fn try_take(self: &Arc<Self>) -> Option<Slot> {
        let permit = Arc::clone(&self.semaphore).try_acquire_owned().ok()?;
        Some(self.slot(permit))
    }

    /// Takes a place for what exists already, also where there is none: it goes when it is given back.
    pub fn take_over(self: &Arc<Self>) -> Slot {
        let permit = Arc::clone(&self.semaphore).try_acquire_owned().ok();
        if permit.is_none() {
            self.lock().surplus += 1;
        }
        Slot {
            permit,
            slots: Arc::clone(self),
        }
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
        // Given back here, before somebody can look.
        match (bounds.surplus, self.permit.take()) {
            (0, Some(permit)) => drop(permit),
            (0, None) => self.slots.semaphore.add_permits(1),
            (_, permit) => {
                bounds.surplus -= 1;
                if let Some(permit) = permit {
                    permit.forget();
                }
            }
        }
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
    async fn what_exists_already_has_a_place_also_where_there_is_none() {
        let slots = Slots::new(2);
        let mut taken: Vec<_> = (0..4).map(|_| slots.take_over()).collect();
        assert_eq!(slots.taken(), 4);
        // Those that are beyond go first or last.
        for left in [3, 2, 1, 0] {
            let last = taken.pop();
            drop(last);
            assert_eq!(slots.taken(), left);
            assert_eq!(slots.try_take().is_some(), left < 2);
            taken.rotate_left(usize::from(left == 3));
        }
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
