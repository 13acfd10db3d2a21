//! crun and runc: a bundle with the namespaces, limits and calls of the policy `data`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use brig_jailer::policy::{PolicySet, Trust};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{MEMORY_BYTES, PIDS, PYTHON, Peer, Rootfs, environment, program, version, with_environment};

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

/// A file of `policies/syscalls`, as far as it matters here: conditions on arguments are left out.
#[derive(Debug, Deserialize)]
struct Group {
    allow: Vec<Call>,
}

#[derive(Debug, Deserialize)]
struct Call {
    syscall: String,
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

    fn command(&mut self, code: &str) -> anyhow::Result<Command> {
        let bundle = self.bundle(code)?;
        self.runs += 1;
        let mut command = Command::new(&self.program);
        command
            .arg("--root")
            .arg(self.rootfs.scratch.join(format!("{}-state", self.name)));
        command.arg("run").arg("--bundle").arg(bundle);
        command.arg(format!("bench-{}-{}-{}", self.name, std::process::id(), self.runs));
        Ok(with_environment(command))
    }
}

/// The calls that the policy `data` allows.
fn calls(policies: &Path) -> anyhow::Result<BTreeSet<String>> {
    let set = PolicySet::load(&[policies.to_owned()], Trust::RootOwned)?;
    let mut calls = BTreeSet::new();
    for name in &set.get("data")?.rules.syscalls.groups {
        let path = policies.join(format!("syscalls/{name}.toml"));
        let text = fs::read_to_string(&path)?;
        let group: Group = toml::from_str(&text).with_context(|| path.display().to_string())?;
        calls.extend(group.allow.into_iter().map(|call| call.syscall));
    }
    Ok(calls)
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
            "seccomp": {
                "defaultAction": "SCMP_ACT_ERRNO",
                "defaultErrnoRet": 38,
                "architectures": ["SCMP_ARCH_X86_64"],
                "syscalls": [{"names": calls, "action": "SCMP_ACT_ALLOW"}],
            },
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
            "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger"],
        },
    })
}
