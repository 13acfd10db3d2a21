//! What the service manager is told about the jailer: that it is ready, that its loop turns, how many sessions it has.

use std::time::Duration;

use super::events::Timer;
use super::serve::Jailer;
use crate::service::notify::{Notifier, NotifyState, watchdog};

/// Signs of life within the time after which the manager gives the jailer up.
const SIGNS: u32 = 3;
/// Time between two statuses.
const PACE: Duration = Duration::from_secs(1);

/// What was told, and to whom.
#[derive(Debug)]
pub(super) struct Supervision {
    notifier: Notifier,
    /// Sessions in the last status.
    told: Option<usize>,
    /// The next status has to wait for its timer.
    paced: bool,
    stopping: bool,
}

impl Supervision {
    pub(super) fn new(notifier: Notifier) -> Self {
        Self {
            notifier,
            told: None,
            paced: false,
            stopping: false,
        }
    }
}

impl Jailer {
    /// Everything is there to serve a client.
    pub(super) fn tell_ready(&mut self) {
        self.supervision.notifier.tell(&[NotifyState::Ready]);
        self.tell_life();
    }

    /// The loop turns: told by a timer of it, so that it is not told when it doesn't.
    pub(super) fn tell_life(&mut self) {
        if let Some(limit) = watchdog()
            && self.supervision.notifier.is_heard()
        {
            self.supervision.notifier.tell(&[NotifyState::Watchdog]);
            self.events.after(limit / SIGNS, Timer::Watchdog);
        }
    }

    /// Tells how many sessions there are, if that is news.
    pub(super) fn tell_status(&mut self) {
        let sessions = self.wanted_sessions();
        let supervision = &mut self.supervision;
        if supervision.notifier.is_heard() && !supervision.paced && supervision.told != Some(sessions) {
            supervision.notifier.status(&format!("{sessions} sessions"));
            supervision.told = Some(sessions);
            supervision.paced = true;
            self.events.after(PACE, Timer::Status);
        }
    }

    pub(super) fn status_may_be_told(&mut self) {
        self.supervision.paced = false;
    }

    pub(super) fn tell_stopping(&mut self) {
        if !std::mem::replace(&mut self.supervision.stopping, true) {
            self.supervision.notifier.tell(&[NotifyState::Stopping]);
        }
    }
}
