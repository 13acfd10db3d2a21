//! The groups of one session, and the leaves of its programs.

mod usage;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::iomax::{self, IoPlan};
use super::limits::{self, Limits};
use super::{
    Cgroups, Controllers, DockGroup, find_key, layout, make_dir, read_keyed, read_text, remove_dir, remove_tree,
    sys_error, write_file,
};
use crate::api::{Lap, Quantities, Usage};
use crate::files::wire::CHANNELS_MAX;
use crate::ids::Id;
use crate::step::SysError;

/// The hierarchy of the controller of processor time, on version 1.
const CPU_BASE: usize = 2;
/// What pid 1 may use, in bytes: about 3 MiB are used.
const INIT_MEMORY: u64 = 32 << 20;
/// pid 1 itself, and one child on its way out of the group.
const INIT_PIDS: u64 = 8;
/// What the file helper needs beside the files that it writes, in bytes; a walk over many files takes 20 MiB, each
/// conversation at its client's pace 1 MiB.
const HELPER_MEMORY: u64 = 48 << 20;
/// What the file helper adds to the processes of the guest: itself, and a thread for each further conversation.
const HELPER_PIDS: u64 = 1 + CHANNELS_MAX as u64;

/// The groups of one session.
#[derive(Debug)]
pub struct SessionGroups {
    controllers: Controllers,
    /// The bases of the hierarchies: version 2 first, then version 1 in the order memory, cpu, pids.
    bases: Vec<PathBuf>,
    session: PathBuf,
    directory: OwnedFd,
    /// The host uid that may clone into leaves.
    owner: u32,
    /// The host gid of a zygote, which may do so too.
    zygote: Option<u32>,
    guest: Limits,
    /// What each program may use by itself: less than all together by what the file helper needs, so that a program that
    /// runs out of memory is killed and not the helper.
    program: Limits,
    /// What is set on version 2; the caller has looked whether it can be.
    io: Option<Box<IoPlan>>,
    /// Whether memory can't go to swap.
    pub no_swap: bool,
}

/// The group of one program.
#[derive(Debug)]
pub struct Leaf {
    /// Version 2 first, then memory, cpu, pids.
    folders: Vec<PathBuf>,
    directory: OwnedFd,
    tasks: Vec<OwnedFd>,
    events: OwnedFd,
    /// Where a lap began; what is told of the leaf is what came after it.
    before: Counters,
    /// What its figures are read from, in the order of [`Figure`], once there was a lap: opening these files takes longer than
    /// reading them. Version 2 counts the peak of memory per open file.
    open: Option<[Option<OwnedFd>; Figure::ALL.len()]>,
}

/// What is read of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Figure {
    Cpu,
    OomKills,
    MemoryPeak,
    ProcessesPeak,
    Refused,
    RefusedAbove,
}

impl Figure {
    const ALL: [Self; 6] = [
        Self::Cpu,
        Self::OomKills,
        Self::MemoryPeak,
        Self::ProcessesPeak,
        Self::Refused,
        Self::RefusedAbove,
    ];
}

/// What only grows.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    cpu_us: u64,
    oom_kills: u64,
    pids_refused: u64,
    /// Whether the peak of processes is that of an earlier lap.
    processes: bool,
}

impl Cgroups {
    /// Makes a session's groups and limits them. On a version 2 host, [`SessionGroups::settle`] does the second half.
    pub fn session(
        &self,
        id: &Id,
        quantities: &Quantities,
        owner: u32,
        io: Option<Box<IoPlan>>,
        dock: Option<&DockGroup>,
    ) -> Result<SessionGroups, SysError> {
        let session = dock.map_or_else(PathBuf::new, DockGroup::folder).join(id.as_str());
        let bases = self.bases();
        for base in &bases {
            make_dir(&base.join(&session))?;
        }
        let directory = open_group(&bases[0].join(&session))?;
        let program = Limits {
            memory_bytes: Some(quantities.memory_bytes.saturating_add(quantities.disk_bytes)),
            cpu_millis: None,
            pids: Some(quantities.pids),
        };
        let guest = Limits {
            memory_bytes: program.memory_bytes.map(|bytes| bytes.saturating_add(HELPER_MEMORY)),
            cpu_millis: Some(quantities.cpu_millis),
            pids: Some(quantities.pids.saturating_add(HELPER_PIDS)),
        };
        let controllers = self.controllers().clone();
        let mut groups = SessionGroups {
            controllers,
            bases,
            session,
            directory,
            owner,
            zygote: dock.map(|dock| dock.uid),
            guest,
            program,
            io,
            no_swap: false,
        };
        let made = groups.limit_ceiling().and_then(|()| match groups.controllers {
            Controllers::V2 => groups.make_init(),
            Controllers::V1 { .. } => groups.make_init().and_then(|()| groups.make_guest()),
        });
        match made {
            Ok(()) => Ok(groups),
            Err(error) => {
                groups.remove()?;
                Err(error)
            }
        }
    }
}

