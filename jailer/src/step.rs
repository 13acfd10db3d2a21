//! The steps of making a jail, by the names that docs/jail.md, errors and tests use.
#![forbid(unsafe_code)]

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! steps {
    ($($(#[$doc:meta])* $variant:ident => $name:literal),+ $(,)?) => {
        /// One step of making a jail or of starting a program in it, in the order in which they happen.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Step { $($(#[$doc])* $variant),+ }

        impl Step {
            /// All steps, in order.
            pub const ALL: &[Step] = &[$(Step::$variant),+];

            /// The name as documentation and errors show it.
            pub fn name(self) -> &'static str {
                match self { $(Step::$variant => $name),+ }
            }
        }
    };
}

steps! {
    // By the jailer.
    /// The session's cgroups exist and every limit was read back.
    Cgroups => "cgroups",
    /// The first process exists, in its namespaces.
    Clone => "clone",
    /// Uids and gids are mapped, setgroups is denied.
    IdMaps => "id-maps",
    /// Version 1 groups are joined by the process itself; on version 2 it was born in its group.
    JoinCgroups => "join-cgroups",
    /// The cgroup namespace begins at the session's group.
    CgroupNamespace => "cgroup-namespace",
    // By brig-init, once per jail.
    /// No further namespaces, few inotify instances.
    UserLimits => "user-limits",
    /// No mount travels in or out.
    PrivateMounts => "private-mounts",
    /// The rootfs, /proc, /dev and the tmpfs are mounted.
    Mounts => "mounts",
    /// The old root is gone.
    PivotRoot => "pivot-root",
    /// The host name is the session's.
    Hostname => "hostname",
    /// The loopback interface is up.
    Loopback => "loopback",
    /// pid 1 keeps three capabilities, its own filter, and can't be dumped.
    Shed => "shed",
    /// The file helper runs.
    FilesHelper => "files-helper",
    // By the child of brig-init, or of a zygote, once per program.
    /// A zygote has joined the session's namespaces and forked.
    Fork => "fork",
    /// The program's own cgroup is joined.
    JoinLeaf => "join-leaf",
    /// A session of its own, without a terminal.
    Setsid => "setsid",
    /// stdin, stdout, stderr and the kernel's pipes are in place; no other descriptor is open.
    Streams => "streams",
    /// Resource limits of the process.
    Rlimits => "rlimits",
    /// uid 1000, no capability, an empty bounding set.
    DropPrivileges => "drop-privileges",
    /// The working directory.
    Directory => "directory",
    /// No privilege can be gained by exec.
    NoNewPrivs => "no-new-privs",
    /// Files outside the rules are out of reach.
    Landlock => "landlock",
    /// System calls outside the list fail.
    Seccomp => "seccomp",
    /// The program was started.
    Exec => "exec",
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A system call that failed, as strace would show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{call}: {}", std::io::Error::from_raw_os_error(*.errno))]
pub struct SysError {
    /// The call with its arguments.
    pub call: String,
    pub errno: i32,
}

impl SysError {
    /// Joins a call and the error it gave.
    pub fn new(call: impl Into<String>, errno: i32) -> Self {
        Self {
            call: call.into(),
            errno,
        }
    }
}

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("jail step {step}: {source}")]
pub struct StepError {
    pub step: Step,
    pub source: SysError,
}

/// Names the step in which a call failed.
pub trait At<T> {
    /// Adds the step.
    fn at(self, step: Step) -> Result<T, StepError>;
}

impl<T> At<T> for Result<T, SysError> {
    fn at(self, step: Step) -> Result<T, StepError> {
        self.map_err(|source| StepError { step, source })
    }
}
