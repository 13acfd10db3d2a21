//! What a jail is to be: plain data, built by the jailer, applied by brig-init without a decision of its own.
//!
//! The order of mounts is the order of the list. Paths of mounts are below [`ROOT`] in the mount namespace of the
//! jailer, which brig-init inherits as a copy; see `world.rs` for what lies there.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use crate::ids::Id;
use crate::step::StepError;

/// Where the new root is put together.
pub const ROOT: &str = "/run/root";
/// Where the session's tmpfs is mounted while its folders are made.
pub const STAGE: &str = "/run/stage";
/// Where workspaces on disk lie.
pub const WORKSPACES: &str = "/run/workspaces";
/// The user of guest programs, and its group.
pub const GUEST_UID: u32 = 1000;
/// The user of the file helper, and its group.
pub const FILES_UID: u32 = 999;
/// The user of a zygote, and its group.
pub const ZYGOTE_UID: u32 = 2000;
/// The working directory.
pub const HOME: &str = "/home/user";

/// Everything brig-init needs to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub hostname: String,
    /// Values for /proc/sys/user, which bind the session's user namespace.
    pub user_limits: Vec<(String, u64)>,
    pub mounts: Vec<MountOp>,
    /// The filter of pid 1 and of the file helper.
    pub init_filter: Vec<Vec<u8>>,
    pub guest: Guest,
}

/// One action on the mount namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountOp {
    /// Shows a mounted folder at another place, with its flags.
    Bind { source: String, target: String },
    /// A tmpfs of fixed size.
    Tmpfs {
        target: String,
        size_bytes: u64,
        inodes: u64,
    },
    /// A folder in the session's tmpfs.
    Directory { path: String, mode: u32, owner: u32 },
    /// A fresh /proc of the session's pid namespace.
    Proc { target: String },
    /// Pseudo terminals of the session's own.
    Devpts { target: String },
    /// Makes a part of /proc read-only, if this kernel has it.
    ReadOnly { target: String },
    /// Hides a file or folder of /proc, if this kernel has it.
    Mask { target: String },
}

/// What is the same for all guest programs of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guest {
    /// Soft and hard limit, by name.
    pub rlimits: Vec<(Rlimit, u64)>,
    pub paths: Vec<PathRule>,
    pub filter: Vec<Vec<u8>>,
    /// Variables of the template.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Resource limits that are set, see getrlimit(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rlimit {
    /// Bytes; 1 keeps a piped core dump handler of the host from running.
    Core,
    /// Bytes of locked memory.
    Memlock,
    /// Bytes of POSIX message queues.
    Msgqueue,
    /// Open files.
    Nofile,
    /// Pending signals.
    Sigpending,
    /// Bytes of stack.
    Stack,
}

/// What Landlock allows below a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRule {
    pub path: String,
    pub access: Access,
}

/// Kinds of access to a file tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Read and execute.
    Read,
    /// Everything.
    Write,
    /// Read, write and ioctl on existing files: devices and /proc.
    Use,
}

/// From the jailer to brig-init.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToInit {
    /// The ids are mapped; go on to exec.
    Mapped,
    /// Descriptors: those of the file helper's leaf (see [`ToInit::Spawn`]).
    Plan(Box<Plan>),
    /// Starts a program. Descriptors: the leaf's version 2 directory, then its version 1 `tasks` files, if any; behind them
    /// a zygote's socket.
    Spawn(Box<Program>),
    /// Gets everything ready for a program that another process starts: [`FromInit::Lent`] is the answer.
    Lend(Box<Program>),
    /// The program was started by somebody else, and is a child of pid 1 by now.
    Adopt { execution: Id, pid: i32 },
    /// Nobody starts the program.
    TakeBack { execution: Id, error: StepError },
    /// Sends a signal to the main process of an execution, or to its process group.
    Signal { execution: Id, signal: i32, group: bool },
    /// Starts a file helper in place of the last one, which is dead. Descriptors: as with the plan.
    Files,
}

/// A program to be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub execution: Id,
    pub argv: Vec<Vec<u8>>,
    /// Variables beside those of the plan.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    pub directory: Vec<u8>,
    pub stdin: bool,
    pub merge_stderr: bool,
    /// Columns and rows of a terminal in place of pipes.
    pub terminal: Option<(u16, u16)>,
    /// Whether descriptors 3 and 4 are pipes from and to the caller.
    pub kernel: bool,
    /// Of a zygote: what it has in place of what the plan says for guests.
    pub zygote: Option<Zygote>,
}

/// What is different for a zygote: it is a kernel with a user of its own that can't write anything but /tmp and the like,
/// and a wider filter and wider rules, which its children narrow. Descriptor 5 is its socket to the jailer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zygote {
    pub filter: Vec<Vec<u8>>,
}

/// From brig-init to the jailer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromInit {
    /// The jail is up. Descriptors: the caller's end of the file helper's socket.
    Ready { landlock_abi: u32 },
    /// Another file helper runs. Descriptors: the caller's end of its socket.
    Files,
    /// A step failed; the process ends.
    Failed(StepError),
    /// The program runs. Descriptors: the terminal, or stdin, stdout, stderr, then the kernel's request pipe and frame pipe, as far as asked for; of a zygote the session's user and pid namespaces too.
    Spawned { execution: Id, pid: u32 },
    /// What somebody else needs to start a program. Descriptors: the session's namespaces (user, mnt, pid, net, ipc, uts,
    /// cgroup), the program's ends of stdin, stdout, stderr and the kernel's two pipes, the Landlock rules, and the pipe
    /// for the report of a step that failed.
    Lent { execution: Id },
    /// The program did not start.
    SpawnFailed { execution: Id, error: StepError },
    /// The main process of an execution ended: exit code, or the signal negated.
    Exited { execution: Id, status: i32 },
}
