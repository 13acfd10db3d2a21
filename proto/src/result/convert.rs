//! From the message to the document.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use prost_types::{Duration, Timestamp, value::Kind};
use serde_json::{Map, Number, Value};

use super::{
    Artifact, ArtifactDetails, Cause, Clamped, Enforced, Error, Input, Left, Limits, Output, ResultDocument,
    RichResult, Session, Start, Stream, Timing, Usage,
};
use crate::v1::{self, rich_datum::Content};

impl ResultDocument {
    /// Writes a result as a document.
    ///
    /// Parts that the message lacks become empty ones, so that every key is present.
    pub fn from_proto(result: &v1::ExecutionResult) -> Self {
        let (stdout, stderr) = (
            String::from_utf8_lossy(&result.stdout),
            String::from_utf8_lossy(&result.stderr),
        );
        let written = result.output.unwrap_or_default();
        Self {
            status: result.status.into(),
            output: Output {
                // The text had to be made anew only where bytes were replaced.
                stdout: stream(written.stdout, matches!(stdout, Cow::Owned(_))),
                stderr: stream(written.stderr, matches!(stderr, Cow::Owned(_))),
            },
            stdout: stdout.into_owned(),
            stderr: stderr.into_owned(),
            artifacts: result.artifacts.iter().map(artifact).collect(),
            duration_ms: milliseconds(result.duration),
            execution_id: result.execution_id.clone(),
            request_id: result.request_id.clone(),
            exit_code: result.exit_code,
            signal: result.signal,
            cause: result.cause.as_ref().map(cause),
            error: result.error.as_ref().map(error),
            hint: result.hint.clone(),
            results: result.results.iter().map(RichResult::from_proto).collect(),
            inputs: result.inputs.iter().map(input).collect(),
            missing_outputs: result.missing_outputs.clone(),
            limits: limits(result.limits.unwrap_or_default()),
            clamped: result.clamped.iter().map(clamped).collect(),
            limits_hit: result.limits_hit.iter().map(|kind| (*kind).into()).collect(),
            usage: usage(result.usage.unwrap_or_default()),
            timing: timing(result.timing.unwrap_or_default()),
            create_time: result.create_time.map(rfc3339),
            end_time: result.end_time.map(rfc3339),
            session: session(result.session.clone().unwrap_or_default()),
            policy: result.policy.clone(),
            template: result.template.clone(),
            tenant: result.tenant.clone(),
            user: result.user.clone(),
            labels: result.labels.clone(),
            enforced: enforced(result.enforced.clone().unwrap_or_default()),
        }
    }
}

