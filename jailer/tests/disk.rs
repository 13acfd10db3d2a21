//! Workspaces on disk and limits of disks: held where this host can hold them, refused by name and with the mend where
//! not. Needs root, the `base` image, and mke2fs (e2fsprogs).
//!
//! Each test makes a file system of its own. Where the kernel has no quotas of projects it can't be mounted with them;
//! BRIG_TEST_HAS with `quota` promises that it can.
#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod support;

use std::fs::{self, File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use brig_jailer::api::{Make, Quantities, Refusal, Verdict};
use brig_jailer::sys::quota::{ProjectLimits, limits_of_project};
use support::{Outcome, Rig, own_policy, quantities};

const DISK: &str = "workspace = \"disk\"";
const MIB: u64 = 1 << 20;

/// One at a time: the jailer of a test then has the region of the last one.
static ALONE: Mutex<()> = Mutex::new(());

/// A file system for workspaces.
struct Volume {
    folder: tempfile::TempDir,
    /// Whether quotas are held there.
    held: bool,
    mounted: bool,
    _alone: MutexGuard<'static, ()>,
}

impl Volume {
    /// On a file of 256 MiB, mounted with these options.
    fn new(options: &str) -> Self {
        let folder = temporary();
        let image = folder.path().join("image");
        File::create(&image).unwrap().set_len(256 * MIB).unwrap();
        Self::on(folder, &image, &format!("loop,{options}"))
    }

    fn on(folder: tempfile::TempDir, device: &Path, options: &str) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let place = folder.path().join("place");
        fs::create_dir(&place).unwrap();
        let features = [
            "-q",
            "-t",
            "ext4",
            "-b",
            "4096",
            "-O",
            "quota,project",
            "-E",
            "quotatype=prjquota",
        ];
        assert!(run(Command::new("mke2fs").args(features).arg(device)));
        let mounted = run(Command::new("mount").args(["-o", options]).arg(device).arg(&place));
        let promised = std::env::var("BRIG_TEST_HAS").unwrap_or_default();
        assert!(mounted || !promised.split(',').any(|has| has == "quota"), "{promised}");
        Self {
            folder,
            held: mounted && options.contains("prjquota"),
            mounted,
            _alone: alone,
        }
    }

    fn place(&self) -> PathBuf {
        self.folder.path().join("place")
    }

    /// The folders of sessions: their names are those of their projects.
    fn sessions(&self) -> Vec<String> {
        let jailers = list(&self.place()).into_iter().filter(|name| name.starts_with("brig-"));
        jailers.flat_map(|name| list(&self.place().join(name))).collect()
    }

    fn limits(&self, project: &str) -> ProjectLimits {
        let place = File::open(self.place()).unwrap();
        limits_of_project(place.as_fd(), project.parse().unwrap()).unwrap()
    }

    /// This host holds no quotas: a session is refused, with the reason.
    fn refused(&self) {
        assert!(!self.held);
        let why = refusal(&self.place(), quantities());
        assert!(why.contains("the file system limits no projects ("), "{why}");
        assert!(why.contains("; mount it with prjquota"), "{why}");
        assert_eq!(self.sessions(), Vec::<String>::new());
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.mounted {
            assert!(run(Command::new("umount").arg(self.place())));
        }
    }
}

fn temporary() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("brig-test-").tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    folder
}

fn run(command: &mut Command) -> bool {
    command.status().unwrap().success()
}

fn list(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name != "lost+found");
    names.sort();
    names
}

/// A jailer that has its workspaces there, and what asks for sessions with policy `x`.
fn rig_at(place: &Path, limits: &str) -> (Rig, tempfile::TempDir, Make) {
    let (folder, make) = own_policy("disk1", limits);
    let rig = Rig::launch(|command| {
        let command = command.arg("--policies").arg(folder.path());
        command.arg("--workspaces").arg(place)
    });
    (rig, folder, make)
}

/// Why no session with a workspace on disk is made there. The doctor says the same.
fn refusal(place: &Path, quantities: Quantities) -> String {
    let (mut rig, _folder, make) = rig_at(place, DISK);
    let check = rig.check("workspace disk");
    let Err(Refusal::HostCannot(why)) = rig.try_make(Make { quantities, ..make }) else {
        panic!("a session was made");
    };
    assert!(why.starts_with("policy x has limits.workspace = \"disk\": "), "{why}");
    if check.verdict == Verdict::Ok {
        assert!(check.found.ends_with("with quotas"), "{check:?}");
    } else {
        let found = check.found.strip_prefix("none: ").unwrap();
        assert_eq!(check.verdict, Verdict::Degraded);
        assert_eq!(check.needed, "for policy x (limits.workspace)");
        assert!(why.ends_with(&format!("{found}; {}", check.mend)), "{why}; {check:?}");
    }
    rig.stop();
    why
}

