//! When a session ends or is paused by itself.

use std::time::{Duration, SystemTime};

use brig_proto::v1::SessionCloseReason;
use tokio::time::Instant;

use super::{Session, State};

/// What happens to a session by itself, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    pub at: Instant,
    pub what: Timeout,
}

/// What happens to a session whose time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeout {
    Close(SessionCloseReason),
    Pause,
}

impl Session {
    /// What happens next if nobody uses it.
    pub fn due(&self) -> Due {
        self.due_of(&self.lock())
    }

    /// Has it end or pause if it is time for that: somebody may have used it, or given it more time, meanwhile.
    pub fn act_if_due(&self) {
        self.change(|state| {
            let due = self.due_of(state);
            if due.at > Instant::now() {
                return;
            }
            match due.what {
                Timeout::Close(reason) => state.close(reason),
                Timeout::Pause => state.pausing = true,
            }
        });
    }

    /// A paused session is not idle, however long it is. It expires, which does nothing more to one that is to be paused
    /// then; at its greatest age it is closed in any case.
    fn due_of(&self, state: &State) -> Due {
        let settings = &state.settings;
        let at = |time: SystemTime| {
            let left = time.duration_since(SystemTime::now()).unwrap_or_default();
            Instant::now() + left
        };
        let timeout = |reason| {
            if settings.pause_on_timeout {
                Timeout::Pause
            } else {
                Timeout::Close(reason)
            }
        };
        let mut due = Due {
            at: at(self.end_time),
            what: Timeout::Close(SessionCloseReason::Expired),
        };
        let mut sooner = |at: Instant, reason| {
            let what = timeout(reason);
            if at < due.at && !(state.pausing && what == Timeout::Pause) {
                due = Due { at, what };
            }
        };
        sooner(at(settings.expire_time), SessionCloseReason::Expired);
        if state.users == 0 && state.file_calls == 0 && !state.pausing {
            let idle = Duration::from_millis(settings.idle_timeout_ms);
            sooner(state.idle_since + idle, SessionCloseReason::Idle);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use brig_jailer::api::Enforced;
    use brig_proto::v1::SessionState;

    use super::super::Settings;
    use super::super::memo::tests::{policy, session};
    use super::*;

    /// A session that is up, expires after so many seconds, and is idle after so many; its greatest age is 60 s.
    fn living(expire: u64, idle: u64, pause_on_timeout: bool) -> Session {
        let session = session(policy("data"), BTreeMap::new());
        session.made(Enforced::default());
        session.set(Settings {
            expire_time: SystemTime::now() + Duration::from_secs(expire),
            idle_timeout_ms: idle * 1000,
            pause_on_timeout,
            ..session.settings()
        });
        session
    }

    /// What is due next, and in how many seconds, to the next five.
    fn due(session: &Session) -> (u64, Timeout) {
        let due = session.due();
        let left = due.at.saturating_duration_since(Instant::now()) + Duration::from_millis(2500);
        (left.as_secs() / 5 * 5, due.what)
    }

    const IDLE: Timeout = Timeout::Close(SessionCloseReason::Idle);
    const EXPIRED: Timeout = Timeout::Close(SessionCloseReason::Expired);

    #[tokio::test]
    async fn the_earliest_of_idleness_expiry_and_greatest_age_counts() {
        assert_eq!(due(&living(20, 10, false)), (10, IDLE));
        assert_eq!(due(&living(10, 20, false)), (10, EXPIRED));
        assert_eq!(due(&living(20, 10, true)), (10, Timeout::Pause));
        assert_eq!(due(&living(10, 20, true)), (10, Timeout::Pause));
        assert_eq!(due(&living(90, 90, true)), (60, EXPIRED));
    }

    #[tokio::test]
    async fn a_paused_session_is_not_idle_and_is_paused_once() {
        let paused = |pause_on_timeout| {
            let session = living(20, 10, pause_on_timeout);
            session.pause();
            assert!(session.is_pausing() && session.phase() == SessionState::Running);
            session.paused(true);
            session
        };
        assert_eq!(due(&paused(false)), (20, EXPIRED));
        assert_eq!(due(&paused(true)), (60, EXPIRED));
    }

    #[tokio::test]
    async fn what_is_due_is_done_and_one_that_had_expired_gets_its_time_once_more() {
        let session = living(0, 10, true);
        session.act_if_due();
        assert!(session.is_pausing());
        // Until the jailer has answered, nothing else is due.
        assert_eq!(due(&session), (60, EXPIRED));
        session.paused(true);
        session.resume().unwrap();
        // expire_after is 60 s, and so is the greatest age.
        assert_eq!(session.settings().expire_time, session.end_time);
        session.paused(false);
        assert_eq!(due(&session), (10, Timeout::Pause));
        let session = living(0, 10, false);
        session.act_if_due();
        assert_eq!(
            (session.phase(), session.reason()),
            (SessionState::Closing, SessionCloseReason::Expired)
        );
        assert!(session.resume().is_err());
    }
}
