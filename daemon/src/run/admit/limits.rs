//! Checking how much may be used.

use brig_jailer::policy::{Clamped, Policy, RequestedLimits, Resolved};
use brig_proto::v1::{Limits, Reason};

use super::ArtifactLimits;
use crate::run::fields::{Fields, cpu_millis, limit_field, millis};

pub(super) fn check_limits(
    asked: Option<&Limits>,
    policy: &Policy,
    fields: &mut Fields,
) -> Option<(Resolved, Vec<Clamped>)> {
    let none = Limits::default();
    let asked = asked.unwrap_or(&none);
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
    let requested = RequestedLimits {
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
    };
    match policy.resolve(&requested) {
        Ok(resolved) => Some(resolved),
        Err(error) => {
            let field = format!("limits.{}", limit_field(error.field));
            // The message counts as the policy does; the request has CPUs, not thousandths.
            let problem = if error.field == "cpu_millis" {
                cpus(&error.problem)
            } else {
                error.problem
            };
            fields.wrong(&field, Reason::InvalidValue, &problem);
            None
        }
    }
}

fn cpus(problem: &str) -> String {
    if problem.starts_with("0 ") {
        problem.to_owned()
    } else {
        "too little; at least 0.01".to_owned()
    }
}

pub(super) fn artifact_limits(asked: Option<&Limits>, policy: &Policy) -> ArtifactLimits {
    let least = |asked: Option<u64>, most: u64| asked.unwrap_or(most).min(most);
    ArtifactLimits {
        bytes_each: least(
            asked.and_then(|asked| asked.artifact_bytes),
            policy.limits.artifact_bytes.bytes(),
        ),
        count: least(asked.and_then(|asked| asked.artifacts), policy.limits.artifacts),
        depth: least(
            asked.and_then(|asked| asked.artifact_depth),
            policy.limits.artifact_depth,
        ),
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
        let limits = artifact_limits(Some(&asked), &policy());
        assert_eq!((limits.count, limits.depth, limits.bytes_each), (10, 1, 50 << 20));
    }
}
