//! The result of an execution, for the caller and for the ledger: put together once, at the end.

use std::sync::Arc;
use std::time::SystemTime;

use brig_jailer::api::{End, Enforced};
use brig_jailer::policy::Clamped;
use brig_proto::sizes::{ERROR_MESSAGE_MAX, SENTENCE_MAX};
use brig_proto::v1;
use brig_proto::v1::{
    ArtifactClass, ArtifactHandling, CauseKind, ClampedLimit, ExecutionError, ExecutionResult, ExecutionStatus,
    OutputSummary, ReviewState, SessionSummary, StartKind, StreamSummary, Timing,
};
use prost::Message;

use crate::ledger::{self, Body, Finish};
use crate::output::{Stream, View, cut_text};
use crate::run::admit::Conditions;
use crate::run::collect::Collection;
use crate::run::context::Seat;
use crate::run::execution::{Execution, cpus, span};
use crate::run::finish::{Around, Cause, Conclusion, Ended, Facts, Limits};
use crate::run::life::Times;
use crate::run::listen::Claims;
use crate::run::store::{Store, python_packages};
use crate::status::Problem;

/// All that is known at the end of an execution.
#[derive(Debug)]
pub struct Report<'r> {
    pub execution: &'r Arc<Execution>,
    /// Absent if the code never started.
    pub job: Option<&'r Conditions>,
    pub conclusion: Conclusion,
    pub ended: Ended,
    pub claims: Claims,
    pub collection: Collection,
    pub times: Times,
    pub start_time: Option<SystemTime>,
    pub enforced: Option<Enforced>,
}

/// What decides about the end of an execution that started.
pub fn facts<'f>(
    store: &Store,
    execution: &'f Execution,
    job: &'f Conditions,
    ended: Ended,
    claims: &'f Claims,
    collection: &'f Collection,
    times: Times,
) -> Facts<'f> {
    let dropped = |stream| execution.output.count(stream).dropped > 0;
    Facts {
        ended,
        stop: execution.stop.cause(),
        interrupted: execution.is_interrupted(),
        signals: execution.signals_sent(),
        claim: claims.error.as_ref(),
        output_dropped: dropped(Stream::Stdout) || dropped(Stream::Stderr),
        disk_full: collection.full(),
        duration_ms: u64::try_from(times.ran.as_millis()).unwrap_or(u64::MAX),
        limits: Limits {
            timeout_ms: job.limits.timeout_ms,
            timeout_max_ms: job.policy.limits.timeout.max.millis(),
            memory_bytes: job.limits.memory_bytes,
            memory_max_bytes: job.policy.limits.memory.max.bytes(),
            pids: job.limits.pids,
            disk_bytes: job.limits.disk_bytes,
            workspace: job.policy.limits.workspace,
            inodes: job.limits.inodes,
            output_bytes: job.limits.output_bytes,
            max_age_ms: match &execution.kept {
                Some(session) => u64::try_from(session.age_limit().as_millis()).unwrap_or(u64::MAX),
                None => job.limits.max_age_ms,
            },
            cpu_ms: job.times.cpu_ms,
        },
        around: Around {
            inputs: &execution.inputs,
            kept: execution.kept.is_some(),
            artifacts: &collection.artifacts,
            expected: &job.expected,
            missing: &collection.missing,
            packages: packages(store, execution, claims),
        },
    }
}

/// The packages that there are, where the code says that one is missing.
fn packages(store: &Store, execution: &Execution, claims: &Claims) -> Vec<String> {
    let is_asked_for = claims
        .error
        .as_ref()
        .is_some_and(|claim| claim.name == "ModuleNotFoundError");
    let templates = is_asked_for.then(|| store.templates().ok()).flatten();
    // An image that was replaced meanwhile is not found any more.
    let template = templates.and_then(|templates| templates.find(&execution.template).ok());
    template.map_or_else(Vec::new, |template| python_packages(&template))
}

/// The end of an execution whose code did not start: by Brig's or the host's fault, or because only the jail could
/// tell that the request was wrong. The closed list of ends has none for that, so that the message must say it.
pub fn not_started(problem: &Problem) -> Conclusion {
    match problem {
        Problem::Fields(_) => failed(format!("nothing ran, because the request is wrong: {problem}")),
        _ => failed(problem.to_string()),
    }
}

/// The end of an execution that could not be recorded.
pub fn unrecorded(error: &str) -> Conclusion {
    failed(format!("the end could not be recorded: {error}"))
}

fn failed(message: String) -> Conclusion {
    let cause = Cause {
        kind: CauseKind::Internal,
        limit: None,
        used: None,
        message,
    };
    Conclusion {
        status: ExecutionStatus::Failed,
        cause: Some(cause),
        exit_code: None,
        signal: None,
        limits_hit: Vec::new(),
        hint: None,
    }
}

