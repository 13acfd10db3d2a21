//! How an execution ended: from what is known to status, cause and one sentence for the model.
//!
//! The first cause wins. The jailer decides which was first: its end has a cause only if somebody's kill came before
//! the program's own end, so a late cancellation never hides how the program really ended. What the kernel claims is
//! used for words only, never for the status.

mod hint;

use brig_jailer::api::{Cause as JailCause, End, Exit};
use brig_jailer::policy::Workspace;
use brig_proto::v1::{CauseKind, ExecutionStatus as Status};

use crate::kernel::ErrorClaim;
use crate::run::approval::{Decision, Verdict};
use crate::run::execution::StopCause;
use crate::status::Problem;

pub use hint::Around;

/// The signal of a system call outside the filter, and the one that can't be caught.
const SIGSYS: i32 = 31;
const SIGKILL: i32 = 9;
const SIGINT: i32 = 2;
/// What an interpreter exits with after a KeyboardInterrupt (rootfs/kernel/README.md).
const INTERRUPTED: i32 = 130;

/// How the watching of an execution came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The jailer told.
    Told(End),
    /// The jail, the jailer or its connection went away.
    Lost,
    /// Killed, but nobody said that it is gone.
    Unconfirmed,
}

/// All that decides about the end.
#[derive(Debug, Clone)]
pub struct Facts<'f> {
    pub ended: Ended,
    pub stop: Option<StopCause>,
    /// Whether somebody interrupted it.
    pub interrupted: bool,
    /// Signals that callers sent, a bit each.
    pub signals: u64,
    /// What the kernel says about an exception.
    pub claim: Option<&'f ErrorClaim>,
    pub output_dropped: bool,
    /// The session's file system was full at the end.
    pub disk_full: Option<Full>,
    pub duration_ms: u64,
    pub limits: Limits,
    pub around: Around<'f>,
}

/// What a full file system has no more of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    Bytes,
    Inodes,
}

/// The limits that causes name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub timeout_ms: u64,
    pub timeout_max_ms: u64,
    pub memory_bytes: u64,
    pub memory_max_bytes: u64,
    pub pids: u64,
    pub disk_bytes: u64,
    pub workspace: Workspace,
    pub inodes: u64,
    pub output_bytes: u64,
    pub max_age_ms: u64,
    pub cpu_ms: Option<u64>,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion {
    pub status: Status,
    pub cause: Option<Cause>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub limits_hit: Vec<CauseKind>,
    pub hint: Option<String>,
}

/// What ended it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub kind: CauseKind,
    pub limit: Option<u64>,
    pub used: Option<u64>,
    pub message: String,
}

/// Decides how an execution ended.
pub fn conclude(facts: &Facts<'_>) -> Conclusion {
    let (status, cause) = decide(facts);
    let (exit_code, signal) = exit(facts.ended);
    let hint = hint::hint(facts, status, cause.as_ref());
    Conclusion {
        status,
        limits_hit: limits_hit(facts, cause.as_ref()),
        cause,
        exit_code,
        signal,
        hint,
    }
}

/// How the main process ended: an exit code or a signal.
fn exit(ended: Ended) -> (Option<i32>, Option<i32>) {
    let Ended::Told(end) = ended else {
        return (None, None);
    };
    match (end.exit, end.cause) {
        (Exit::Code(code), _) => (Some(code), None),
        (Exit::Signal(signal), _) => (None, Some(signal)),
        // The whole jail was killed on purpose, and the pid 1 that would have told of the process with it.
        (Exit::Unknown, Some(cause)) if cause != JailCause::Internal => (None, Some(SIGKILL)),
        (Exit::Unknown, _) => (None, None),
    }
}

