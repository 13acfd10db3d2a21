//! Time limits of executions: wall time and CPU time, and their parts (laps). Pauses stop these clocks: see [`super::pause`].

use std::time::{Duration, Instant};

use super::events::Timer;
use super::executions::Execution;
use super::serve::Jailer;
use crate::api::{Cause, Event};
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
    /// When the timers of both are due; others of them mean nothing any more.
    pub(super) timer: Option<Instant>,
    pub(super) look: Option<Instant>,
}

impl Clock {
    /// One that does not run yet.
    pub(super) fn new(wall: Option<Duration>, cpu: Option<Duration>) -> Self {
        Self {
            wall,
            cpu,
            deadline: None,
            timer: None,
            look: None,
        }
    }
}

/// Whether a timer must be set for something: none is due by then. Others are not taken back, so that there shall be
/// few.
fn sets(due: &mut Option<Instant>, at: Instant) -> bool {
    let sets = due.is_none_or(|due| due > at);
    if sets {
        *due = Some(at);
    }
    sets
}

/// Whether it is the timer that counts that is due.
fn counts(due: &mut Option<Instant>) -> bool {
    due.take_if(|due| *due <= Instant::now()).is_some()
}

impl Jailer {
    /// Starts the clock of a program that runs, or of its next lap.
    pub(super) fn start_clock(&mut self, id: &Id, name: &Id) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let now = session.now();
        let Some(execution) = session.executions.get_mut(name) else {
            return;
        };
        let clock = &mut execution.clock;
        clock.deadline = clock.wall.and_then(|wall| now.checked_add(wall));
        self.run_clock(id, name);
    }

    /// Sees to the timers of a clock that runs.
    pub(super) fn run_clock(&mut self, id: &Id, name: &Id) {
        let Some(execution) = self.execution(id, name) else {
            return;
        };
        let clock = &mut execution.clock;
        if let Some(deadline) = clock.deadline
            && sets(&mut clock.timer, deadline)
        {
            let left = deadline.saturating_duration_since(Instant::now());
            self.events.after(left, Timer::Deadline(id.clone(), name.clone()));
        }
        self.look_at_cpu_time(id, name);
    }

    /// A timer of a deadline is due; the deadline may have been moved meanwhile.
    pub(super) fn deadline(&mut self, id: &Id, name: &Id) {
        let is_due = |execution: &mut Execution| counts(&mut execution.clock.timer);
        if !self.execution(id, name).is_some_and(is_due) || self.stands_still(id) {
            return;
        }
        let deadline = self.execution(id, name).and_then(|execution| execution.clock.deadline);
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.kill(id, name, Cause::WallTime);
        } else {
            self.run_clock(id, name);
        }
    }

    /// A timer of a look at the CPU time is due, unless another one counts by now.
    pub(super) fn cpu_look_due(&mut self, id: &Id, name: &Id) {
        let is_due = |execution: &mut Execution| counts(&mut execution.clock.look);
        if self.execution(id, name).is_some_and(is_due) {
            self.look_at_cpu_time(id, name);
        }
    }

    /// Kills a program that has used its CPU time; else looks again when it could have, at the earliest.
    pub(super) fn look_at_cpu_time(&mut self, id: &Id, name: &Id) {
        // What stands still uses none; it is looked at when it goes on.
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.paused.is_none()) else {
            return;
        };
        let cpus = session.quantities.cpu_millis.max(1);
        let Some(execution) = session.executions.get_mut(name) else {
            return;
        };
        let Some(limit) = execution.clock.cpu else { return };
        let left = limit.saturating_sub(Duration::from_micros(execution.leaf.usage().cpu_us));
        if left.is_zero() {
            return self.kill(id, name, Cause::CpuTime);
        }
        let soonest = left.saturating_mul(1000) / u32::try_from(cpus).unwrap_or(u32::MAX);
        let delay = soonest.max(CPU_LOOK);
        let at = Instant::now().checked_add(delay);
        if at.is_some_and(|at| sets(&mut execution.clock.look, at)) {
            self.events.after(delay, Timer::Cpu(id.clone(), name.clone()));
        }
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
        let lap = execution.leaf.lap();
        self.start_clock(id, name);
        // Nobody asks what was used before work was given to it.
        if timeout_ms.is_none() {
            let lapped = Event::Lapped {
                session: id.clone(),
                execution: name.clone(),
                lap,
            };
            self.tell_about(id, lapped);
        }
    }
}
