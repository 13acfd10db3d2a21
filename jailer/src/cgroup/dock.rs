//! The group of a dock: a zygote's session and those that it forks into lie side by side in it.
//!
//! Who clones into a group needs write access to `cgroup.procs` of that group and of the common ancestor of both. A dock
//! is that ancestor, and its file belongs to its zygote alone. It has no limits of its own and no process.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use super::session::open_group;
use super::{Cgroups, Controllers, layout, make_dir, remove_dir, sys_error};
use crate::ids::Id;
use crate::step::SysError;

/// The group of a dock.
#[derive(Debug, Clone)]
pub struct DockGroup {
    name: String,
    /// The host uid and gid of its zygote.
    pub(super) uid: u32,
}

impl DockGroup {
    /// Names the dock of a zygote's session. A dash is in no name of a session.
    pub fn new(keeper: &Id, uid: u32) -> Self {
        Self {
            name: format!("dock-{keeper}"),
            uid,
        }
    }

    pub(super) fn folder(&self) -> PathBuf {
        PathBuf::from(&self.name)
    }
}

impl Cgroups {
    /// Makes a dock's group. `enter` is called with its directory on a version 2 host, as long as there can be a process in
    /// it: when it has handed controllers down, there can't.
    pub fn make_dock<T>(
        &self,
        dock: &DockGroup,
        enter: impl FnOnce(BorrowedFd<'_>) -> Result<T, SysError>,
    ) -> Result<Option<T>, SysError> {
        let made = self.try_dock(dock, enter);
        if made.is_err() {
            self.remove_dock(dock)?;
        }
        made
    }

    fn try_dock<T>(
        &self,
        dock: &DockGroup,
        enter: impl FnOnce(BorrowedFd<'_>) -> Result<T, SysError>,
    ) -> Result<Option<T>, SysError> {
        for base in self.bases() {
            make_dir(&base.join(dock.folder()))?;
        }
        let group = self.tracking_base().join(dock.folder());
        let mut entered = None;
        if *self.controllers() == Controllers::V2 {
            entered = Some(enter(open_group(&group)?.as_fd())?);
            layout::enable_controllers(&group)?;
            if self.can_limit_io() {
                layout::enable_io(&group)?;
            }
        }
        let file = group.join("cgroup.procs");
        std::os::unix::fs::chown(&file, Some(dock.uid), None).map_err(|error| sys_error("chown", &file, &error))?;
        Ok(entered)
    }

    /// Removes a dock's group; fails with `EBUSY` while there is a session in it.
    pub fn remove_dock(&self, dock: &DockGroup) -> Result<(), SysError> {
        self.bases()
            .into_iter()
            .try_for_each(|base| remove_dir(&base.join(dock.folder())))
    }
}
