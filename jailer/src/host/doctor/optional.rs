//! What only some policies need. Where no policy asks for it, its absence is no fault of the host.

use std::os::fd::AsFd;

use super::{Found, check, lack};
use crate::api::{Check, Verdict};
use crate::cgroup::{Controllers, Layout};
use crate::host::Places;
use crate::host::disks::disk_of;
use crate::host::workspaces;
use crate::policy::{Policy, PolicySet, Trust, Workspace};

pub(super) fn look(places: &Places) -> Vec<Check> {
    let policies = PolicySet::load(&places.policies, Trust::RootOwned).ok();
    let asking = |asks: fn(&Policy) -> bool| -> Vec<String> {
        let all = policies.iter().flat_map(PolicySet::iter);
        all.filter(|policy| asks(policy))
            .map(|policy| policy.name.clone())
            .collect()
    };
    vec![
        optional(
            "cgroup io",
            "limits.io",
            &asking(|policy| policy.limits.io.is_some()),
            io(places),
        ),
        optional(
            "workspace disk",
            "limits.workspace",
            &asking(|policy| policy.limits.workspace == Workspace::Disk),
            workspaces_on_disk(places),
        ),
    ]
}

fn optional(what: &'static str, key: &str, asking: &[String], found: Found) -> Check {
    let made = check(what, found);
    if asking.is_empty() {
        return Check {
            needed: format!("for no policy here ({key})"),
            verdict: Verdict::Ok,
            mend: String::new(),
            ..made
        };
    }
    let verdict = match made.verdict {
        Verdict::Ok => Verdict::Ok,
        Verdict::Degraded | Verdict::Missing => Verdict::Degraded,
    };
    Check {
        needed: format!("for policy {} ({key})", asking.join(", ")),
        verdict,
        ..made
    }
}

fn io(places: &Places) -> Found {
    match Layout::detect() {
        Ok(layout) if layout.can_limit_io() => match disk_of(&places.images) {
            Ok(disk) => Ok(format!("limits on disk {disk}")),
            Err(why) => Err(lack(
                format!("none: the image store: {why}"),
                "keep the image store on a file system that lies on a disk",
            )),
        },
        Ok(layout) if layout.controllers == Controllers::V2 => Err(lack(
            "none: the controller is not delegated",
            "add io to Delegate= of brig-jailer.service",
        )),
        _ => Err(lack(
            "none: version 1 can't",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )),
    }
}

fn workspaces_on_disk(places: &Places) -> Found {
    let place = &places.workspaces;
    workspaces::open(place)
        .and_then(|folder| workspaces::look(folder.as_fd()))
        .map(|bytes| format!("{}, {} MiB, with quotas", place.display(), bytes >> 20))
        .map_err(|unfit| lack(format!("none: {}", unfit.found), unfit.mend))
}
