//! Policies: named files that say what a session may do and use.
//!
//! `brigd` and the jailer read the same files and name them to each other by hash, so that both always mean the same
//! text. A policy never grants more than its file says: unknown keys are errors, zero is refused (what is absent has a
//! default), and what this version does not enforce is refused by name instead of being ignored. The jailer holds
//! every quantity against the policy and against [`Ceilings`], which only root can write.
#![forbid(unsafe_code)]

mod artifacts;
mod bounded;
mod ceilings;
mod check;
mod environment;
mod problem;
mod resolve;
mod set;
mod trust;

use serde::{Deserialize, Serialize};

pub use self::artifacts::{Artifacts, Class, Found, Handling, Rule, Scanner};
pub use self::bounded::Bounded;
pub use self::ceilings::{Ceilings, check_quantities, check_timeout};
pub use self::check::{Summary, check_file};
pub(crate) use self::check::{hex, is_name};
pub use self::environment::Environment;
pub use self::problem::Problem;
pub(crate) use self::problem::{Document, nearest};
pub use self::resolve::{Clamped, LimitError, RequestedLimits, Resolved};
pub use self::set::PolicySet;
pub use self::trust::{LoadError, Trust};
pub(crate) use self::trust::{check_folder, list, read_text};
use crate::units::{ByteSize, Cpus, Span};

/// One policy, checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// The file's name without `.toml`.
    pub name: String,
    /// SHA-256 of the file's text, in hex.
    pub hash: String,
    #[serde(flatten)]
    pub rules: Rules,
}

/// What a policy file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Name of the template that sessions get unless the caller names another.
    pub template: String,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub environment: Environment,
    pub syscalls: Syscalls,
    #[serde(default)]
    pub network: Network,
    #[serde(default)]
    pub packages: Packages,
    #[serde(default)]
    pub files: Files,
    #[serde(default)]
    pub artifacts: Artifacts,
    #[serde(default)]
    pub execution: Execution,
    #[serde(default)]
    pub retention: Retention,
}

/// How much a session may use.
///
/// Where there is a default and a maximum, a caller may ask for less or more; above the maximum it gets the maximum
/// and is told. A single value is both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Wall time of one execution, from the start of the code.
    pub timeout: Bounded<Span>,
    /// Wall time of queueing and starting.
    pub start_timeout: Span,
    /// Memory of the processes, beside what lies in the tmpfs.
    pub memory: Bounded<ByteSize>,
    pub cpus: Bounded<Cpus>,
    /// Size of the tmpfs that holds the working directory, /tmp and /dev/shm; of the working directory where that is
    /// on disk.
    pub disk: Bounded<ByteSize>,
    /// Files and directories in it.
    pub inodes: Bounded<u64>,
    /// Processes and threads.
    pub pids: Bounded<u64>,
    /// Open files of one process.
    pub open_files: Bounded<u64>,
    /// Where the working directory lies.
    pub workspace: Workspace,
    /// What may be read from and written to disks; without it nothing is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoLimits>,
    /// Size of the code of one execution.
    pub code_bytes: ByteSize,
    /// All input files of one execution together.
    pub upload_bytes: ByteSize,
    /// What is kept of stdout and stderr together.
    pub output_bytes: Bounded<ByteSize>,
    /// What the final result carries of each stream.
    pub result_output_bytes: ByteSize,
    pub on_output_limit: OnOutputLimit,
    /// Size of one artifact.
    pub artifact_bytes: ByteSize,
    /// Artifacts of one execution.
    pub artifacts: u64,
    /// Directories that an artifact may lie below the working directory.
    pub artifact_depth: u64,
    pub session: SessionLimits,
}

/// How much a session may read and write per second, on each disk that it can reach.
///
/// What the page cache answers is not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IoLimits {
    pub read: Option<ByteSize>,
    pub write: Option<ByteSize>,
    pub read_ops: Option<u64>,
    pub write_ops: Option<u64>,
}

/// How long a session may live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionLimits {
    /// A session without an execution is closed after this time.
    pub idle: Bounded<Span>,
    /// A session is closed after this time whatever happens.
    pub max_age: Bounded<Span>,
}

/// Where the working directory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workspace {
    /// In memory, with /tmp and /dev/shm.
    Tmpfs,
    /// In a folder of the host, on a file system with quotas of projects.
    Disk,
}