impl SessionGroups {
    fn limit_ceiling(&mut self) -> Result<(), SysError> {
        let ceiling = Limits {
            memory_bytes: self.guest.memory_bytes.map(|bytes| bytes.saturating_add(INIT_MEMORY)),
            cpu_millis: None,
            pids: self.guest.pids.map(|count| count.saturating_add(INIT_PIDS)),
        };
        self.no_swap = self.limit(&self.session.clone(), &ceiling)?;
        let group = self.bases[0].join(&self.session);
        self.own(&group)?;
        self.admit_zygote(&group)
    }

    fn make_init(&self) -> Result<(), SysError> {
        let init = self.session.join("init");
        for base in &self.bases {
            make_dir(&base.join(&init))?;
        }
        match self.controllers {
            Controllers::V2 => Ok(()),
            Controllers::V1 { .. } => self.limit(&init, &init_limits()).map(drop),
        }
    }

    fn make_guest(&mut self) -> Result<(), SysError> {
        let guest = self.session.join("guest");
        for base in &self.bases {
            make_dir(&base.join(&guest))?;
        }
        let no_swap = self.limit(&guest, &self.guest)?;
        self.no_swap = self.no_swap && no_swap;
        self.own(&self.bases[0].join(&guest))
    }

    fn limit(&self, below: &Path, limits: &Limits) -> Result<bool, SysError> {
        limits::set(&self.placed_controllers(), &self.bases[0], below, limits)
    }

    /// The hierarchies with the jailer's own folder in them.
    fn placed_controllers(&self) -> Controllers {
        match &self.bases[1..] {
            [memory, cpu, pids] => Controllers::V1 {
                memory: memory.clone(),
                cpu: cpu.clone(),
                pids: pids.clone(),
            },
            _ => Controllers::V2,
        }
    }

    /// Lets pid 1 clone into this group: that takes write access to `cgroup.procs` of the target and of the common
    /// ancestor. The folders stay root's.
    fn own(&self, group: &Path) -> Result<(), SysError> {
        let file = group.join("cgroup.procs");
        std::os::unix::fs::chown(&file, Some(self.owner), None).map_err(|error| sys_error("chown", &file, &error))
    }

