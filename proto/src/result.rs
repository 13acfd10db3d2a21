//! The result of an execution as a JSON document: what `brig run --json` prints.
//!
//! Every key is always present, but in `details`, which has the facts that apply. Bytes that are not UTF-8 appear as
//! U+FFFD, and `lossy` says so; gRPC carries the bytes. The committed schema is [`crate::schema::RESULT`].

mod convert;
mod names;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

pub use names::{CauseKind, Change, Class, Handling, Review, Start, Status};

/// The result of an execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResultDocument {
    /// How it ended.
    pub status: Status,
    /// What it wrote to stdout: the head and the tail of it.
    pub stdout: String,
    /// What it wrote to stderr, in the same way.
    pub stderr: String,
    /// Files that were collected, by path.
    pub artifacts: Vec<Artifact>,
    /// Wall time from the start of the code to its end, in milliseconds.
    pub duration_ms: u64,
    /// Its id.
    pub execution_id: String,
    /// Id of the request; empty if the caller gave none.
    pub request_id: String,
    /// Exit code of the main process. Null if it did not exit.
    pub exit_code: Option<i32>,
    /// Number of the signal that ended the main process. Null if none did.
    pub signal: Option<i32>,
    /// What ended it. Null if that was the program itself.
    pub cause: Option<Cause>,
    /// The exception that ended the code. Null if none did.
    pub error: Option<Error>,
    /// One sentence for a language model: what to change. Null if there is nothing certain to say.
    pub hint: Option<String>,
    /// Rich results, in order. A later one with the same display_id replaces an earlier one.
    pub results: Vec<RichResult>,
    /// Input files as they were placed.
    pub inputs: Vec<Input>,
    /// Paths of expected outputs that were not made, or not as asked for.
    pub missing_outputs: Vec<String>,
    /// How much was written to each stream.
    pub output: Output,
    /// Limits that held.
    pub limits: Limits,
    /// Quantities that were asked for above the policy's maximum.
    pub clamped: Vec<Clamped>,
    /// Limits that were reached, whatever the status is.
    pub limits_hit: Vec<CauseKind>,
    /// What it used.
    pub usage: Usage,
    /// Where the time beside `duration_ms` went.
    pub timing: Timing,
    /// When the request was accepted, RFC 3339.
    pub create_time: Option<String>,
    /// When the execution ended, RFC 3339.
    pub end_time: Option<String>,
    /// The session that it ran in.
    pub session: Session,
    /// Policy in force, `name@hash`.
    pub policy: String,
    /// Template in use, `name@hash`.
    pub template: String,
    /// Tenant that it belongs to.
    pub tenant: String,
    /// User who asked.
    pub user: String,
    /// Labels of the request.
    pub labels: BTreeMap<String, String>,
    /// What was enforced, as found out by looking.
    pub enforced: Enforced,
}

/// A file that was collected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Artifact {
    /// Its id.
    pub artifact_id: String,
    /// Path relative to the working directory.
    pub path: String,
    /// Media type, by content.
    #[serde(rename = "type")]
    pub media_type: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// SHA-256 of the content, 64 lower-case hexadecimal digits.
    pub sha256: String,
    /// Whether the file is new.
    pub change: Change,
    /// Class by type and name.
    pub class: Class,
    /// What the policy does with that class.
    pub handling: Handling,
    /// Whether its bytes may leave.
    pub review: Review,
    /// What is odd about it, an open list.
    pub flags: Vec<String>,
    /// Facts about its content; only those that apply.
    pub details: ArtifactDetails,
}

/// Facts about the content of an artifact; only those that apply are present.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArtifactDetails {
    /// Width of an image in pixels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    /// Height of an image in pixels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub height: Option<u32>,
    /// Rows of a table, without its header; of a workbook's first sheet; of JSON that has the form of a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Columns of a table; of a workbook's first sheet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<u64>,
    /// Sheets of a workbook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sheets: Option<u64>,
    /// Pages of a document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<u64>,
    /// Entries of an archive; of the array or the object that a JSON file is; values of JSON Lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
    /// Size of an archive's content in bytes, as its directory says; of a gzip stream as counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpacked_bytes: Option<u64>,
    /// Lines of a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<u64>,
    /// How many times larger what is packed is than the file, rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<u64>,
}

/// What ended an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cause {
    /// Which of the causes.
    pub kind: CauseKind,
    /// The limit that was reached: milliseconds, bytes or a count, by kind. Null if the cause is not a limit.
    pub limit: Option<u64>,
    /// How much was used, in the same unit.
    pub used: Option<u64>,
    /// Step of making the jail that failed.
    pub step: Option<String>,
    /// One sentence for people.
    pub message: String,
}

