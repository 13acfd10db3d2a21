//! Control groups: one group per session with everything of it inside, limits that are read back, and a kill that
//! nothing survives.
//!
//! Below the jailer's own group lies `brig-NN`, one per running jailer, and in it for each session
//!
//! ```text
//! session/            a ceiling: all that follows, together
//!     init/           pid 1, with a small limit of its own, so that guests can't starve it
//!     guest/          the limits of the policy
//!         0files/     the file helper: what it writes is charged to the session
//!         EXECUTION/  one leaf per program, with a little less memory
//! ```
//!
//! A zygote's session and those that it forks into have one more group above them, `dock-SESSION/`.
//!
//! The version 2 tree tracks and kills (`cgroup.kill`, `cgroup.events`) on every host. Limits sit there too where it
//! has the controllers; on hybrid hosts the same folders exist in the version 1 hierarchies of memory, cpu and pids.
//!
//! A program that runs out of memory loses the process that the kernel chooses. `memory.oom.group` stays off: a parent
//! whose worker was killed can go on and say so. `memory.high` is not set: it slows a program down long before its
//! limit, so that it ends by its deadline and not by the cause that its owner could mend.
//!
//! Kernel: 5.14 (`cgroup.kill`). Source: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/.

mod dock;
mod iomax;
mod layout;
mod limits;
mod session;

pub use dock::DockGroup;
pub use iomax::{Disk, IoPlan, NoDisk};
pub use layout::{Controllers, Layout, LayoutError, NEEDED};
pub use limits::Limits;
pub use session::{Leaf, SessionGroups};

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::step::SysError;

/// The group of one jailer, in all hierarchies that it uses.
#[derive(Debug)]
pub struct Cgroups {
    layout: Layout,
    name: String,
    /// Whether reads and writes of disks can be limited.
    io: bool,
}

impl Cgroups {
    /// Makes the jailer's group, after removing what a dead jailer left under the same name.
    pub fn open(layout: Layout, name: &str) -> Result<Self, SysError> {
        let mut groups = Self {
            layout,
            name: name.to_owned(),
            io: false,
        };
        groups.sweep()?;
        for base in groups.bases() {
            make_dir(&base)?;
        }
        groups.remember_bases()?;
        if groups.layout.controllers == Controllers::V2 {
            let own = groups.layout.v2.join(&groups.name);
            layout::enable_controllers(&groups.layout.v2)?;
            layout::enable_controllers(&own)?;
            groups.io = layout::enable_io(&groups.layout.v2).is_ok() && layout::enable_io(&own).is_ok();
        }
        Ok(groups)
    }

    /// Where limits are set.
    pub fn controllers(&self) -> &Controllers {
        &self.layout.controllers
    }

    /// Whether reads and writes of disks can be limited.
    pub fn can_limit_io(&self) -> bool {
        self.io
    }

    /// The jailer's folder in the version 2 tree.
    pub fn tracking_base(&self) -> PathBuf {
        self.layout.v2.join(&self.name)
    }

    /// Whether another jailer's group is there.
    pub fn exists(&self, name: &str) -> bool {
        self.layout.v2.join(name).exists()
    }

    /// Removes another jailer's group, which must be dead, as [`Cgroups::sweep`] does.
    pub fn sweep_of(&self, name: &str) -> Result<(), SysError> {
        let other = Self {
            layout: self.layout.clone(),
            name: name.to_owned(),
            io: false,
        };
        other.sweep()
    }

    fn bases(&self) -> Vec<PathBuf> {
        let mut bases = vec![self.tracking_base()];
        bases.extend(
            self.layout
                .controllers
                .v1_folders()
                .into_iter()
                .map(|folder| folder.join(&self.name)),
        );
        bases
    }

    /// Writes down where the version 1 groups are, for the sweep of a jailer that is started in other groups than this.
    fn remember_bases(&self) -> Result<(), SysError> {
        let bases: Vec<String> = self.bases()[1..]
            .iter()
            .map(|base| base.display().to_string())
            .collect();
        let (folder, value) = (self.tracking_base(), bases.join("\n"));
        rustix::fs::setxattr(&folder, BASES, value.as_bytes(), rustix::fs::XattrFlags::empty())
            .map_err(|error| SysError::new(format!("setxattr({}, {BASES})", folder.display()), error.raw_os_error()))
    }

    /// Where the version 1 groups of an earlier jailer of this name are.
    fn remembered_bases(&self) -> Vec<PathBuf> {
        let mut value = [0_u8; 4096];
        let length = rustix::fs::getxattr(self.tracking_base(), BASES, &mut value).unwrap_or(0);
        let text = String::from_utf8_lossy(&value[..length]);
        text.lines()
            .filter(|line| line.ends_with(&self.name))
            .map(PathBuf::from)
            .collect()
    }

    /// Kills and removes all that lies in the jailer's group: what a jailer that died has left.
    ///
    /// Waits at most two seconds; called only at the start and the end of the program, when there is no session to
    /// keep waiting.
    pub fn sweep(&self) -> Result<(), SysError> {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(2);
        // The folder that remembers is the last to go.
        let mut bases = self.remembered_bases();
        bases.extend(self.bases().into_iter().rev());
        loop {
            let tracked = self.tracking_base();
            if tracked.exists() {
                write_file(&tracked.join("cgroup.kill"), "1")?;
            }
            match bases.iter().try_for_each(|base| remove_tree(base)) {
                Err(error) if std::time::Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
                Ok(()) => return Ok(()),
            }
        }
    }
}

/// Only root can read or write it.
const BASES: &str = "trusted.brig.bases";

/// Makes a folder that may be there already.
fn make_dir(path: &Path) -> Result<(), SysError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(sys_error("mkdir", path, &error)),
        _ => Ok(()),
    }
}

/// Removes a group; `EBUSY` while a process is still leaving it.
fn remove_dir(path: &Path) -> Result<(), SysError> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(sys_error("rmdir", path, &error)),
        _ => Ok(()),
    }
}

/// Removes a group and those below it.
fn remove_tree(path: &Path) -> Result<(), SysError> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|error| sys_error("readdir", path, &error))?,
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
            crate::faults::point(crate::faults::Point::JailerHalfRemoved);
        }
    }
    remove_dir(path)
}

fn write_file(path: &Path, value: &str) -> Result<(), SysError> {
    fs::write(path, value).map_err(|error| sys_error(&format!("write({value:?})"), path, &error))
}

fn read_file(path: &Path) -> Result<String, SysError> {
    read_text(path)
        .map(|text| text.trim().to_owned())
        .map_err(|error| sys_error("read", path, &error))
}

/// Reads a file as it is. Those of groups tell no size: with room for all of it, each takes four calls.
fn read_text(path: &Path) -> io::Result<String> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match rustix::io::read(&file, &mut part) {
            Ok(0) => break,
            Ok(length) => bytes.extend_from_slice(&part[..length]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Reads `key value` lines; a missing file or key is `None`.
fn read_keyed(path: &Path, key: &str) -> Option<u64> {
    find_key(&read_text(path).ok()?, key)
}

fn find_key(text: &str, key: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

fn sys_error(call: &str, path: &Path, error: &io::Error) -> SysError {
    SysError::new(
        format!("{call}({})", path.display()),
        error.raw_os_error().unwrap_or(libc::EIO),
    )
}