impl<'r> Report<'r> {
    /// The report of an execution whose code never started.
    pub fn of_nothing(execution: &'r Arc<Execution>, conclusion: Conclusion, times: Times) -> Self {
        Self {
            execution,
            job: None,
            conclusion,
            ended: Ended::Lost,
            claims: Claims::default(),
            collection: Collection::default(),
            times,
            start_time: None,
            enforced: None,
        }
    }

    /// The result as the caller gets it.
    pub fn result(&self) -> ExecutionResult {
        let execution = self.execution;
        let (stdout, stderr) = (self.view(Stream::Stdout), self.view(Stream::Stderr));
        ExecutionResult {
            status: self.conclusion.status.into(),
            stdout: stdout.bytes().into(),
            stderr: stderr.bytes().into(),
            artifacts: self.collection.artifacts.clone(),
            duration: Some(span(self.times.ran)),
            execution_id: execution.id.to_string(),
            request_id: execution.request.as_ref().map(ToString::to_string).unwrap_or_default(),
            exit_code: self.conclusion.exit_code,
            signal: self.conclusion.signal,
            cause: self.conclusion.cause.as_ref().map(cause),
            error: self.error(),
            hint: self
                .conclusion
                .hint
                .as_ref()
                .map(|hint| cut_text(hint, SENTENCE_MAX).to_owned()),
            results: self.claims.results.clone(),
            inputs: execution.inputs.clone(),
            missing_outputs: self.collection.missing.clone(),
            output: Some(OutputSummary {
                stdout: Some(summary(&stdout)),
                stderr: Some(summary(&stderr)),
            }),
            limits: Some(execution.limits),
            clamped: self
                .job
                .map(|job| job.clamped.iter().map(clamped).collect())
                .unwrap_or_default(),
            limits_hit: self.conclusion.limits_hit.iter().map(|kind| (*kind).into()).collect(),
            usage: Some(self.usage()),
            timing: Some(Timing {
                queued: Some(span(self.times.queued)),
                startup: Some(span(self.times.startup)),
                collect: Some(span(self.times.collect)),
            }),
            create_time: Some(execution.create_time.into()),
            end_time: Some(SystemTime::now().into()),
            session: Some(self.session()),
            policy: execution.policy.clone(),
            template: execution.template.clone(),
            tenant: execution.principal.tenant.clone(),
            user: execution.user.clone(),
            labels: execution.spec.labels.clone(),
            enforced: Some(self.enforced.as_ref().map(enforced).unwrap_or_default()),
        }
    }

    /// The record for the ledger.
    pub fn record(&self, result: &ExecutionResult) -> Finish {
        let (stdout, stderr) = (
            self.execution.output.count(Stream::Stdout),
            self.execution.output.count(Stream::Stderr),
        );
        let cause = self.conclusion.cause.as_ref();
        Finish {
            execution: self.execution.id.clone(),
            status: word(self.conclusion.status.as_str_name(), "EXECUTION_STATUS_"),
            cause: cause.map(|cause| word(cause.kind.as_str_name(), "CAUSE_KIND_")),
            message: cause.map(|cause| cause.message.clone()),
            exit_code: self.conclusion.exit_code,
            signal: self.conclusion.signal,
            usage: self.ledger_usage(),
            stdout_bytes: stdout.bytes,
            stdout_dropped: stdout.dropped,
            stderr_bytes: stderr.bytes,
            stderr_dropped: stderr.dropped,
            stdout: Body::new(result.stdout.to_vec()),
            stderr: Body::new(result.stderr.to_vec()),
            artifacts: self.collection.artifacts.iter().filter_map(record_artifact).collect(),
            limits_hit: self
                .conclusion
                .limits_hit
                .iter()
                .map(|kind| word(kind.as_str_name(), "CAUSE_KIND_"))
                .collect(),
            told: told(result),
            start_time: self.start_time,
            time: SystemTime::now(),
        }
    }

    fn view(&self, stream: Stream) -> View {
        let most = self.job.map_or(0, |job| job.limits.result_output_bytes);
        self.execution.output.view(stream, most)
    }

    fn end(&self) -> Option<&End> {
        match &self.ended {
            Ended::Told(end) => Some(end),
            Ended::Lost | Ended::Unconfirmed => None,
        }
    }

    /// The exception, if the code really failed.
    fn error(&self) -> Option<ExecutionError> {
        let claim = self
            .claims
            .error
            .as_ref()
            .filter(|_| self.conclusion.status == ExecutionStatus::Error)?;
        Some(ExecutionError {
            name: claim.name.clone(),
            message: shortened(&claim.message),
            line: claim.line,
            traceback: claim.traceback.clone(),
        })
    }

    fn usage(&self) -> v1::Usage {
        let usage = self.end().map(|end| end.usage).unwrap_or_default();
        v1::Usage {
            cpu_time: Some(span(std::time::Duration::from_micros(usage.cpu_us))),
            memory_peak_bytes: (usage.memory_peak_bytes > 0).then_some(usage.memory_peak_bytes),
            processes_peak: (usage.processes_peak > 0).then_some(usage.processes_peak),
            disk_bytes: self.disk_bytes(),
        }
    }

