//! The most that any session of this host may have, whatever a policy says.
#![forbid(unsafe_code)]

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::problem::{Document, Problem};
use super::trust::{LoadError, Trust, read_text};
use super::{Bounded, Policy};
use crate::api::{Quantities, Refusal};
use crate::units::{ByteSize, Cpus, Span};

/// The most that any session of this host may have; root's own file, read by the jailer alone.
///
/// Policies travel with the package and are edited by whoever runs the service; this file bounds what a mistake there,
/// or a hijacked `brigd`, can take from the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ceilings {
    /// Sessions at one time. Each needs a block of 4,096 uids.
    pub sessions: u64,
    pub memory: ByteSize,
    pub cpus: Cpus,
    pub pids: u64,
    pub disk: ByteSize,
    pub inodes: u64,
    pub open_files: u64,
    pub max_age: Span,
    /// Memory of the host that must be available where a session is to be made ahead.
    pub reserve: ByteSize,
}

impl Default for Ceilings {
    fn default() -> Self {
        Self {
            sessions: 256,
            memory: ByteSize::from_mib(8 * 1024),
            cpus: Cpus::from_millis(8000),
            pids: 4096,
            disk: ByteSize::from_mib(8 * 1024),
            inodes: 1_000_000,
            open_files: 65_536,
            max_age: Span::from_secs(24 * 60 * 60),
            reserve: ByteSize::from_mib(1024),
        }
    }
}

impl Ceilings {
    /// Reads the file; where there is none the defaults hold.
    pub fn load(path: &Path, trust: Trust) -> Result<Self, LoadError> {
        match read_text(path, trust) {
            Ok(text) => Self::parse(path, &text).map_err(LoadError::Invalid),
            Err(LoadError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Reads and checks a text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Vec<Problem>> {
        let (ceilings, document): (Self, _) = Document::parse(path, text).map_err(|problem| vec![problem])?;
        let Self {
            sessions,
            memory,
            cpus,
            pids,
            disk,
            inodes,
            open_files,
            max_age,
            reserve,
        } = ceilings;
        let values = [
            ("sessions", sessions),
            ("memory", memory.bytes()),
            ("cpus", cpus.millis()),
            ("pids", pids),
            ("disk", disk.bytes()),
            ("inodes", inodes),
            ("open_files", open_files),
            ("max_age", max_age.millis()),
            ("reserve", reserve.bytes()),
        ];
        let zero = values.into_iter().filter(|(_, value)| *value == 0);
        let problems: Vec<_> = zero.map(|(key, _)| document.problem(key, super::check::ZERO)).collect();
        if problems.is_empty() {
            Ok(ceilings)
        } else {
            Err(problems)
        }
    }
}

/// Holds the quantities of a session against its policy and the host's ceilings.
///
/// `brigd` has already put in defaults and clamped, so whatever is out of bounds here is refused, not mended.
pub fn check_quantities(policy: &Policy, ceilings: &Ceilings, quantities: &Quantities) -> Result<(), Refusal> {
    let Quantities {
        memory_bytes,
        cpu_millis,
        pids,
        disk_bytes,
        inodes,
        open_files,
        max_age_ms,
    } = *quantities;
    let limits = &policy.limits;
    let rows = [
        (
            "memory_bytes",
            memory_bytes,
            limits.memory.max.bytes(),
            ceilings.memory.bytes(),
        ),
        (
            "cpu_millis",
            cpu_millis,
            limits.cpus.max.millis(),
            ceilings.cpus.millis(),
        ),
        ("pids", pids, limits.pids.max, ceilings.pids),
        ("disk_bytes", disk_bytes, limits.disk.max.bytes(), ceilings.disk.bytes()),
        ("inodes", inodes, limits.inodes.max, ceilings.inodes),
        ("open_files", open_files, limits.open_files.max, ceilings.open_files),
        (
            "max_age_ms",
            max_age_ms,
            limits.session.max_age.max.millis(),
            ceilings.max_age.millis(),
        ),
    ];
    for (field, value, max, ceiling) in rows {
        in_bounds(field, value, max, &format!("the maximum of policy {}", policy.name))?;
        in_bounds(field, value, ceiling, "the ceiling of this host (ceilings.toml)")?;
    }
    Ok(())
}

/// Holds the wall time of an execution against the policy.
pub fn check_timeout(policy: &Policy, timeout_ms: u64) -> Result<(), Refusal> {
    let Bounded { max, .. } = policy.limits.timeout;
    in_bounds(
        "timeout_ms",
        timeout_ms,
        max.millis(),
        &format!("the maximum of policy {}", policy.name),
    )
}

fn in_bounds(field: &str, value: u64, max: u64, whose: &str) -> Result<(), Refusal> {
    let refuse = |message| {
        Err(Refusal::Invalid {
            field: field.to_owned(),
            message,
        })
    };
    match value {
        0 => refuse("0 is never a limit".to_owned()),
        value if value > max => refuse(format!("{value} is above {max}, {whose}")),
        _ => Ok(()),
    }
}
