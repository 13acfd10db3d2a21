//! Entries in the form of the API.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use brig_proto::v1;
use brig_proto::v1::{ArtifactClass, ArtifactHandling, CauseKind, ExecutionStatus, Reason, ReviewState, StreamSummary};

use super::filter;
use crate::ledger::{Accept, Artifact, Body, Content, Erased, Finish, Found, Limits, Origin, Verdict, hex};
use crate::run::execution::{cpus, span};

/// An entry.
pub(super) fn entry(found: Found) -> v1::LedgerEntry {
    let mut entry = v1::LedgerEntry {
        sequence: unsigned(found.number),
        time: Some((UNIX_EPOCH + Duration::from_millis(unsigned(found.time_ms))).into()),
        kind: filter::kind(&found.kind).into(),
        tenant: found.tenant,
        session_id: found.session.unwrap_or_default(),
        execution_id: found.execution.unwrap_or_default(),
        previous_hash: hex(&found.previous),
        hash: hex(&found.hash),
        ..v1::LedgerEntry::default()
    };
    match found.content {
        Content::Accept(accept) => accepted(&mut entry, &accept, true),
        Content::Finish(finish, accept) => {
            if let Some(accept) = &accept {
                accepted(&mut entry, accept, false);
            }
            entry.message = finish.message.clone().unwrap_or_default();
            entry.result = Some(result(&entry, &finish, accept.as_deref()));
        }
        Content::Refused(refused) => {
            name(&mut entry, refused.user, refused.origin);
            entry.request_id = refused.request.unwrap_or_default();
            entry.policy = refused.policy;
            entry.reason = Reason::from_name(&refused.reason.to_uppercase()).into();
            entry.count = refused.count;
            entry.message = match refused.field.as_str() {
                field if field.is_empty() || refused.message.starts_with(field) => refused.message,
                field => format!("{field}: {}", refused.message),
            };
        }
        Content::Opened(opened) => {
            name(&mut entry, opened.user, opened.origin);
            entry.request_id = opened.request.unwrap_or_default();
            entry.policy = id(&opened.policy, &opened.policy_hash);
            entry.template = opened.template;
            entry.labels = opened.labels;
        }
        Content::Closed(closed) => entry.message = closed.reason,
        Content::Erased(erased) => {
            entry.message = erasure(&erased);
            entry.request_id = erased.request.unwrap_or_default();
            name(&mut entry, erased.user, Origin::default());
        }
        Content::Other => {}
    }
    entry
}

/// What a verification found.
pub(super) fn verdict(verdict: &Verdict) -> v1::LedgerVerifyResponse {
    let head = verdict.head;
    let message = match &verdict.broken {
        Some((_, message)) => message.clone(),
        None => format!("{} entries are there and unchanged", verdict.entries),
    };
    v1::LedgerVerifyResponse {
        intact: verdict.broken.is_none(),
        entries: verdict.entries,
        head_hash: hex(&head.hash),
        broken_sequence: verdict.broken.as_ref().map(|(number, _)| unsigned(*number)),
        message,
    }
}

fn accepted(entry: &mut v1::LedgerEntry, accept: &Accept, with_work: bool) {
    name(entry, accept.user.clone(), accept.origin.clone());
    entry.request_id = accept.request.clone().unwrap_or_default();
    entry.policy = id(&accept.policy, &accept.policy_hash);
    entry.template.clone_from(&accept.template);
    entry.labels.clone_from(&accept.labels);
    entry.work_sha256.clone_from(&accept.work.body.sha256);
    entry.inputs = accept.inputs.iter().map(input).collect();
    if with_work {
        let content = &accept.work.body.content;
        // Arguments end with NUL, which no text has.
        let lines = content.iter().map(|byte| if *byte == 0 { b'\n' } else { *byte });
        entry.work = lines.collect::<Vec<u8>>().into();
    }
}

fn name(entry: &mut v1::LedgerEntry, user: String, origin: Origin) {
    entry.user = if user.is_empty() { origin.user.clone() } else { user };
    entry.origin = (origin != Origin::default()).then_some(v1::Origin {
        user: origin.user,
        conversation: origin.conversation,
        request: origin.request,
    });
}

fn id(policy: &str, hash: &str) -> String {
    match hash.get(..12) {
        Some(short) => format!("{policy}@{short}"),
        None => policy.to_owned(),
    }
}

fn input(input: &crate::ledger::Input) -> v1::InputFile {
    v1::InputFile {
        name: input.name.clone(),
        path: input.path.clone(),
        size_bytes: input.size_bytes,
        sha256: input.sha256.clone(),
    }
}

/// The result, as far as it was recorded.
fn result(entry: &v1::LedgerEntry, finish: &Finish, accept: Option<&Accept>) -> v1::ExecutionResult {
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
        execution_id: entry.execution_id.clone(),
        request_id: entry.request_id.clone(),
        exit_code: finish.exit_code,
        signal: finish.signal,
        cause,
        inputs: entry.inputs.clone(),
        output: Some(v1::OutputSummary {
            stdout: Some(summary(finish.stdout_bytes, finish.stdout_dropped, &finish.stdout)),
            stderr: Some(summary(finish.stderr_bytes, finish.stderr_dropped, &finish.stderr)),
        }),
        limits: accept.map(|accept| limits(&accept.limits)),
        limits_hit: limits_hit
            .map(|kind| word("CAUSE_KIND_", kind, CauseKind::from_str_name).into())
            .collect(),
        usage: Some(v1::Usage {
            cpu_time: Some(span(Duration::from_micros(finish.usage.cpu_us))),
            memory_peak_bytes: (finish.usage.memory_peak_bytes > 0).then_some(finish.usage.memory_peak_bytes),
            processes_peak: (finish.usage.processes_peak > 0).then_some(finish.usage.processes_peak),
            disk_bytes: finish.usage.disk_bytes,
        }),
        create_time: accept.map(|accept| accept.time.into()),
        end_time: Some(finish.time.into()),
        session: Some(v1::SessionSummary {
            session_id: entry.session_id.clone(),
            ..v1::SessionSummary::default()
        }),
        policy: entry.policy.clone(),
        template: entry.template.clone(),
        tenant: entry.tenant.clone(),
        user: entry.user.clone(),
        labels: entry.labels.clone(),
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

/// What was erased, without saying whose.
fn erasure(erased: &Erased) -> String {
    let of = [
        erased.one_user.then(|| "of one user".to_owned()),
        erased.execution.as_ref().map(|id| format!("of execution {id}")),
        erased.to_time.map(|time| format!("before {}", day(time))),
    ];
    let of: Vec<String> = of.into_iter().flatten().collect();
    format!("{} entries {}: {}", erased.entries, of.join(", "), erased.message)
}

fn day(time: SystemTime) -> String {
    prost_types::Timestamp::from(time).to_string()
}

/// A value of a closed list from the word that the ledger has for it.
fn word<T: Default>(prefix: &str, word: &str, find: impl Fn(&str) -> Option<T>) -> T {
    find(&format!("{prefix}{}", word.to_uppercase())).unwrap_or_default()
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}
