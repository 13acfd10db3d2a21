//! Finds out how this host mounts its control groups, and where in them Brig may work.

use std::fs;
use std::path::{Path, PathBuf};

use super::{read_file, write_file};
use crate::step::SysError;

/// Where Brig's groups go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Folder of the version 2 tree below which Brig makes its groups.
    pub v2: PathBuf,
    pub controllers: Controllers,
}

/// Which hierarchies limit memory, CPU and processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Controllers {
    /// The version 2 tree.
    V2,
    /// Version 1 hierarchies, by the folder below which Brig makes its groups.
    V1 {
        memory: PathBuf,
        cpu: PathBuf,
        pids: PathBuf,
    },
}

/// Why no group can be made here.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error("no cgroup version 2 hierarchy is mounted")]
    NoTracking,
    #[error("in no control group hierarchy: {}", .0.join(", "))]
    NoController(Vec<&'static str>),
    #[error("on version 2, while other controllers are on version 1: {}", .0.join(", "))]
    Split(Vec<&'static str>),
    #[error("the group {0} is not delegated to this process")]
    NotDelegated(PathBuf),
    #[error(transparent)]
    Sys(#[from] SysError),
}

impl Controllers {
    /// The version 1 folders, memory first.
    pub fn v1_folders(&self) -> Vec<PathBuf> {
        match self {
            Self::V2 => Vec::new(),
            Self::V1 { memory, cpu, pids } => vec![memory.clone(), cpu.clone(), pids.clone()],
        }
    }

    /// `v2` or `v1`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::V2 => "v2",
            Self::V1 { .. } => "v1",
        }
    }
}

/// The controllers without which no session is made.
pub const NEEDED: [&str; 3] = ["memory", "cpu", "pids"];

impl Layout {
    /// Looks at /proc/self. On a version 2 host, processes of a delegated group are moved one level down, since a group
    /// with processes can't hand controllers to groups below it.
    pub fn detect() -> Result<Self, LayoutError> {
        let mounts = read_file(Path::new("/proc/self/mountinfo"))?;
        let own = read_file(Path::new("/proc/self/cgroup"))?;
        let tracking = find_folder(&mounts, &own, None).ok_or(LayoutError::NoTracking)?;
        // A controller is in one kind of hierarchy at a time.
        let folder = |name| find_folder(&mounts, &own, Some(name));
        if let (Some(memory), Some(cpu), Some(pids)) = (folder("memory"), folder("cpu"), folder("pids")) {
            return Ok(Self {
                v2: tracking,
                controllers: Controllers::V1 { memory, cpu, pids },
            });
        }
        let on_v1 = NEEDED.iter().any(|name| folder(name).is_some());
        let v2 = if on_v1 { tracking } else { delegated(&tracking)? };
        let available = read_file(&v2.join("cgroup.controllers"))?;
        let (there, missing): (Vec<_>, Vec<_>) = NEEDED
            .into_iter()
            .filter(|name| folder(name).is_none())
            .partition(|name| available.split(' ').any(|have| have == *name));
        if !missing.is_empty() {
            return Err(LayoutError::NoController(missing));
        }
        if on_v1 {
            return Err(LayoutError::Split(there));
        }
        Ok(Self {
            v2,
            controllers: Controllers::V2,
        })
    }
}

impl Layout {
    /// Whether the controller of disks is there to be handed down.
    pub fn can_limit_io(&self) -> bool {
        self.controllers == Controllers::V2
            && read_file(&self.v2.join("cgroup.controllers")).is_ok_and(|text| text.split(' ').any(|name| name == "io"))
    }
}

/// The folder of this process in the version 2 tree (`None`), or in the version 1 hierarchy of a controller.
fn find_folder(mounts: &str, own: &str, controller: Option<&str>) -> Option<PathBuf> {
    let (root, mount) = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let found = match controller {
            None => kind == "cgroup2",
            Some(name) => kind == "cgroup" && options.split(',').any(|option| option == name),
        };
        let mut left = left.split(' ').skip(3);
        found.then(|| Some((left.next()?, left.next()?)))?
    })?;
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (names, path) = (parts.next()?, parts.next()?);
        let found = match controller {
            None => names.is_empty(),
            Some(name) => names.split(',').any(|n| n == name),
        };
        found.then_some(path)
    })?;
    let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
    Some(Path::new(mount).join(below))
}

/// The group that Brig may divide: the parent if a supervisor has put this process into a group of its own below it
/// (`DelegateSubgroup=`), the group itself if it was delegated, the root.
fn delegated(own: &Path) -> Result<PathBuf, LayoutError> {
    let is_root = !own.join("cgroup.type").exists();
    if is_root {
        return Ok(own.to_owned());
    }
    if let Some(parent) = own.parent().filter(|parent| is_delegated(parent)) {
        return Ok(parent.to_owned());
    }
    if !is_delegated(own) {
        return Err(LayoutError::NotDelegated(own.to_owned()));
    }
    let down = own.join("brig");
    super::make_dir(&down)?;
    for pid in read_file(&own.join("cgroup.procs"))?.lines() {
        write_file(&down.join("cgroup.procs"), pid)?;
    }
    Ok(own.to_owned())
}

/// systemd marks the groups of units with `Delegate=`.
///
/// Source: systemd.resource-control(5); <https://systemd.io/CGROUP_DELEGATION>.
fn is_delegated(group: &Path) -> bool {
    let mut value = [0_u8; 8];
    ["user.delegate", "trusted.delegate"]
        .iter()
        .any(|name| matches!(rustix::fs::getxattr(group, *name, &mut value), Ok(1)) && value[0] == b'1')
}

/// Hands the needed controllers to the groups below, and looks whether that worked.
pub(super) fn enable_controllers(group: &Path) -> Result<(), SysError> {
    let control = group.join("cgroup.subtree_control");
    write_file(&control, "+memory +cpu +pids")?;
    let on = fs::read_to_string(&control).unwrap_or_default();
    match NEEDED
        .iter()
        .find(|name| !on.split_whitespace().any(|have| have == **name))
    {
        Some(missing) => Err(SysError::new(
            format!("{}: {missing} is not on", control.display()),
            libc::EOPNOTSUPP,
        )),
        None => Ok(()),
    }
}

/// Hands the controller of disks to the groups below. It does without: few policies limit reads and writes.
pub(super) fn enable_io(group: &Path) -> Result<(), SysError> {
    let control = group.join("cgroup.subtree_control");
    write_file(&control, "+io")?;
    let on = read_file(&control)?;
    if on.split(' ').any(|have| have == "io") {
        Ok(())
    } else {
        Err(SysError::new(
            format!("{}: io is not on", control.display()),
            libc::EOPNOTSUPP,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 25 0:26 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
31 25 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 25 0:36 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";

    #[test]
    fn folders_are_found_by_mount_and_own_group() {
        let own = "4:memory:/app/x\n1:cpu:/\n0::/";
        assert_eq!(find_folder(HYBRID, own, None), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(
            find_folder(HYBRID, own, Some("memory")),
            Some("/sys/fs/cgroup/memory/app/x".into())
        );
        assert_eq!(find_folder(HYBRID, own, Some("cpu")), Some("/sys/fs/cgroup/cpu".into()));
        assert_eq!(find_folder(HYBRID, own, Some("pids")), None);
    }

    #[test]
    fn a_mount_of_a_part_of_the_tree_is_taken_into_account() {
        let mounts = "31 25 0:27 /docker/a /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(
            find_folder(mounts, "0::/docker/a/b", None),
            Some("/sys/fs/cgroup/b".into())
        );
    }
}
