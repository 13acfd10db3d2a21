//! One end of an execution, written to the ledger durably: what stands between an answer and its `finished` event. What was
//! accepted a moment before becomes an entry with it.

use std::path::Path;
use std::time::{Instant, SystemTime};

use anyhow::ensure;
use brig_daemon::ledger::{Accept, Body, Finish, Keep, Kind, Ledger, Limits, OpenEnds, Origin, Usage, Work};
use brig_jailer::ids::Id;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::Turns;
use crate::machine::Disk;
use crate::samples::{Measurement, Of, Unit, millis};
use crate::works::PANDAS;

/// Ends of one turn: they take milliseconds.
const ENDS: usize = 10;
/// What is asked for, in ms.
const MOST: f64 = 2.0;

/// A ledger of its own, on the disk that the daemons' lies on.
pub(crate) struct Append {
    runtime: Runtime,
    ledger: Ledger,
    _folder: TempDir,
    written: usize,
    appended: Measurement,
}

impl Append {
    /// Makes it below `state`.
    pub(crate) fn new(state: &Path, disk: &Disk) -> anyhow::Result<Self> {
        ensure!(
            disk.filesystem != "tmpfs",
            "{} is memory, where nothing is synced: let TMPDIR be on a disk",
            disk.mounted_at
        );
        let folder = tempfile::Builder::new().prefix("ledger-").tempdir_in(state)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()?;
        let ledger = Ledger::open(&folder.path().join("ledger.db"))?;
        runtime.block_on(ledger.settle(OpenEnds::default()))?;
        let name = format!("ledger append with fsync, on {} of {}", disk.filesystem, disk.device);
        Ok(Self {
            runtime,
            ledger,
            _folder: folder,
            written: 0,
            appended: Measurement::new(name, Unit::Milliseconds).goal(Of::Median, MOST),
        })
    }
}

impl Turns for Append {
    fn round(&mut self, _round: usize) -> anyhow::Result<()> {
        for _ in 0..ENDS {
            self.written += 1;
            let execution = Id::parse(&format!("e{}", self.written))?;
            self.runtime.block_on(self.ledger.accept(accept(&execution)?))?;
            let finish = finish(execution);
            let start = Instant::now();
            self.runtime.block_on(self.ledger.finish(finish))?;
            self.appended.ours.push(millis(start.elapsed()));
        }
        Ok(())
    }

    fn measurements(self: Box<Self>) -> Vec<Measurement> {
        vec![self.appended]
    }
}

fn accept(execution: &Id) -> anyhow::Result<Accept> {
    Ok(Accept {
        execution: execution.clone(),
        request: None,
        request_sha256: None,
        session: Id::parse("s1")?,
        kept: true,
        tenant: "default".to_owned(),
        user: "root".to_owned(),
        origin: Origin::default(),
        labels: [].into(),
        policy: "data".to_owned(),
        policy_hash: "ab".repeat(32),
        template: "data@0123456789ab".to_owned(),
        work: Work {
            kind: Kind::Code,
            body: Body::new(PANDAS.source.into()),
        },
        inputs: Vec::new(),
        limits: Limits::default(),
        keep: Keep::default(),
        time: SystemTime::now(),
    })
}

fn finish(execution: Id) -> Finish {
    let stdout = Body::new(PANDAS.expected.into());
    Finish {
        execution,
        status: "success".to_owned(),
        cause: None,
        message: None,
        exit_code: Some(0),
        signal: None,
        usage: Usage::default(),
        stdout_bytes: stdout.bytes,
        stdout_dropped: 0,
        stderr_bytes: 0,
        stderr_dropped: 0,
        stdout,
        stderr: Body::default(),
        artifacts: Vec::new(),
        limits_hit: Vec::new(),
        // About as much as the answer of a short execution.
        told: vec![0; 1024],
        start_time: Some(SystemTime::now()),
        time: SystemTime::now(),
    }
}
