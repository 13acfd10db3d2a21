//! What only some policies need. Where no policy asks for it, its absence is no fault of the host.

use crate::api::{Check, Verdict};
use crate::cgroup::{Controllers, Layout};
use crate::host::Places;
use crate::host::disks::disk_of;
use crate::policy::{Policy, PolicySet, Trust};

pub(super) fn checks(places: &Places) -> Vec<Check> {
    let policies = PolicySet::load(&places.policies, Trust::RootOwned).ok();
    let asking = |asks: fn(&Policy) -> bool| -> Vec<String> {
        let all = policies.iter().flat_map(PolicySet::iter);
        all.filter(|policy| asks(policy))
            .map(|policy| policy.name.clone())
            .collect()
    };
    vec![io(places, &asking(|policy| policy.limits.io.is_some()))]
}

/// `have` says what is there, or what is missing and how to mend it.
fn optional(what: &str, key: &str, asking: &[String], have: Result<String, (String, &str)>) -> Check {
    let needed = if asking.is_empty() {
        format!("by no policy ({key})")
    } else {
        format!("by policy {} ({key})", asking.join(", "))
    };
    let (found, mend) = have.map_or_else(|(missing, mend)| (missing, mend), |found| (found, ""));
    let degraded = !mend.is_empty() && !asking.is_empty();
    Check {
        what: what.to_owned(),
        found,
        needed,
        verdict: if degraded { Verdict::Degraded } else { Verdict::Ok },
        mend: if degraded { mend.to_owned() } else { String::new() },
    }
}

fn io(places: &Places, asking: &[String]) -> Check {
    let have = match Layout::detect() {
        Ok(layout) if layout.can_limit_io() => match disk_of(&places.images) {
            Ok(disk) => Ok(format!("limits on disk {disk}")),
            Err(why) => Err((
                format!("none: the image store: {why}"),
                "keep the image store on a file system that lies on a disk",
            )),
        },
        Ok(layout) if layout.controllers == Controllers::V2 => Err((
            "none: the controller is not delegated".to_owned(),
            "add io to Delegate= of brig-jailer.service",
        )),
        _ => Err((
            "none: version 1 can't".to_owned(),
            "boot with systemd.unified_cgroup_hierarchy=1",
        )),
    };
    optional("cgroup io", "limits.io", asking, have)
}