fn small() -> Quantities {
    Quantities {
        disk_bytes: 8 * MIB,
        inodes: 200,
        ..quantities()
    }
}

fn named(make: &Make, session: &str, quantities: Quantities) -> Make {
    Make {
        session: support::id(session),
        quantities,
        ..make.clone()
    }
}

/// What a script printed that ended well.
fn said(outcome: &Outcome) -> &str {
    assert_eq!((outcome.stderr.as_str(), outcome.end.cause), ("", None), "{outcome:?}");
    outcome.stdout.trim()
}

#[test]
fn a_quota_bounds_bytes_and_files_of_each_session_by_itself() {
    let volume = Volume::new("prjquota");
    if !volume.held {
        return volume.refused();
    }
    let (mut rig, _folder, make) = rig_at(&volume.place(), DISK);
    assert_eq!(rig.check("workspace disk").verdict, Verdict::Ok);
    for session in ["disk1", "disk2"] {
        let up = rig.try_make(named(&make, session, small())).unwrap();
        assert_eq!(up.enforced.workspace, "disk");
    }
    // The second finds nothing of the first, neither its files nor what they take.
    let fill = "import errno, os\n\
        found, before = os.listdir('.'), os.statvfs('.')\n\
        try:\n    open('big', 'wb', buffering=0).write(bytes(4 << 20)); f = open('big', 'ab', buffering=0)\n    while f.write(bytes(65536)): pass\n\
        except OSError as e: print(errno.errorcode[e.errno])\n\
        full, size = os.statvfs('.'), os.path.getsize('big')\n\
        print(found, before.f_blocks * before.f_frsize, before.f_files, full.f_bfree, 7 << 20 < size <= 8 << 20)\n\
        f.close(); os.remove('big')\n\
        try:\n    for n in range(1000): open(str(n), 'w').close()\n\
        except OSError as e: print(errno.errorcode[e.errno], n, os.statvfs('.').f_ffree)\n";
    for session in ["disk1", "disk2"] {
        let outcome = rig.python(session, "e1", fill);
        // The folder itself is one of the 200.
        assert_eq!(
            said(&outcome),
            "EDQUOT\n[] 8388608 200 0 True\nEDQUOT 199 0",
            "{session}"
        );
    }
    let projects = volume.sessions();
    assert_eq!(projects.len(), 2);
    for project in &projects {
        let expected = ProjectLimits {
            bytes: 8 * MIB,
            inodes: 200,
        };
        assert_eq!(volume.limits(project), expected);
    }
    rig.close("disk1");
    rig.stop();
    assert_eq!(list(&volume.place()), Vec::<String>::new());
    for project in &projects {
        assert_eq!(volume.limits(project), ProjectLimits { bytes: 0, inodes: 0 });
    }
}

#[test]
fn beside_it_is_a_small_tmpfs_that_is_charged_to_memory() {
    let volume = Volume::new("prjquota");
    if !volume.held {
        return volume.refused();
    }
    let (mut rig, _folder, make) = rig_at(&volume.place(), DISK);
    let large = Quantities {
        disk_bytes: 128 * MIB,
        ..quantities()
    };
    rig.try_make(named(&make, "disktmp", large)).unwrap();
    let script = "import os\n\
        device = lambda path: os.stat(path).st_dev\n\
        tmp = os.statvfs('/tmp')\n\
        print(device('/tmp') == device('/dev/shm') != device('.'), tmp.f_blocks * tmp.f_frsize >> 20)\n\
        flags = os.statvfs('.').f_flag\n\
        print(bool(flags & os.ST_NOSUID), bool(flags & os.ST_NODEV), oct(os.stat('.').st_mode), os.stat('.').st_uid)\n";
    let outcome = rig.python("disktmp", "e1", script);
    assert_eq!(said(&outcome), "True 64\nTrue True 0o40700 1000");
    // And 48 MiB for the file helper.
    assert_eq!(memory_limit("disktmp"), 256 * MIB + 64 * MIB + 48 * MIB);
    rig.stop();
}

