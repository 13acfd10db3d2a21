//! crun and runc: a bundle with the namespaces, limits and calls of the policy `data`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::calls::{calls, filter};
use super::{MEMORY_BYTES, PIDS, PYTHON, Peer, Rootfs, Run, environment, program, version, with_environment};

#[derive(Debug)]
pub(super) struct Oci {
    name: &'static str,
    program: PathBuf,
    version: String,
    rootfs: Rootfs,
    calls: BTreeSet<String>,
    /// A bundle for each code that was run.
    bundles: BTreeMap<String, PathBuf>,
    runs: usize,
}

impl Oci {
    pub(super) fn new(name: &'static str, rootfs: &Rootfs) -> anyhow::Result<Self> {
        let program = program(name)?;
        Ok(Self {
            name,
            version: version(&program)?,
            program,
            rootfs: rootfs.clone(),
            calls: calls(&rootfs.policies)?,
            bundles: BTreeMap::new(),
            runs: 0,
        })
    }

    fn bundle(&mut self, code: &str) -> anyhow::Result<PathBuf> {
        if let Some(bundle) = self.bundles.get(code) {
            return Ok(bundle.clone());
        }
        let name = format!("{}-{}", self.name, self.bundles.len());
        let bundle = self.rootfs.scratch.join(name);
        fs::create_dir_all(&bundle)?;
        let configuration = configuration(&self.rootfs.tree, &self.calls, code);
        fs::write(bundle.join("config.json"), configuration.to_string())?;
        self.bundles.insert(code.to_owned(), bundle.clone());
        Ok(bundle)
    }
}

impl Peer for Oci {
    fn name(&self) -> String {
        format!("{} {}", self.name, self.version)
    }

    fn run(&mut self, code: &str) -> anyhow::Result<Run> {
        let bundle = self.bundle(code)?;
        self.runs += 1;
        let mut command = Command::new(&self.program);
        command
            .arg("--root")
            .arg(self.rootfs.scratch.join(format!("{}-state", self.name)));
        command.arg("run").arg("--bundle").arg(bundle);
        command.arg(format!("bench-{}-{}-{}", self.name, std::process::id(), self.runs));
        Ok(with_environment(command).into())
    }
}

fn configuration(tree: &Path, calls: &BTreeSet<String>, code: &str) -> Value {
    let tmpfs = |place: &str| {
        json!({"destination": place, "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "nodev", "mode=1777", "size=512m"]})
    };
    let namespaces = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({"type": kind}));
    json!({
        "ociVersion": "1.0.2",
        "hostname": "bench",
        "root": {"path": tree, "readonly": true},
        "process": {
            "terminal": false,
            "user": {"uid": 1000, "gid": 1000},
            "args": [PYTHON, "-c", code],
            "env": environment(),
            "cwd": "/home/user",
            "capabilities": {"bounding": [], "effective": [], "permitted": []},
            "noNewPrivileges": true,
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                "options": ["nosuid", "strictatime", "mode=755", "size=64k"]},
            tmpfs("/dev/shm"),
            tmpfs("/tmp"),
            tmpfs("/home/user"),
        ],
        "linux": {
            "namespaces": namespaces,
            "resources": {
                "memory": {"limit": MEMORY_BYTES},
                "pids": {"limit": PIDS},
                "cpu": {"quota": 100_000, "period": 100_000},
            },
            "seccomp": filter(calls),
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
            "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger"],
        },
    })
}
