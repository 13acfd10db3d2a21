//! What a session uses at one moment.

use super::serve::Jailer;
use super::session::Phase;
use crate::api::Event;
use crate::ids::Id;

impl Jailer {
    /// Tells what a session uses; every question has its answer.
    pub(super) fn tell_usage(&mut self, session: Id) {
        let up = self.sessions.get(&session).filter(|session| session.phase == Phase::Up);
        let usage = up.and_then(|up| match up.usage() {
            Ok(usage) => Some(usage),
            Err(error) => {
                tracing::warn!(%session, %error, "usage can't be read");
                None
            }
        });
        self.tell(Event::Usage { session, usage }, Vec::new());
    }
}