/// The limit of a session's guests, in bytes.
fn memory_limit(session: &str) -> u64 {
    group_file(&format!("{session}/guest/memory.max"))
        .or_else(|| group_file(&format!("{session}/guest/memory.limit_in_bytes")))
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

fn group_file(end: &str) -> Option<String> {
    let path = format!("*/brig-*/{end}");
    let found = Command::new("find")
        .args(["/sys/fs/cgroup", "-path", &path])
        .output()
        .unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    found.lines().next().map(|path| fs::read_to_string(path).unwrap())
}

#[test]
fn a_guest_can_not_leave_its_quota() {
    let volume = Volume::new("prjquota");
    if !volume.held {
        return volume.refused();
    }
    let (mut rig, _folder, make) = rig_at(&volume.place(), DISK);
    rig.try_make(make).unwrap();
    let script = "import errno, fcntl, os, struct\n\
        GET, SET, GETFLAGS, SETFLAGS, INHERIT = 0x801c581f, 0x401c5820, 0x80086601, 0x40086602, 0x200\n\
        os.makedirs('a/b'); open('a/b/f', 'w').close()\n\
        def of(path): return struct.unpack('IIIII8x', fcntl.ioctl(os.open(path, 0), GET, bytes(28)))\n\
        def attempt(path, request, data):\n    \
            try: fcntl.ioctl(os.open(path, 0), request, data); return 'done'\n    \
            except OSError as e: return errno.errorcode[e.errno]\n\
        def change(path, project, keep):\n    \
            x = list(of(path)); x[0] = x[0] if keep else x[0] & ~INHERIT; x[3] = project\n    \
            return attempt(path, SET, struct.pack('IIIII8x', *x))\n\
        project = of('.')[3]\n\
        print(project, [of(p)[3] == project for p in ('a', 'a/b', 'a/b/f')], of('a/b')[0] & INHERIT != 0)\n\
        print([change(p, 0, True) for p in ('.', 'a', 'a/b/f')], change('a', project + 1, True))\n\
        print([change(p, project, False) for p in ('.', 'a')])\n\
        flags, = struct.unpack('l', fcntl.ioctl(os.open('a', 0), GETFLAGS, bytes(8)))\n\
        print(flags & 0x20000000 != 0, attempt('a', SETFLAGS, struct.pack('l', flags & ~0x20000000)))\n\
        print([of(p)[3] == project and of(p)[0] & INHERIT != 0 for p in ('.', 'a', 'a/b')])\n";
    let outcome = rig.python("disk1", "e1", script);
    let project = volume.sessions().remove(0);
    let expected = format!(
        "{project} [True, True, True] True\n\
         ['EINVAL', 'EINVAL', 'EINVAL'] EINVAL\n\
         ['EINVAL', 'EINVAL']\n\
         True EINVAL\n\
         [True, True, True]"
    );
    assert_eq!(said(&outcome), expected);
    rig.stop();
}

/// Leaves 10,000 files, a chain of 1,000 folders, and folders that their owner has locked.
const LITTER: &str = "import os\n\
    for d in range(100):\n    os.mkdir(str(d))\n    for f in range(100): open(f'{d}/{f}', 'w').write('x')\n\
    os.makedirs('locked/in'); open('locked/in/f', 'w').close(); os.chmod('locked/in', 0o1000); os.chmod('locked', 0)\n\
    os.symlink('/etc', 'link'); os.mkfifo('fifo')\n\
    for _ in range(1000): os.mkdir('d'); os.chdir('d')\n\
    print('done')\n";

fn many_files() -> Quantities {
    Quantities {
        disk_bytes: 128 * MIB,
        inodes: 12_000,
        ..quantities()
    }
}

fn litter(rig: &mut Rig, session: &str) {
    let mut command = support::command(session, "litter", &["python3", "-c", LITTER]);
    command.timeout_ms = 30_000 * support::slow();
    assert_eq!(said(&rig.run(command)), "done");
}

#[test]
fn whatever_a_session_leaves_goes_with_it() {
    let volume = Volume::new("prjquota");
    if !volume.held {
        return volume.refused();
    }
    let (mut rig, _folder, make) = rig_at(&volume.place(), DISK);
    rig.try_make(named(&make, "disk1", many_files())).unwrap();
    litter(&mut rig, "disk1");
    let project = volume.sessions().remove(0);
    // The jailer serves others while it is removed.
    rig.close("disk1");
    rig.try_make(named(&make, "disk2", small())).unwrap();
    assert_eq!(said(&rig.sh("disk2", "e1", "ls -A; echo ok")), "ok");
    rig.stop();
    assert_eq!(list(&volume.place()), Vec::<String>::new());
    assert_eq!(volume.limits(&project), ProjectLimits { bytes: 0, inodes: 0 });
}

#[test]
fn what_a_killed_jailer_left_is_removed_by_the_next() {
    let volume = Volume::new("prjquota");
    if !volume.held {
        return volume.refused();
    }
    let (mut rig, _folder, make) = rig_at(&volume.place(), DISK);
    rig.try_make(named(&make, "disk1", many_files())).unwrap();
    litter(&mut rig, "disk1");
    let left = volume.sessions();
    assert_eq!(left.len(), 1);
    rig.process.kill().unwrap();
    rig.process.wait().unwrap();
    assert_eq!(volume.sessions(), left);

    let (mut next, _folder, make) = rig_at(&volume.place(), DISK);
    // The block of what is being removed is not given to a new session.
    next.try_make(named(&make, "disk2", small())).unwrap();
    assert_eq!(said(&next.sh("disk2", "e1", "ls -A; echo ok")), "ok");
    let all = volume.sessions();
    assert!(all.iter().any(|project| !left.contains(project)), "{all:?}, {left:?}");
    next.stop();
    assert_eq!(list(&volume.place()), Vec::<String>::new());
    assert_eq!(volume.limits(&left[0]), ProjectLimits { bytes: 0, inodes: 0 });
}

#[test]
fn a_file_system_that_only_counts_is_refused() {
    let volume = Volume::new("noquota");
    if !volume.mounted {
        return volume.refused();
    }
    let why = refusal(&volume.place(), quantities());
    assert!(
        why.contains("the file system counts what projects use and does not limit it; mount it with prjquota"),
        "{why}"
    );
}

#[test]
fn a_workspace_larger_than_the_file_system_is_refused() {
    let volume = Volume::new("prjquota");
    if !volume.held {
        return volume.refused();
    }
    let (wanted, policy) = (
        Quantities {
            disk_bytes: 512 * MIB,
            ..quantities()
        },
        volume.place(),
    );
    let why = refusal(&policy, wanted);
    assert!(
        why.contains("it is to have 536870912 bytes, and the file system has "),
        "{why}"
    );
    assert_eq!(volume.sessions(), Vec::<String>::new());
}

#[test]
fn a_place_that_is_not_there_or_not_roots_alone_is_refused() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = temporary();
    let why = refusal(&folder.path().join("none"), quantities());
    assert!(why.contains("none: No such file or directory"), "{why}");
    assert!(why.contains("; make "), "{why}");
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    let why = refusal(&open, quantities());
    assert!(why.contains("writable"), "{why}");
}

