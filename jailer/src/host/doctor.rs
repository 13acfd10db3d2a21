//! Looks at the host: what Brig can enforce here, what it can't, and what to do about it.

mod optional;

use std::fs;
use std::path::Path;

use super::Places;
use super::uids::{BLOCK, UID_BASE};
use crate::api::{Check, HostReport, Verdict};
use crate::cgroup::{Controllers, Layout};
use crate::policy::Trust;
use crate::sys;
use crate::template::Templates;

/// The oldest kernel that is supported.
const KERNEL: (u32, u32) = (6, 1);
/// The oldest Landlock interface that is enough: renaming across folders (REFER) came with it.
const LANDLOCK: u32 = 2;

/// Looks at everything. Changes nothing, but for moving the processes of a delegated group one level down.
pub fn report(places: &Places) -> HostReport {
    let mut checks = vec![privilege(), kernel(), user_namespaces(), proc_is_whole()];
    checks.extend(cgroups());
    checks.extend([
        swap(),
        landlock(),
        seccomp(),
        uid_range(),
        programs(&places.programs),
        images(&places.images),
    ]);
    checks.extend(optional::checks(places));
    HostReport { checks, sessions: 0 }
}

/// What keeps every session from being made, in one line.
pub(super) fn missing(report: &HostReport) -> Option<String> {
    let missing: Vec<String> = report
        .checks
        .iter()
        .filter(|check| check.verdict == Verdict::Missing && check.what != "images")
        .map(|check| {
            format!(
                "{}: {} (needed: {}; {})",
                check.what, check.found, check.needed, check.mend
            )
        })
        .collect();
    (!missing.is_empty()).then(|| missing.join("; "))
}

