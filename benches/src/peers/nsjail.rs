//! nsjail, where `NSJAIL` names its program (Debian has none): namespaces, limits by control groups, the calls of the
//! policy `data`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::calls::{REFUSED, calls};
use super::{MEMORY_BYTES, PIDS, PYTHON, Peer, Rootfs, Run, environment, with_environment};

const CGROUPS: &str = "/sys/fs/cgroup";
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

#[derive(Debug)]
pub(super) struct Nsjail {
    program: PathBuf,
    rootfs: Rootfs,
    /// The filter in the language of kafel.
    filter: PathBuf,
    groups: Groups,
}

/// The control groups that those of jails are made in.
#[derive(Debug)]
struct Groups {
    name: String,
    made: Vec<PathBuf>,
    is_version_2: bool,
}

impl Nsjail {
    pub(super) fn new(rootfs: &Rootfs) -> anyhow::Result<Self> {
        let program = PathBuf::from(std::env::var_os("NSJAIL").context("NSJAIL names no program")?);
        ensure!(program.is_file(), "NSJAIL: {} is no file", program.display());
        let filter = rootfs.scratch.join("nsjail.policy");
        fs::write(&filter, kafel(&calls(&rootfs.policies)?))?;
        Ok(Self {
            program,
            rootfs: rootfs.clone(),
            filter,
            groups: Groups::make()?,
        })
    }
}

impl Peer for Nsjail {
    fn name(&self) -> String {
        // It tells no version.
        "nsjail".to_owned()
    }

    fn run(&mut self, code: &str) -> anyhow::Result<Run> {
        let mut command = Command::new(&self.program);
        command.args(["--mode", "o", "--really_quiet"]);
        command.arg("--chroot").arg(&self.rootfs.tree);
        command.args(["--user", "1000:1000:1", "--group", "1000:1000:1", "--cwd", "/home/user"]);
        command.args(["--mount", "none:/dev:tmpfs:size=65536"]);
        command.args(["/dev/null", "/dev/zero", "/dev/urandom"].map(|device| format!("--bindmount={device}")));
        for place in ["/tmp", "/home/user", "/dev/shm"] {
            command.args(["--mount", &format!("none:{place}:tmpfs:size={MEMORY_BYTES}")]);
        }
        // Its own defaults are 4 GiB of address space, 32 descriptors and the lowest priority.
        command.args(["--rlimit_as", "inf", "--rlimit_fsize", "inf", "--rlimit_nofile", "1024"]);
        command.args(["--nice_level", "0"]);
        command.arg("--seccomp_policy").arg(&self.filter);
        self.groups.arguments(&mut command);
        for pair in environment() {
            command.args(["--env", pair]);
        }
        command.args(["--", PYTHON, "-c", code]);
        Ok(with_environment(command).into())
    }
}

impl Groups {
    fn make() -> anyhow::Result<Self> {
        let top = Path::new(CGROUPS);
        let is_version_2 = top.join("cgroup.controllers").exists();
        let mut groups = Self {
            name: format!("bench-nsjail-{}", std::process::id()),
            made: Vec::new(),
            is_version_2,
        };
        let parents = if is_version_2 {
            vec![top.to_owned()]
        } else {
            CONTROLLERS.map(|controller| top.join(controller)).to_vec()
        };
        for parent in parents {
            let group = parent.join(&groups.name);
            fs::create_dir(&group).with_context(|| group.display().to_string())?;
            groups.made.push(group);
        }
        Ok(groups)
    }

    fn arguments(&self, command: &mut Command) {
        command.args(["--cgroup_mem_max", &MEMORY_BYTES.to_string()]);
        command.args(["--cgroup_pids_max", &PIDS.to_string()]);
        command.args(["--cgroup_cpu_ms_per_sec", "1000"]);
        if self.is_version_2 {
            command.arg("--use_cgroupv2").arg("--cgroupv2_mount").args(&self.made);
        } else {
            for kind in ["mem", "pids", "cpu"] {
                command.args([&format!("--cgroup_{kind}_parent"), &self.name]);
            }
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in &self.made {
            // Empty but for what a jail left that was killed; then it is seen by its name.
            let _not_empty = fs::remove_dir(group);
        }
    }
}

fn kafel(calls: &BTreeSet<String>) -> String {
    let names: Vec<&str> = calls.iter().map(|call| kafel_name(call)).collect();
    format!("ALLOW {{ {} }}\nDEFAULT ERRNO({REFUSED})\n", names.join(", "))
}

/// It has four calls by the names of the kernel's functions.
fn kafel_name(call: &str) -> &str {
    match call {
        "fstat" => "newfstat",
        "lstat" => "newlstat",
        "stat" => "newstat",
        "uname" => "newuname",
        other => other,
    }
}