/// A disk in memory, on which reads and writes are counted.
fn memory_disk() -> &'static Path {
    assert!(run(Command::new("modprobe").args(["brd", "rd_nr=1", "rd_size=131072"])));
    Path::new("/dev/ram0")
}

#[test]
fn a_limit_of_writes_is_felt() {
    let limits = format!("{DISK}\nio = {{ write = \"1M\" }}");
    let folder = temporary();
    if !fs::exists("/sys/fs/cgroup/cgroup.controllers").unwrap() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut rig, _folder, make) = rig_at(folder.path(), &limits);
        let Err(Refusal::HostCannot(why)) = rig.try_make(make) else {
            panic!("a session was made");
        };
        let expected = "policy x has limits.io: the io controller of cgroup version 2 is not delegated to brig-jailer";
        assert_eq!(why, expected);
        rig.stop();
        return;
    }
    let volume = Volume::on(folder, memory_disk(), "prjquota");
    assert!(volume.held);
    let (mut rig, _folder, make) = rig_at(&volume.place(), &limits);
    let up = rig.try_make(make).unwrap();
    assert!(up.enforced.io);
    let set = group_file("disk1/guest/io.max").unwrap();
    assert!(
        set.lines().any(|line| line.starts_with("1:0 rbps=max wbps=1048576 ")),
        "{set}"
    );
    let script = "import os, time\n\
        began = time.monotonic()\n\
        with open('f', 'wb') as f: f.write(os.urandom(3 << 20)); f.flush(); os.fsync(f.fileno())\n\
        took = time.monotonic() - began\n\
        print('ok' if took > 2 else took)\n";
    let mut command = support::command("disk1", "e1", &["python3", "-c", script]);
    command.timeout_ms = 30_000 * support::slow();
    assert_eq!(said(&rig.run(command)), "ok");
    rig.stop();
}
