//! firejail: its chroot mode, without network, with its own filter. Memory is limited as address space.

use std::path::PathBuf;
use std::process::Command;

use super::{MEMORY_BYTES, PIDS, PYTHON, Peer, Rootfs, Run, program, version, with_environment};

#[derive(Debug)]
pub(super) struct Firejail {
    program: PathBuf,
    version: String,
    rootfs: Rootfs,
}

impl Firejail {
    pub(super) fn new(rootfs: &Rootfs) -> anyhow::Result<Self> {
        let program = program("firejail")?;
        Ok(Self {
            version: version(&program)?,
            program,
            rootfs: rootfs.clone(),
        })
    }
}

impl Peer for Firejail {
    fn name(&self) -> String {
        format!("firejail {}", self.version)
    }

    fn run(&mut self, code: &str) -> anyhow::Result<Run> {
        let mut command = Command::new(&self.program);
        command.args(["--quiet", "--noprofile", "--net=none", "--ipc-namespace"]);
        command.args(["--caps.drop=all", "--nonewprivs", "--seccomp"]);
        command.arg(format!("--chroot={}", self.rootfs.tree.display()));
        // pandas maps more than it uses.
        command.arg(format!("--rlimit-as={}", 8 * MEMORY_BYTES));
        command.arg(format!("--rlimit-nproc={PIDS}"));
        command.args(["--", PYTHON, "-c", code]);
        Ok(with_environment(command).into())
    }
}