fn decide(facts: &Facts<'_>) -> (Status, Option<Cause>) {
    match facts.ended {
        Ended::Told(end) => match end.cause {
            Some(JailCause::WallTime) => wall_time(facts),
            Some(JailCause::CpuTime) => cpu_time(facts, &end),
            Some(JailCause::SessionAge) => session_age(facts),
            Some(JailCause::Memory) => memory(facts, &end),
            Some(JailCause::Asked) => stopped(facts),
            Some(JailCause::Internal) => lost("the jail died"),
            // What must not be written was written before the end, however soon that came.
            None if facts.stop == Some(StopCause::Output) => stopped(facts),
            None => by_itself(facts, &end),
        },
        Ended::Unconfirmed if facts.stop.is_some() => stopped(facts),
        Ended::Unconfirmed | Ended::Lost => lost("brig-jailer or the jail went away under the execution"),
    }
}

fn by_itself(facts: &Facts<'_>, end: &End) -> (Status, Option<Cause>) {
    match end.exit {
        Exit::Code(0) => (Status::Success, None),
        Exit::Code(INTERRUPTED) | Exit::Signal(SIGINT) if facts.interrupted => {
            let message = "somebody interrupted it".to_owned();
            (Status::Error, Some(plain(CauseKind::Interrupt, message)))
        }
        Exit::Code(_) => (Status::Error, failed_of(facts, end)),
        Exit::Signal(SIGKILL) if end.oom_kills > 0 => memory(facts, end),
        Exit::Signal(SIGSYS) => {
            let message = "the code made a system call that its policy does not allow".to_owned();
            (Status::Killed, Some(plain(CauseKind::SyscallDenied, message)))
        }
        Exit::Signal(signal) => {
            let asked = u32::try_from(signal).is_ok_and(|signal| facts.signals & signal_bit(signal) != 0);
            let who = if asked {
                "which a caller sent"
            } else {
                "which Brig did not send"
            };
            let message = format!("the program was ended by signal {signal}, {who}");
            (Status::Killed, Some(plain(CauseKind::Signal, message)))
        }
        Exit::Unknown => lost("the jail died before it could tell how the program ended"),
    }
}

/// A limit that the code ran into and could not cope with. That it did is the claim of its own exception.
fn failed_of(facts: &Facts<'_>, end: &End) -> Option<Cause> {
    let says = |texts: &[&str]| {
        facts
            .claim
            .is_some_and(|claim| texts.iter().any(|text| claim.message.contains(text)))
    };
    if end.pids_refused > 0 && says(&["can't start new thread", "Resource temporarily unavailable"]) {
        let message = format!(
            "no more than {} processes and threads may exist at one time",
            facts.limits.pids
        );
        return Some(Cause {
            limit: Some(facts.limits.pids),
            ..plain(CauseKind::Processes, message)
        });
    }
    // A command has no exception to say why it failed; a full disk says enough.
    let full = facts.disk_full.is_some() && facts.claim.is_none();
    (full || says(&["No space left on device", "Disk quota exceeded"])).then(|| disk(facts))
}

fn disk(facts: &Facts<'_>) -> Cause {
    let message = format!("there is room for {} in all", disk_limit(facts));
    Cause {
        // The limit is told in bytes always.
        limit: (facts.disk_full != Some(Full::Inodes)).then_some(facts.limits.disk_bytes),
        ..plain(CauseKind::Disk, message)
    }
}

/// The limit of files that was reached, for people.
fn disk_limit(facts: &Facts<'_>) -> String {
    match facts.disk_full {
        Some(Full::Inodes) => format!("{} files and directories", facts.limits.inodes),
        Some(Full::Bytes) | None => format!("{} of files", size(facts.limits.disk_bytes)),
    }
}

