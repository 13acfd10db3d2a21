//! Sessions that stand still: their programs are frozen, and their clocks do not run.
//!
//! The freezer of version 2 lets a frozen process die: whatever ends a program or a session ends a paused one too. The
//! age of the session goes on, and its file helper works. A program that was ordered before a pause and is not there yet
//! stands still as soon as it is.

use std::time::{Duration, Instant};

use super::executions::Execution;
use super::serve::Jailer;
use super::session::{Phase, Session};
use crate::api::{CloseReason, Event};
use crate::ids::Id;

impl Jailer {
    /// Stops or starts all programs of a session with their clocks.
    pub(super) fn pause(&mut self, id: &Id, paused: bool) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.phase == Phase::Up) else {
            return;
        };
        for (name, execution) in &session.executions {
            if let Err(error) = execution.leaf.freeze(paused) {
                tracing::error!(session = %id, execution = %name, paused, %error, "execution can't be paused or resumed");
                // It would run on, or never again, and nobody would know.
                return self.close(id, CloseReason::Died);
            }
        }
        let going_on = match (paused, session.paused) {
            (true, None) => {
                session.paused = Some(Instant::now());
                Vec::new()
            }
            (false, Some(since)) => {
                session.paused = None;
                session.give_back(since.elapsed())
            }
            _ => Vec::new(),
        };
        for name in going_on {
            self.run_clock(id, &name);
        }
        tracing::info!(session = %id, paused, "session paused or resumed");
        let event = Event::Paused {
            session: id.clone(),
            paused,
        };
        self.tell_about(id, event);
    }

    /// Whether a session is paused.
    pub(super) fn stands_still(&self, id: &Id) -> bool {
        self.sessions.get(id).is_some_and(|session| session.paused.is_some())
    }
}

impl Session {
    /// The time of its clocks, which is that of the host unless it is paused.
    pub(super) fn now(&self) -> Instant {
        self.paused.unwrap_or_else(Instant::now)
    }

    /// Gives every program the time back in which it stood still; says which there are.
    fn give_back(&mut self, stood_still: Duration) -> Vec<Id> {
        for execution in self.executions.values_mut() {
            execution.told.started += stood_still;
            let deadline = execution.clock.deadline.as_mut();
            deadline.into_iter().for_each(|deadline| *deadline += stood_still);
        }
        self.executions.keys().cloned().collect()
    }

    /// The wall time that a program still has.
    pub(super) fn time_left(&self, execution: &Execution) -> Option<Duration> {
        let deadline = execution.clock.deadline;
        deadline.map(|deadline| deadline.saturating_duration_since(self.now()))
    }
}
