//! What the service manager is told about the daemon: ready, stopping, reloading, and how much goes on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use brig_jailer::service::notify::{Notifier, NotifyState};
use tokio::time::MissedTickBehavior;

use crate::host::Host;
use crate::server::stop_takes;

/// Time between two looks at what goes on.
const PACE: Duration = Duration::from_secs(1);

/// Tells the manager; what it was told last is not told again.
#[derive(Debug)]
pub struct Reporter {
    notifier: Notifier,
    shown: Mutex<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    load: String,
    /// Why the last reload was refused.
    refusal: Option<String>,
    /// Which parts of the daemon don't answer.
    silence: Option<String>,
    /// The status as it was told.
    told: String,
}

impl Reporter {
    /// Tells by `notifier`.
    pub fn new(notifier: Notifier) -> Self {
        Self {
            notifier,
            shown: Mutex::default(),
        }
    }

    /// Whether somebody listens.
    pub fn is_heard(&self) -> bool {
        self.notifier.is_heard()
    }

    /// Tells states.
    pub fn tell(&self, states: &[NotifyState<'_>]) {
        self.notifier.tell(states);
    }

    /// Keeps the status up to date; ends with the task.
    pub async fn follow(&self, host: &Host) {
        let mut ticks = tokio::time::interval(PACE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.show(|shown| shown.load = load(host));
        }
    }

    /// Notes how the last reload went.
    pub fn note_reload(&self, refusal: Option<String>) {
        self.show(|shown| shown.refusal = refusal);
    }

    /// Notes which parts don't answer; true if that is over.
    pub fn note_silence(&self, silence: Option<String>) -> bool {
        let over = silence.is_none() && self.lock().silence.is_some();
        self.show(|shown| shown.silence = silence);
        over
    }

    fn show(&self, change: impl FnOnce(&mut Shown)) {
        let mut shown = self.lock();
        change(&mut shown);
        let status = shown.status();
        if status != shown.told {
            self.notifier.status(&status);
            shown.told = status;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shown {
    fn status(&self) -> String {
        let refusal = self.refusal.as_ref().map(|why| format!("last reload refused: {why}"));
        let parts = [Some(self.load.clone()), self.silence.clone(), refusal];
        let parts: Vec<_> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        parts.join("; ")
    }
}

fn load(host: &Host) -> String {
    let (running, queued) = host.queue.load();
    let pending = match host.approvals.waiting() {
        0 => String::new(),
        waiting => format!(", {waiting} wait for approval"),
    };
    format!(
        "{running} running, {queued} queued, {} sessions{pending}",
        host.sessions()
    )
}

/// Follows the daemon until it is told to stop, and tells that it stops and how long that may take.
pub async fn until_stop(host: Arc<Host>, reporter: Arc<Reporter>) {
    tokio::select! {
        () = reporter.follow(&host) => {}
        () = host.draining.cancelled() => {}
    }
    let microseconds = u32::try_from(stop_takes(&host.config()).as_micros()).unwrap_or(u32::MAX);
    reporter.tell(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(microseconds)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_keeps_what_went_wrong_until_it_is_mended() {
        let reporter = Reporter::new(Notifier::default());
        let told = || reporter.lock().told.clone();
        reporter.show(|shown| shown.load = "1 running".to_owned());
        reporter.note_reload(Some("bad".to_owned()));
        reporter.show(|shown| shown.load = "2 running".to_owned());
        assert_eq!(told(), "2 running; last reload refused: bad");
        assert!(!reporter.note_silence(Some("does not answer: ledger".to_owned())));
        assert_eq!(told(), "2 running; does not answer: ledger; last reload refused: bad");
        assert!(reporter.note_silence(None));
        reporter.note_reload(None);
        assert_eq!(told(), "2 running");
    }
}
