//! The place of workspaces: whether it is fit for them, and how one is made.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Mode, Uid, fchmod, fchown, fstatvfs, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use super::FOLDER;
use crate::api::Quantities;
use crate::host::uids::Block;
use crate::plan::GUEST_UID;
use crate::policy::{Trust, check_folder};
use crate::step::SysError;
use crate::sys::quota::{self, ProjectLimits};

/// Why a file system can't hold workspaces, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found}; {mend}")]
pub(in crate::host) struct Unfit {
    pub(in crate::host) found: String,
    pub(in crate::host) mend: String,
}

/// Opens the place, which root alone may change.
pub(in crate::host) fn open(place: &Path) -> Result<OwnedFd, Unfit> {
    let unfit = |why: String| Unfit {
        found: why,
        mend: format!(
            "make {} a folder of root's, mode 0700, on ext4 or xfs with prjquota",
            place.display()
        ),
    };
    let real = std::fs::canonicalize(place).map_err(|error| unfit(format!("{}: {error}", place.display())))?;
    check_folder(&real, Trust::RootOwned).map_err(|error| unfit(error.to_string()))?;
    openat(CWD, &real, FOLDER, Mode::empty()).map_err(|error| unfit(format!("{}: {error}", place.display())))
}

/// Looks whether the file system of an open place holds projects to limits; gives its size in bytes.
pub(in crate::host) fn look(place: BorrowedFd<'_>) -> Result<u64, Unfit> {
    let unfit = |found: String| Unfit {
        found,
        mend: "mount it with prjquota; ext4 must be made for it (mke2fs -O quota,project -E quotatype=prjquota, or \
               tune2fs -O project -Q prjquota while it is not mounted), and the kernel needs quotas of that file system"
            .to_owned(),
    };
    match quota::project_limits_are_held(place) {
        Ok(true) => fstatvfs(place)
            .map(|stat| stat.f_blocks.saturating_mul(stat.f_frsize))
            .map_err(|error| unfit(format!("fstatvfs(): {error}"))),
        Ok(false) => Err(unfit(
            "the file system counts what projects use and does not limit it".to_owned(),
        )),
        Err(error) => Err(unfit(format!("the file system limits no projects ({error})"))),
    }
}

#[derive(Debug)]
pub(super) enum NoRoom {
    Ever(String),
    Now(String),
}

/// What a workspace may take, in whole blocks of the file system.
///
/// A limit above the size of the file system would not be what bounds the session, nor what it sees.
pub(super) fn room_for(place: BorrowedFd<'_>, wanted: &Quantities) -> Result<ProjectLimits, NoRoom> {
    let stat = fstatvfs(place).map_err(|error| NoRoom::Ever(format!("fstatvfs(): {error}")))?;
    let block = stat.f_frsize.max(quota::QUOTA_BLOCK);
    let bytes = wanted.disk_bytes.checked_next_multiple_of(block).unwrap_or(u64::MAX);
    let (size, free) = (stat.f_blocks.saturating_mul(block), stat.f_bavail.saturating_mul(block));
    if bytes >= size {
        return Err(NoRoom::Ever(format!(
            "it is to have {bytes} bytes, and the file system has {size}"
        )));
    }
    if bytes > free {
        return Err(NoRoom::Now(format!(
            "the session is to have {bytes} bytes of disk, and {free} are free"
        )));
    }
    Ok(ProjectLimits {
        bytes,
        inodes: wanted.inodes,
    })
}

/// Makes the folder, limited before anybody can write to it; nothing is left of one that could not be made.
pub(super) fn make(own: BorrowedFd<'_>, block: Block, limits: ProjectLimits) -> Result<(), SysError> {
    let name = block.root().to_string();
    let failed = |call: &str, error: Errno| SysError::new(format!("{call}({name:?})"), error.raw_os_error());
    mkdirat(own, &name, Mode::RWXU).map_err(|error| failed("mkdirat", error))?;
    let made = (|| {
        let folder = openat(own, &name, FOLDER, Mode::empty()).map_err(|error| failed("openat", error))?;
        let project = block.root();
        quota::limit_project(folder.as_fd(), project, limits)?;
        quota::give_to_project(folder.as_fd(), project)?;
        let found = quota::limits_of_project(folder.as_fd(), project)?;
        if found != limits {
            let call = format!("quota of project {project} reads back as {found:?}, not {limits:?}");
            return Err(SysError::new(call, libc::EOPNOTSUPP));
        }
        fchmod(&folder, Mode::RWXU).map_err(|error| failed("fchmod", error))?;
        let guest = block.root() + GUEST_UID;
        fchown(&folder, Some(Uid::from_raw(guest)), Some(Gid::from_raw(guest))).map_err(|error| failed("fchown", error))
    })();
    if made.is_err() {
        let _found_by_the_next_sweep = unlinkat(own, &name, AtFlags::REMOVEDIR);
        let _nothing_is_counted_on_it = quota::limit_project(own, block.root(), UNLIMITED);
    }
    made
}

/// What a project has that is no session's.
pub(super) const UNLIMITED: ProjectLimits = ProjectLimits { bytes: 0, inodes: 0 };
