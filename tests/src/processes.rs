//! What a daemon has on the host: processes, groups, descriptors; and whether it is gone.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::eventually;
use crate::host::Places;

/// A process of the host, told from a later one with the same number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    parent: u32,
    pub start: u64,
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, rest) = (stat.split_once('(')?.1, stat.rsplit_once(')')?.1);
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let process = Self {
            pid,
            name: name.rsplit_once(')')?.0.to_owned(),
            parent: fields.get(1)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
        };
        // One that is dead and waits to be reaped is nobody's burden.
        (*fields.first()? != "Z").then_some(process)
    }

    /// Whether it still lives.
    pub fn lives(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.start == self.start)
    }

    /// Open descriptors. brigd remembers executions that have ended with at most 32 MiB of output together, and holds a
    /// file only for a stream of more than 8 MiB, so that its number has a bound: three more than without any.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid))
            .into_iter()
            .flatten()
            .count()
    }

    /// A line of its status in bytes, such as `VmHWM`.
    pub fn memory(&self, line: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let found = status
            .lines()
            .find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
        let kibibytes = found.unwrap().trim().trim_end_matches(" kB");
        kibibytes.parse::<u64>().unwrap() << 10
    }
}

/// A process by its number.
pub fn process(pid: u32) -> Process {
    Process::read(pid).expect("the process lives")
}

/// All processes below this one, itself left out.
pub fn descendants(pid: u32) -> Vec<Process> {
    let all: Vec<Process> = numbers().filter_map(Process::read).collect();
    let mut below: HashMap<u32, Vec<&Process>> = HashMap::new();
    for process in &all {
        below.entry(process.parent).or_default().push(process);
    }
    let (mut found, mut ahead) = (Vec::new(), vec![pid]);
    while let Some(parent) = ahead.pop() {
        for process in below.get(&parent).into_iter().flatten() {
            ahead.push(process.pid);
            found.push((*process).clone());
        }
    }
    found
}

/// The one process below this one that has a name.
pub fn named(pid: u32, name: &str) -> Process {
    let all = descendants(pid);
    // One that was cloned just now has the name of its parent until it runs something else.
    let is_clone = |process: &Process| {
        let parent = all.iter().find(|other| other.pid == process.parent);
        parent.is_some_and(|parent| parent.name == name)
    };
    let is_it = |process: &&Process| process.name == name && !is_clone(process);
    let mut found: Vec<Process> = all.iter().filter(is_it).cloned().collect();
    assert_eq!(found.len(), 1, "{name} below {pid}: {found:?}");
    found.remove(0)
}

/// Waits until so many processes below this one have a name. What a script starts is cloned before it has written its
/// next line, and has its own name only once it runs.
pub fn await_named(pid: u32, name: &str, count: usize, within: Duration) -> Vec<Process> {
    let mut found = Vec::new();
    eventually(&format!("{count} of {name} run"), within, || {
        let all = descendants(pid);
        found = all.iter().filter(|process| process.name == name).cloned().collect();
        if found.len() >= count { Ok(()) } else { Err(all) }
    });
    found
}

/// All processes in the control groups of sessions.
pub fn of_sessions(sessions: &[String]) -> Vec<Process> {
    let inside = |pid: &u32| {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        sessions.iter().any(|session| {
            let (middle, end) = (format!("/{session}/"), format!("/{session}"));
            groups
                .lines()
                .any(|line| line.contains(&middle) || line.ends_with(&end))
        })
    };
    numbers().filter(inside).filter_map(Process::read).collect()
}

/// All processes below one that are in the pid namespace of another: those of its session.
pub fn session_of(process: &Process, pid: u32) -> Vec<Process> {
    let namespace = |process: &Process| fs::read_link(format!("/proc/{}/ns/pid", process.pid)).ok();
    let own = namespace(process);
    assert!(own.is_some(), "{process:?} is gone");
    let all = descendants(pid).into_iter();
    all.filter(|other| namespace(other) == own).collect()
}

/// The namespaces of a kind that any process is in.
pub fn namespaces(kind: &str) -> BTreeSet<PathBuf> {
    let link = |pid| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
    numbers().filter_map(link).collect()
}

fn numbers() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Waits until none of them lives.
pub fn assert_gone(processes: &[Process], within: Duration) {
    eventually("processes are gone", within, || {
        let left: Vec<&Process> = processes.iter().filter(|process| process.lives()).collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
}

/// Control groups of sessions, in all hierarchies.
pub fn groups(sessions: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), &mut |folder| {
        let brig = folder
            .parent()
            .and_then(Path::file_name)
            .is_some_and(|name| name.to_string_lossy().starts_with("brig-"));
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        if brig && sessions.iter().any(|session| *session == name) {
            found.push(folder.to_owned());
        }
    });
    found
}

/// Waits until no group of these sessions is left.
pub fn assert_no_groups(sessions: &[String], within: Duration) {
    eventually("control groups are gone", within, || {
        let left = groups(sessions);
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}

/// Mounts of the host that can be those of jails: jails are put together below /run, of images, the kernel layer and
/// the directories of tests. Other users of this host mount as they like.
pub fn mounts() -> Vec<String> {
    let places = Places::find();
    let sources = [places.images, places.kernel].map(|path| path.display().to_string());
    let all = fs::read_to_string("/proc/self/mountinfo").unwrap();
    // Source: proc_pid_mountinfo(5); root and mount point are the fourth and the fifth field.
    let ours = all.lines().filter(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let (root, point) = (fields[3], fields[4]);
        let of_jails = point == "/run" || point.starts_with("/run/") || root.contains("brig-test-");
        of_jails || point.contains("brig-test-") || sources.iter().any(|source| root.starts_with(source))
    });
    ours.map(str::to_owned).collect()
}

fn walk(folder: &Path, visit: &mut impl FnMut(&Path)) {
    // Groups come and go while one looks.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            visit(&entry.path());
            walk(&entry.path(), visit);
        }
    }
}
