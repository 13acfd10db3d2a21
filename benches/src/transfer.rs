//! Large files: `brig put` and `brig get` against `cp`, all of them from memory to memory.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use brig_tests::Brig;
use tempfile::TempDir;

use crate::Turns;
use crate::growth::Growth;
use crate::ours::{LARGE, Ours};
use crate::samples::{Measurement, Of, Unit, mebibytes, rate};

/// A file system in memory, as a session's workspace is.
const MEMORY: &str = "/dev/shm";
/// What is asked for, in MB/s.
const LEAST: f64 = 300.0;

/// A file that goes into a session and out again.
pub(crate) struct Transfer<'o> {
    ours: &'o Ours,
    session: String,
    bytes: u64,
    folder: TempDir,
    upload: Measurement,
    download: Measurement,
    growth: Measurement,
}

impl<'o> Transfer<'o> {
    /// Makes the file.
    pub(crate) fn new(ours: &'o Ours, bytes: u64) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("brig-bench-").tempdir_in(MEMORY)?;
        let mut file = File::create(folder.path().join("file"))?;
        io::copy(&mut File::open("/dev/urandom")?.take(bytes), &mut file)?;
        let name = |what: &str| format!("{what} of {} MB, SHA-256 included", bytes / 1_000_000);
        let speed = |what: &str| Measurement::new(name(what), Unit::MegabytesPerSecond).goal(Of::Median, LEAST);
        Ok(Self {
            ours,
            session: ours.keep(LARGE),
            bytes,
            folder,
            upload: speed("upload"),
            download: speed("download"),
            growth: Measurement::new("growth of brigd by such transfers", Unit::Mebibytes),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs `brig`; how long it took.
    fn brig(&self, arguments: &[&str]) -> anyhow::Result<Duration> {
        run(Brig::command(&self.ours.services().socket(), arguments).command)
    }
}

impl Turns for Transfer<'_> {
    fn round(&mut self, _round: usize) -> anyhow::Result<()> {
        let (file, copy, back) = (self.path("file"), self.path("copy"), self.path("back"));
        let text = |path: &PathBuf| path.to_str().map(str::to_owned).context("a path of letters");
        let remote = format!("{}:file", self.session);

        let growth = Growth::begin(self.ours)?;

        let span = self.brig(&["put", "-q", "--force", &text(&file)?, &remote])?;
        self.upload.ours.push(rate(self.bytes, span));
        let mut cp = Command::new("cp");
        cp.args([&file, &copy]);
        let copied = rate(self.bytes, run(cp)?);
        self.upload.peer("cp", copied);
        fs::remove_file(&copy)?;

        let span = self.brig(&["get", "-q", &remote, &text(&back)?])?;
        self.download.ours.push(rate(self.bytes, span));
        self.download.peer("cp", copied);
        ensure!(fs::metadata(&back)?.len() == self.bytes, "the file came back cut");
        fs::remove_file(&back)?;

        self.growth.ours.push(mebibytes(growth.end()));
        Ok(())
    }

    fn measurements(self: Box<Self>) -> Vec<Measurement> {
        self.ours.services().close(&self.session);
        vec![self.upload, self.download, self.growth]
    }
}

/// Runs a program that must succeed; how long it took.
fn run(mut command: Command) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let status = command.status().with_context(|| format!("{command:?}"))?;
    let span = start.elapsed();
    ensure!(status.success(), "{command:?}: {status}");
    Ok(span)
}
