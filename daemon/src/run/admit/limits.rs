//! Checking how much may be used.

use brig_jailer::policy::{Clamped, Policy, RequestedLimits, Resolved};
use brig_proto::v1::{Limits, Reason, SessionsCreateRequest};

use super::{ArtifactLimits, Times};
use crate::run::fields::{Fields, cpu_millis, limit_field, millis};
use crate::run::kept::Session;

/// Checks the limits of a session of its own.
pub(in crate::run) fn check_limits(
    asked: Option<&Limits>,
    policy: &Policy,
    fields: &mut Fields,
) -> Option<(Resolved, Vec<Clamped>)> {
    let requested = requested(asked.unwrap_or(&Limits::default()), fields);
    resolve(&requested, policy, fields)
}

/// Checks the limits of a session that is kept.
pub(in crate::run) fn check_kept_limits(
    asked: &SessionsCreateRequest,
    policy: &Policy,
    fields: &mut Fields,
) -> Option<(Resolved, Vec<Clamped>)> {
    let requested = RequestedLimits {
        idle_ms: fields.keep_some(millis("idle_timeout", asked.idle_timeout.as_ref())),
        max_age_ms: fields.keep_some(millis("max_age", asked.max_age.as_ref())),
        ..requested(&asked.limits.unwrap_or_default(), fields)
    };
    resolve(&requested, policy, fields)
}

/// Checks the limits of an execution within its session's, which are its defaults.
pub(super) fn check_limits_within(
    asked: &Limits,
    session: &Session,
    fields: &mut Fields,
) -> Option<(Resolved, Vec<Clamped>)> {
    for (field, given) in [
        ("limits.memory_bytes", asked.memory_bytes.is_some()),
        ("limits.cpus", asked.cpus.is_some()),
        ("limits.pids", asked.pids.is_some()),
        ("limits.disk_bytes", asked.disk_bytes.is_some()),
        ("limits.inodes", asked.inodes.is_some()),
        ("limits.open_files", asked.open_files.is_some()),
    ] {
        if given {
            let message = "belongs to the session, which was made with its own";
            fields.wrong(field, Reason::NotApplicable, message);
        }
    }
    let own = &session.limits;
    let asked = requested(asked, fields);
    let requested = RequestedLimits {
        timeout_ms: asked.timeout_ms.or(Some(own.timeout_ms)),
        start_timeout_ms: asked.start_timeout_ms.or(Some(own.start_timeout_ms)),
        output_bytes: asked.output_bytes.or(Some(own.output_bytes)),
        result_output_bytes: asked.result_output_bytes.or(Some(own.result_output_bytes)),
        ..RequestedLimits::default()
    };
    let (given, clamped) = resolve(&requested, &session.policy, fields)?;
    let limits = Resolved {
        timeout_ms: given.timeout_ms,
        start_timeout_ms: given.start_timeout_ms,
        output_bytes: given.output_bytes,
        result_output_bytes: given.result_output_bytes,
        ..*own
    };
    Some((limits, clamped))
}

/// Reads the limits that a request asks for.
fn requested(asked: &Limits, fields: &mut Fields) -> RequestedLimits {
    for (field, value) in [
        ("limits.artifact_bytes", asked.artifact_bytes),
        ("limits.artifacts", asked.artifacts),
        ("limits.artifact_depth", asked.artifact_depth),
    ] {
        if value == Some(0) {
            fields.wrong(
                field,
                Reason::InvalidValue,
                "0 is not a limit; leave it out for the default of the policy",
            );
        }
    }
    RequestedLimits {
        timeout_ms: fields.keep_some(millis("limits.timeout", asked.timeout.as_ref())),
        start_timeout_ms: fields.keep_some(millis("limits.start_timeout", asked.start_timeout.as_ref())),
        memory_bytes: asked.memory_bytes,
        cpu_millis: fields.keep_some(cpu_millis("limits.cpus", asked.cpus)),
        disk_bytes: asked.disk_bytes,
        inodes: asked.inodes,
        pids: asked.pids,
        open_files: asked.open_files,
        output_bytes: asked.output_bytes,
        result_output_bytes: asked.result_output_bytes,
        idle_ms: None,
        max_age_ms: None,
    }
}

