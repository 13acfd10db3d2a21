//! The next cell of a notebook: a live context against a kernel of ipykernel that jupyter_client drives.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use brig_proto::v1::ContextsCreateRequest;
use brig_tests::spec::code;
use serde::Deserialize;

use crate::Turns;
use crate::ours::{Ours, follow};
use crate::samples::{Measurement, Of, Unit, millis};
use crate::times::Times;

/// Cells of one turn: they take milliseconds.
const CELLS: usize = 10;
const PEER: &str = "ipykernel";
/// How long its driver may take for anything: longer than it waits itself.
const PATIENCE: Duration = Duration::from_secs(90);

/// A context and a kernel that wait for the next cell.
pub(crate) struct Cells<'o> {
    ours: &'o Ours,
    session: String,
    context: String,
    kernel: Kernel,
    first_output: Measurement,
    finished: Measurement,
}

impl<'o> Cells<'o> {
    /// Starts both, and runs a first cell in each.
    pub(crate) fn new(ours: &'o Ours, driver: &Path, python: &Path) -> anyhow::Result<Self> {
        let session = ours.keep("data");
        let context = context(ours, &session)?;
        let measurement = |moment: &str| {
            let name = format!("next print(1) in a live context, {moment}");
            Measurement::new(name, Unit::Milliseconds).goal(Of::Ratio(&[PEER]), 5.0)
        };
        let mut cells = Self {
            ours,
            session,
            context,
            kernel: Kernel::start(driver, python)?,
            first_output: measurement("to first output"),
            finished: measurement("finished"),
        };
        cells.kernel.cell()?;
        cells.cell()?;
        Ok(cells)
    }

    fn cell(&self) -> anyhow::Result<Times> {
        let start = Instant::now();
        let live = self
            .ours
            .services()
            .execute_in(&self.session, &self.context, code("print(1)"));
        follow(live.map_err(|refused| anyhow!("{refused:?}"))?, start, "1\n")
    }
}

impl Turns for Cells<'_> {
    fn round(&mut self, _round: usize) -> anyhow::Result<()> {
        for _ in 0..CELLS {
            let ours = self.cell()?;
            self.first_output.ours.push(millis(ours.first_output));
            self.finished.ours.push(millis(ours.finished));
            let theirs = self.kernel.cell()?;
            self.first_output.peer(PEER, theirs.first_output_ms);
            self.finished.peer(PEER, theirs.finished_ms);
        }
        Ok(())
    }

    fn measurements(self: Box<Self>) -> Vec<Measurement> {
        self.ours.services().close(&self.session);
        vec![self.first_output, self.finished]
    }
}

/// Makes a context in a session that is kept.
pub(crate) fn context(ours: &Ours, session: &str) -> anyhow::Result<String> {
    let request = ContextsCreateRequest {
        session_id: session.to_owned(),
        ..ContextsCreateRequest::default()
    };
    let made = ours.services().context(request);
    Ok(made.map_err(|refused| anyhow!("{refused:?}"))?.context_id)
}

/// A program that starts a kernel and runs a cell for each line that it reads.
struct Kernel {
    child: Child,
    /// Its end is the end of the program.
    cells: Option<ChildStdin>,
    answers: Receiver<String>,
}

/// What it says of a cell.
#[derive(Debug, Deserialize)]
struct Cell {
    first_output_ms: f64,
    finished_ms: f64,
}

impl Kernel {
    fn start(driver: &Path, python: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(python);
        command.arg(driver).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| python.display().to_string())?;
        let (cells, stdout) = (child.stdin.take(), child.stdout.take());
        let (sender, answers) = sync_channel(1);
        let lines = BufReader::new(stdout.context("stdout is piped")?).lines();
        std::thread::spawn(move || {
            let read = lines.map_while(Result::ok);
            read.map_while(|line| sender.send(line).ok()).for_each(drop);
        });
        let kernel = Self { child, cells, answers };
        ensure!(kernel.answer()? == "ready", "ipykernel did not start");
        Ok(kernel)
    }

    fn cell(&mut self) -> anyhow::Result<Cell> {
        let cells = self.cells.as_mut().context("stdin is piped")?;
        cells.write_all(b"\n")?;
        let answer = self.answer()?;
        serde_json::from_str(&answer).with_context(|| format!("ipykernel's driver said {answer:?}"))
    }

    fn answer(&self) -> anyhow::Result<String> {
        let answer = self.answers.recv_timeout(PATIENCE);
        answer.context("ipykernel's driver said nothing")
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        drop(self.cells.take());
        // It ends its kernel first; a kernel whose driver was killed ends by itself.
        if self.answers.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Disconnected) {
            let _ended_already = self.child.kill();
        }
        let _reaped_already = self.child.wait();
    }
}
