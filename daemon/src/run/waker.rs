//! Wakes the thread that moves an execution's bytes.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError, Weak};

/// The thread to wake, as soon as there is one and as long as it runs: what has ended is remembered for long, and must not
/// hold a descriptor.
#[derive(Debug, Default)]
pub struct Waker(Mutex<Weak<OwnedFd>>);

impl Waker {
    /// Says what wakes the thread: an eventfd that never blocks.
    pub fn aim(&self, event: Weak<OwnedFd>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = event;
    }

    /// Wakes the thread, if there is one.
    pub fn wake(&self) {
        if let Some(event) = self.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade() {
            // It is full only when nobody has looked for a very long time, and then it wakes just as well.
            let _ = rustix::io::write(&*event, &1_u64.to_ne_bytes());
        }
    }
}
