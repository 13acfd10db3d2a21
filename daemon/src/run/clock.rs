//! The clock of what runs in a session: it stands still while the session is paused.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// A clock; copies of it are the same one. One that nobody stops is that of the host.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<watch::Sender<Still>>);

/// How long a clock has stood still.
#[derive(Debug, Clone, Copy, Default)]
struct Still {
    /// In pauses that are over.
    before: Duration,
    /// When it was stopped, if it stands still.
    since: Option<Instant>,
}

/// A moment to measure from.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    at: Instant,
    /// How long the clock had stood still by then.
    still: Duration,
}

impl Still {
    fn until(&self, now: Instant) -> Duration {
        let last = self.since.map(|since| now.saturating_duration_since(since));
        self.before + last.unwrap_or_default()
    }
}

impl Mark {
    /// The moment that lies so much earlier, by a clock that ran between the two.
    pub fn before(self, span: Duration) -> Self {
        let at = self.at.checked_sub(span).unwrap_or(self.at);
        Self { at, ..self }
    }
}

impl Clock {
    /// This moment.
    pub fn mark(&self) -> Mark {
        let (still, at) = (*self.0.borrow(), Instant::now());
        Mark {
            at,
            still: still.until(at),
        }
    }

    /// How long the clock has run since a moment.
    pub fn since(&self, mark: Mark) -> Duration {
        let (still, now) = (*self.0.borrow(), Instant::now());
        let still = still.until(now).saturating_sub(mark.still);
        now.saturating_duration_since(mark.at).saturating_sub(still)
    }

    /// Stops it. Harmless where it stands still.
    pub fn stop(&self) {
        self.0
            .send_modify(|still| still.since = still.since.or_else(|| Some(Instant::now())));
    }

    /// Lets it run. Harmless where it does.
    pub fn go(&self) {
        self.0.send_modify(|still| {
            still.before = still.until(Instant::now());
            still.since = None;
        });
    }

    /// Waits until it has run for so long since a moment.
    pub async fn reached(&self, mark: Mark, span: Duration) {
        let mut changes = self.0.subscribe();
        loop {
            let stands_still = changes.borrow_and_update().since.is_some();
            let left = span.saturating_sub(self.since(mark));
            tokio::select! {
                // The sender lives as long as this.
                _ = changes.changed() => {}
                () = sleep(left), if !stands_still => if self.since(mark) >= span { return },
            }
        }
    }

    /// Waits until it has run for so long from now.
    pub async fn sleep(&self, span: Duration) {
        self.reached(self.mark(), span).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn time_in_which_it_stands_still_does_not_count() {
        let clock = Clock::default();
        let mark = clock.mark();
        sleep(SECOND).await;
        clock.stop();
        clock.stop();
        sleep(SECOND * 5).await;
        assert_eq!(clock.since(mark), SECOND);
        let within = clock.mark();
        sleep(SECOND * 5).await;
        clock.go();
        clock.go();
        sleep(SECOND * 2).await;
        assert_eq!((clock.since(mark), clock.since(within)), (SECOND * 3, SECOND * 2));
        assert_eq!(clock.since(mark.before(SECOND)), SECOND * 4);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_it_waits_through_pauses() {
        let clock = Clock::default();
        let begun = Instant::now();
        let waiting = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep(SECOND * 3).await }
        });
        for _ in 0..2 {
            sleep(SECOND).await;
            clock.stop();
            sleep(SECOND * 10).await;
            clock.go();
        }
        waiting.await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 23);
    }
}