fn stopped(facts: &Facts<'_>) -> (Status, Option<Cause>) {
    match facts.stop {
        Some(StopCause::WallTime) => wall_time(facts),
        Some(StopCause::IdleTime(limit)) => idle_time(limit),
        Some(StopCause::Fault) => {
            let message = "Brig could not keep what the code wrote".to_owned();
            (Status::Failed, Some(plain(CauseKind::Internal, message)))
        }
        // The guest's own doing, for which there is no cause; the hint says it.
        Some(StopCause::Frames) => (Status::Error, None),
        Some(StopCause::SessionAge) => session_age(facts),
        Some(StopCause::Interrupt) => {
            let message = "it was interrupted, and did not stop by itself within 2 s";
            (Status::Error, Some(plain(CauseKind::Interrupt, message.to_owned())))
        }
        Some(StopCause::Output) => {
            let limit = facts.limits.output_bytes;
            let message = format!("the code wrote more than {} of output", size(limit));
            (
                Status::OutputLimit,
                Some(Cause {
                    limit: Some(limit),
                    ..plain(CauseKind::Output, message)
                }),
            )
        }
        Some(StopCause::Cancel) => cancelled(CauseKind::Cancel, "somebody asked for its end"),
        Some(StopCause::ClientGone) => cancelled(CauseKind::ClientGone, "the caller went away"),
        Some(StopCause::Shutdown) => lost("brigd was told to stop, and the code did not end in the time that was left"),
        Some(StopCause::SessionClosed) => cancelled(CauseKind::SessionClosed, "its session was closed"),
        None => lost("the jail was closed, and nobody here asked for it"),
    }
}

/// The bit of a signal among those that were sent.
pub fn signal_bit(signal: u32) -> u64 {
    1_u64.checked_shl(signal.wrapping_sub(1)).unwrap_or_default()
}

/// What an execution that was stopped before it started ended as.
pub fn stopped_early(stop: StopCause) -> Conclusion {
    let (status, cause) = match stop {
        StopCause::ClientGone => cancelled(CauseKind::ClientGone, "the caller went away before the code started"),
        StopCause::Shutdown => lost("brigd was told to stop before the code started"),
        StopCause::SessionClosed | StopCause::SessionAge => cancelled(
            CauseKind::SessionClosed,
            "its session was closed before the code started",
        ),
        StopCause::Cancel
        | StopCause::WallTime
        | StopCause::IdleTime(_)
        | StopCause::Output
        | StopCause::Interrupt
        | StopCause::Frames
        | StopCause::Fault => cancelled(CauseKind::Cancel, "somebody asked for its end before the code started"),
    };
    Conclusion {
        status,
        cause,
        exit_code: None,
        signal: None,
        limits_hit: Vec::new(),
        hint: None,
    }
}

/// What an execution ended as that was not approved. Nothing ran.
pub fn rejected(decision: &Decision) -> Conclusion {
    let comment = decision.comment.trim();
    let (cause, hint) = match decision.verdict {
        Verdict::Expired => (
            plain(CauseKind::ApprovalExpired, "no reviewer approved it in time".to_owned()),
            None,
        ),
        _ if comment.is_empty() => (
            plain(CauseKind::Rejected, "a reviewer rejected it".to_owned()),
            Some("A reviewer rejected the code: do not send it again as it is.".to_owned()),
        ),
        _ => (
            plain(CauseKind::Rejected, format!("a reviewer rejected it: {comment}")),
            Some(format!(
                "A reviewer rejected the code: do not send it again as it is. They said: {comment}"
            )),
        ),
    };
    Conclusion {
        status: Status::Rejected,
        cause: Some(cause),
        exit_code: None,
        signal: None,
        limits_hit: Vec::new(),
        hint,
    }
}

/// What an execution ended as whose program was ordered when its jail, or the jailer, died: it may have run.
pub fn lost_at_start(problem: &Problem) -> Conclusion {
    let (status, cause) = lost(&format!("whether the code ran is not known: {problem}"));
    Conclusion {
        status,
        cause,
        exit_code: None,
        signal: None,
        limits_hit: Vec::new(),
        hint: None,
    }
}

fn wall_time(facts: &Facts<'_>) -> (Status, Option<Cause>) {
    let limit = facts.limits.timeout_ms;
    let message = format!("the code ran longer than {}", seconds(limit));
    let cause = plain(CauseKind::WallTime, message);
    (
        Status::Timeout,
        Some(Cause {
            limit: Some(limit),
            // By the jailer's clock it reached the limit; brigd's began when it was told of the start, which is later.
            used: Some(facts.duration_ms.max(limit)),
            ..cause
        }),
    )
}

