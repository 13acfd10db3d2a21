//! What the ledger keeps. The names of the fields are the keys of its JSON: they are only added to.
//!
//! Fields that name people have a default: they can be erased (see `names`).

use std::collections::{BTreeMap, HashSet};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use brig_jailer::ids::Id;
use brig_jailer::policy::Retention;

/// Who a request came from, in the words of the platform in front of Brig. No value is trusted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    pub user: String,
    pub conversation: String,
    pub request: String,
}

/// An execution that was accepted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Accept {
    pub execution: Id,
    pub request: Option<String>,
    /// Of all that was sent, in hexadecimal digits; absent in entries of the first version.
    #[serde(default)]
    pub request_sha256: Option<String>,
    pub session: Id,
    /// Whether the session is one that is kept, and not made for it alone.
    #[serde(default)]
    pub kept: bool,
    /// From the identity of the connection.
    pub tenant: String,
    /// From the identity of the connection.
    #[serde(default)]
    pub user: String,
    #[serde(default)]
    pub origin: Origin,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    pub policy: String,
    pub policy_hash: String,
    /// `name@hash`.
    pub template: String,
    pub work: Work,
    pub inputs: Vec<Input>,
    pub limits: Limits,
    /// As the policy says.
    #[serde(default)]
    pub keep: Keep,
    #[serde(with = "millis", rename = "time_ms")]
    pub time: SystemTime,
}

/// How long what belongs to an entry is kept, in milliseconds. The entry itself is kept for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// What names people: users, origins, labels, names of files, messages.
    pub names_ms: u64,
    /// Code or arguments.
    pub work_ms: u64,
    pub outputs_ms: u64,
}

/// A kept session that will be made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionOpened {
    pub session: Id,
    pub request: Option<String>,
    /// Of all that was sent, in hexadecimal digits; absent in entries of the first version.
    #[serde(default)]
    pub request_sha256: Option<String>,
    /// From the identity of the connection.
    pub tenant: String,
    /// From the identity of the connection.
    #[serde(default)]
    pub user: String,
    #[serde(default)]
    pub origin: Origin,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    pub policy: String,
    pub policy_hash: String,
    /// `name@hash`.
    pub template: String,
    pub limits: Limits,
    /// As the policy says.
    #[serde(default)]
    pub keep: Keep,
    /// When it expires, as it was at first.
    #[serde(with = "millis", rename = "expire_time_ms")]
    pub expire_time: SystemTime,
    #[serde(with = "millis", rename = "time_ms")]
    pub time: SystemTime,
}

/// A kept session of which nothing is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionClosed {
    pub session: Id,
    /// Of the closed list of reasons: `asked`, `idle`, `expired`, ...
    pub reason: String,
    #[serde(with = "millis", rename = "time_ms")]
    pub time: SystemTime,
}

/// What is run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    pub kind: Kind,
    /// The code, or the arguments of the command, each ended by NUL.
    pub body: Body,
}

/// Whether code or a program is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Code,
    Command,
}

/// Bytes that are kept beside the entry, which holds only their hash and size.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Body {
    /// SHA-256 in hexadecimal digits.
    pub sha256: String,
    /// Size of what was hashed, in bytes.
    pub bytes: u64,
    /// Empty in a record whose body was erased.
    #[serde(skip)]
    pub content: Vec<u8>,
}

impl Body {
    /// Hashes the content and takes it along.
    pub fn new(content: Vec<u8>) -> Self {
        Self {
            sha256: hex(&Sha256::digest(&content)),
            bytes: content.len() as u64,
            content,
        }
    }
}

/// A file that was put in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// As the caller named it.
    #[serde(default)]
    pub name: String,
    /// As it lies in the session.
    #[serde(default)]
    pub path: String,
    pub size_bytes: u64,
    pub sha256: String,
}

/// The limits that held.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    pub timeout_ms: u64,
    pub memory_bytes: u64,
    pub cpu_millis: u64,
    pub pids: u64,
    pub disk_bytes: u64,
    pub output_bytes: u64,
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finish {
    pub execution: Id,
    /// Of the closed list of ends: `success`, `error`, `timeout`, ...
    pub status: String,
    /// Of the closed list of causes: `wall_time`, `memory`, ...
    pub cause: Option<String>,
    /// What the cause says to people.
    #[serde(default)]
    pub message: Option<String>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub usage: Usage,
    /// Bytes produced, and of these dropped past the cap.
    pub stdout_bytes: u64,
    pub stdout_dropped: u64,
    pub stderr_bytes: u64,
    pub stderr_dropped: u64,
    /// What the result showed of the stream.
    pub stdout: Body,
    pub stderr: Body,
    pub artifacts: Vec<Artifact>,
    pub limits_hit: Vec<String>,
    /// What the caller was told beyond this, in the form of the API; kept for [`super::REMEMBERED`] beside the entry.
    #[serde(skip)]
    pub told: Vec<u8>,
    /// When the code started; absent if it never did.
    #[serde(with = "optional_millis", rename = "start_time_ms")]
    pub start_time: Option<SystemTime>,
    #[serde(with = "millis", rename = "time_ms")]
    pub time: SystemTime,
}

/// What an execution used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub cpu_us: u64,
    pub memory_peak_bytes: u64,
    pub processes_peak: u64,
    pub disk_bytes: u64,
}

/// A file that came out, or waits for review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    pub artifact: Id,
    #[serde(default)]
    pub path: String,
    pub sha256: String,
    pub size_bytes: u64,
    pub class: String,
    pub handling: String,
    pub review: String,
}

