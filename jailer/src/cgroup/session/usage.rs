//! What the groups of a session use at one moment.

use std::path::{Path, PathBuf};

use super::{Leaf, SessionGroups};
use crate::api::SessionUsage;
use crate::cgroup::{find_key, read_file, sys_error};
use crate::step::SysError;

impl SessionGroups {
    /// What everything in the group of the guest uses, the file helper included; how many processes there are is known.
    pub fn usage(&self, processes: u64) -> Result<SessionUsage, SysError> {
        let guest = self.session.join("guest");
        let folders: Vec<PathBuf> = self.bases.iter().map(|base| base.join(&guest)).collect();
        Ok(SessionUsage {
            cpu_us: keyed(&folders[0].join("cpu.stat"), "usage_usec")?,
            memory_bytes: memory(&folders)?,
            processes,
        })
    }
}

impl Leaf {
    /// Processes and threads of the leaf.
    pub fn processes(&self) -> Result<u64, SysError> {
        number(&self.folders.get(3).unwrap_or(&self.folders[0]).join("pids.current"))
    }
}

/// Memory without the caches of files on disk, which the kernel takes back when it is needed. Files in a tmpfs are none.
fn memory(folders: &[PathBuf]) -> Result<u64, SysError> {
    // On version 1, those with this prefix include the groups below.
    let (folder, current, prefix) = match folders.get(1) {
        Some(memory) => (memory, "memory.usage_in_bytes", "total_"),
        None => (&folders[0], "memory.current", ""),
    };
    let file = folder.join("memory.stat");
    let stat = read_file(&file)?;
    let cached = ["active_file", "inactive_file"]
        .map(|kind| find_key(&stat, &format!("{prefix}{kind}")).ok_or_else(|| unreadable(&file)));
    let [active, inactive] = cached;
    Ok(number(&folder.join(current))?.saturating_sub(active? + inactive?))
}

fn number(path: &Path) -> Result<u64, SysError> {
    read_file(path)?.parse().map_err(|_| unreadable(path))
}

fn keyed(path: &Path, key: &str) -> Result<u64, SysError> {
    find_key(&read_file(path)?, key).ok_or_else(|| unreadable(path))
}

fn unreadable(path: &Path) -> SysError {
    sys_error("read", path, &std::io::ErrorKind::InvalidData.into())
}
