//! bubblewrap: namespaces, no capabilities, the filter of the policy `data`. It has no limits.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;

use brig_jailer::policy::{PolicySet, Trust};
use brig_jailer::seccomp::Groups;
use rustix::io::{FdFlags, fcntl_setfd};

use super::{PYTHON, Peer, Rootfs, Run, program, version, with_environment};

#[derive(Debug)]
pub(super) struct Bubblewrap {
    program: PathBuf,
    version: String,
    rootfs: Rootfs,
    /// The programs of the filter, each in a file.
    filters: Vec<PathBuf>,
}

impl Bubblewrap {
    pub(super) fn new(rootfs: &Rootfs) -> anyhow::Result<Self> {
        let program = program("bwrap")?;
        let version = version(&program)?;
        let policies = PolicySet::load(std::slice::from_ref(&rootfs.policies), Trust::RootOwned)?;
        let groups = Groups::load(&[rootfs.policies.join("syscalls")], Trust::RootOwned)?;
        let filter = groups.compile("data", &policies.get("data")?.rules.syscalls.groups)?;
        let mut filters = Vec::new();
        for (number, program) in filter.programs.iter().enumerate() {
            let path = rootfs.scratch.join(format!("filter-{number}.bpf"));
            fs::write(&path, program)?;
            filters.push(path);
        }
        Ok(Self {
            program,
            version,
            rootfs: rootfs.clone(),
            filters,
        })
    }
}

impl Peer for Bubblewrap {
    fn name(&self) -> String {
        format!("bubblewrap {}", self.version)
    }

    fn run(&mut self, code: &str) -> anyhow::Result<Run> {
        let mut command = Command::new(&self.program);
        command.args([
            "--unshare-all",
            "--die-with-parent",
            "--new-session",
            "--cap-drop",
            "ALL",
        ]);
        command.args(["--uid", "1000", "--gid", "1000", "--chdir", "/home/user"]);
        command.arg("--ro-bind").arg(&self.rootfs.tree).arg("/");
        command.args([
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--tmpfs",
            "/tmp",
            "--tmpfs",
            "/home/user",
        ]);
        let mut open = Vec::new();
        for path in &self.filters {
            let file = File::open(path)?;
            fcntl_setfd(&file, FdFlags::empty())?;
            command.arg("--add-seccomp-fd").arg(file.as_raw_fd().to_string());
            open.push(file);
        }
        command.args([PYTHON, "-c", code]);
        Ok(Run {
            command: with_environment(command),
            _open: open,
        })
    }
}
