//! Time limits of executions: wall time and CPU time, their parts (laps), and sessions whose clocks stand still.

use std::time::{Duration, Instant};

use super::events::Timer;
use super::executions::Execution;
use super::serve::Jailer;
use super::session::{Phase, Session};
use crate::api::{Cause, Event, Lap};
use crate::ids::Id;
use crate::policy::check_timeout;

/// How soon a program's CPU time is looked at again, at the earliest.
const CPU_LOOK: Duration = Duration::from_millis(1);

/// How long a program may run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    /// Wall time; none while it waits for work.
    pub(super) wall: Option<Duration>,
    /// CPU time of all processes together.
    pub(super) cpu: Option<Duration>,
    /// When the wall time is over, once it runs.
    pub(super) deadline: Option<Instant>,
}

impl Jailer {
    /// Starts the clock of a program that runs, or of its next lap.
    pub(super) fn start_clock(&mut self, id: &Id, name: &Id) {
        let Some(execution) = self.execution(id, name) else {
            return;
        };
        let clock = &mut execution.clock;
        clock.deadline = clock.wall.and_then(|wall| Instant::now().checked_add(wall));
        let (wall, cpu) = (clock.wall, clock.cpu);
        if let Some(wall) = wall {
            self.events.after(wall, Timer::Deadline(id.clone(), name.clone()));
        }
        if cpu.is_some() {
            self.look_at_cpu_time(id, name);
        }
    }

    /// A timer of a deadline is due; it may have been moved meanwhile.
    pub(super) fn deadline(&mut self, id: &Id, name: &Id) {
        let Some(session) = self.sessions.get(id).filter(|session| session.paused.is_none()) else {
            return;
        };
        let deadline = session
            .executions
            .get(name)
            .and_then(|execution| execution.clock.deadline);
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.kill(id, name, Cause::WallTime);
        }
    }

    /// Kills a program that has used its CPU time; else looks again when it could have, at the earliest.
    pub(super) fn look_at_cpu_time(&mut self, id: &Id, name: &Id) {
        let Some(session) = self.sessions.get(id) else { return };
        let cpus = session.quantities.cpu_millis.max(1);
        let Some(execution) = session.executions.get(name) else {
            return;
        };
        let Some(limit) = execution.clock.cpu else { return };
        let left = limit.saturating_sub(Duration::from_micros(execution.leaf.usage().cpu_us));
        if left.is_zero() {
            return self.kill(id, name, Cause::CpuTime);
        }
        let soonest = left.saturating_mul(1000) / u32::try_from(cpus).unwrap_or(u32::MAX);
        self.events
            .after(soonest.max(CPU_LOOK), Timer::Cpu(id.clone(), name.clone()));
    }

    /// Begins a new lap of an execution. A time limit that the policy does not allow is none of the program's fault: the
    /// policy's maximum holds.
    pub(super) fn lap(&mut self, id: &Id, name: &Id, timeout_ms: Option<u64>) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Some(execution) = session.executions.get_mut(name) else {
            return;
        };
        let most = session.policy.limits.timeout.max.millis();
        let allowed = |asked: u64| check_timeout(&session.policy, asked).map_or(most, |()| asked);
        execution.clock.wall = timeout_ms.map(allowed).map(Duration::from_millis);
        let lap = Lap {
            usage: execution.leaf.usage(),
            oom_kills: execution.leaf.oom_kills(),
            pids_refused: execution.leaf.pids_refused(),
        };
        execution.leaf.lap();
        self.start_clock(id, name);
        let lapped = Event::Lapped {
            session: id.clone(),
            execution: name.clone(),
            lap,
        };
        self.tell_about(id, lapped);
    }

    /// Stops or starts all programs of a session with their clocks.
    pub(super) fn pause(&mut self, id: &Id, paused: bool) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.phase == Phase::Up) else {
            return;
        };
        for (name, execution) in &session.executions {
            if let Err(error) = execution.leaf.freeze(paused) {
                tracing::error!(session = %id, execution = %name, %error, "execution could not be paused");
            }
        }
        let moved = match (paused, session.paused) {
            (true, None) => {
                session.paused = Some(Instant::now());
                Vec::new()
            }
            (false, Some(since)) => {
                session.paused = None;
                session.move_deadlines(since.elapsed())
            }
            _ => Vec::new(),
        };
        for (name, left) in moved {
            self.events.after(left, Timer::Deadline(id.clone(), name));
        }
        let event = Event::Paused {
            session: id.clone(),
            paused,
        };
        self.tell_about(id, event);
    }
}

impl Session {
    /// Gives every program the time back in which it stood still; says how much each has left.
    fn move_deadlines(&mut self, stood_still: Duration) -> Vec<(Id, Duration)> {
        let mut left = Vec::new();
        for (name, execution) in &mut self.executions {
            if let Some(deadline) = &mut execution.clock.deadline {
                *deadline += stood_still;
                left.push((name.clone(), deadline.saturating_duration_since(Instant::now())));
            }
        }
        left
    }

    /// The wall time that a program still has.
    pub(super) fn time_left(&self, execution: &Execution) -> Option<Duration> {
        let now = self.paused.unwrap_or_else(Instant::now);
        execution
            .clock
            .deadline
            .map(|deadline| deadline.saturating_duration_since(now))
    }
}
