//! Limits of reading and writing a disk: `io.max`, which version 2 alone has.
//!
//! Source: Documentation/admin-guide/cgroup-v2.rst, "IO Interface Files".

use std::path::Path;

use super::{read_file, write_file};
use crate::policy::IoLimits;
use crate::step::SysError;

/// Majors that the kernel gives out are stable (Documentation/admin-guide/devices.txt).
const LOOP_MAJOR: u32 = 7;

/// A whole disk, on which reads and writes can be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    major: u32,
    minor: u32,
}

/// Limits and the disks that they are set on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoPlan {
    pub limits: IoLimits,
    pub disks: Vec<Disk>,
}

/// Why a file system's reads and writes can't be limited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoDisk {
    #[error(
        "it is not on a block device (device {major}:{minor}, as overlay, btrfs, tmpfs and network file systems have)"
    )]
    Anonymous { major: u32, minor: u32 },
    #[error("it is on a loop device ({major}:{minor}), whose file is read and written by the kernel")]
    Loop { major: u32, minor: u32 },
    #[error("{path}: {problem}")]
    Unknown { path: String, problem: String },
}

impl Disk {
    /// Finds the disk of a device, as `stat` gives it: a partition's is the one that it is a part of.
    pub fn of(device: u64) -> Result<Self, NoDisk> {
        Self::find(Path::new("/sys/dev/block"), device)
    }

    fn find(devices: &Path, device: u64) -> Result<Self, NoDisk> {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        match major {
            0 => return Err(NoDisk::Anonymous { major, minor }),
            LOOP_MAJOR => return Err(NoDisk::Loop { major, minor }),
            _ => {}
        }
        let own = devices.join(format!("{major}:{minor}"));
        // The entry is a link to the device's folder, which lies in that of its disk.
        let file = if own.join("partition").exists() {
            own.join("../dev")
        } else {
            own.join("dev")
        };
        let unknown = |problem: String| NoDisk::Unknown {
            path: file.display().to_string(),
            problem,
        };
        let text = std::fs::read_to_string(&file).map_err(|error| unknown(error.to_string()))?;
        let numbers = text.trim().split_once(':');
        let parsed = numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let (major, minor) = parsed.ok_or_else(|| unknown(format!("{:?} is not a device", text.trim())))?;
        Ok(Self { major, minor })
    }
}

impl std::fmt::Display for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// Sets the limits of a group on some disks, and reads them back.
pub(super) fn set(group: &Path, plan: &IoPlan) -> Result<(), SysError> {
    let file = group.join("io.max");
    for disk in &plan.disks {
        let line = line(*disk, &plan.limits);
        write_file(&file, &line)?;
        let found = read_file(&file)?;
        if !found.lines().any(|known| known.trim() == line) {
            let call = format!("io limit reads back as {found:?}, not {line:?}");
            return Err(SysError::new(call, libc::EOPNOTSUPP));
        }
    }
    Ok(())
}

/// The line as the kernel shows it, which it also takes.
fn line(disk: Disk, limits: &IoLimits) -> String {
    let value = |limit: Option<u64>| limit.map_or_else(|| "max".to_owned(), |value| value.to_string());
    format!(
        "{disk} rbps={} wbps={} riops={} wiops={}",
        value(limits.read.map(|size| size.bytes())),
        value(limits.write.map(|size| size.bytes())),
        value(limits.read_ops),
        value(limits.write_ops)
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::units::ByteSize;

    /// A /sys with one disk of two partitions, and a mapped device.
    fn devices() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = |path: &str, device: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("dev"), format!("{device}\n")).unwrap();
            symlink(&path, root.path().join("block").join(device)).unwrap();
            path
        };
        fs::create_dir(root.path().join("block")).unwrap();
        folder("devices/sda", "8:0");
        let partition = folder("devices/sda/sda2", "8:2");
        fs::write(partition.join("partition"), "2\n").unwrap();
        folder("devices/dm-0", "253:0");
        root
    }

    #[test]
    fn a_partition_is_counted_on_its_disk() {
        let root = devices();
        let find = |major, minor| {
            Disk::find(&root.path().join("block"), rustix::fs::makedev(major, minor)).map(|disk| disk.to_string())
        };
        assert_eq!(find(8, 2), Ok("8:0".to_owned()));
        assert_eq!(find(8, 0), Ok("8:0".to_owned()));
        assert_eq!(find(253, 0), Ok("253:0".to_owned()));
        assert_eq!(find(0, 31), Err(NoDisk::Anonymous { major: 0, minor: 31 }));
        assert_eq!(find(7, 1), Err(NoDisk::Loop { major: 7, minor: 1 }));
        assert!(matches!(find(8, 16), Err(NoDisk::Unknown { path, .. }) if path.ends_with("8:16/dev")));
    }

    #[test]
    fn what_is_not_limited_is_written_as_such() {
        let limits = IoLimits {
            read: Some(ByteSize::from_mib(1)),
            write_ops: Some(20),
            ..IoLimits::default()
        };
        let disk = Disk { major: 8, minor: 0 };
        assert_eq!(line(disk, &limits), "8:0 rbps=1048576 wbps=max riops=max wiops=20");
    }
}
