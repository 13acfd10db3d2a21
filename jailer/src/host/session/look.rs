//! What is on in a jail, found out by looking.

use std::fs;

use super::Session;
use crate::api::Enforced;
use crate::plan::HOME;

impl Session {
    /// Its quota was read back when it was made.
    fn look_at_workspace(&self) -> String {
        match mounted_kind(self.pid, HOME).as_deref() {
            None => "unknown",
            Some("tmpfs") => "tmpfs",
            Some(_) => "disk",
        }
        .to_owned()
    }

    /// Finds out what is on, by looking at the jail from outside.
    ///
    /// Capabilities and no_new_privs are looked at by each program itself before its exec, which fails otherwise.
    pub(super) fn look(&self, landlock_abi: u32) -> Enforced {
        let kinds = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
        let own = |kind: &&str| {
            let of = |who: &str| fs::read_link(format!("/proc/{who}/ns/{kind}")).ok();
            of(&self.pid.to_string()).is_some_and(|theirs| Some(theirs) != of("self"))
        };
        let name = |kind: &str| {
            if kind == "mnt" {
                "mount".to_owned()
            } else {
                kind.to_owned()
            }
        };
        Enforced {
            namespaces: kinds.iter().filter(|kind| own(kind)).map(|kind| name(kind)).collect(),
            cgroup: self.groups.controllers().name().to_owned(),
            // Each was read back when it was set; otherwise the session would not exist.
            memory: true,
            cpu: true,
            pids: true,
            swap: self.groups.no_swap,
            io: self.groups.limits_io(),
            workspace: self.look_at_workspace(),
            landlock_abi,
            seccomp: self.filter.clone(),
            capabilities: "none".to_owned(),
            no_new_privs: true,
        }
    }
}

/// The kind of file system that a process sees at a mount point.
fn mounted_kind(pid: i32, point: &str) -> Option<String> {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok()?;
    let line = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(point))?;
    let (_, kind) = line.split_once(" - ")?;
    kind.split(' ').next().map(ToOwned::to_owned)
}
