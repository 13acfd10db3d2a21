//! How long, and how often, a broken connection is tried again.

use std::time::{Duration, Instant};

use brig_jailer::units::Span;

use crate::failure::Failure;

/// A restart of the daemon takes seconds.
const MOST: Duration = Duration::from_secs(60);
/// The first pause; each further one is twice as long.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);
/// A connection that held so long was mended, even if nothing happened on it.
const STEADY: Duration = Duration::from_secs(5);

/// What is left of the time for one outage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    most: Duration,
    /// When the outage counts as permanent; none while the connection holds.
    deadline: Option<Instant>,
    pause: Duration,
    /// Since when there is the present connection.
    opened: Option<Instant>,
}

impl Patience {
    /// Allows an outage to last so long.
    pub(crate) fn of(most: Duration) -> Self {
        Self {
            most,
            deadline: None,
            pause: SHORTEST,
            opened: None,
        }
    }

    /// No outage is waited for.
    pub(crate) fn none() -> Self {
        Self::of(Duration::ZERO)
    }

    /// What `BRIG_RECONNECT` says, else 60 s.
    pub(crate) fn from_environment() -> Result<Self, Failure> {
        match std::env::var("BRIG_RECONNECT") {
            Ok(text) if !text.is_empty() => text
                .parse::<Span>()
                .map(|span| Self::of(span.duration()))
                .map_err(|error| Failure::usage("BRIG_RECONNECT", error.to_string())),
            _ => Ok(Self::of(MOST)),
        }
    }

    /// How long an outage may last.
    pub(crate) fn most(&self) -> Duration {
        self.most
    }

    /// When the present outage counts as permanent; none if there is no outage.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// There is a connection. Whether the outage is over shows when it breaks.
    pub(crate) fn opened(&mut self, now: Instant) {
        self.opened = Some(now);
    }

    /// The connection broke, or there was none: how long to wait before the next try. None if that has gone on for too
    /// long. `progress` says that the last connection was good for something: a new outage begins, with all the time.
    pub(crate) fn pause(&mut self, now: Instant, progress: bool) -> Option<Duration> {
        let opened = self.opened.take();
        let steady = opened.is_some_and(|opened| now.saturating_duration_since(opened) >= STEADY);
        if progress || steady {
            *self = Self::of(self.most);
        }
        let deadline = *self.deadline.get_or_insert(now + self.most);
        let left = deadline.saturating_duration_since(now);
        if left.is_zero() {
            return None;
        }
        let pause = self.pause.min(left);
        self.pause = (self.pause * 2).min(LONGEST);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits as long as it is told, and gives the pauses in milliseconds; `meanwhile` happens behind each.
    fn pauses(mut patience: Patience, now: &mut Instant, meanwhile: fn(&mut Patience, Instant)) -> Vec<u128> {
        std::iter::from_fn(|| {
            let pause = patience.pause(*now, false)?;
            *now += pause;
            meanwhile(&mut patience, *now);
            Some(pause.as_millis())
        })
        .collect()
    }

    #[test]
    fn pauses_grow_and_end_with_the_patience() {
        let mut now = Instant::now();
        let four = Patience::of(Duration::from_secs(4));
        let grown = [50, 100, 200, 400, 800, 1000, 1000, 450];
        assert_eq!(pauses(four, &mut now, |_, _| ()), grown);
        // Connections that break at once are of no use.
        assert_eq!(pauses(four, &mut now, Patience::opened), grown);
        assert_eq!(
            pauses(Patience::of(MOST), &mut now, |_, _| ()).iter().sum::<u128>(),
            60_000
        );
        assert_eq!(pauses(Patience::none(), &mut now, |_, _| ()), []);
    }

    #[test]
    fn what_came_after_an_outage_decides_whether_it_is_over() {
        let second = Duration::from_secs(1);
        let now = Instant::now();
        let mut patience = Patience::of(second);
        assert!(patience.pause(now, false).is_some());
        assert_eq!(patience.pause(now + second, true), Some(SHORTEST), "something was seen");
        patience.opened(now + second * 2);
        assert_eq!(patience.pause(now + second * 7, false), Some(SHORTEST), "it held");
        assert_eq!(patience.pause(now + second * 8, false), None, "nothing came after it");
    }

    #[test]
    fn a_connection_that_held_is_counted_once() {
        let mut now = Instant::now();
        let mut patience = Patience::of(MOST);
        patience.opened(now);
        now += STEADY;
        let total: u128 = pauses(patience, &mut now, |_, _| ()).iter().sum();
        assert_eq!(total, 60_000);
    }
}
