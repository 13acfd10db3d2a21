//! Turns a policy, a template and quantities into the plan of a jail. Pure: it looks at nothing but its arguments.
#![forbid(unsafe_code)]

use crate::api::Quantities;
use crate::ids::Id;
use crate::plan::{Access, GUEST_UID, Guest, HOME, MountOp, PathRule, Plan, ROOT, Rlimit, STAGE};
use crate::policy::Workspace;
use crate::template::Template;

/// What of /proc no guest has business with; the list of Docker's default, as far as a kernel has it.
const MASKED: [&str; 12] = [
    "acpi",
    "asound",
    "interrupts",
    "kcore",
    "keys",
    "latency_stats",
    "pressure",
    "sched_debug",
    "scsi",
    "sysrq-trigger",
    "timer_list",
    "timer_stats",
];

/// What of /proc is shown but never written.
const READ_ONLY: [&str; 4] = ["bus", "fs", "irq", "sys"];

/// No namespace inside a session, and few of what the kernel counts per user.
///
/// Source: namespaces(7), "/proc/sys/user"; inotify(7).
const USER_LIMITS: [(&str, u64); 11] = [
    ("max_user_namespaces", 0),
    ("max_mnt_namespaces", 0),
    ("max_pid_namespaces", 0),
    ("max_net_namespaces", 0),
    ("max_ipc_namespaces", 0),
    ("max_uts_namespaces", 0),
    ("max_cgroup_namespaces", 0),
    ("max_time_namespaces", 0),
    ("max_fanotify_groups", 0),
    ("max_inotify_instances", 32),
    ("max_inotify_watches", 8192),
];

/// Variables by which numeric libraries choose their number of threads.
const THREAD_VARIABLES: [&str; 5] = [
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
];

/// The filters of a session.
#[derive(Debug, Clone)]
pub(super) struct Filters {
    pub(super) init: Vec<Vec<u8>>,
    pub(super) guest: Vec<Vec<u8>>,
}

/// The same for a session with a zygote, in whose user namespace those of its dock are made: what they count is counted
/// there too.
const KEEPER_LIMITS: [(&str, u64); 8] = [
    ("max_user_namespaces", DOCKED_MAX),
    ("max_mnt_namespaces", DOCKED_MAX),
    ("max_pid_namespaces", DOCKED_MAX),
    ("max_net_namespaces", DOCKED_MAX),
    ("max_ipc_namespaces", DOCKED_MAX),
    ("max_uts_namespaces", DOCKED_MAX),
    ("max_cgroup_namespaces", DOCKED_MAX),
    ("max_time_namespaces", 0),
];
/// Namespaces of a kind that can exist in a dock: more than there can be sessions, and some that are on their way out.
const DOCKED_MAX: u64 = 4096;

/// Draws the plan. `image` is where the jailer has mounted the rootfs, `workspace` the working directory on disk.
pub(super) fn plan(
    session: &Id,
    template: &Template,
    image: &str,
    workspace: Option<&str>,
    quantities: &Quantities,
    filters: Filters,
    is_keeper: bool,
) -> Plan {
    let user_limits = if is_keeper { &KEEPER_LIMITS[..] } else { &USER_LIMITS };
    Plan {
        hostname: session.to_string(),
        user_limits: user_limits
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect(),
        mounts: mounts(image, template.interpreter.is_some(), workspace, quantities),
        init_filter: filters.init,
        guest: Guest {
            rlimits: rlimits(quantities),
            paths: paths(),
            filter: filters.guest,
            environment: environment(template, quantities),
        },
    }
}

/// The mounts of a jail, in the one order in which none hides another.
///
/// The working directory, /tmp and /dev/shm are folders of one tmpfs, so that one size and one number of inodes bound
/// all that a session can write; but a working directory on disk has a quota of its own.
fn mounts(image: &str, has_kernel: bool, workspace: Option<&str>, quantities: &Quantities) -> Vec<MountOp> {
    let bind = |source: &str, below: &str| MountOp::Bind {
        source: source.to_owned(),
        target: format!("{ROOT}{below}"),
    };
    let folder = |name: &str, mode, owner| MountOp::Directory {
        path: format!("{STAGE}/{name}"),
        mode,
        owner,
    };
    let mut list = vec![bind(image, "")];
    if has_kernel {
        list.push(bind("/run/kernel", "/usr/lib/brig"));
    }
    list.extend([
        bind("/run/dev", "/dev"),
        MountOp::Devpts {
            target: format!("{ROOT}/dev/pts"),
        },
        MountOp::Tmpfs {
            target: STAGE.to_owned(),
            size_bytes: tmpfs_bytes(workspace, quantities),
            inodes: quantities.inodes,
        },
    ]);
    match workspace {
        Some(folder) => list.push(bind(folder, HOME)),
        None => list.extend([folder("home", 0o700, GUEST_UID), bind(&format!("{STAGE}/home"), HOME)]),
    }
    list.extend([
        folder("tmp", 0o1777, 0),
        folder("shm", 0o1777, 0),
        bind(&format!("{STAGE}/tmp"), "/tmp"),
        bind(&format!("{STAGE}/shm"), "/dev/shm"),
        MountOp::Proc {
            target: format!("{ROOT}/proc"),
        },
    ]);
    list.extend(READ_ONLY.iter().map(|name| MountOp::ReadOnly {
        target: format!("{ROOT}/proc/{name}"),
    }));
    list.extend(MASKED.iter().map(|name| MountOp::Mask {
        target: format!("{ROOT}/proc/{name}"),
    }));
    list
}

