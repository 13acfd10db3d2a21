//! Sessions that are made ahead: they wait until somebody takes them, once.

use std::time::{Duration, Instant};

use super::{Phase, Session};
use crate::api::{CloseReason, Event, Refusal};
use crate::faults::{Point, point};
use crate::host::events::Timer;
use crate::host::serve::Jailer;
use crate::ids::Id;

impl Jailer {
    /// Makes a session that waits an ordinary one. What can't be taken is closed, which its client hears.
    pub(in crate::host) fn take(&mut self, id: &Id, execution: Option<&Id>) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if !session.can_be_taken(execution) {
            tracing::warn!(session = %id, ?execution, "does not wait and is wanted");
            return self.close(id, CloseReason::Died);
        }
        if let Err(error) = session.groups.set_idle(false) {
            tracing::error!(session = %id, %error, "a session that is wanted gets no processor time");
            return self.close(id, CloseReason::Died);
        }
        session.waiting = false;
        session.made = Instant::now();
        let age = session.age_max();
        self.events.after(age, Timer::Age(id.clone()));
        tracing::info!(session = %id, "session taken");
        point(Point::JailerTaken);
        self.tell(Event::Taken { session: id.clone() }, Vec::new());
    }

    /// A session may be too old by now, unless its age began later.
    pub(in crate::host) fn age_due(&mut self, id: &Id) {
        let is_old = |session: &Session| session.made.elapsed() >= session.age_max();
        if self.sessions.get(id).is_some_and(is_old) {
            self.close(id, CloseReason::SessionAge);
        }
    }

    /// Sessions that somebody wants.
    pub(in crate::host) fn wanted_sessions(&self) -> usize {
        self.sessions.values().filter(|session| !session.waiting).count()
    }

    /// Sessions but those of zygotes.
    fn ordinary_sessions(&self) -> usize {
        let is_keeper = |session: &&Session| session.dock.as_ref() == Some(&session.id);
        self.sessions.len() - self.sessions.values().filter(is_keeper).count()
    }

    /// Whether there is room for another session. One that waits leaves its place to one that does not.
    pub(super) fn find_room(&mut self, waiting: bool) -> Result<(), Refusal> {
        let (all, wanted) = (self.ordinary_sessions(), self.wanted_sessions());
        let counted = if waiting { all } else { wanted };
        if counted as u64 >= self.ceilings.sessions {
            return Err(Refusal::Busy(format!("{counted} sessions exist, which is the ceiling")));
        }
        if waiting {
            return self.find_memory();
        }
        if all as u64 >= self.ceilings.sessions
            && let Some(id) = self.oldest_waiting()
        {
            tracing::info!(session = %id, "a session that waits leaves its place");
            self.close(&id, CloseReason::Asked);
        }
        Ok(())
    }

    fn oldest_waiting(&self) -> Option<Id> {
        let waits = |session: &&Session| {
            session.waiting && !matches!(session.phase, Phase::Closing(_)) && !self.docks.contains_key(&session.id)
        };
        let waiting = self.sessions.values().filter(waits);
        waiting
            .min_by_key(|session| session.made)
            .map(|session| session.id.clone())
    }

    /// Whether the host has memory for a session that nobody may want.
    fn find_memory(&self) -> Result<(), Refusal> {
        let reserve = self.ceilings.reserve;
        let available = std::fs::read_to_string("/proc/meminfo")
            .ok()
            .as_deref()
            .and_then(available);
        match available {
            Some(bytes) if bytes >= reserve.bytes() => Ok(()),
            Some(bytes) => Err(Refusal::Busy(format!(
                "{} MiB of memory are available, and none is made ahead below {reserve} (reserve in ceilings.toml)",
                bytes >> 20
            ))),
            None => Err(Refusal::Busy(
                "/proc/meminfo does not tell what memory is available".to_owned(),
            )),
        }
    }
}

impl Session {
    fn can_be_taken(&self, execution: Option<&Id>) -> bool {
        let is_there = match execution {
            // pid 1 may be about to say that it has ended.
            Some(execution) => {
                let program = self.executions.get(execution);
                program.is_some_and(|program| program.lives() && program.leaf.populated())
            }
            None => self.executions.is_empty(),
        };
        self.waiting && self.phase == Phase::Up && is_there
    }

    fn age_max(&self) -> Duration {
        Duration::from_millis(self.quantities.max_age_ms)
    }
}

/// Memory that programs can have without swapping, in bytes. Source: proc_meminfo(5), `MemAvailable`.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_bytes() {
        let text = "MemTotal:       24576000 kB\nMemAvailable:    2048 kB\nBuffers: 1 kB\n";
        assert_eq!(available(text), Some(2 << 20));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
    }
}
