//! What the jailer waits for: descriptors, by one epoll set, and points in time.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::ids::Id;
use crate::step::SysError;

/// A descriptor that is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    Signals,
    Listener,
    Client,
    /// A session's brig-init has something to say.
    Control(Id),
    /// A session's pid 1 has ended.
    Pid1(Id),
    /// The population of an execution's leaf has changed.
    Leaf(Id, Id),
    /// The population of the file helper's leaf has changed.
    Helper(Id),
    /// A zygote has answered, or is gone; the id is that of its session.
    Zygote(Id),
    /// The process that removes a workspace has ended.
    Remover,
}

/// A point in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Timer {
    /// A session must be up by now.
    Start(Id),
    /// A session is too old.
    Age(Id),
    /// An execution's time is over.
    Deadline(Id, Id),
    /// Look how much CPU time an execution has used.
    Cpu(Id, Id),
    /// A killed file helper must be dead by now.
    Helper(Id),
    /// Held sessions have waited long enough for a client; the number is that of the last one.
    Grace(u64),
    /// A zygote must have forked by now; its session, and the order's number.
    Fork(Id, u64),
    /// pid 1 must have told the end of a killed program by now.
    Overdue(Id, Id),
    /// Try again to remove a session's groups.
    Remove(Id),
    /// Try again to remove groups that belong to nothing any more.
    Remains,
    /// Try again to remove a workspace.
    Workspaces,
    /// The service manager wants a sign of life.
    Watchdog,
    /// The service manager may be told the status again.
    Status,
}

/// The key of a watched descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Token(u64);

impl Timer {
    /// The session that it is about.
    fn session(&self) -> Option<&Id> {
        match self {
            Self::Start(id)
            | Self::Age(id)
            | Self::Deadline(id, _)
            | Self::Cpu(id, _)
            | Self::Helper(id)
            | Self::Fork(id, _)
            | Self::Overdue(id, _)
            | Self::Remove(id) => Some(id),
            Self::Grace(_) | Self::Remains | Self::Workspaces | Self::Watchdog | Self::Status => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Events {
    set: OwnedFd,
    sources: HashMap<u64, Source>,
    timers: BTreeMap<(Instant, u64), Timer>,
    next: u64,
}

impl Events {
    pub(super) fn new() -> Result<Self, SysError> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| SysError::new("epoll_create1()", error.raw_os_error()))?;
        Ok(Self {
            set,
            sources: HashMap::new(),
            timers: BTreeMap::new(),
            next: 1,
        })
    }

    /// Watches a descriptor; `flags` is what it is watched for.
    pub(super) fn watch(
        &mut self,
        fd: BorrowedFd<'_>,
        source: Source,
        flags: epoll::EventFlags,
    ) -> Result<Token, SysError> {
        let key = self.key();
        epoll::add(&self.set, fd, epoll::EventData::new_u64(key), flags)
            .map_err(|error| SysError::new(format!("epoll_ctl(ADD, {source:?})"), error.raw_os_error()))?;
        self.sources.insert(key, source);
        Ok(Token(key))
    }

    /// Stops watching. A copy of the descriptor in a process that is being born would otherwise keep it in the set.
    pub(super) fn forget(&mut self, fd: BorrowedFd<'_>, token: Token) {
        let _not_there = epoll::delete(&self.set, fd);
        self.sources.remove(&token.0);
    }

    /// Changes what a descriptor is watched for.
    pub(super) fn change(&self, fd: BorrowedFd<'_>, token: Token, flags: epoll::EventFlags) {
        let _not_there = epoll::modify(&self.set, fd, epoll::EventData::new_u64(token.0), flags);
    }

    /// Sets a timer. Who gets one looks whether it still means something.
    pub(super) fn after(&mut self, delay: Duration, timer: Timer) {
        let key = self.key();
        if let Some(at) = Instant::now().checked_add(delay) {
            self.timers.insert((at, key), timer);
        }
    }

    /// Takes back the timers of a session that is gone: its greatest age may be hours away.
    pub(super) fn forget_timers(&mut self, session: &Id) {
        self.timers.retain(|_, timer| timer.session() != Some(session));
    }

    /// Waits until something is ready or a timer is due.
    pub(super) fn wait(&mut self) -> (Vec<Source>, Vec<Timer>) {
        let mut ready = Vec::with_capacity(64);
        let timeout = self.timers.first_key_value().map(|((at, _), _)| {
            // Rounded up by the kernel's clock, so that a timer is due when the wait ends.
            let rest = at.saturating_duration_since(Instant::now()) + Duration::from_micros(100);
            Timespec {
                tv_sec: rest.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: rest.subsec_nanos().into(),
            }
        });
        match epoll::wait(&self.set, spare_capacity(&mut ready), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "epoll_wait failed"),
        }
        let sources = ready
            .iter()
            .filter_map(|event| self.sources.get(&event.data.u64()).cloned())
            .collect();
        (sources, self.due())
    }

    fn due(&mut self) -> Vec<Timer> {
        let later = self.timers.split_off(&(Instant::now(), u64::MAX));
        std::mem::replace(&mut self.timers, later).into_values().collect()
    }

    fn key(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_of_a_session_that_is_gone_are_taken_back() {
        let id = |text: &str| Id::parse(text).unwrap();
        let mut events = Events::new().unwrap();
        for timer in [
            Timer::Age(id("a")),
            Timer::Deadline(id("a"), id("e")),
            Timer::Age(id("b")),
            Timer::Remains,
        ] {
            events.after(Duration::ZERO, timer);
        }
        events.forget_timers(&id("a"));
        assert_eq!(events.due(), [Timer::Age(id("b")), Timer::Remains]);
    }
}
