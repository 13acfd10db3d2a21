//! Pausing a session, and letting it run again.
//!
//! Who wants that says so; the task of the session asks the jailer, whose answer counts. Executions that wait for their
//! start wait on, file calls go on: the file helper is not frozen.

use std::time::{Duration, SystemTime};

use brig_proto::v1::SessionState;

use super::{Session, State};
use crate::status::Problem;

impl Session {
    /// Has it paused. Harmless where it is.
    pub fn pause(&self) {
        self.change(|state| state.pausing |= state.lives());
    }

    /// Has it run again: one that had expired for as long as it was given first.
    pub fn resume(&self) -> Result<(), Problem> {
        let mut answer = Ok(());
        self.change(|state| {
            if !state.lives() {
                answer = Err(self.closed_problem());
            } else if !state.pausing {
                answer = Err(self.running_problem());
            } else {
                state.pausing = false;
                let now = SystemTime::now();
                let settings = &mut state.settings;
                if settings.expire_time <= now {
                    let again = now + Duration::from_millis(settings.expire_after_ms);
                    settings.expire_time = again.min(self.end_time);
                    state.edits += 1;
                }
                state.touch();
            }
        });
        answer
    }

    /// Whether it is to be paused, or is.
    pub fn is_pausing(&self) -> bool {
        self.lock().pausing
    }

    /// Takes down what the jailer said.
    pub fn paused(&self, paused: bool) {
        self.change(|state| match (state.phase, paused) {
            (SessionState::Running, true) => {
                state.phase = SessionState::Paused;
                self.clock.stop();
            }
            (SessionState::Paused, false) => {
                state.phase = SessionState::Running;
                state.resumed = Some(SystemTime::now());
                state.touch();
                self.clock.go();
            }
            _ => {}
        });
    }

    /// Waits until it is paused, or runs again, as it was told to; or until somebody told it otherwise, or it ends.
    pub async fn settled(&self, paused: bool) {
        let target = if paused {
            SessionState::Paused
        } else {
            SessionState::Running
        };
        self.until(|state| {
            let over = state.phase == target || state.pausing != paused || !state.lives();
            over.then_some(())
        })
        .await;
    }

    /// Waits until programs can be started in it.
    pub async fn runs(&self) -> Result<(), Problem> {
        self.until(|state| match state.phase {
            SessionState::Running if !state.pausing => Some(Ok(())),
            SessionState::Running | SessionState::Paused => None,
            _ => Some(Err(self.closed_problem())),
        })
        .await
    }

    /// How long ago its clock stood still, if it ever did.
    pub fn stood_still(&self) -> Option<Duration> {
        let state = self.lock();
        match state.phase {
            SessionState::Paused => Some(Duration::ZERO),
            _ => state.resumed.map(|time| time.elapsed().unwrap_or_default()),
        }
    }

    /// What a call is told that a paused session can't do.
    pub fn paused_problem(&self) -> Problem {
        Problem::SessionPaused(self.id.to_string())
    }

    fn running_problem(&self) -> Problem {
        Problem::SessionNotPaused(self.id.to_string())
    }
}

impl State {
    /// Whether it is there, running or paused.
    pub(super) fn lives(&self) -> bool {
        matches!(self.phase, SessionState::Running | SessionState::Paused)
    }
}