impl Workspace {
    /// The size of a session's tmpfs in bytes, which is charged to its memory: all that it may write, or, where the
    /// working directory is on disk, what lies in /tmp and /dev/shm.
    pub fn tmpfs_bytes(self, disk_bytes: u64) -> u64 {
        const BESIDE_DISK: u64 = 64 << 20;
        match self {
            Self::Tmpfs => disk_bytes,
            Self::Disk => disk_bytes.min(BESIDE_DISK),
        }
    }
}

/// What happens when an execution writes more than `output_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnOutputLimit {
    /// The rest is counted and dropped.
    Drop,
    /// The execution is ended. Not built: refused by name.
    End,
}

/// The system calls that guests may make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Syscalls {
    /// Names of files in `syscalls/` beside the policies.
    pub groups: Vec<String>,
}

/// What can be reached over the network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    pub mode: NetworkMode,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkMode {
    /// A network namespace of its own with a loopback interface and nothing else.
    #[default]
    None,
    /// Not built: refused by name.
    Egress,
}

/// Where Python packages come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Packages {
    pub mode: PackagesMode,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PackagesMode {
    /// The template's packages only.
    #[default]
    Preinstalled,
    /// Not built: refused by name.
    AllowList,
    /// Not built: refused by name.
    Index,
}

/// Which files may be downloaded from a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Files {
    pub download: Download,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Download {
    Any,
    /// Artifacts, as their handling says.
    #[default]
    Artifacts,
    None,
}

/// Whether code waits for a decision before it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Execution {
    pub review: Review,
    /// What nobody has decided about after this time is rejected.
    pub review_timeout: Span,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Review {
    #[default]
    None,
    /// Everything waits for a reviewer.
    Required,
}

/// How long the records of an execution are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    pub ledger: Span,
    pub code: Span,
    pub outputs: Span,
    pub artifacts: Span,
}

const DAY: u32 = 24 * 60 * 60;

impl Policy {
    /// Gives the name with the short hash, as results and the ledger show it.
    pub fn id(&self) -> String {
        format!("{}@{}", self.name, self.short_hash())
    }

    /// Gives the first 12 digits of the hash.
    pub fn short_hash(&self) -> &str {
        &self.hash[..12]
    }
}

impl std::ops::Deref for Policy {
    type Target = Rules;

    fn deref(&self) -> &Rules {
        &self.rules
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: Bounded {
                default: Span::from_secs(30),
                max: Span::from_secs(300),
            },
            start_timeout: Span::from_secs(10),
            memory: Bounded {
                default: ByteSize::from_mib(512),
                max: ByteSize::from_mib(2048),
            },
            cpus: Bounded {
                default: Cpus::from_millis(1000),
                max: Cpus::from_millis(2000),
            },
            disk: Bounded {
                default: ByteSize::from_mib(512),
                max: ByteSize::from_mib(2048),
            },
            inodes: Bounded::fixed(50_000),
            pids: Bounded::fixed(128),
            open_files: Bounded::fixed(1024),
            workspace: Workspace::Tmpfs,
            io: None,
            code_bytes: ByteSize::from_mib(1),
            upload_bytes: ByteSize::from_mib(1024),
            output_bytes: Bounded::fixed(ByteSize::from_mib(8)),
            result_output_bytes: ByteSize::from_bytes(64 * 1024),
            on_output_limit: OnOutputLimit::Drop,
            artifact_bytes: ByteSize::from_mib(50),
            artifacts: 64,
            artifact_depth: 8,
            session: SessionLimits::default(),
        }
    }
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            idle: Bounded::fixed(Span::from_secs(600)),
            max_age: Bounded::fixed(Span::from_secs(3600)),
        }
    }
}

impl Execution {
    /// The longest that a decision can be waited for.
    pub const REVIEW_TIMEOUT_MAX: Span = Span::from_secs(DAY);
}

impl Default for Execution {
    fn default() -> Self {
        Self {
            review: Review::None,
            review_timeout: Self::REVIEW_TIMEOUT_MAX,
        }
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            ledger: Span::from_secs(90 * DAY),
            code: Span::from_secs(30 * DAY),
            outputs: Span::from_secs(7 * DAY),
            artifacts: Span::from_secs(30 * DAY),
        }
    }
}

#[cfg(test)]
mod tests;