impl RichResult {
    /// Writes a rich result as a part of the document.
    pub fn from_proto(result: &v1::RichResult) -> Self {
        let mut data = BTreeMap::new();
        for datum in &result.data {
            match &datum.content {
                Some(Content::Text(text)) => data.insert(datum.r#type.clone(), text.clone()),
                Some(Content::Binary(bytes)) => data.insert(datum.r#type.clone(), STANDARD.encode(bytes)),
                None => None,
            };
        }
        let chart = result.chart.as_ref().map(object);
        Self {
            main: result.main,
            display_id: result.display_id.clone(),
            data,
            chart,
        }
    }
}

fn stream(written: Option<v1::StreamSummary>, lossy: bool) -> Stream {
    let written = written.unwrap_or_default();
    Stream {
        bytes: written.written_bytes,
        dropped: written.dropped_bytes,
        truncated: written.truncated,
        lossy,
    }
}

fn artifact(artifact: &v1::Artifact) -> Artifact {
    Artifact {
        artifact_id: artifact.artifact_id.clone(),
        path: artifact.path.clone(),
        media_type: artifact.r#type.clone(),
        size_bytes: artifact.size_bytes,
        sha256: artifact.sha256.clone(),
        change: artifact.change.into(),
        class: artifact.class.into(),
        handling: artifact.handling.into(),
        review: artifact.review.into(),
        flags: artifact.flags.clone(),
        details: details(artifact.details.unwrap_or_default()),
    }
}

fn details(details: v1::ArtifactDetails) -> ArtifactDetails {
    ArtifactDetails {
        width: details.width,
        height: details.height,
        rows: details.rows,
        columns: details.columns,
        sheets: details.sheets,
        pages: details.pages,
        entries: details.entries,
        unpacked_bytes: details.unpacked_bytes,
        lines: details.lines,
        ratio: details.ratio,
    }
}

fn cause(cause: &v1::Cause) -> Cause {
    Cause {
        kind: cause.kind.into(),
        limit: cause.limit,
        used: cause.used,
        step: cause.step.clone(),
        message: cause.message.clone(),
    }
}

fn error(error: &v1::ExecutionError) -> Error {
    Error {
        name: error.name.clone(),
        message: error.message.clone(),
        line: error.line,
        traceback: error.traceback.clone(),
    }
}

fn input(input: &v1::InputFile) -> Input {
    Input {
        name: input.name.clone(),
        path: input.path.clone(),
        size_bytes: input.size_bytes,
        sha256: input.sha256.clone(),
    }
}

fn limits(limits: v1::EffectiveLimits) -> Limits {
    Limits {
        timeout_ms: milliseconds(limits.timeout),
        memory_bytes: limits.memory_bytes,
        cpus: limits.cpus,
        pids: limits.pids,
        disk_bytes: limits.disk_bytes,
        output_bytes: limits.output_bytes,
    }
}

fn clamped(clamped: &v1::ClampedLimit) -> Clamped {
    Clamped {
        limit: clamped.limit.clone(),
        requested: number(clamped.requested).unwrap_or_else(|| 0.into()),
        applied: number(clamped.applied).unwrap_or_else(|| 0.into()),
    }
}

fn usage(usage: v1::Usage) -> Usage {
    Usage {
        cpu_ms: milliseconds(usage.cpu_time),
        memory_peak_bytes: usage.memory_peak_bytes,
        processes_peak: usage.processes_peak,
        disk_bytes: usage.disk_bytes,
    }
}

fn timing(timing: v1::Timing) -> Timing {
    Timing {
        queued_ms: milliseconds(timing.queued),
        startup_ms: milliseconds(timing.startup),
        collect_ms: milliseconds(timing.collect),
    }
}

fn session(session: v1::SessionSummary) -> Session {
    let started = session.start != i32::from(v1::StartKind::Unspecified);
    Session {
        session_id: session.session_id,
        kept: session.kept,
        context_id: session.context_id,
        has_state: session.has_state,
        start: started.then(|| Start::from(session.start)),
        expire_time: session.expire_time.map(rfc3339),
        left: session.left.map(left),
    }
}

fn left(left: v1::SessionLeft) -> Left {
    Left {
        memory_bytes: left.memory_bytes,
        disk_bytes: left.disk_bytes,
        inodes: left.inodes,
        processes: left.processes,
    }
}

fn enforced(enforced: v1::Enforced) -> Enforced {
    Enforced {
        namespaces: enforced.namespaces,
        cgroup: enforced.cgroup,
        memory: enforced.memory,
        cpu: enforced.cpu,
        pids: enforced.pids,
        swap: enforced.swap,
        io: enforced.io,
        workspace: enforced.workspace,
        landlock_abi: enforced.landlock_abi,
        seccomp: enforced.seccomp,
        capabilities: enforced.capabilities,
        no_new_privs: enforced.no_new_privs,
    }
}

/// Whole milliseconds of a span; one that is absent or negative has none.
fn milliseconds(span: Option<Duration>) -> u64 {
    let span = std::time::Duration::try_from(span.unwrap_or_default()).unwrap_or_default();
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// RFC 3339 in UTC, to the millisecond.
fn rfc3339(mut time: Timestamp) -> String {
    time.nanos -= time.nanos % 1_000_000;
    time.to_string()
}

/// A number as JSON has it: whole ones without a fraction; none for those that JSON can't write.
fn number(value: f64) -> Option<Number> {
    // Below 2^53 every whole number is exact.
    if value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0 {
        format!("{value:.0}").parse::<i64>().ok().map(Number::from)
    } else {
        Number::from_f64(value)
    }
}

fn object(object: &prost_types::Struct) -> Value {
    Value::Object(
        object
            .fields
            .iter()
            .map(|(key, entry)| (key.clone(), value(entry)))
            .collect::<Map<_, _>>(),
    )
}

/// A guest's value; its depth is bounded, because decoding a message is.
fn value(value: &prost_types::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(flag)) => Value::Bool(*flag),
        Some(Kind::NumberValue(float)) => number(*float).map_or(Value::Null, Value::Number),
        Some(Kind::StringValue(text)) => Value::String(text.clone()),
        Some(Kind::ListValue(list)) => Value::Array(list.values.iter().map(self::value).collect()),
        Some(Kind::StructValue(fields)) => object(fields),
    }
}