    /// Lets a zygote fork into a leaf, and pid 1 be made by the zygote's user.
    fn admit_zygote(&self, group: &Path) -> Result<(), SysError> {
        use std::os::unix::fs::PermissionsExt;
        let Some(gid) = self.zygote else { return Ok(()) };
        let file = group.join("cgroup.procs");
        std::os::unix::fs::chown(&file, None, Some(gid)).map_err(|error| sys_error("chgrp", &file, &error))?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o664))
            .map_err(|error| sys_error("chmod", &file, &error))
    }

    /// Whether reads and writes of disks are limited.
    pub fn limits_io(&self) -> bool {
        self.io.is_some()
    }

    /// Where the limits sit.
    pub fn controllers(&self) -> &Controllers {
        &self.controllers
    }

    /// The group into which pid 1 is cloned.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// The group of pid 1.
    pub fn init_directory(&self) -> Result<OwnedFd, SysError> {
        open_group(&self.bases[0].join(&self.session).join("init"))
    }

    /// The version 1 `tasks` files that pid 1 joins before and after its cgroup namespace is made: the namespace then
    /// begins at the session's group.
    pub fn birth_tasks(&self) -> Result<(Vec<OwnedFd>, Vec<OwnedFd>), SysError> {
        let open = |below: &Path| -> Result<Vec<OwnedFd>, SysError> {
            self.bases[1..]
                .iter()
                .map(|base| open_tasks(&base.join(below)))
                .collect()
        };
        Ok((open(&self.session)?, open(&self.session.join("init"))?))
    }

    /// Lets the session have the processor time that no other session wants, or again as much as any.
    ///
    /// Kernel: 5.15 (`cpu.idle`, in both versions).
    pub fn set_idle(&self, idle: bool) -> Result<(), SysError> {
        let base = self.bases.get(CPU_BASE).unwrap_or(&self.bases[0]);
        let file = base.join(&self.session).join("cpu.idle");
        write_file(&file, if idle { "1" } else { "0" })
    }

    /// Moves pid 1 to its own group and hands the controllers down, which a group with processes can't do.
    pub fn settle(&mut self, pid: i32) -> Result<(), SysError> {
        if self.controllers != Controllers::V2 {
            return Ok(());
        }
        let session = self.bases[0].join(&self.session);
        write_file(&session.join("init/cgroup.procs"), &pid.to_string())?;
        layout::enable_controllers(&session)?;
        self.limit(&self.session.join("init"), &init_limits())?;
        self.make_guest()?;
        if let Some(io) = &self.io {
            layout::enable_io(&session)?;
            iomax::set(&session.join("guest"), io)?;
        }
        layout::enable_controllers(&session.join("guest"))
    }

    /// Makes the group of the file helper that is started as the one of this number.
    ///
    /// Each has a group of its own: a process that is cloned into a group from another one dies at once if that group
    /// was killed before (seen on kernel 6.18, which compares how often each of the two was).
    pub fn helper_leaf(&self, number: u32) -> Result<Leaf, SysError> {
        self.leaf(&format!("{number}files"))
    }

    /// Makes the group of a program.
    pub fn leaf(&self, name: &str) -> Result<Leaf, SysError> {
        let guest = self.session.join("guest");
        let mut below = guest.join(name);
        // That of a fork that failed may not be gone; what was killed in a group is not to be mixed up with what runs in it.
        if self.bases[0].join(&below).exists() {
            below = guest.join(format!("{name}-again"));
        }
        let folders: Vec<PathBuf> = self.bases.iter().map(|base| base.join(&below)).collect();
        let made = self.make_leaf(&folders, &below, name);
        if made.is_err() {
            folders.iter().try_for_each(|folder| remove_dir(folder))?;
        }
        made
    }

    /// The limit of processes is set here and not only above: the peak of a group that only its parent limits counts a
    /// fork that the parent refused.
    fn make_leaf(&self, folders: &[PathBuf], below: &Path, name: &str) -> Result<Leaf, SysError> {
        folders.iter().try_for_each(|folder| make_dir(folder))?;
        if !is_helper(name) {
            self.limit(below, &self.program)?;
        }
        self.own(&folders[0])?;
        self.admit_zygote(&folders[0])?;
        let leaf = Leaf {
            directory: open_group(&folders[0])?,
            tasks: folders[1..]
                .iter()
                .map(|folder| open_tasks(folder))
                .collect::<Result<_, _>>()?,
            events: open_file(&folders[0].join("cgroup.events"))?,
            before: Counters::default(),
            open: None,
            folders: folders.to_vec(),
        };
        let before = Counters {
            pids_refused: leaf.pids_refused(),
            ..Counters::default()
        };
        Ok(Leaf { before, ..leaf })
    }

    /// Kills everything of the session, pid 1 too. Nothing can fork its way out.
    pub fn kill(&self) -> Result<(), SysError> {
        write_file(&self.bases[0].join(&self.session).join("cgroup.kill"), "1")
    }

    /// Whether a live process is left.
    pub fn populated(&self) -> bool {
        let events = self.bases[0].join(&self.session).join("cgroup.events");
        read_keyed(&events, "populated").is_some_and(|value| value != 0)
    }

    /// Removes the groups; fails with `EBUSY` while a process is still leaving. Doing it again is harmless.
    pub fn remove(&self) -> Result<(), SysError> {
        self.bases
            .iter()
            .try_for_each(|base| remove_tree(&base.join(&self.session)))
    }
}