/// A request that was turned down before anything ran. Long texts are cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub request: Option<String>,
    pub tenant: String,
    #[serde(default)]
    pub user: String,
    #[serde(default)]
    pub origin: Origin,
    /// As asked for; it may not exist.
    #[serde(default)]
    pub policy: String,
    /// Of the list of reasons in docs/errors.md.
    pub reason: String,
    /// The field that was wrong; empty if none.
    #[serde(default)]
    pub field: String,
    #[serde(default)]
    pub message: String,
    /// How many requests it stands for.
    #[serde(default = "one")]
    pub count: u64,
    #[serde(with = "millis", rename = "time_ms")]
    pub time: SystemTime,
}

/// A decision about an artifact. Artifacts that nobody decided about in time have one too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactReviewed {
    pub artifact: Id,
    pub execution: Id,
    pub session: Id,
    pub request: Option<String>,
    pub tenant: String,
    /// The reviewer; from the identity of the connection.
    #[serde(default)]
    pub user: String,
    /// Who asked for the execution.
    #[serde(default)]
    pub origin: Origin,
    /// `approved`, `rejected` or `expired`.
    pub review: String,
    /// Of the bytes that were decided about.
    pub sha256: String,
    pub size_bytes: u64,
    /// What the reviewer said.
    #[serde(default)]
    pub message: String,
    #[serde(with = "millis", rename = "time_ms")]
    pub time: SystemTime,
}

/// An artifact that may leave from now on, to others than the caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Downloaded {
    pub artifact: Id,
    pub execution: Id,
    pub session: Id,
    pub tenant: String,
    /// Who asked for the link; from the identity of the connection.
    #[serde(default)]
    pub user: String,
    /// Who asked for the execution.
    #[serde(default)]
    pub origin: Origin,
    /// `link`.
    pub way: String,
    /// Until when, in milliseconds since 1970.
    #[serde(with = "millis", rename = "expire_time_ms")]
    pub expire_time: SystemTime,
    pub sha256: String,
    pub size_bytes: u64,
    #[serde(with = "millis", rename = "time_ms")]
    pub time: SystemTime,
}

/// Bodies and names that an operator had removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Erased {
    pub request: Option<String>,
    pub tenant: String,
    /// The operator; from the identity of the connection.
    #[serde(default)]
    pub user: String,
    /// Whether it was about one user, whose name is not kept.
    pub one_user: bool,
    pub execution: Option<String>,
    /// Entries before this time.
    #[serde(with = "optional_millis", rename = "to_time_ms")]
    pub to_time: Option<SystemTime>,
    /// Entries that lost something.
    pub entries: u64,
    /// Why, in the operator's words.
    #[serde(default)]
    pub message: String,
    #[serde(with = "millis", rename = "time_ms")]
    pub time: SystemTime,
}

/// A decision about an execution that waited for approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reviewed {
    pub execution: Id,
    pub request: Option<String>,
    /// From the identity of the connection; empty if nobody decided.
    pub reviewer_tenant: String,
    /// The reviewer; from the identity of the connection.
    #[serde(default)]
    pub user: String,
    /// `approved`, `rejected` or `expired`.
    pub review: String,
    /// Of the code or arguments that were decided about, in hexadecimal digits.
    pub work_sha256: String,
    /// What the reviewer said.
    #[serde(default)]
    pub message: String,
    #[serde(with = "millis", rename = "time_ms")]
    pub time: SystemTime,
}

/// An execution as the ledger has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub accept: Accept,
    /// Absent while it runs.
    pub finish: Option<Finish>,
}

/// What a request made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requested {
    pub made: Made,
    /// Of all that was sent, in hexadecimal digits.
    pub sha256: String,
}

/// Something that a request made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Made {
    Execution(Id),
    Session(Id),
}

/// What has begun and not ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenEnds {
    pub executions: HashSet<Id>,
    pub sessions: HashSet<Id>,
}

impl Kind {
    /// The name of the body that it has.
    pub(super) fn part(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Command => "command",
        }
    }
}

impl Default for Keep {
    /// As policies have it that say nothing.
    fn default() -> Self {
        Self::from(&Retention::default())
    }
}

impl From<&Retention> for Keep {
    fn from(retention: &Retention) -> Self {
        Self {
            names_ms: retention.ledger.millis(),
            work_ms: retention.code.millis(),
            outputs_ms: retention.outputs.millis(),
        }
    }
}

impl Finish {
    /// The end of an execution that nobody saw.
    pub(super) fn lost(execution: Id, time: SystemTime) -> Self {
        Self {
            execution,
            status: "lost".to_owned(),
            cause: Some("internal".to_owned()),
            message: Some("brigd ended before the execution did".to_owned()),
            exit_code: None,
            signal: None,
            usage: Usage::default(),
            stdout_bytes: 0,
            stdout_dropped: 0,
            stderr_bytes: 0,
            stderr_dropped: 0,
            stdout: Body::new(Vec::new()),
            stderr: Body::new(Vec::new()),
            artifacts: Vec::new(),
            limits_hit: Vec::new(),
            told: Vec::new(),
            start_time: None,
            time,
        }
    }
}

fn one() -> u64 {
    1
}

/// Writes bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Milliseconds since 1970; times before it become 0.
pub(crate) fn to_millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

mod millis {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(super::to_millis(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        u64::deserialize(deserializer).map(|millis| UNIX_EPOCH + Duration::from_millis(millis))
    }
}

mod optional_millis {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(super::to_millis).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
        let millis = Option::<u64>::deserialize(deserializer)?;
        Ok(millis.map(|millis| UNIX_EPOCH + Duration::from_millis(millis)))
    }
}