fn tmpfs_bytes(workspace: Option<&str>, quantities: &Quantities) -> u64 {
    let kind = workspace.map_or(Workspace::Tmpfs, |_| Workspace::Disk);
    kind.tmpfs_bytes(quantities.disk_bytes)
}

/// See setrlimit(2). A core limit of exactly 1 keeps the host's core dump handler out, which 0 does not.
fn rlimits(quantities: &Quantities) -> Vec<(Rlimit, u64)> {
    vec![
        (Rlimit::Core, 1),
        (Rlimit::Memlock, 64 << 10),
        (Rlimit::Msgqueue, 0),
        (Rlimit::Nofile, quantities.open_files),
        (Rlimit::Sigpending, 1024),
        (Rlimit::Stack, 8 << 20),
    ]
}

/// The rootfs can be read, the session's tmpfs written, devices and /proc used.
fn paths() -> Vec<PathRule> {
    let rule = |path: &str, access| PathRule {
        path: path.to_owned(),
        access,
    };
    vec![
        rule("/", Access::Read),
        rule(HOME, Access::Write),
        rule("/tmp", Access::Write),
        rule("/dev/shm", Access::Write),
        rule("/dev", Access::Use),
        rule("/proc", Access::Use),
    ]
}

/// The template's variables, and as many threads as there are CPUs to run them.
fn environment(template: &Template, quantities: &Quantities) -> Vec<(Vec<u8>, Vec<u8>)> {
    let threads = quantities.threads().to_string().into_bytes();
    let own = template
        .environment
        .iter()
        .map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes()));
    let numbers = THREAD_VARIABLES
        .iter()
        .map(|name| (name.as_bytes().to_vec(), threads.clone()));
    own.chain(numbers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantities() -> Quantities {
        Quantities {
            memory_bytes: 512 << 20,
            cpu_millis: 1500,
            pids: 128,
            disk_bytes: 64 << 20,
            inodes: 5000,
            open_files: 1024,
            max_age_ms: 60_000,
        }
    }

    #[test]
    fn mounts_have_one_fixed_order() {
        let shown = shown(&mounts("/run/images/i", true, None, &quantities()));
        assert_eq!(
            shown[..14],
            [
                "bind /run/images/i /run/root",
                "bind /run/kernel /run/root/usr/lib/brig",
                "bind /run/dev /run/root/dev",
                "devpts /run/root/dev/pts",
                "tmpfs /run/stage 67108864 5000",
                "mkdir /run/stage/home 700 1000",
                "bind /run/stage/home /run/root/home/user",
                "mkdir /run/stage/tmp 1777 0",
                "mkdir /run/stage/shm 1777 0",
                "bind /run/stage/tmp /run/root/tmp",
                "bind /run/stage/shm /run/root/dev/shm",
                "proc /run/root/proc",
                "ro /run/root/proc/bus",
                "ro /run/root/proc/fs",
            ]
        );
    }

    #[test]
    fn a_workspace_on_disk_leaves_a_small_tmpfs() {
        let large = Quantities {
            disk_bytes: 1 << 30,
            ..quantities()
        };
        let shown = shown(&mounts("/run/images/i", true, Some("/run/workspaces/7"), &large));
        assert_eq!(
            shown[4..9],
            [
                "tmpfs /run/stage 67108864 5000",
                "bind /run/workspaces/7 /run/root/home/user",
                "mkdir /run/stage/tmp 1777 0",
                "mkdir /run/stage/shm 1777 0",
                "bind /run/stage/tmp /run/root/tmp",
            ]
        );
        assert!(!shown.iter().any(|line| line.contains("/run/stage/home")));
        let sizes = [
            Workspace::Disk.tmpfs_bytes(1 << 20),
            Workspace::Tmpfs.tmpfs_bytes(1 << 30),
        ];
        assert_eq!(sizes, [1 << 20, 1 << 30]);
    }

    fn shown(list: &[MountOp]) -> Vec<String> {
        list.iter()
            .map(|op| match op {
                MountOp::Bind { source, target } => format!("bind {source} {target}"),
                MountOp::Tmpfs {
                    target,
                    size_bytes,
                    inodes,
                } => format!("tmpfs {target} {size_bytes} {inodes}"),
                MountOp::Directory { path, mode, owner } => format!("mkdir {path} {mode:o} {owner}"),
                MountOp::Proc { target } => format!("proc {target}"),
                MountOp::Devpts { target } => format!("devpts {target}"),
                MountOp::ReadOnly { target } => format!("ro {target}"),
                MountOp::Mask { target } => format!("mask {target}"),
            })
            .collect()
    }

    #[test]
    fn a_jail_without_an_interpreter_has_no_kernel_layer() {
        let list = mounts("/run/images/i", false, None, &quantities());
        assert!(
            !list
                .iter()
                .any(|op| matches!(op, MountOp::Bind { source, .. } if source == "/run/kernel"))
        );
    }
}
