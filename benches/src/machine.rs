//! What the figures were found on.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// A machine, and how busy it was.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    /// `v2`, `hybrid` or `v1`.
    pub(crate) cgroup: &'static str,
    /// What the ledger lies on.
    pub(crate) disk: Disk,
    /// Load averages of 1, 5 and 15 minutes, before the first turn.
    pub(crate) load_at_start: [f64; 3],
}

/// A file system.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Disk {
    pub(crate) device: String,
    pub(crate) filesystem: String,
    pub(crate) mounted_at: String,
}

impl Machine {
    /// Looks at this one; `state` is where the ledger lies.
    pub(crate) fn look(state: &Path) -> anyhow::Result<Self> {
        let cpus = fs::read_to_string("/proc/cpuinfo")?;
        let memory = fs::read_to_string("/proc/meminfo")?;
        let kibibytes: u64 = value(&memory, "MemTotal").trim_end_matches(" kB").parse()?;
        Ok(Self {
            cpu: value(&cpus, "model name").to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            memory_mib: kibibytes / 1024,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            cgroup: cgroup(),
            disk: disk(&fs::read_to_string("/proc/self/mountinfo")?, state),
            load_at_start: load(&fs::read_to_string("/proc/loadavg")?),
        })
    }
}

fn value<'t>(text: &'t str, key: &str) -> &'t str {
    let line = text
        .lines()
        .find(|line| line.split(':').next().map(str::trim) == Some(key));
    line.and_then(|line| line.split_once(':'))
        .map_or("", |(_, value)| value.trim())
}

fn cgroup() -> &'static str {
    let at = |path: &str| Path::new(path).exists();
    match (
        at("/sys/fs/cgroup/cgroup.controllers"),
        at("/sys/fs/cgroup/unified/cgroup.controllers"),
    ) {
        (true, _) => "v2",
        (false, true) => "hybrid",
        (false, false) => "v1",
    }
}

/// The file system that a path lies on. Source: proc_pid_mountinfo(5).
fn disk(mounts: &str, path: &Path) -> Disk {
    let parsed = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let (mount, mut kind) = (before.split(' ').nth(4)?, after.split(' '));
        let (filesystem, device) = (kind.next()?, kind.next()?);
        path.starts_with(mount).then(|| Disk {
            device: device.to_owned(),
            filesystem: filesystem.to_owned(),
            mounted_at: mount.to_owned(),
        })
    });
    // Of two at one place the later one is seen.
    parsed.max_by_key(|disk| disk.mounted_at.len()).unwrap_or_default()
}

fn load(text: &str) -> [f64; 3] {
    let mut numbers = text.split(' ').filter_map(|number| number.parse().ok());
    std::array::from_fn(|_| numbers.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_the_innermost_mount() {
        let mounts =
            "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /tmp rw shared:1 - tmpfs none rw\n3 1 8:2 / /tm rw - xfs b rw";
        let found = |path: &str| disk(mounts, Path::new(path));
        assert_eq!(found("/tmp/x").filesystem, "tmpfs");
        assert_eq!(
            (found("/var").device.as_str(), found("/var").mounted_at.as_str()),
            ("/dev/a", "/")
        );
        assert_eq!(load("0.5 1.25 2.00 1/100 9\n"), [0.5, 1.25, 2.0]);
    }
}
