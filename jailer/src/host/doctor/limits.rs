//! Control groups, and what they limit.

use std::path::Path;

use super::{Found, Lack, lack, read};
use crate::cgroup::{Controllers, Layout, LayoutError, NEEDED};

/// The lines of [`NEEDED`], in its order.
const LINES: [&str; 3] = ["cgroup memory", "cgroup cpu", "cgroup pids"];

pub(super) fn look() -> Vec<(&'static str, Found)> {
    let layout = Layout::detect();
    let mut found = vec![("cgroup tracking", tracking(&layout))];
    found.extend(
        LINES
            .into_iter()
            .zip(0..)
            .map(|(line, index)| (line, controller(&layout, index))),
    );
    found.push(("swap", swap(&layout)));
    found
}

fn tracking(layout: &Result<Layout, LayoutError>) -> Found {
    match layout {
        Ok(layout) => writable(&layout.v2).map(|place| format!("v2 at {place}")),
        Err(LayoutError::NoTracking) => Err(lack(
            "no cgroup2 is mounted",
            "boot with systemd.unified_cgroup_hierarchy=1, or mount -t cgroup2 none /sys/fs/cgroup/unified",
        )),
        Err(LayoutError::Sys(error)) => Err(lack(error.to_string(), "mount /proc and the cgroups")),
        Err(LayoutError::NotDelegated(group)) => Ok(format!("v2 at {}", group.display())),
        Err(LayoutError::NoController(_) | LayoutError::Split(_)) => Ok("v2".to_owned()),
    }
}

/// What is known of one controller, by its place in [`NEEDED`].
fn controller(layout: &Result<Layout, LayoutError>, index: usize) -> Found {
    let name = NEEDED[index];
    match layout {
        Ok(layout) => {
            let folder = match &layout.controllers {
                Controllers::V2 => layout.v2.clone(),
                controllers @ Controllers::V1 { .. } => controllers.v1_folders().swap_remove(index),
            };
            writable(&folder).map(|place| format!("{} at {place}", layout.controllers.name()))
        }
        Err(LayoutError::NoController(missing)) if missing.contains(&name) => Err(lack(
            "in no hierarchy",
            format!(
                "add {name} to Delegate= of brig-jailer.service; where cgroups are version 1, mount its hierarchy: \
                 mount -t cgroup -o {name} cgroup /sys/fs/cgroup/{name}; the kernel needs it built in, and no \
                 cgroup_disable={name}"
            ),
        )),
        Err(LayoutError::Split(there)) if there.contains(&name) => Err(lack(
            "on version 2, while others are on version 1",
            format!("mount its version 1 hierarchy: mount -t cgroup -o {name} cgroup /sys/fs/cgroup/{name}"),
        )),
        Err(LayoutError::NoController(_) | LayoutError::Split(_)) => Ok("there".to_owned()),
        Err(error) => Err(not_ours(error)),
    }
}

fn not_ours(error: &LayoutError) -> Lack {
    let mend = match error {
        LayoutError::NotDelegated(_) => {
            "run it as the unit brig-jailer.service, whose Delegate= has memory, cpu and pids, or by systemd-run -p Delegate=yes"
        }
        _ => "see cgroup tracking",
    };
    lack(error.to_string(), mend)
}

fn writable(folder: &Path) -> Found {
    match rustix::fs::access(folder, rustix::fs::Access::WRITE_OK) {
        Ok(()) => Ok(folder.display().to_string()),
        Err(error) => Err(lack(format!("{}: {error}", folder.display()), writable_mend(error))),
    }
}

fn writable_mend(error: rustix::io::Errno) -> &'static str {
    if error == rustix::io::Errno::ROFS {
        "run outside the container, or with its cgroups mounted writable; in a unit without ProtectControlGroups="
    } else {
        "run brig-jailer as root"
    }
}

/// Not having it is no reason to refuse: memory that was swapped is still counted where swap is limited at all.
fn swap(layout: &Result<Layout, LayoutError>) -> Found {
    if read("/proc/swaps").is_some_and(|text| text.lines().count() <= 1) {
        return Ok("no swap".to_owned());
    }
    let limited = layout.as_ref().is_ok_and(|layout| match &layout.controllers {
        Controllers::V2 => counts_swap(&layout.v2),
        Controllers::V1 { memory, .. } => memory.join("memory.memsw.limit_in_bytes").exists(),
    });
    if limited {
        Ok("swap, limited per session".to_owned())
    } else {
        Err(lack("swap, not limited", "boot with swapaccount=1, or swapoff -a"))
    }
}

/// The root group has no such file, and each group below it does if the kernel counts swap.
fn counts_swap(group: &Path) -> bool {
    let has = |folder: &Path| folder.join("memory.swap.max").exists();
    let below = std::fs::read_dir(group).into_iter().flatten().flatten();
    has(group) || below.into_iter().any(|entry| has(&entry.path()))
}
