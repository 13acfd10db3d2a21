//! Quotas of projects: how much the files below a folder may take of the file system that they lie on.
//!
//! ext4 and xfs have them. The same calls serve both: the kernel translates the generic ones for xfs.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::checked;
use crate::step::SysError;

/// Type of quota, as the low byte of a command. Source: include/uapi/linux/quota.h.
const PRJQUOTA: u32 = 2;
const Q_GETQUOTA: u32 = 0x80_0007;
const Q_SETQUOTA: u32 = 0x80_0008;
/// Source: include/uapi/linux/dqblk_xfs.h, `XQM_CMD(8)`.
const Q_XGETQSTATV: u32 = (b'X' as u32) << 8 | 8;
const FS_QSTATV_VERSION1: u8 = 1;
/// Limits of projects are held, and not only counted.
const FS_QUOTA_PDQ_ENFD: u16 = 1 << 5;
/// `QIF_LIMITS`: both limits of blocks and both of inodes are given.
const QIF_LIMITS: u32 = 1 | 4;
/// The unit of limits of blocks, in bytes: `QIF_DQBLKSIZE`.
pub const QUOTA_BLOCK: u64 = 1024;

/// Source: include/uapi/linux/fs.h, `_IOR('X', 31, struct fsxattr)` and `_IOW('X', 32, struct fsxattr)`.
const FS_IOC_FSGETXATTR: u64 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u64 = 0x401c_5820;
/// What is made in the folder belongs to its project.
const FS_XFLAG_PROJINHERIT: u32 = 0x200;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct Attributes {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

/// What a project may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProjectLimits {
    /// Bytes, a multiple of [`QUOTA_BLOCK`]; 0 is no limit.
    pub bytes: u64,
    /// Files and folders; 0 is no limit.
    pub inodes: u64,
}

fn attributes(folder: BorrowedFd<'_>) -> Result<Attributes, SysError> {
    let mut found = Attributes::default();
    // SAFETY: the kernel writes one `struct fsxattr`, which lives across the call.
    let result = unsafe { libc::ioctl(folder.as_raw_fd(), FS_IOC_FSGETXATTR, &raw mut found) };
    checked(result.into(), || "ioctl(FS_IOC_FSGETXATTR)".to_owned())?;
    Ok(found)
}

/// Gives a folder, and what will be made in it, to a project, and reads that back.
///
/// Nobody in another user namespace than the first can take it back. Source: ioctl_xfs_fsgetxattr(2), and
/// `fileattr_set_prepare` in fs/ioctl.c.
pub fn give_to_project(folder: BorrowedFd<'_>, project: u32) -> Result<(), SysError> {
    let call = || format!("ioctl(FS_IOC_FSSETXATTR, projid={project}, PROJINHERIT)");
    let mut wanted = attributes(folder)?;
    wanted.projid = project;
    wanted.xflags |= FS_XFLAG_PROJINHERIT;
    // SAFETY: the kernel reads one `struct fsxattr`, which lives across the call.
    let result = unsafe { libc::ioctl(folder.as_raw_fd(), FS_IOC_FSSETXATTR, &raw const wanted) };
    checked(result.into(), call)?;
    let found = attributes(folder)?;
    if found.projid == project && found.xflags & FS_XFLAG_PROJINHERIT != 0 {
        Ok(())
    } else {
        let call = format!("{}: reads back as {}, {:#x}", call(), found.projid, found.xflags);
        Err(SysError::new(call, libc::EOPNOTSUPP))
    }
}

/// Source: quotactl_fd(2).
fn quotactl<T>(place: BorrowedFd<'_>, command: u32, project: u32, data: &mut T) -> Result<(), SysError> {
    let arguments = (
        place.as_raw_fd(),
        command << 8 | PRJQUOTA,
        project,
        std::ptr::from_mut(data),
    );
    // SAFETY: the callers give the structure that the command reads or writes; it lives across the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            arguments.0,
            arguments.1,
            arguments.2,
            arguments.3,
        )
    };
    checked(result, || format!("quotactl_fd({command:#x}, project {project})")).map(drop)
}

/// Whether the file system of a folder holds projects to their limits.
///
/// Errors: `ENOSYS` where it has no quotas or they are off, or where the kernel is older than 5.14.
pub fn project_limits_are_held(place: BorrowedFd<'_>) -> Result<bool, SysError> {
    /// More than a `struct fs_quota_statv`, of which the first byte is its version and the second 16 bits are flags.
    #[repr(C, align(8))]
    struct State([u8; 512]);
    let mut state = State([0; 512]);
    state.0[0] = FS_QSTATV_VERSION1;
    quotactl(place, Q_XGETQSTATV, 0, &mut state)?;
    let flags = u16::from_ne_bytes([state.0[2], state.0[3]]);
    Ok(flags & FS_QUOTA_PDQ_ENFD != 0)
}

/// Sets what a project may have.
pub fn limit_project(place: BorrowedFd<'_>, project: u32, limits: ProjectLimits) -> Result<(), SysError> {
    let blocks = limits.bytes / QUOTA_BLOCK;
    let mut wanted = libc::dqblk {
        dqb_bhardlimit: blocks,
        dqb_bsoftlimit: 0,
        dqb_curspace: 0,
        dqb_ihardlimit: limits.inodes,
        dqb_isoftlimit: 0,
        dqb_curinodes: 0,
        dqb_btime: 0,
        dqb_itime: 0,
        dqb_valid: QIF_LIMITS,
    };
    quotactl(place, Q_SETQUOTA, project, &mut wanted)
}

/// Tells what a project may have.
pub fn limits_of_project(place: BorrowedFd<'_>, project: u32) -> Result<ProjectLimits, SysError> {
    // SAFETY: all zeroes is a valid `dqblk`.
    let mut found: libc::dqblk = unsafe { std::mem::zeroed() };
    quotactl(place, Q_GETQUOTA, project, &mut found)?;
    Ok(ProjectLimits {
        bytes: found.dqb_bhardlimit.saturating_mul(QUOTA_BLOCK),
        inodes: found.dqb_ihardlimit,
    })
}
