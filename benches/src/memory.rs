//! Memory of processes and of the kernel, in bytes.

use std::fs;

use anyhow::Context;
use brig_tests::processes::process;

/// What one process has for itself: pages that it alone has written, and its page tables.
///
/// Source: proc_pid_smaps(5), proc_pid_status(5).
pub(crate) fn own(pid: u32) -> anyhow::Result<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let dirty = kibibytes(&rollup, "Private_Dirty").context("smaps_rollup without Private_Dirty")?;
    Ok(dirty * 1024 + process(pid).memory("VmPTE"))
}

/// What all objects of the kernel's slab allocator on this host take.
///
/// Source: proc_meminfo(5), `Slab`.
pub(crate) fn slab() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    Ok(kibibytes(&text, "Slab").context("/proc/meminfo without Slab")? * 1024)
}

fn kibibytes(text: &str, line: &str) -> Option<u64> {
    let value = text.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
    value?.trim().strip_suffix(" kB")?.trim().parse().ok()
}
