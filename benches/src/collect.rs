//! The look at a session's files after an execution that left none: part of every answer.

use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use brig_proto::v1::ExecutionSpec;
use brig_tests::spec::command;

use crate::Turns;
use crate::ours::Ours;
use crate::samples::{Measurement, Of, Unit, millis};

/// Files that lie there, in folders of a hundred.
const FILES: &str =
    "for d in 0 1 2 3 4 5 6 7 8 9; do mkdir d$d; for i in $(seq 100); do echo $i >d$d/$i.txt; done; done";
/// Executions of one turn: they take milliseconds.
const EXECUTIONS: usize = 10;
/// What is asked for, in ms.
const MOST: f64 = 2.0;

/// A session with 1,000 files that nobody changes.
pub(crate) struct Collect<'o> {
    ours: &'o Ours,
    session: String,
    collected: Measurement,
}

impl<'o> Collect<'o> {
    /// Writes the files.
    pub(crate) fn new(ours: &'o Ours) -> anyhow::Result<Self> {
        let session = ours.keep("data");
        let name = "collection after an execution without artifacts, 1,000 files";
        let collect = Self {
            ours,
            session,
            collected: Measurement::new(name, Unit::Milliseconds).goal(Of::Median, MOST),
        };
        collect.run(command(&["sh", "-c", FILES]))?;
        Ok(collect)
    }

    /// Runs a command that must succeed; gives how many artifacts it left, and how long collecting took.
    fn run(&self, spec: ExecutionSpec) -> anyhow::Result<(usize, Duration)> {
        let live = self.ours.services().execute(&self.session, spec);
        let outcome = live
            .map_err(|refused| anyhow!("{refused:?}"))?
            .finish()
            .expect_success();
        let timing = outcome.result.timing.context("the result has no times")?;
        let span = Duration::try_from(timing.collect.context("the result has no time of collecting")?)?;
        Ok((outcome.result.artifacts.len(), span))
    }
}

impl Turns for Collect<'_> {
    fn round(&mut self, _round: usize) -> anyhow::Result<()> {
        for _ in 0..EXECUTIONS {
            let (artifacts, span) = self.run(command(&["true"]))?;
            ensure!(artifacts == 0, "{artifacts} artifacts of a command that writes none");
            self.collected.ours.push(millis(span));
        }
        Ok(())
    }

    fn measurements(self: Box<Self>) -> Vec<Measurement> {
        self.ours.services().close(&self.session);
        vec![self.collected]
    }
}
