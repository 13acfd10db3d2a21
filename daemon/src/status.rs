//! From what went wrong to what a client is told: one place for codes, reasons and details.
//!
//! The code says which kind of mistake it was, the reason (an append-only list, `Reason` in errors.proto) what exactly,
//! the message tells people. Everything that fails before the code starts passes here; afterwards the result says it.

use std::collections::HashMap;
use std::time::Duration;

use brig_jailer::api::Refusal;
use brig_jailer::files::wire::Failure;
use brig_jailer::step::{Step, StepError};
use brig_proto::reason::ERROR_DOMAIN;
use brig_proto::v1::Reason;
use rustix::io::Errno;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

use crate::artifacts::SpoolError;
use crate::config::Role;
use crate::inputs::InputsError;
use crate::jailer::JailerError;
use crate::ledger::LedgerError;
use crate::principal::Peer;
use crate::review::ArtifactsError;

/// When to come again if too much is going on.
const RETRY: Duration = Duration::from_secs(1);

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// Fields of the request are wrong: all of them.
    #[error("{}", joined(.0))]
    Fields(Vec<FieldProblem>),
    /// The connection is nobody's that the configuration knows.
    #[error(
        "uid {} is no client of this daemon: add its user to the group brig-clients, \
         or add a [[client]] to brigd.toml", .0.uid
    )]
    Stranger(Peer),
    /// The connection lacks a role.
    #[error("the role {0} is needed")]
    Role(Role),
    /// Nothing of that name is there for this tenant.
    #[error("no {kind} {name:?}: {why}")]
    NotFound {
        kind: &'static str,
        name: String,
        why: String,
        reason: Reason,
    },
    /// A name was used before.
    #[error("{kind} {name:?} {why}")]
    Exists {
        kind: &'static str,
        name: String,
        why: &'static str,
        reason: Reason,
    },
    /// Too many executions wait.
    #[error("{0} executions wait already, which is as many as may")]
    QueueFull(usize),
    /// Too many executions of the tenant wait for approval.
    #[error("{0} executions of the tenant wait for approval already, which is as many as may")]
    PendingQuota(usize),
    /// What came with those that wait takes up too much: so many bytes and files may be.
    #[error(
        "inputs: those of the tenant's executions that wait for approval may have {0} bytes in {1} files together; input \
         records (brig input put) do not count"
    )]
    PendingBytes(u64, usize),
    /// As many sessions are kept as may be.
    #[error("{0} sessions are kept already, which is as many as may")]
    SessionQuota(usize),
    /// Too much goes on in one session.
    #[error("session {0:?}: {1} executions run or wait in it already, which is as many as may")]
    SessionBusy(String, usize),
    /// Too many executions wait for one context.
    #[error("context {0:?}: {1} executions wait for it already, which is as many as may")]
    ContextBusy(String, usize),
    /// As many contexts as one session may have.
    #[error("session {0:?}: it has {1} contexts already, which is as many as it may")]
    ContextQuota(String, usize),
    /// The session is over, or about to be.
    #[error("session {0:?} is closed")]
    SessionClosed(String),
    /// The session is paused, or about to be.
    #[error("session {0:?} is paused; Sessions.Resume lets it run again")]
    SessionPaused(String),
    /// There is nothing to resume.
    #[error("session {0:?} is not paused")]
    SessionNotPaused(String),
    /// The execution can't be told anything.
    #[error("execution {0:?} {1}")]
    NotRunning(String, &'static str),
    /// There is nothing to decide about the execution.
    #[error("execution {0:?} {1}")]
    NotPending(String, String),
    /// The session's file system is full.
    #[error("{0}: the workspace of the session is full")]
    DiskFull(String),
    /// A file of a session could not be used as it was asked for.
    #[error("{}", shown(.failure))]
    File { field: &'static str, failure: Failure },
    /// The policy does not let the file leave.
    #[error("\"{0}\": the policy lets no such file leave")]
    DownloadForbidden(String),
    /// The artifact, or the file that is one, waits for review.
    #[error("\"{0}\": waits for review; Artifacts.Watch tells of the decision")]
    ReviewRequired(String),
    /// The artifact, or the file that is one, was rejected.
    #[error("\"{0}\": was rejected in review, or nobody decided in time")]
    ReviewRefused(String),
    /// The artifact is not to be decided about.
    #[error("artifact {0:?} can't be decided about: {1}")]
    ArtifactNotPending(String, String),
    /// A position lies beyond what there is.
    #[error("{field}: {asked} lies beyond the {there} bytes that there are")]
    OutOfRange {
        field: &'static str,
        asked: u64,
        there: u64,
    },
    /// The program's input takes nothing more.
    #[error("execution {0:?}: {1}")]
    InputClosed(String, String),
    /// There is no terminal to be resized.
    #[error("execution {0:?} has no terminal")]
    NoTerminal(String),
    /// Events are asked for that are not kept any more: after which sequence, and the first one that is.
    #[error("after_sequence: what follows {0} is gone; the first event that is kept is {1}")]
    EventsGone(u64, u64),
    /// Too much goes on with the files of a session.
    #[error("session {0:?}: {1} {2}, which is as many as may")]
    FileQuota(String, usize, &'static str),
    /// Too many calls watch sessions, or artifacts.
    #[error("{0} calls of the tenant watch already; no more may, or those of all tenants are as many as may")]
    WatchQuota(usize),
    /// The code did not start in time.
    #[error("the code did not start within {0} ms: {1}")]
    StartTimeout(u64, &'static str),
    /// The daemon stops.
    #[error("the daemon is about to stop")]
    Draining,
    /// The caller went away before anything started.
    #[error("the caller went away before the code started")]
    CallerGone,
    /// The jailer did not do it.
    #[error("{0}")]
    Jail(Refusal),
    #[error("{0}")]
    Jailer(#[from] JailerError),
    /// The jail died, and nobody had asked for it.
    #[error("the jail died while {0}")]
    JailDied(&'static str),
    #[error("{0}")]
    Ledger(#[from] LedgerError),
    /// Too many calls read the ledger.
    #[error("{0} such calls read the ledger already, which is as many as may")]
    LedgerBusy(usize),
    /// Nobody could follow a link.
    #[error("no links are served here: listen of [links] in brigd.toml is empty")]
    LinksOff,
    /// Files on their way in or out have no place.
    #[error("{0}")]
    Spool(#[from] SpoolError),
    /// An input record was not stored, or can't be read.
    #[error("{0}")]
    Inputs(InputsError),
    /// An artifact was not kept, or can't be read.
    #[error("{0}")]
    Artifacts(ArtifactsError),
    /// Files of the host's configuration are broken or gone.
    #[error("{0}")]
    Configuration(String),
    /// A step between the jail's making and the start of the code failed.
    #[error("{step}: {message}")]
    Step { step: &'static str, message: String },
    /// This version can't.
    #[error("{0} is not built yet; Host.Get lists the features of this daemon")]
    NotImplemented(&'static str),
    /// Another call has taken its place.
    #[error("the same request came again")]
    Replaced,
    /// A message came out of turn.
    #[error("{0}")]
    Stream(String),
}

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldProblem {
    /// The field as the request names it, such as `limits.timeout`.
    pub field: String,
    /// What is wrong and what would be accepted.
    pub message: String,
    pub reason: Reason,
}

/// What the policy forbids counts only where nothing else is wrong: it is then a matter of permission.
fn leading(problems: &[FieldProblem]) -> Reason {
    let mut reasons = problems.iter().map(|problem| problem.reason);
    reasons
        .find(|reason| *reason != Reason::PolicyForbids)
        .unwrap_or(Reason::PolicyForbids)
}

fn joined(problems: &[FieldProblem]) -> String {
    problems
        .iter()
        .map(|problem| format!("{}: {}", problem.field, problem.message))
        .collect::<Vec<_>>()
        .join("; ")
}

/// What failed about a file; no byte of the guest can pass for something else.
fn shown(failure: &Failure) -> String {
    let path = failure.path.escape_ascii().to_string();
    let path = crate::output::cut_text(&path, 200);
    let error = std::io::Error::from_raw_os_error(failure.errno);
    match Errno::from_raw_os_error(failure.errno) {
        Errno::BADMSG => format!("\"{path}\": the content has another SHA-256 than announced"),
        Errno::CANCELED => format!("\"{path}\": fewer bytes came than were announced"),
        Errno::FBIG => format!("\"{path}\": more bytes came than were announced or may be"),
        Errno::LOOP => format!("\"{path}\": is a symbolic link, or lies behind one; links are never followed"),
        Errno::MLINK => format!("\"{path}\": has more than one name (hard links)"),
        Errno::OPNOTSUPP => format!("\"{path}\": is a FIFO, socket or device"),
        Errno::STALE => format!("\"{path}\": was replaced meanwhile"),
        Errno::TIMEDOUT => format!("\"{path}\": there is more than can be looked at in time"),
        Errno::USERS => format!("\"{path}\": too many directories, or too many calls at one time"),
        _ => format!("{} \"{path}\": {error}", failure.op),
    }
}

/// The reason that goes with an error number of the file helper.
fn file_reason(errno: i32) -> Reason {
    match Errno::from_raw_os_error(errno) {
        Errno::NOENT => Reason::FileNotFound,
        Errno::EXIST => Reason::FileExists,
        Errno::NOTEMPTY => Reason::DirectoryNotEmpty,
        Errno::ISDIR => Reason::IsDirectory,
        Errno::NOTDIR => Reason::NotDirectory,
        Errno::LOOP | Errno::MLINK | Errno::XDEV | Errno::OPNOTSUPP | Errno::NXIO => Reason::NotRegularFile,
        Errno::NAMETOOLONG | Errno::INVAL => Reason::InvalidPath,
        Errno::NOSPC | Errno::DQUOT => Reason::DiskFull,
        Errno::FBIG => Reason::TooLarge,
        Errno::BADMSG | Errno::CANCELED => Reason::DigestMismatch,
        Errno::ACCESS | Errno::PERM | Errno::AGAIN | Errno::TXTBSY | Errno::BUSY => Reason::FileNotAccessible,
        Errno::STALE => Reason::FileChanged,
        Errno::RANGE => Reason::OffsetOutOfRange,
        Errno::USERS | Errno::MFILE => Reason::FileQuota,
        Errno::TIMEDOUT => Reason::FileTimeout,
        _ => Reason::Internal,
    }
}

impl Problem {
    /// The code of the call.
    pub fn code(&self) -> Code {
        self.reason().code()
    }

    /// The reason for programs.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Fields(problems) => leading(problems),
            Self::Stream(_) => Reason::StreamOrder,
            Self::Stranger(_) => Reason::Unauthenticated,
            Self::Role(_) => Reason::RoleMissing,
            Self::NotFound { reason, .. } | Self::Exists { reason, .. } => *reason,
            Self::QueueFull(_) | Self::PendingQuota(_) | Self::SessionBusy(..) | Self::ContextBusy(..) => {
                Reason::QueueFull
            }
            Self::PendingBytes(..) => Reason::StorageQuota,
            Self::ContextQuota(..) => Reason::ContextQuota,
            Self::SessionQuota(_) => Reason::SessionQuota,
            Self::SessionClosed(_) => Reason::SessionClosed,
            Self::SessionPaused(_) | Self::Jail(Refusal::Paused) => Reason::SessionPaused,
            Self::SessionNotPaused(_) => Reason::SessionNotPaused,
            Self::NotRunning(..) => Reason::ExecutionNotRunning,
            Self::NotPending(..) | Self::ArtifactNotPending(..) => Reason::NotPending,
            Self::DiskFull(_) => Reason::DiskFull,
            Self::File { failure, .. } => file_reason(failure.errno),
            Self::DownloadForbidden(_) => Reason::DownloadForbidden,
            Self::ReviewRequired(_) => Reason::ReviewRequired,
            Self::ReviewRefused(_) => Reason::ReviewRefused,
            Self::OutOfRange { .. } => Reason::OffsetOutOfRange,
            Self::InputClosed(..) => Reason::InputClosed,
            Self::NoTerminal(_) => Reason::NoTerminal,
            Self::EventsGone(..) => Reason::EventsGone,
            Self::FileQuota(..) => Reason::FileQuota,
            Self::WatchQuota(_) => Reason::WatchQuota,
            Self::StartTimeout(..) => Reason::StartTimeout,
            Self::CallerGone => Reason::CallerGone,
            Self::Draining => Reason::Draining,
            Self::Jailer(_) => Reason::JailerGone,
            Self::Ledger(error) if error.is_full() => Reason::LedgerFull,
            Self::Ledger(error) if error.is_damage() => Reason::LedgerBroken,
            Self::Ledger(_) => Reason::LedgerUnavailable,
            Self::LedgerBusy(_) => Reason::LedgerBusy,
            Self::Spool(_) => Reason::StorageQuota,
            Self::Inputs(error) => error.reason(),
            Self::Artifacts(error) => error.reason(),
            Self::Configuration(_) => Reason::Configuration,
            Self::LinksOff => Reason::LinksOff,
            Self::Jail(Refusal::Busy(_)) => Reason::HostBusy,
            Self::Jail(Refusal::HostCannot(_)) => Reason::HostCannotEnforce,
            Self::Jail(Refusal::Invalid { field, .. }) if field == "policy_hash" => Reason::PolicyChanged,
            Self::Jail(Refusal::Invalid { .. }) => Reason::Internal,
            Self::Jail(Refusal::Step(_)) | Self::JailDied(_) | Self::Step { .. } => Reason::JailFailed,
            Self::NotImplemented(_) => Reason::NotImplemented,
            Self::Replaced => Reason::RequestReplaced,
        }
    }

    /// The step that failed, by its name in docs/jail.md.
    pub fn step(&self) -> Option<&'static str> {
        match self {
            Self::Jail(Refusal::Step(StepError { step, .. })) => Some(step.name()),
            Self::JailDied(_) => Some(Step::Clone.name()),
            Self::Step { step, .. } => Some(step),
            _ => None,
        }
    }

    /// Whether the jail or the jailer went away, rather than said no.
    pub fn is_death(&self) -> bool {
        matches!(
            self,
            Self::Jailer(JailerError::Gone) | Self::JailDied(_) | Self::SessionClosed(_)
        )
    }

    /// The first field at fault; empty if it is none's.
    pub fn field(&self) -> &str {
        match self {
            Self::Fields(problems) => problems.first().map_or("", |problem| &problem.field),
            Self::File { field, .. } | Self::OutOfRange { field, .. } => field,
            Self::DownloadForbidden(_) => "path",
            Self::EventsGone(..) => "after_sequence",
            _ => "",
        }
    }

    /// What the client gets.
    pub fn status(&self) -> Status {
        let mut details = ErrorDetails::with_error_info(self.reason().name(), ERROR_DOMAIN, self.metadata());
        match self {
            Self::Fields(problems) => {
                let violations: Vec<_> = problems
                    .iter()
                    .map(|p| FieldViolation::new(p.field.clone(), p.message.clone()))
                    .collect();
                details.set_bad_request(violations);
            }
            Self::NotFound { kind, name, .. } | Self::Exists { kind, name, .. } => {
                details.set_resource_info(*kind, name.clone(), "", self.to_string());
            }
            Self::File { .. } | Self::OutOfRange { .. } | Self::DownloadForbidden(_) | Self::EventsGone(..) => {
                details.set_bad_request(vec![FieldViolation::new(self.field(), self.to_string())]);
            }
            Self::FileQuota(session, ..) => {
                details.add_quota_failure_violation(format!("session {session}"), self.to_string());
                details.set_retry_info(Some(RETRY));
            }
            Self::WatchQuota(_) => {
                details.add_quota_failure_violation("watches", self.to_string());
                details.set_retry_info(Some(RETRY));
            }
            Self::SessionQuota(_) => {
                details.add_quota_failure_violation("limits.sessions", self.to_string());
            }
            Self::SessionBusy(session, _) => {
                details.add_quota_failure_violation(format!("session {session}"), self.to_string());
                details.set_retry_info(Some(RETRY));
            }
            Self::ContextBusy(context, _) => {
                details.add_quota_failure_violation(format!("context {context}"), self.to_string());
                details.set_retry_info(Some(RETRY));
            }
            Self::ContextQuota(session, _) => {
                details.add_quota_failure_violation(format!("session {session}"), self.to_string());
            }
            Self::SessionClosed(session) | Self::SessionPaused(session) | Self::SessionNotPaused(session) => {
                details.add_precondition_failure_violation("SESSION", session, self.to_string());
            }
            Self::NotRunning(execution, _)
            | Self::NotPending(execution, _)
            | Self::InputClosed(execution, _)
            | Self::NoTerminal(execution) => {
                details.add_precondition_failure_violation("EXECUTION", execution, self.to_string());
            }
            Self::Inputs(InputsError::Quota { key, .. }) => {
                details.add_quota_failure_violation(format!("inputs.{key}"), self.to_string());
            }
            Self::ReviewRequired(what) | Self::ReviewRefused(what) | Self::ArtifactNotPending(what, _) => {
                details.add_precondition_failure_violation("ARTIFACT", what, self.to_string());
            }
            Self::Artifacts(ArtifactsError::Quota { key, .. }) => {
                details.add_quota_failure_violation(format!("artifacts.{key}"), self.to_string());
            }
            Self::Artifacts(ArtifactsError::Store(_)) => {
                details.set_retry_info(Some(RETRY));
            }
            Self::Inputs(InputsError::Busy(_)) => {
                details.add_quota_failure_violation("inputs.uploads", self.to_string());
                details.set_retry_info(Some(RETRY));
            }
            Self::QueueFull(_) => {
                details.add_quota_failure_violation("limits.queue", self.to_string());
                details.set_retry_info(Some(RETRY));
            }
            Self::PendingQuota(_) => {
                details.add_quota_failure_violation("limits.pending", self.to_string());
                details.set_retry_info(Some(RETRY));
            }
            Self::PendingBytes(..) => {
                details.add_quota_failure_violation("limits.pending_bytes", self.to_string());
            }
            Self::Ledger(error) if error.is_full() => {
                details.add_quota_failure_violation("state", self.to_string());
                details.set_retry_info(Some(RETRY));
            }
            Self::LedgerBusy(_) => {
                details.add_quota_failure_violation("ledger", self.to_string());
                details.set_retry_info(Some(RETRY));
            }
            Self::Draining | Self::Replaced | Self::Jail(Refusal::Busy(_)) => {
                details.set_retry_info(Some(RETRY));
            }
            Self::Configuration(_) | Self::Jail(Refusal::HostCannot(_)) => {
                details.add_precondition_failure_violation("HOST", "brig doctor", self.to_string());
            }
            _ => {}
        }
        Status::with_error_details(self.code(), self.to_string(), details)
    }

    fn metadata(&self) -> HashMap<String, String> {
        let mut metadata = HashMap::new();
        if let Some(step) = self.step() {
            metadata.insert("step".to_owned(), step.to_owned());
        }
        if let Self::Jail(Refusal::Step(StepError { source, .. })) = self {
            metadata.insert("call".to_owned(), source.call.clone());
            metadata.insert("errno".to_owned(), source.errno.to_string());
        }
        match self {
            Self::File { failure, .. } => {
                metadata.insert("call".to_owned(), failure.op.to_string());
                metadata.insert("errno".to_owned(), failure.errno.to_string());
                metadata.insert("path".to_owned(), failure.path.escape_ascii().to_string());
            }
            Self::OutOfRange { there, .. } => {
                metadata.insert("offset".to_owned(), there.to_string());
            }
            Self::EventsGone(_, first) => {
                metadata.insert("sequence".to_owned(), first.to_string());
            }
            _ => {}
        }
        metadata
    }
}

impl From<Problem> for Status {
    fn from(problem: Problem) -> Self {
        problem.status()
    }
}

#[cfg(test)]
mod tests {
    use brig_jailer::step::SysError;

    use super::*;

    #[test]
    fn a_failed_step_reaches_the_client_with_its_name_and_errno() {
        let source = SysError::new("mount(\"/proc\")", 1);
        let problem = Problem::Jail(Refusal::Step(StepError {
            step: Step::Mounts,
            source,
        }));
        let status = problem.status();
        assert_eq!(status.code(), Code::Internal);
        let info = status.get_error_details().error_info().unwrap().clone();
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("JAIL_FAILED", "brig"));
        let expected = [("call", "mount(\"/proc\")"), ("errno", "1"), ("step", "mounts")];
        assert_eq!(
            info.metadata,
            expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
        );
    }

    #[test]
    fn every_wrong_field_is_named() {
        let field = |field: &str, reason| FieldProblem {
            field: field.to_owned(),
            message: "is wrong".to_owned(),
            reason,
        };
        let problem = Problem::Fields(vec![
            field("policy", Reason::UnknownPolicy),
            field("limits.pids", Reason::InvalidValue),
        ]);
        let status = problem.status();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "policy: is wrong; limits.pids: is wrong");
        let details = status.get_error_details();
        let fields: Vec<_> = details
            .bad_request()
            .unwrap()
            .field_violations
            .iter()
            .map(|violation| violation.field.as_str())
            .collect();
        assert_eq!(fields, ["policy", "limits.pids"]);
        assert_eq!(details.error_info().unwrap().reason, "UNKNOWN_POLICY");
    }

    #[test]
    fn only_what_the_policy_forbids_is_a_matter_of_permission() {
        let forbidden = FieldProblem {
            field: "environment".to_owned(),
            message: String::new(),
            reason: Reason::PolicyForbids,
        };
        assert_eq!(Problem::Fields(vec![forbidden.clone()]).code(), Code::PermissionDenied);
        let wrong = FieldProblem {
            reason: Reason::InvalidValue,
            ..forbidden.clone()
        };
        assert_eq!(Problem::Fields(vec![forbidden, wrong]).code(), Code::InvalidArgument);
    }

    #[test]
    fn too_much_work_says_when_to_come_again() {
        let status = Problem::QueueFull(64).status();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(
            status.get_error_details().retry_info().unwrap().retry_delay,
            Some(RETRY)
        );
    }

    #[test]
    fn a_host_that_cannot_is_told_apart_from_a_jail_that_failed() {
        let cannot = Problem::Jail(Refusal::HostCannot("no memory controller".to_owned()));
        assert_eq!(
            (cannot.code(), cannot.reason()),
            (Code::FailedPrecondition, Reason::HostCannotEnforce)
        );
        let busy = Problem::Jail(Refusal::Busy("256 sessions".to_owned()));
        assert_eq!((busy.code(), busy.reason()), (Code::Unavailable, Reason::HostBusy));
    }
}