fn resolve(asked: &RequestedLimits, policy: &Policy, fields: &mut Fields) -> Option<(Resolved, Vec<Clamped>)> {
    match policy.resolve(asked) {
        Ok(resolved) => Some(resolved),
        Err(error) => {
            // The message counts as the policy does; the request has CPUs, not thousandths.
            let problem = if error.field == "cpu_millis" {
                cpus(&error.problem)
            } else {
                error.problem
            };
            fields.wrong(&limit_field(error.field), Reason::InvalidValue, &problem);
            None
        }
    }
}

/// Checks limits of CPU time and of idle time, in milliseconds; neither has a default of the policy.
pub(in crate::run) fn check_times(asked: &Limits, fields: &mut Fields) -> Times {
    let mut check = |field, span: Option<&prost_types::Duration>| {
        let asked = fields.keep_some(millis(field, span));
        if asked == Some(0) {
            fields.wrong(field, Reason::InvalidValue, "0 is not a limit; leave it out for none");
        }
        asked
    };
    Times {
        cpu_ms: check("limits.cpu_time", asked.cpu_time.as_ref()),
        idle_ms: check("limits.idle_time", asked.idle_time.as_ref()),
    }
}

fn cpus(problem: &str) -> String {
    if problem.starts_with("0 ") {
        problem.to_owned()
    } else {
        "too little; at least 0.01".to_owned()
    }
}

/// Narrows what is collected.
pub(in crate::run) fn artifact_limits(asked: &Limits, most: ArtifactLimits) -> ArtifactLimits {
    let least = |asked: Option<u64>, most: u64| asked.unwrap_or(most).min(most);
    ArtifactLimits {
        bytes_each: least(asked.artifact_bytes, most.bytes_each),
        count: least(asked.artifacts, most.count),
        depth: least(asked.artifact_depth, most.depth),
    }
}

impl ArtifactLimits {
    /// What a policy lets be collected.
    pub fn of(policy: &Policy) -> Self {
        Self {
            bytes_each: policy.limits.artifact_bytes.bytes(),
            count: policy.limits.artifacts,
            depth: policy.limits.artifact_depth,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::status::Problem;

    use super::*;

    fn policy() -> Policy {
        let text = "template = \"t\"\n[syscalls]\ngroups = [\"base\"]\n[limits]\nartifacts = 10";
        Policy::parse("p", text).unwrap()
    }

    fn wrong(asked: &Limits) -> String {
        let mut fields = Fields::default();
        check_limits(Some(asked), &policy(), &mut fields);
        fields
            .done()
            .err()
            .map(|problem: Problem| problem.field().to_owned())
            .unwrap_or_default()
    }

    #[test]
    fn zero_is_never_a_limit() {
        let none = Limits::default;
        let zero = Some(prost_types::Duration { seconds: 0, nanos: 0 });
        let cases = [
            (
                Limits {
                    timeout: zero,
                    ..none()
                },
                "limits.timeout",
            ),
            (
                Limits {
                    start_timeout: zero,
                    ..none()
                },
                "limits.start_timeout",
            ),
            (
                Limits {
                    memory_bytes: Some(0),
                    ..none()
                },
                "limits.memory_bytes",
            ),
            (
                Limits {
                    cpus: Some(0.0),
                    ..none()
                },
                "limits.cpus",
            ),
            (
                Limits {
                    output_bytes: Some(0),
                    ..none()
                },
                "limits.output_bytes",
            ),
            (
                Limits {
                    artifacts: Some(0),
                    ..none()
                },
                "limits.artifacts",
            ),
            (none(), ""),
        ];
        let named: Vec<_> = cases.iter().map(|(asked, _)| wrong(asked)).collect();
        assert_eq!(named, cases.map(|(_, field)| field));
    }

    #[test]
    fn limits_of_artifacts_only_narrow() {
        let asked = Limits {
            artifacts: Some(1000),
            artifact_depth: Some(1),
            ..Limits::default()
        };
        let limits = artifact_limits(&asked, ArtifactLimits::of(&policy()));
        assert_eq!((limits.count, limits.depth, limits.bytes_each), (10, 1, 50 << 20));
    }
}
