//! The stdout of a command that streams, through the API to one client.

use std::time::Instant;

use anyhow::{bail, ensure};
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::{Command, ExecuteRequest, ExecutionSpec, OutputMode};

use crate::Turns;
use crate::growth::Growth;
use crate::ours::Ours;
use crate::samples::{Measurement, Of, Unit, mebibytes, rate};

/// What is asked for, in MB/s; and how much brigd may grow for it, in MiB.
const LEAST: f64 = 300.0;
const GROWTH: f64 = 16.0;

/// A session with a program that writes.
pub(crate) struct Stream<'o> {
    ours: &'o Ours,
    session: String,
    bytes: u64,
    speed: Measurement,
    growth: Measurement,
}

impl<'o> Stream<'o> {
    /// Tries whether commands can stream.
    pub(crate) fn new(ours: &'o Ours, bytes: u64) -> anyhow::Result<Self> {
        let megabytes = bytes / 1_000_000;
        let speed = format!("stdout of a command, streamed, {megabytes} MB");
        let mut stream = Self {
            ours,
            session: ours.keep("data"),
            bytes: 1,
            speed: Measurement::new(speed, Unit::MegabytesPerSecond).goal(Of::Median, LEAST),
            growth: Measurement::new("growth of brigd by such a stream", Unit::Mebibytes).goal(Of::Median, GROWTH),
        };
        stream.run()?;
        stream.bytes = bytes;
        Ok(stream)
    }

    /// Lets the program write; gives the speed.
    fn run(&self) -> anyhow::Result<f64> {
        let argv = ["head", "-c", &self.bytes.to_string(), "/dev/zero"];
        let work = Command {
            argv: argv.map(str::to_owned).into(),
            output_mode: OutputMode::Stream.into(),
            ..Command::default()
        };
        let spec = ExecutionSpec {
            work: Some(Work::Command(work)),
            ..ExecutionSpec::default()
        };
        let request = ExecuteRequest {
            session_id: self.session.clone(),
            context_id: String::new(),
            spec: Some(spec),
        };
        let services = self.ours.services();
        let mut client = services.client();
        let start = Instant::now();
        let come = services.wait(async {
            let mut events = client.execute(request).await?.into_inner();
            let mut come = 0;
            while let Some(event) = events.message().await? {
                match event.event {
                    Some(Event::Output(output)) => come += output.data.len() as u64,
                    Some(Event::Finished(_)) => return Ok(come),
                    _ => {}
                }
            }
            bail!("the stream broke off after {come} bytes")
        })?;
        let span = start.elapsed();
        ensure!(come == self.bytes, "{come} bytes came of {}", self.bytes);
        Ok(rate(self.bytes, span))
    }
}

impl Turns for Stream<'_> {
    fn round(&mut self, _round: usize) -> anyhow::Result<()> {
        let growth = Growth::begin(self.ours)?;
        self.speed.ours.push(self.run()?);
        self.growth.ours.push(mebibytes(growth.end()));
        Ok(())
    }

    fn measurements(self: Box<Self>) -> Vec<Measurement> {
        self.ours.services().close(&self.session);
        vec![self.speed, self.growth]
    }
}
