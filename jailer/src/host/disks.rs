//! Which disks a session can reach, and how their use is limited.

use std::os::fd::BorrowedFd;
use std::path::Path;

use super::serve::Jailer;
use crate::api::Refusal;
use crate::cgroup::{Disk, IoPlan};
use crate::policy::{Policy, Workspace};

impl Jailer {
    /// Decides what is limited on which disk; refuses a policy that asks for what this host can't do.
    pub(super) fn io_plan(&self, policy: &Policy, image: &Path) -> Result<Option<Box<IoPlan>>, Refusal> {
        let Some(limits) = policy.limits.io else {
            return Ok(None);
        };
        let refused = |why: String| Refusal::HostCannot(format!("policy {} has limits.io: {why}", policy.name));
        if !self.cgroups.can_limit_io() {
            let why = "the io controller of cgroup version 2 is not delegated to brig-jailer";
            return Err(refused(why.to_owned()));
        }
        let disk = disk_of(image).map_err(|why| refused(format!("the image store: {why}")))?;
        let mut disks = vec![disk];
        if policy.limits.workspace == Workspace::Disk {
            let place = self.workspace_place().map_err(refused)?;
            let disk = disk_of_open(place).map_err(|why| refused(format!("the place of workspaces: {why}")))?;
            if !disks.contains(&disk) {
                disks.push(disk);
            }
        }
        Ok(Some(Box::new(IoPlan { limits, disks })))
    }
}

fn disk_of_open(folder: BorrowedFd<'_>) -> Result<Disk, String> {
    let stat = rustix::fs::fstat(folder).map_err(|error| format!("fstat(): {error}"))?;
    Disk::of(stat.st_dev).map_err(|error| error.to_string())
}

/// The disk that a file or folder lies on, or why there is none.
pub(super) fn disk_of(path: &Path) -> Result<Disk, String> {
    let stat = rustix::fs::stat(path).map_err(|error| format!("stat({}): {error}", path.display()))?;
    Disk::of(stat.st_dev).map_err(|error| error.to_string())
}
