//! From what a caller asks for to what a session gets: absent is the default, zero is an error, too much is clamped.
#![forbid(unsafe_code)]

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Bounded, Policy};
use crate::api::Quantities;
use crate::units::{ByteSize, Cpus, Span};

/// The limits that a caller may ask for; absent is the policy's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestedLimits {
    pub timeout_ms: Option<u64>,
    pub start_timeout_ms: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub cpu_millis: Option<u64>,
    pub disk_bytes: Option<u64>,
    pub inodes: Option<u64>,
    pub pids: Option<u64>,
    pub open_files: Option<u64>,
    pub output_bytes: Option<u64>,
    pub result_output_bytes: Option<u64>,
    pub idle_ms: Option<u64>,
    pub max_age_ms: Option<u64>,
}

/// The limits that a session and its executions get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    pub timeout_ms: u64,
    pub start_timeout_ms: u64,
    pub memory_bytes: u64,
    pub cpu_millis: u64,
    pub disk_bytes: u64,
    pub inodes: u64,
    pub pids: u64,
    pub open_files: u64,
    pub output_bytes: u64,
    pub result_output_bytes: u64,
    pub idle_ms: u64,
    pub max_age_ms: u64,
}

/// A limit that was asked for above the maximum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clamped {
    /// Name of the field, as in [`RequestedLimits`].
    pub field: Cow<'static, str>,
    pub asked: u64,
    pub given: u64,
}

/// A limit that can't be meant, or that nothing could run under.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct LimitError {
    pub field: &'static str,
    /// What is wrong with the value, and what would be accepted.
    pub problem: String,
}

/// The least that makes sense; the kernel counts no CPU time below a hundredth of its period.
const LEAST: [(&str, u64); 5] = [
    ("cpu_millis", 10),
    ("memory_bytes", 8 << 20),
    ("disk_bytes", 64 << 10),
    ("inodes", 16),
    ("open_files", 16),
];

impl Resolved {
    /// Gives what the jailer is asked to enforce.
    pub fn quantities(&self) -> Quantities {
        Quantities {
            memory_bytes: self.memory_bytes,
            cpu_millis: self.cpu_millis,
            pids: self.pids,
            disk_bytes: self.disk_bytes,
            inodes: self.inodes,
            open_files: self.open_files,
            max_age_ms: self.max_age_ms,
        }
    }
}

impl Policy {
    /// Decides the limits of a session: absent is the default, zero is an error, above the maximum is clamped and told.
    pub fn resolve(&self, asked: &RequestedLimits) -> Result<(Resolved, Vec<Clamped>), LimitError> {
        let limits = &self.limits;
        let mut clamped = Vec::new();
        let mut take = |field, asked, bounds| take(&mut clamped, field, asked, bounds);
        let resolved = Resolved {
            timeout_ms: take("timeout_ms", asked.timeout_ms, limits.timeout.map(Span::millis))?,
            start_timeout_ms: take(
                "start_timeout_ms",
                asked.start_timeout_ms,
                Bounded::fixed(limits.start_timeout.millis()),
            )?,
            memory_bytes: take("memory_bytes", asked.memory_bytes, limits.memory.map(ByteSize::bytes))?,
            cpu_millis: take("cpu_millis", asked.cpu_millis, limits.cpus.map(Cpus::millis))?,
            disk_bytes: take("disk_bytes", asked.disk_bytes, limits.disk.map(ByteSize::bytes))?,
            inodes: take("inodes", asked.inodes, limits.inodes)?,
            pids: take("pids", asked.pids, limits.pids)?,
            open_files: take("open_files", asked.open_files, limits.open_files)?,
            output_bytes: take(
                "output_bytes",
                asked.output_bytes,
                limits.output_bytes.map(ByteSize::bytes),
            )?,
            result_output_bytes: take(
                "result_output_bytes",
                asked.result_output_bytes,
                Bounded::fixed(limits.result_output_bytes.bytes()),
            )?,
            idle_ms: take("idle_ms", asked.idle_ms, limits.session.idle.map(Span::millis))?,
            max_age_ms: take("max_age_ms", asked.max_age_ms, limits.session.max_age.map(Span::millis))?,
        };
        Ok((resolved, clamped))
    }
}

fn least(field: &str) -> u64 {
    LEAST
        .iter()
        .find(|(name, _)| *name == field)
        .map_or(1, |(_, least)| *least)
}

fn take(
    clamped: &mut Vec<Clamped>,
    field: &'static str,
    asked: Option<u64>,
    bounds: Bounded<u64>,
) -> Result<u64, LimitError> {
    match asked {
        None => Ok(bounds.default),
        Some(0) => Err(LimitError {
            field,
            problem: "0 is not a limit; leave it out for the default of the policy".to_owned(),
        }),
        Some(asked) if asked < least(field) => Err(LimitError {
            field,
            problem: format!("{asked} is too little; at least {}", least(field)),
        }),
        Some(asked) if asked > bounds.max => {
            clamped.push(Clamped {
                field: field.into(),
                asked,
                given: bounds.max,
            });
            Ok(bounds.max)
        }
        Some(asked) => Ok(asked),
    }
}
