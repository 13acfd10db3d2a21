//! podman: the runtime that it finds, the namespaces, limits and calls of the policy `data`, and no network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::calls::{calls, filter};
use super::{MEMORY_BYTES, PIDS, PYTHON, Peer, Rootfs, Run, environment, program, version, with_environment};

#[derive(Debug)]
pub(super) struct Podman {
    program: PathBuf,
    version: String,
    rootfs: Rootfs,
    /// The filter as the runtime takes it.
    filter: PathBuf,
}

impl Podman {
    pub(super) fn new(rootfs: &Rootfs) -> anyhow::Result<Self> {
        let program = program("podman")?;
        let file = rootfs.scratch.join("podman-filter.json");
        fs::write(&file, filter(&calls(&rootfs.policies)?).to_string())?;
        Ok(Self {
            version: version(&program)?,
            program,
            rootfs: rootfs.clone(),
            filter: file,
        })
    }
}

impl Peer for Podman {
    fn name(&self) -> String {
        format!("podman {}", self.version)
    }

    fn run(&mut self, code: &str) -> anyhow::Result<Run> {
        let mut command = Command::new(&self.program);
        let scratch = &self.rootfs.scratch;
        // Nothing of this host's own containers is touched.
        command.arg("--root").arg(scratch.join("podman"));
        command.arg("--runroot").arg(scratch.join("podman-run"));
        command.args(["--cgroup-manager", "cgroupfs", "--events-backend", "none"]);
        command.args([
            "run",
            "--rm",
            "--log-driver",
            "none",
            "--network",
            "none",
            "--read-only",
        ]);
        command.args(["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]);
        command
            .arg("--security-opt")
            .arg(format!("seccomp={}", self.filter.display()));
        command.args(["--user", "1000:1000", "--workdir", "/home/user"]);
        command.args(["--memory", &MEMORY_BYTES.to_string(), "--pids-limit", &PIDS.to_string()]);
        command.args(["--cpus", "1", "--ulimit", "nofile=1024:1024"]);
        // Its default is more than a host without CAP_SYS_RESOURCE may set.
        command.args(["--ulimit", "nproc=1024:1024"]);
        command.args(["--tmpfs", "/tmp", "--tmpfs", "/home/user"]);
        for pair in environment() {
            command.args(["--env", pair]);
        }
        // Above it lies an overlay, so that nothing is written into the tree.
        command.arg("--rootfs").arg(format!("{}:O", self.rootfs.tree.display()));
        command.args([PYTHON, "-c", code]);
        Ok(with_environment(command).into())
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        // What the manager of control groups leaves; elsewhere, or not empty, it belongs to somebody else.
        let top = Path::new("/sys/fs/cgroup");
        let entries = fs::read_dir(top).into_iter().flatten().flatten();
        let hierarchies = entries.map(|entry| entry.path()).chain([top.to_owned()]);
        for group in hierarchies.map(|hierarchy| hierarchy.join("libpod_parent")) {
            let _not_there = fs::remove_dir(group);
        }
    }
}