/// An exception that nobody caught.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Error {
    /// Class.
    pub name: String,
    /// What it says.
    pub message: String,
    /// Line of the caller's code, from 1. Null if it is not in the caller's code.
    pub line: Option<u32>,
    /// Traceback, from the caller's code on.
    pub traceback: String,
}

/// A value that the code showed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RichResult {
    /// Whether it is the value of the last expression.
    pub main: bool,
    /// Name under which it can be replaced.
    pub display_id: Option<String>,
    /// The value by media type: text as it is, bytes in base64.
    pub data: BTreeMap<String, String>,
    /// What a plot shows. Null if it is not a plot that Brig can read.
    pub chart: Option<Value>,
}

/// An input file as it was placed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Input {
    /// Name that the caller gave.
    pub name: String,
    /// Path in the session, relative to the working directory.
    pub path: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// SHA-256 of the content, 64 lower-case hexadecimal digits.
    pub sha256: String,
}

/// How much was written to both streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Output {
    /// Of stdout.
    pub stdout: Stream,
    /// Of stderr.
    pub stderr: Stream,
}

/// How much was written to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stream {
    /// Bytes that the guest wrote.
    pub bytes: u64,
    /// How many of them were not kept.
    pub dropped: u64,
    /// Whether the text above has less than was written.
    pub truncated: bool,
    /// Whether the text above has U+FFFD in place of bytes that are not UTF-8.
    pub lossy: bool,
}

/// Limits that held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Limits {
    /// Wall time of the code, in milliseconds.
    pub timeout_ms: u64,
    /// Memory in bytes, beside the files in the workspace.
    pub memory_bytes: u64,
    /// CPU time per wall time.
    pub cpus: f64,
    /// Processes and threads.
    pub pids: u64,
    /// Bytes in the workspace.
    pub disk_bytes: u64,
    /// Bytes of each output stream that were kept.
    pub output_bytes: u64,
}

/// A quantity that was asked for above the policy's maximum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Clamped {
    /// Its key: `timeout_ms`.
    pub limit: String,
    /// What was asked for.
    pub requested: Number,
    /// What was given.
    pub applied: Number,
}

/// What an execution used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// CPU time of all its processes, in milliseconds.
    pub cpu_ms: u64,
    /// Highest memory use at one time, in bytes. Null where the kernel doesn't say.
    pub memory_peak_bytes: Option<u64>,
    /// Most processes and threads at one time. Null where the kernel doesn't say.
    pub processes_peak: Option<u64>,
    /// Bytes in the workspace at the end.
    pub disk_bytes: u64,
}

/// Where the time of a request went, beside the code itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Timing {
    /// Waiting for a place, in milliseconds.
    pub queued_ms: u64,
    /// Making the session and starting the code, in milliseconds.
    pub startup_ms: u64,
    /// Collecting artifacts after the end, in milliseconds.
    pub collect_ms: u64,
}

/// The session of an execution, as it is after the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Session {
    /// Its id.
    pub session_id: String,
    /// Whether it lives on.
    pub kept: bool,
    /// Context that the code ran in.
    pub context_id: Option<String>,
    /// Whether variables or files of this execution are still there for the next one.
    pub has_state: bool,
    /// How the interpreter came to be. Null if nothing started.
    pub start: Option<Start>,
    /// When it expires, RFC 3339. Null if it isn't kept.
    pub expire_time: Option<String>,
    /// What is left of its limits. Null if it isn't kept, or where that was not known in time.
    pub left: Option<Left>,
}

/// What is left of a session's limits, after all that is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Left {
    /// Memory in bytes, for programs and for files that lie in memory together.
    pub memory_bytes: u64,
    /// Bytes of files.
    pub disk_bytes: u64,
    /// Files and directories. Null if they are not limited.
    pub inodes: Option<u64>,
    /// Processes and threads.
    pub processes: u64,
}

/// What was enforced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Enforced {
    /// Namespaces that were the session's own.
    pub namespaces: Vec<String>,
    /// `v2`, or `v1` where limits sit on version 1 controllers.
    pub cgroup: String,
    /// Whether memory was limited.
    pub memory: bool,
    /// Whether CPU time was limited.
    pub cpu: bool,
    /// Whether the number of processes was limited.
    pub pids: bool,
    /// Whether memory couldn't be pushed to swap.
    pub swap: bool,
    /// Whether reads and writes of disks were limited.
    pub io: bool,
    /// Where the working directory lay: `tmpfs`, or `disk`, with a quota.
    pub workspace: String,
    /// Landlock ABI of the rules in force; 0 is none.
    pub landlock_abi: u32,
    /// Syscall filter in force, `name@hash`.
    pub seccomp: String,
    /// Capabilities of the guest's processes.
    pub capabilities: String,
    /// Whether exec couldn't give privileges.
    pub no_new_privs: bool,
}