impl Leaf {
    /// What brig-init needs to start a program here: the group to clone into, then the `tasks` files to join.
    pub fn join_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(self.directory.as_fd())
            .chain(self.tasks.iter().map(AsFd::as_fd))
            .collect()
    }

    /// `cgroup.events`: has `POLLPRI` after each change of `populated`.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Kills all processes of the leaf.
    pub fn kill(&self) -> Result<(), SysError> {
        write_file(&self.folders[0].join("cgroup.kill"), "1")
    }

    /// Whether a live process is left. Reading re-arms the event.
    pub fn populated(&self) -> bool {
        let mut text = [0; 256];
        match rustix::io::pread(&self.events, &mut text, 0) {
            Ok(length) => !String::from_utf8_lossy(&text[..length]).contains("populated 0"),
            Err(_) => false,
        }
    }

    /// Processes of the leaf that were killed for memory.
    pub fn oom_kills(&self) -> u64 {
        self.keyed(Figure::OomKills, "oom_kill")
            .saturating_sub(self.before.oom_kills)
    }

    /// Begins a new lap, and tells the last one: usage and counts are those since this call.
    ///
    /// Kernel: the peak of memory begins anew from 6.12 on (version 2); before, it is that of all laps. That of processes
    /// never does, and is not told any more once there was a second process.
    pub fn lap(&mut self) -> Lap {
        let lap = Lap {
            usage: self.usage(),
            oom_kills: self.oom_kills(),
            pids_refused: self.pids_refused(),
        };
        self.before = Counters {
            cpu_us: self.before.cpu_us + lap.usage.cpu_us,
            oom_kills: self.before.oom_kills + lap.oom_kills,
            pids_refused: self.before.pids_refused + lap.pids_refused,
            processes: self.before.processes || lap.usage.processes_peak > 1,
        };
        if self.open.is_none() {
            self.open = Some(Figure::ALL.map(|figure| self.open_figure(figure).ok()));
        }
        if let Some(peak) = self.opened(Figure::MemoryPeak) {
            // A group that can't be reset keeps its peak, which is no less than the lap's.
            let _ = rustix::io::pwrite(peak, b"0", 0);
        }
        lap
    }

    /// Stops all processes of the leaf, or lets them go on.
    pub fn freeze(&self, frozen: bool) -> Result<(), SysError> {
        write_file(&self.folders[0].join("cgroup.freeze"), if frozen { "1" } else { "0" })
    }

    /// Forks refused since the leaf was made. The limit sits on the group above, whose counter is read.
    pub fn pids_refused(&self) -> u64 {
        let total = self
            .keyed(Figure::Refused, "max")
            .max(self.keyed(Figure::RefusedAbove, "max"));
        total.saturating_sub(self.before.pids_refused)
    }

    /// What the leaf's processes have used.
    pub fn usage(&self) -> Usage {
        let cpu_us = self.keyed(Figure::Cpu, "usage_usec");
        Usage {
            cpu_us: cpu_us.saturating_sub(self.before.cpu_us),
            memory_peak_bytes: self.number(Figure::MemoryPeak),
            processes_peak: if self.before.processes {
                0
            } else {
                self.number(Figure::ProcessesPeak)
            },
        }
    }

    fn keyed(&self, figure: Figure, key: &str) -> u64 {
        self.read(figure).and_then(|text| find_key(&text, key)).unwrap_or(0)
    }

    fn number(&self, figure: Figure) -> u64 {
        self.read(figure).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    fn read(&self, figure: Figure) -> Option<String> {
        let Some(open) = self.opened(figure) else {
            return read_text(&self.place(figure)).ok();
        };
        let mut text = [0; 4096];
        let length = rustix::io::pread(open, &mut text, 0).ok()?;
        String::from_utf8(text[..length].to_vec()).ok()
    }

    fn opened(&self, figure: Figure) -> Option<&OwnedFd> {
        self.open.as_ref()?[figure as usize].as_ref()
    }

    fn open_figure(&self, figure: Figure) -> Result<OwnedFd, SysError> {
        let place = self.place(figure);
        if figure == Figure::MemoryPeak
            && let Ok(file) = open(&place, OFlags::RDWR)
        {
            return Ok(file);
        }
        open(&place, OFlags::RDONLY)
    }

    /// Where a figure is told. On version 1 each controller has a folder of its own.
    fn place(&self, figure: Figure) -> PathBuf {
        let (own, below) = (&self.folders[0], |controller: usize| self.folders.get(controller));
        let pids = below(3).unwrap_or(own);
        match figure {
            Figure::Cpu => own.join("cpu.stat"),
            Figure::OomKills => {
                below(1).map_or_else(|| own.join("memory.events"), |memory| memory.join("memory.oom_control"))
            }
            Figure::MemoryPeak => below(1).map_or_else(
                || own.join("memory.peak"),
                |memory| memory.join("memory.max_usage_in_bytes"),
            ),
            Figure::ProcessesPeak => pids.join("pids.peak"),
            Figure::Refused => pids.join("pids.events"),
            Figure::RefusedAbove => pids.parent().unwrap_or(pids).join("pids.events"),
        }
    }

    /// Removes the group; fails with `EBUSY` while a process is still leaving.
    pub fn remove(&self) -> Result<(), SysError> {
        self.folders.iter().try_for_each(|folder| remove_dir(folder))
    }
}

/// No execution can have a name like this, since ids start with a letter.
fn is_helper(leaf: &str) -> bool {
    leaf.starts_with(|first: char| first.is_ascii_digit())
}

fn init_limits() -> Limits {
    Limits {
        memory_bytes: Some(INIT_MEMORY),
        cpu_millis: None,
        pids: Some(INIT_PIDS),
    }
}

pub(super) fn open_group(path: &Path) -> Result<OwnedFd, SysError> {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY)
}

fn open_tasks(folder: &Path) -> Result<OwnedFd, SysError> {
    open(&folder.join("tasks"), OFlags::WRONLY)
}

fn open_file(path: &Path) -> Result<OwnedFd, SysError> {
    open(path, OFlags::RDONLY)
}

fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, SysError> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| SysError::new(format!("open({})", path.display()), error.raw_os_error()))
}
