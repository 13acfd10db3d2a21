//! The end of a limit of time: from the moment that it is due until nothing of the program is left.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{ExecutionSpec, ExecutionStatus, OutputStream};
use brig_tests::Live;
use brig_tests::spec::{command, timeout};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::Turns;
use crate::ours::Ours;
use crate::samples::{Measurement, Of, Unit, millis};

/// A shell and the programs that it has started: 64 processes.
const PROCESSES: usize = 64;
const SCRIPT: &str = "i=1; while [ $i -lt 64 ]; do sleep 1000 & i=$((i+1)); done; echo there; wait";
/// The limit, in ms: long enough to start them all.
const TIMEOUT: u64 = 2000;
/// Executions of one turn.
const EXECUTIONS: usize = 5;
/// How long before the deadline the processes are looked at closely, and how often.
const BEFORE: Duration = Duration::from_millis(2);
const LOOK: Duration = Duration::from_micros(50);
/// How long after it they may live at most.
const PATIENCE: Duration = Duration::from_secs(10);
/// What is asked for of p95, in ms.
const MOST: f64 = 10.0;

/// A session that such programs run in.
pub(crate) struct Deadline<'o> {
    ours: &'o Ours,
    session: String,
    reaped: Measurement,
    finished: Measurement,
}

impl<'o> Deadline<'o> {
    /// Makes it.
    pub(crate) fn new(ours: &'o Ours) -> Self {
        let of = |moment: &str| {
            let name = format!("deadline to {moment}, {PROCESSES} processes");
            Measurement::new(name, Unit::Milliseconds)
        };
        Self {
            ours,
            session: ours.keep_small(),
            reaped: of("all reaped").goal(Of::Worst, MOST),
            finished: of("finished"),
        }
    }

    fn processes(&self) -> anyhow::Result<BTreeSet<u32>> {
        self.ours.groups().processes(&self.session)
    }

    /// Lets a program run into its limit; gives how long after that all its processes were reaped, and when that was
    /// told.
    fn run(&self) -> anyhow::Result<(Duration, Duration)> {
        let before = self.processes()?;
        let spec = ExecutionSpec {
            limits: timeout(TIMEOUT),
            ..command(&["sh", "-c", SCRIPT])
        };
        let live = self.ours.services().execute(&self.session, spec);
        let mut live = live.map_err(|refused| anyhow!("{refused:?}"))?;
        let due = accepted(&mut live) + Duration::from_millis(TIMEOUT);
        live.until_written_to(OutputStream::Stdout, "there");
        let started: Vec<Pid> = self.processes()?.difference(&before).copied().filter_map(pid).collect();
        ensure!(
            started.len() == PROCESSES,
            "{} processes, not {PROCESSES}",
            started.len()
        );

        // Another thread takes down when the answer comes.
        let (reaped, finished) = std::thread::scope(|scope| {
            let waited = scope.spawn(|| until_reaped(started, due));
            live.until(|event| matches!(event, Event::Finished(_)));
            let finished = Instant::now();
            let reaped = waited
                .join()
                .map_err(|_| anyhow!("the look at the processes broke off"))??;
            anyhow::Ok((reaped, finished))
        })?;
        let result = live.finish().result;
        ensure!(
            result.status() == ExecutionStatus::Timeout,
            "it ended as {:?}",
            result.status()
        );
        Ok((
            reaped.saturating_duration_since(due),
            finished.saturating_duration_since(due),
        ))
    }
}

impl Turns for Deadline<'_> {
    fn round(&mut self, _round: usize) -> anyhow::Result<()> {
        for _ in 0..EXECUTIONS {
            let (reaped, finished) = self.run()?;
            self.reaped.ours.push(millis(reaped));
            self.finished.ours.push(millis(finished));
        }
        Ok(())
    }

    fn measurements(self: Box<Self>) -> Vec<Measurement> {
        self.ours.services().close(&self.session);
        vec![self.reaped, self.finished]
    }
}

/// Waits until the program runs; gives when the execution was accepted, the last thing that is told before it is started.
/// Its clock begins between these two, so that the deadline is not due before this and the limit.
fn accepted(live: &mut Live) -> Instant {
    let mut told = Instant::now();
    while let Event::Accepted(_) = live.until(|event| matches!(event, Event::Accepted(_) | Event::Started(_))) {
        told = Instant::now();
    }
    told
}

/// Waits until none of the processes exists, not even as one that has ended and waits to be reaped.
fn until_reaped(mut left: Vec<Pid>, due: Instant) -> anyhow::Result<Instant> {
    std::thread::sleep(due.saturating_duration_since(Instant::now()).saturating_sub(BEFORE));
    loop {
        left.retain(|pid| test_kill_process(*pid) != Err(Errno::SRCH));
        let now = Instant::now();
        if left.is_empty() {
            return Ok(now);
        }
        ensure!(
            now < due + PATIENCE,
            "{} processes live on after the deadline",
            left.len()
        );
        std::thread::sleep(LOOK);
    }
}

fn pid(number: u32) -> Option<Pid> {
    Pid::from_raw(number.try_into().ok()?)
}