fn check(what: &str, found: impl Into<String>, needed: &str, good: bool, mend: &str) -> Check {
    Check {
        what: what.to_owned(),
        found: found.into(),
        needed: needed.to_owned(),
        verdict: if good { Verdict::Ok } else { Verdict::Missing },
        mend: if good { String::new() } else { mend.to_owned() },
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn privilege() -> Check {
    let capable = caps::has_cap(None, caps::CapSet::Effective, caps::Capability::CAP_SYS_ADMIN).unwrap_or(false);
    let root = rustix::process::geteuid().is_root();
    let found = format!(
        "uid {}, CAP_SYS_ADMIN {}",
        rustix::process::geteuid().as_raw(),
        if capable { "yes" } else { "no" }
    );
    check(
        "privilege",
        found,
        "root with CAP_SYS_ADMIN",
        root && capable,
        "run brig-jailer as root",
    )
}

fn kernel() -> Check {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut parts = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    check(
        "kernel",
        release,
        "6.1 or later",
        version >= KERNEL,
        "boot a newer kernel",
    )
}

fn user_namespaces() -> Check {
    let path = "/proc/sys/user/max_user_namespaces";
    let found = read(path).unwrap_or_else(|| "not built in".to_owned());
    let good = found.parse::<u64>().is_ok_and(|count| count > 0);
    check(
        "user namespaces",
        format!("at most {found}"),
        "more than 0",
        good,
        "sysctl user.max_user_namespaces=65536",
    )
}

/// A fresh /proc can only be mounted in a user namespace where nothing is hidden of the one that is seen.
fn proc_is_whole() -> Check {
    let mounts = read("/proc/self/mountinfo").unwrap_or_default();
    let covered: Vec<&str> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|point| point.starts_with("/proc/") && *point != "/proc/sys/fs/binfmt_misc")
        .collect();
    let found = if covered.is_empty() {
        "nothing covered".to_owned()
    } else {
        format!("covered: {}", covered.join(" "))
    };
    let mend = "run outside the container, or with an unmasked /proc (systempaths=unconfined)";
    check("/proc", found, "nothing covered", covered.is_empty(), mend)
}

fn cgroups() -> Vec<Check> {
    let mend = "run as a systemd unit with Delegate=yes, or mount the controllers";
    match Layout::detect() {
        Ok(layout) => {
            let place = |folder: &Path| format!("{} at {}", layout.controllers.name(), folder.display());
            let folders = match &layout.controllers {
                Controllers::V2 => [&layout.v2, &layout.v2, &layout.v2],
                Controllers::V1 { memory, cpu, pids } => [memory, cpu, pids],
            };
            let mut checks = vec![tracking(&layout)];
            for (name, folder) in ["cgroup memory", "cgroup cpu", "cgroup pids"].into_iter().zip(folders) {
                let writable = rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok();
                checks.push(check(
                    name,
                    place(folder),
                    "a group that can be divided",
                    writable,
                    mend,
                ));
            }
            checks
        }
        Err(error) => vec![check(
            "cgroups",
            error.to_string(),
            "memory, cpu and pids, delegated",
            false,
            mend,
        )],
    }
}

fn tracking(layout: &Layout) -> Check {
    let folder = layout.v2.display().to_string();
    let good = rustix::fs::access(&layout.v2, rustix::fs::Access::WRITE_OK).is_ok();
    check(
        "cgroup tracking",
        format!("v2 at {folder}"),
        "a version 2 tree (cgroup.kill)",
        good,
        "mount cgroup2",
    )
}

/// Not having it is no reason to refuse: memory that was swapped is still counted where swap is limited at all.
fn swap() -> Check {
    let none = read("/proc/swaps").is_some_and(|text| text.lines().count() <= 1);
    let v1 = Layout::detect().is_ok_and(|layout| match layout.controllers {
        Controllers::V2 => true,
        Controllers::V1 { memory, .. } => memory.join("memory.memsw.limit_in_bytes").exists(),
    });
    let found = match (none, v1) {
        (true, _) => "no swap",
        (false, true) => "swap, limited per session",
        (false, false) => "swap, not limited",
    };
    let mut made = check(
        "swap",
        found,
        "none, or limited",
        none || v1,
        "boot with swapaccount=1, or swapoff -a",
    );
    if made.verdict == Verdict::Missing {
        made.verdict = Verdict::Degraded;
    }
    made
}

fn landlock() -> Check {
    let abi = sys::landlock_abi();
    let found = if abi == 0 {
        "off".to_owned()
    } else {
        format!("version {abi}")
    };
    check(
        "landlock",
        found,
        "version 2 or later",
        abi >= LANDLOCK,
        "boot with lsm=landlock,... and CONFIG_SECURITY_LANDLOCK",
    )
}

fn seccomp() -> Check {
    let actions = read("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let good = ["errno", "kill_process"].iter().all(|action| actions.contains(action));
    check(
        "seccomp",
        if good { "filters" } else { "none" },
        "filters",
        good,
        "a kernel with CONFIG_SECCOMP_FILTER",
    )
}

/// Whether somebody else was promised uids of Brig's range.
fn uid_range() -> Check {
    let end = u64::from(UID_BASE) + 63 * 1024 * u64::from(BLOCK);
    let taken = ["/etc/subuid", "/etc/subgid"].iter().find_map(|path| {
        read(path)?.lines().find_map(|line| {
            let mut parts = line.split(':').skip(1).map(|part| part.parse::<u64>().unwrap_or(0));
            let (first, count) = (parts.next()?, parts.next()?);
            (first < end && first + count > u64::from(UID_BASE)).then(|| format!("{path}: {line}"))
        })
    });
    let found = taken
        .clone()
        .unwrap_or_else(|| format!("{UID_BASE} to {} are free", end - 1));
    check(
        "uid range",
        found,
        "not handed out in /etc/subuid",
        taken.is_none(),
        "remove or move that line",
    )
}

fn programs(folder: &Path) -> Check {
    let missing: Vec<&str> = ["brig-init", "brig-files"]
        .into_iter()
        .filter(|name| !folder.join(name).is_file())
        .collect();
    let found = if missing.is_empty() {
        folder.display().to_string()
    } else {
        format!("no {}", missing.join(", no "))
    };
    check(
        "programs",
        found,
        "brig-init and brig-files",
        missing.is_empty(),
        "make install, or --programs DIR",
    )
}

fn images(folder: &Path) -> Check {
    match Templates::load(folder, Trust::RootOwned) {
        Ok(templates) => {
            let ids: Vec<&str> = templates.iter().map(|template| template.id.as_str()).collect();
            let found = if ids.is_empty() {
                "none".to_owned()
            } else {
                ids.join(", ")
            };
            check(
                "images",
                found,
                "at least one",
                !ids.is_empty(),
                "brig template build data",
            )
        }
        Err(error) => check(
            "images",
            error.to_string(),
            "at least one",
            false,
            "brig template build data",
        ),
    }
}
