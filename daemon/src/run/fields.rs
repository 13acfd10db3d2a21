//! Collecting what is wrong with a request, field by field.

use brig_jailer::ids::Id;
use brig_proto::v1::Reason;
use prost_types::Duration;

use crate::names::NameError;
use crate::run::inputs::unhex;
use crate::status::{FieldProblem, Problem};

/// The most problems that an answer names.
const PROBLEMS_MAX: usize = 32;

/// What is wrong so far.
#[derive(Debug, Default)]
pub struct Fields {
    problems: Vec<FieldProblem>,
}

impl Fields {
    /// Adds a problem.
    pub fn wrong(&mut self, field: &str, reason: Reason, message: impl Into<String>) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(FieldProblem {
                field: field.to_owned(),
                message: message.into(),
                reason,
            });
        }
    }

    /// Adds a name or path that can't be used.
    pub fn name(&mut self, error: &NameError) {
        self.wrong(
            &error.field,
            Reason::InvalidPath,
            format!("{:?} {}", error.value, error.problem),
        );
    }

    /// Checks how many there are of something.
    pub fn at_most(&mut self, field: &str, count: usize, most: usize) {
        if count > most {
            self.wrong(
                field,
                Reason::TooLarge,
                format!("has {count} elements, at most {most} are accepted"),
            );
        }
    }

    /// Reads an id that may be left out.
    pub fn id(&mut self, field: &str, text: &str) -> Option<Id> {
        if text.is_empty() {
            return None;
        }
        self.keep(Id::parse(text).map_err(|error| FieldProblem {
            field: field.to_owned(),
            message: error.to_string(),
            reason: Reason::InvalidId,
        }))
    }

    /// Reads a SHA-256 that may be left out.
    pub fn sha256(&mut self, field: &str, text: &str) -> Option<[u8; 32]> {
        if text.is_empty() {
            return None;
        }
        let digest = unhex(text).and_then(|bytes| bytes.try_into().ok());
        if digest.is_none() {
            let message = "is no SHA-256: 64 lower-case hexadecimal digits";
            self.wrong(field, Reason::InvalidValue, message);
        }
        digest
    }

    /// Keeps a value, or the problem in its place.
    pub fn keep<T>(&mut self, result: Result<T, FieldProblem>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(problem) => {
                self.wrong(&problem.field, problem.reason, problem.message);
                None
            }
        }
    }

    /// Keeps a value that may be absent.
    pub fn keep_some<T>(&mut self, result: Result<Option<T>, FieldProblem>) -> Option<T> {
        self.keep(result).flatten()
    }

    /// Refuses if anything was wrong.
    pub fn done(self) -> Result<(), Problem> {
        if self.problems.is_empty() {
            Ok(())
        } else {
            Err(Problem::Fields(self.problems))
        }
    }
}

/// Reads a span; a part of a millisecond counts as a whole one, so that only 0 is 0.
pub fn millis(field: &str, span: Option<&Duration>) -> Result<Option<u64>, FieldProblem> {
    let Some(span) = span else { return Ok(None) };
    let invalid = || FieldProblem {
        field: field.to_owned(),
        message: "is not a span of time from 0 on".to_owned(),
        reason: Reason::InvalidValue,
    };
    let (seconds, nanos) = (u64::try_from(span.seconds), u64::try_from(span.nanos));
    match (seconds, nanos) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Ok(Some(
            seconds.saturating_mul(1000).saturating_add(nanos.div_ceil(1_000_000)),
        )),
        _ => Err(invalid()),
    }
}

/// Reads a number of CPUs into thousandths.
pub fn cpu_millis(field: &str, cpus: Option<f64>) -> Result<Option<u64>, FieldProblem> {
    let Some(cpus) = cpus else { return Ok(None) };
    let text = format!("{cpus:.3}");
    let valid = (0.0..=1_000_000.0).contains(&cpus);
    let millis = text
        .replace('.', "")
        .parse::<u64>()
        .ok()
        .filter(|millis| valid && (*millis > 0 || cpus == 0.0));
    millis.map(Some).ok_or_else(|| FieldProblem {
        field: field.to_owned(),
        message: format!("{cpus} is not a number of CPUs: at least 0.001"),
        reason: Reason::InvalidValue,
    })
}

/// The field of a request that stands for a limit of a policy.
pub fn limit_field(limit: &str) -> String {
    match limit {
        "timeout_ms" => "limits.timeout".to_owned(),
        "start_timeout_ms" => "limits.start_timeout".to_owned(),
        "cpu_millis" => "limits.cpus".to_owned(),
        "idle_ms" => "idle_timeout".to_owned(),
        "max_age_ms" => "max_age".to_owned(),
        other => format!("limits.{other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_counted_in_milliseconds_and_only_nothing_is_zero() {
        let span = |seconds, nanos| millis("f", Some(&Duration { seconds, nanos }));
        assert_eq!(span(1, 500_000_000), Ok(Some(1500)));
        assert_eq!(span(0, 1), Ok(Some(1)));
        assert_eq!(span(0, 0), Ok(Some(0)));
        assert_eq!(millis("f", None), Ok(None));
        assert!(span(-1, 0).is_err() && span(0, -1).is_err());
        assert_eq!(span(i64::MAX, 0), Ok(Some(u64::MAX)));
    }

    #[test]
    fn cpus_are_counted_in_thousandths() {
        assert_eq!(cpu_millis("f", Some(1.5)), Ok(Some(1500)));
        assert_eq!(cpu_millis("f", Some(0.1)), Ok(Some(100)));
        assert_eq!(cpu_millis("f", Some(0.0)), Ok(Some(0)));
        for wrong in [f64::NAN, f64::INFINITY, -1.0, 0.0001, 1e300] {
            assert!(cpu_millis("f", Some(wrong)).is_err(), "{wrong}");
        }
    }
}
