//! The file helper of a session: each is dead, as a whole, before the next one is ordered.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::EventFlags;

use super::{Phase, Remains, Session};
use crate::api::{CloseReason, Event};
use crate::cgroup::Leaf;
use crate::host::events::{Source, Timer, Token};
use crate::host::serve::Jailer;
use crate::ids::Id;
use crate::plan::ToInit;
use crate::step::SysError;

/// How long a killed file helper may take to be gone.
const HELPER_LIMIT: Duration = Duration::from_secs(5);

/// The file helper's group.
#[derive(Debug)]
pub(super) struct Helper {
    leaf: Leaf,
    /// How many there were before.
    number: u32,
    /// How many of those have started that were ordered.
    started: u32,
    /// Whether the client waits for another one.
    wanted: bool,
    /// Watched while the helper is killed to be replaced.
    token: Option<Token>,
}

impl Helper {
    pub(super) fn first(leaf: Leaf) -> Self {
        Self {
            leaf,
            number: 0,
            started: 0,
            wanted: false,
            token: None,
        }
    }
}

impl Jailer {
    /// Gives the client the helper that it asked for. One that an earlier client asked for ends with its socket.
    pub(super) fn helper_started(&mut self, id: &Id, fds: Vec<OwnedFd>) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let helper = &mut session.helper;
        helper.started += 1;
        if std::mem::take(&mut helper.wanted) {
            self.tell(Event::Files { session: id.clone() }, fds);
        }
    }

    /// Kills the file helper; another one is started when it is dead.
    pub(in crate::host) fn replace_helper(&mut self, id: &Id) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.phase == Phase::Up) else {
            return;
        };
        let helper = &mut session.helper;
        helper.wanted = true;
        // One is on its way already, and nobody has it yet.
        if helper.token.is_some() || helper.started < helper.number {
            return;
        }
        if let Err(error) = session.helper.leaf.kill() {
            tracing::error!(session = %id, %error, "file helper could not be killed");
        }
        let source = Source::Helper(id.clone());
        match self.events.watch(session.helper.leaf.events(), source, EventFlags::PRI) {
            Ok(token) => session.helper.token = Some(token),
            Err(error) => {
                tracing::error!(session = %id, %error, "file helper can't be watched");
                return self.close(id, CloseReason::Died);
            }
        }
        self.events.after(HELPER_LIMIT, Timer::Helper(id.clone()));
        self.look_at_helper(id);
    }

    /// Orders another file helper once the last one is dead.
    pub(in crate::host) fn look_at_helper(&mut self, id: &Id) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let helper = &mut session.helper;
        if helper.leaf.populated() {
            return;
        }
        let Some(token) = helper.token.take() else { return };
        self.events.forget(helper.leaf.events(), token);
        match session.next_helper() {
            Ok(last) => self.bury(Remains::Leaf(last)),
            Err(error) => {
                tracing::error!(session = %id, %error, "file helper not ordered");
                self.close(id, CloseReason::Died);
            }
        }
    }

    /// A file helper that a kill does not end holds what a guest has done to a file; the session goes with it.
    pub(in crate::host) fn helper_overdue(&mut self, id: &Id) {
        let stuck = |session: &Session| session.helper.token.is_some();
        if self.sessions.get(id).is_some_and(stuck) {
            tracing::error!(session = %id, "file helper does not end");
            self.close(id, CloseReason::Died);
        }
    }
}

impl Session {
    /// The client that asked for another file helper is gone.
    pub(in crate::host) fn forget_helper(&mut self) {
        self.helper.wanted = false;
    }

    /// Orders the next file helper, in a group of its own; gives the group of the last one back.
    fn next_helper(&mut self) -> Result<Leaf, SysError> {
        let number = self.helper.number + 1;
        let leaf = self.groups.helper_leaf(number)?;
        let last = std::mem::replace(&mut self.helper.leaf, leaf);
        self.helper.number = number;
        self.order(&ToInit::Files, &self.helper.leaf.join_descriptors())?;
        Ok(last)
    }
}
