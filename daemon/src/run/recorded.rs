//! From the records of the ledger to the messages of the API: all that is left of an execution that is forgotten.

use std::time::Duration;

use brig_proto::v1;
use brig_proto::v1::{ArtifactClass, ArtifactHandling, CauseKind, ExecutionStatus, ReviewState, StreamSummary};

use crate::ledger::{Accept, Artifact, Body, Finish, Input, Limits};
use crate::run::execution::{cpus, span};

/// The result of an execution, as far as its entries have it.
pub fn result(accept: &Accept, finish: &Finish) -> v1::ExecutionResult {
    let ran = finish
        .start_time
        .and_then(|start| finish.time.duration_since(start).ok());
    let cause = finish.cause.as_deref().map(|kind| v1::Cause {
        kind: word("CAUSE_KIND_", kind, CauseKind::from_str_name).into(),
        message: finish.message.clone().unwrap_or_default(),
        ..v1::Cause::default()
    });
    let limits_hit = finish.limits_hit.iter();
    v1::ExecutionResult {
        status: word("EXECUTION_STATUS_", &finish.status, ExecutionStatus::from_str_name).into(),
        stdout: finish.stdout.content.clone().into(),
        stderr: finish.stderr.content.clone().into(),
        artifacts: finish.artifacts.iter().map(artifact).collect(),
        duration: Some(span(ran.unwrap_or_default())),
        execution_id: accept.execution.to_string(),
        request_id: accept.request.clone().unwrap_or_default(),
        exit_code: finish.exit_code,
        signal: finish.signal,
        cause,
        inputs: accept.inputs.iter().map(input).collect(),
        output: Some(v1::OutputSummary {
            stdout: Some(summary(finish.stdout_bytes, finish.stdout_dropped, &finish.stdout)),
            stderr: Some(summary(finish.stderr_bytes, finish.stderr_dropped, &finish.stderr)),
        }),
        limits: Some(limits(&accept.limits)),
        limits_hit: limits_hit
            .map(|kind| word("CAUSE_KIND_", kind, CauseKind::from_str_name).into())
            .collect(),
        usage: Some(v1::Usage {
            cpu_time: Some(span(Duration::from_micros(finish.usage.cpu_us))),
            memory_peak_bytes: (finish.usage.memory_peak_bytes > 0).then_some(finish.usage.memory_peak_bytes),
            processes_peak: (finish.usage.processes_peak > 0).then_some(finish.usage.processes_peak),
            disk_bytes: finish.usage.disk_bytes,
        }),
        create_time: Some(accept.time.into()),
        end_time: Some(finish.time.into()),
        session: Some(v1::SessionSummary {
            session_id: accept.session.to_string(),
            ..v1::SessionSummary::default()
        }),
        policy: policy(&accept.policy, &accept.policy_hash),
        template: accept.template.clone(),
        tenant: accept.tenant.clone(),
        user: user(accept),
        labels: accept.labels.clone(),
        ..v1::ExecutionResult::default()
    }
}

fn summary(written_bytes: u64, dropped_bytes: u64, shown: &Body) -> StreamSummary {
    StreamSummary {
        written_bytes,
        dropped_bytes,
        truncated: shown.bytes < written_bytes,
    }
}

fn limits(limits: &Limits) -> v1::EffectiveLimits {
    v1::EffectiveLimits {
        timeout: Some(span(Duration::from_millis(limits.timeout_ms))),
        memory_bytes: limits.memory_bytes,
        cpus: cpus(limits.cpu_millis),
        pids: limits.pids,
        disk_bytes: limits.disk_bytes,
        output_bytes: limits.output_bytes,
    }
}

fn artifact(artifact: &Artifact) -> v1::Artifact {
    v1::Artifact {
        artifact_id: artifact.artifact.to_string(),
        path: artifact.path.clone(),
        size_bytes: artifact.size_bytes,
        sha256: artifact.sha256.clone(),
        class: word("ARTIFACT_CLASS_", &artifact.class, ArtifactClass::from_str_name).into(),
        handling: word(
            "ARTIFACT_HANDLING_",
            &artifact.handling,
            ArtifactHandling::from_str_name,
        )
        .into(),
        review: word("REVIEW_STATE_", &artifact.review, ReviewState::from_str_name).into(),
        ..v1::Artifact::default()
    }
}

/// An input file.
pub fn input(input: &Input) -> v1::InputFile {
    v1::InputFile {
        name: input.name.clone(),
        path: input.path.clone(),
        size_bytes: input.size_bytes,
        sha256: input.sha256.clone(),
    }
}

/// A policy with its short hash.
pub fn policy(policy: &str, hash: &str) -> String {
    match hash.get(..12) {
        Some(short) => format!("{policy}@{short}"),
        None => policy.to_owned(),
    }
}

/// Who asked: the application's user, else the connection's.
fn user(accept: &Accept) -> String {
    let named = Some(&accept.origin.user).filter(|user| !user.is_empty());
    named.unwrap_or(&accept.user).clone()
}

/// A value of a closed list from the word that the ledger has for it.
fn word<T: Default>(prefix: &str, word: &str, find: impl Fn(&str) -> Option<T>) -> T {
    find(&format!("{prefix}{}", word.to_uppercase())).unwrap_or_default()
}