fn cpu_time(facts: &Facts<'_>, end: &End) -> (Status, Option<Cause>) {
    let limit = facts.limits.cpu_ms.unwrap_or_default();
    let message = format!("the code used more than {} of CPU time", seconds(limit));
    (
        Status::Timeout,
        Some(Cause {
            limit: Some(limit),
            used: Some(end.usage.cpu_us / 1000),
            ..plain(CauseKind::CpuTime, message)
        }),
    )
}

fn idle_time(limit: u64) -> (Status, Option<Cause>) {
    let message = format!("the code wrote nothing for {}", seconds(limit));
    (
        Status::Timeout,
        Some(Cause {
            limit: Some(limit),
            ..plain(CauseKind::IdleTime, message)
        }),
    )
}

fn session_age(facts: &Facts<'_>) -> (Status, Option<Cause>) {
    let message = format!(
        "the session reached its greatest age, {}",
        seconds(facts.limits.max_age_ms)
    );
    let cause = plain(CauseKind::SessionAge, message);
    (
        Status::Timeout,
        Some(Cause {
            limit: Some(facts.limits.max_age_ms),
            ..cause
        }),
    )
}

fn memory(facts: &Facts<'_>, end: &End) -> (Status, Option<Cause>) {
    let limit = facts.limits.memory_bytes;
    let message = format!("memory and files together needed more than {}", together(&facts.limits));
    let used = (end.usage.memory_peak_bytes > 0).then_some(end.usage.memory_peak_bytes);
    (
        Status::OutOfMemory,
        Some(Cause {
            limit: Some(limit),
            used,
            ..plain(CauseKind::Memory, message)
        }),
    )
}

/// The limit of memory as it is enforced: files lie in memory, so that one limit is on both.
fn together(limits: &Limits) -> String {
    let (memory, files) = (limits.memory_bytes, limits.workspace.tmpfs_bytes(limits.disk_bytes));
    format!(
        "{} ({} of memory and {} of files{})",
        size(memory.saturating_add(files)),
        size(memory),
        size(files),
        match limits.workspace {
            Workspace::Tmpfs => "",
            Workspace::Disk => " in /tmp",
        }
    )
}

fn cancelled(kind: CauseKind, message: &str) -> (Status, Option<Cause>) {
    (Status::Cancelled, Some(plain(kind, message.to_owned())))
}

fn lost(message: &str) -> (Status, Option<Cause>) {
    (Status::Lost, Some(plain(CauseKind::Internal, message.to_owned())))
}

fn plain(kind: CauseKind, message: String) -> Cause {
    Cause {
        kind,
        limit: None,
        used: None,
        message,
    }
}

/// Limits that were reached, whether they ended the execution or not.
fn limits_hit(facts: &Facts<'_>, cause: Option<&Cause>) -> Vec<CauseKind> {
    let mut hit = Vec::new();
    let limits = [
        CauseKind::WallTime,
        CauseKind::CpuTime,
        CauseKind::IdleTime,
        CauseKind::SessionAge,
        CauseKind::Memory,
        CauseKind::Processes,
        CauseKind::Disk,
        CauseKind::Output,
    ];
    hit.extend(cause.map(|cause| cause.kind).filter(|kind| limits.contains(kind)));
    if let Ended::Told(end) = facts.ended {
        hit.extend((end.oom_kills > 0).then_some(CauseKind::Memory));
        hit.extend((end.pids_refused > 0).then_some(CauseKind::Processes));
    }
    hit.extend(facts.disk_full.map(|_| CauseKind::Disk));
    hit.extend(facts.output_dropped.then_some(CauseKind::Output));
    hit.sort_unstable_by_key(|kind| *kind as i32);
    hit.dedup();
    hit
}

fn seconds(millis: u64) -> String {
    if millis.is_multiple_of(1000) {
        format!("{} s", millis / 1000)
    } else {
        format!("{millis} ms")
    }
}

fn size(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    const KIB: u64 = 1 << 10;
    if bytes.is_multiple_of(MIB) {
        format!("{} MiB", bytes / MIB)
    } else if bytes.is_multiple_of(KIB) {
        format!("{} KiB", bytes / KIB)
    } else {
        format!("{bytes} bytes")
    }
}

#[cfg(test)]
mod tests;
