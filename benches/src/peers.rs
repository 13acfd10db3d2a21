//! Other ways to run code in a box, each with the same files, environment and, where it can, the same limits and a
//! filter of system calls.

mod bubblewrap;
mod calls;
mod crowd;
mod firejail;
mod nsjail;
mod oci;
mod place;
mod podman;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use brig_tests::host::Places;

use self::bubblewrap::Bubblewrap;
pub(crate) use self::crowd::{Crowd, together};
use self::firejail::Firejail;
use self::nsjail::Nsjail;
use self::oci::Oci;
use self::place::Place;
use self::podman::Podman;

/// The name of what is no sandbox.
pub(crate) const BARE: &str = "bare python3";
/// The interpreter of the template.
const PYTHON: &str = "/usr/bin/python3";
/// Limits as the policy `data` has them by default.
const MEMORY_BYTES: u64 = 512 << 20;
const PIDS: u64 = 128;

/// Somebody to compare with.
trait Peer: Send {
    /// As the report has it: with a version, where it tells one, and with what is off that others have on.
    fn name(&self) -> String;
    /// What runs Python code in a fresh sandbox.
    fn run(&mut self, code: &str) -> anyhow::Result<Run>;
}

/// A command that has not been started.
#[derive(Debug)]
struct Run {
    command: Command,
    /// What it inherits.
    _open: Vec<File>,
}

impl From<Command> for Run {
    fn from(command: Command) -> Self {
        Self {
            command,
            _open: Vec::new(),
        }
    }
}

/// What all of them run.
#[derive(Debug, Clone)]
pub(crate) struct Rootfs {
    /// The files of the template `data`.
    pub(crate) tree: PathBuf,
    pub(crate) policies: PathBuf,
    /// Where peers may leave what they need.
    pub(crate) scratch: PathBuf,
}

impl Rootfs {
    /// That of the template `data`.
    pub(crate) fn find(scratch: &Path) -> anyhow::Result<Self> {
        let places = Places::find();
        Ok(Self {
            // runc takes no link for the root of a container.
            tree: places.images.join("data/tree").canonicalize()?,
            policies: places.policies,
            scratch: scratch.to_owned(),
        })
    }
}

/// The interpreter alone, in the same files.
#[derive(Debug)]
struct Bare(Rootfs);

impl Peer for Bare {
    fn name(&self) -> String {
        BARE.to_owned()
    }

    fn run(&mut self, code: &str) -> anyhow::Result<Run> {
        let mut command = Command::new(program("chroot")?);
        command.arg(&self.0.tree).args([PYTHON, "-c", code]);
        Ok(with_environment(command).into())
    }
}

/// The environment of code, as `NAME=VALUE`. More threads than one make `import numpy` far slower.
fn environment() -> [&'static str; 4] {
    [
        "PATH=/usr/local/bin:/usr/bin:/bin",
        "HOME=/home/user",
        "LANG=C.UTF-8",
        "OPENBLAS_NUM_THREADS=1",
    ]
}

fn with_environment(mut command: Command) -> Command {
    let pairs = environment().into_iter().filter_map(|pair| pair.split_once('='));
    command.env_clear().envs(pairs);
    command
}

/// Where a program is: who starts it looks in a `PATH` of its own.
fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).map(|folder| folder.join(name));
    let found = places.into_iter().find(|place| place.is_file());
    found.with_context(|| format!("{name} is not installed"))
}

/// The version that a program tells. Firejail leaves mounts behind when it is asked, so each is asked where they vanish.
fn version(program: &Path) -> anyhow::Result<String> {
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(program)
        .arg("--version")
        .output();
    let output = output.with_context(|| program.display().to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.split_whitespace();
    let number = words
        .into_iter()
        .find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    number
        .map(str::to_owned)
        .with_context(|| format!("{} tells no version", program.display()))
}