    fn disk_bytes(&self) -> u64 {
        self.job.map_or(0, |job| self.collection.disk_bytes(job))
    }

    fn ledger_usage(&self) -> ledger::Usage {
        let usage = self.end().map(|end| end.usage).unwrap_or_default();
        ledger::Usage {
            cpu_us: usage.cpu_us,
            memory_peak_bytes: usage.memory_peak_bytes,
            processes_peak: usage.processes_peak,
            disk_bytes: self.disk_bytes(),
        }
    }

    fn session(&self) -> SessionSummary {
        let start = if self.start_time.is_some() {
            self.execution.start()
        } else {
            StartKind::Unspecified
        };
        let kept = self.execution.kept.as_ref().filter(|session| session.is_up());
        let seat = self.execution.seat.as_ref();
        SessionSummary {
            session_id: self.execution.session.to_string(),
            kept: kept.is_some(),
            context_id: seat.map(|seat| seat.context.to_string()),
            has_state: kept.is_some() && self.start_time.is_some() && seat.is_none_or(Seat::is_state_kept),
            start: start.into(),
            expire_time: kept.map(|session| session.settings().expire_time.into()),
            left: kept.and(self.job).and_then(|job| self.collection.left(job)),
        }
    }
}

/// A message as it fits a chat: its beginning, which says what is wrong, and its end, which often says with what. The
/// traceback ends with all of it.
fn shortened(message: &str) -> String {
    if message.len() <= ERROR_MESSAGE_MAX {
        return message.to_owned();
    }
    let between = " [...] ";
    let tail = ERROR_MESSAGE_MAX / 4;
    let head = cut_text(message, ERROR_MESSAGE_MAX - tail - between.len());
    let from = (message.len() - tail..message.len()).find(|at| message.is_char_boundary(*at));
    format!("{head}{between}{}", &message[from.unwrap_or(message.len())..])
}

/// The result as the ledger keeps it for whoever asks again: without what it has already, and without rich results.
fn told(result: &ExecutionResult) -> Vec<u8> {
    let told = ExecutionResult {
        stdout: prost::bytes::Bytes::new(),
        stderr: prost::bytes::Bytes::new(),
        results: Vec::new(),
        ..result.clone()
    };
    told.encode_to_vec()
}

fn cause(cause: &Cause) -> v1::Cause {
    let message = cut_text(&cause.message, SENTENCE_MAX).to_owned();
    v1::Cause {
        kind: cause.kind.into(),
        limit: cause.limit,
        used: cause.used,
        step: None,
        message,
    }
}

fn summary(view: &View) -> StreamSummary {
    StreamSummary {
        written_bytes: view.count.bytes,
        dropped_bytes: view.count.dropped,
        truncated: view.is_truncated(),
    }
}

/// A quantity that was clamped, in the form of the API.
pub fn clamped(clamped: &Clamped) -> ClampedLimit {
    if clamped.field == "cpu_millis" {
        return ClampedLimit {
            limit: "cpus".to_owned(),
            requested: cpus(clamped.asked),
            applied: cpus(clamped.given),
        };
    }
    ClampedLimit {
        limit: clamped.field.to_string(),
        requested: number(clamped.asked),
        applied: number(clamped.given),
    }
}

/// A quantity as a floating-point number; the API has them so, and only for people.
#[expect(
    clippy::cast_precision_loss,
    reason = "quantities above 2^53 are rounded, which no limit reaches"
)]
fn number(quantity: u64) -> f64 {
    quantity as f64
}

/// What is enforced, in the form of the API.
pub fn enforced(enforced: &Enforced) -> v1::Enforced {
    v1::Enforced {
        namespaces: enforced.namespaces.clone(),
        cgroup: enforced.cgroup.clone(),
        memory: enforced.memory,
        cpu: enforced.cpu,
        pids: enforced.pids,
        swap: enforced.swap,
        io: enforced.io,
        workspace: enforced.workspace.clone(),
        landlock_abi: enforced.landlock_abi,
        seccomp: enforced.seccomp.clone(),
        capabilities: enforced.capabilities.clone(),
        no_new_privs: enforced.no_new_privs,
    }
}

fn record_artifact(artifact: &v1::Artifact) -> Option<ledger::Artifact> {
    let (class, handling, review) = (artifact.class(), artifact.handling(), artifact.review());
    Some(ledger::Artifact {
        artifact: brig_jailer::ids::Id::parse(&artifact.artifact_id).ok()?,
        path: artifact.path.clone(),
        sha256: artifact.sha256.clone(),
        size_bytes: artifact.size_bytes,
        class: word(ArtifactClass::as_str_name(&class), "ARTIFACT_CLASS_"),
        handling: word(ArtifactHandling::as_str_name(&handling), "ARTIFACT_HANDLING_"),
        review: word(ReviewState::as_str_name(&review), "REVIEW_STATE_"),
    })
}

/// A value of a closed list as documents write it: in lower case, without the prefix of the proto.
fn word(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase()
}
