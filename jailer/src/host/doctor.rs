//! Looks at the host: what Brig can enforce here, what it can't, and what to do about it.
//!
//! Whatever can be tried is tried: a setting says what somebody meant, the kernel says what holds. [`NEEDS`] is the
//! list; docs/host.md shows it to people, and a test compares the two.

mod kernel;
mod limits;
mod optional;
mod places;

pub use kernel::{CAPABILITIES, SYSTEM_CALLS};

use super::Places;
use crate::api::{Check, HostReport, Verdict};

/// One thing that Brig needs of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Short name, as [`Check::what`] has it.
    pub what: &'static str,
    pub needed: &'static str,
    pub without: Without,
}

/// What follows from a lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// No session is made.
    NoSession,
    /// Sessions are made, and their result says that this is not enforced.
    Told,
    /// Requests that name it are refused.
    Refused,
}

impl Without {
    /// As docs/host.md says it.
    pub fn text(self) -> &'static str {
        match self {
            Self::NoSession => "no session is made",
            Self::Told => "sessions run; the result says that it is not enforced",
            Self::Refused => "what asks for it is refused",
        }
    }
}

/// Everything that is looked at, in the order of the report.
pub const NEEDS: &[Need] = &[
    need(
        "privilege",
        "root with the capabilities listed below",
        Without::NoSession,
    ),
    need("kernel", "6.1 or later", Without::NoSession),
    need("system calls", "those listed below", Without::NoSession),
    need("user namespaces", "the jailer can make them", Without::NoSession),
    need(
        "/proc",
        "a fresh one can be mounted in a user namespace",
        Without::NoSession,
    ),
    need(
        "cgroup tracking",
        "a version 2 tree that can be written",
        Without::NoSession,
    ),
    need("cgroup memory", "a group that can be divided", Without::NoSession),
    need("cgroup cpu", "a group that can be divided", Without::NoSession),
    need("cgroup pids", "a group that can be divided", Without::NoSession),
    need("swap", "none, or limited per session", Without::Told),
    need("landlock", "version 2 or later", Without::NoSession),
    need("seccomp", "filters that answer and kill", Without::NoSession),
    need(
        "uid range",
        "not handed out in /etc/subuid or /etc/subgid",
        Without::NoSession,
    ),
    need("programs", "brig-init and brig-files", Without::NoSession),
    need("images", "at least one", Without::Refused),
    need("cgroup io", "for policies with limits.io", Without::Refused),
    need(
        "workspace disk",
        "for policies with limits.workspace = \"disk\"",
        Without::Refused,
    ),
];

const fn need(what: &'static str, needed: &'static str, without: Without) -> Need {
    Need { what, needed, without }
}

/// What was found, or what is missing and how to mend it.
type Found = Result<String, Lack>;

#[derive(Debug)]
struct Lack {
    found: String,
    mend: String,
}

fn lack(found: impl Into<String>, mend: impl Into<String>) -> Lack {
    Lack {
        found: found.into(),
        mend: mend.into(),
    }
}

/// Looks at everything. Changes nothing, but for moving the processes of a delegated group one level down.
pub fn report(places: &Places) -> HostReport {
    let mut found = kernel::look();
    found.extend(limits::look());
    found.extend(places::look(places));
    let mut checks: Vec<Check> = found.into_iter().map(|(what, found)| check(what, found)).collect();
    checks.extend(optional::look(places));
    checks.sort_by_key(|check| NEEDS.iter().position(|need| need.what == check.what));
    HostReport { checks, sessions: 0 }
}

/// What keeps every session from being made, in one line.
pub(super) fn missing(report: &HostReport) -> Option<String> {
    let missing: Vec<String> = report
        .checks
        .iter()
        .filter(|check| check.verdict == Verdict::Missing && check.what != "images")
        .map(|check| {
            format!(
                "{}: {} (needed: {}; {})",
                check.what, check.found, check.needed, check.mend
            )
        })
        .collect();
    (!missing.is_empty()).then(|| missing.join("; "))
}

fn check(what: &'static str, found: Found) -> Check {
    let need = NEEDS.iter().find(|need| need.what == what);
    let (needed, without) = need.map_or(("", Without::NoSession), |need| (need.needed, need.without));
    let (found, mend, verdict) = match (found, without) {
        (Ok(found), _) => (found, String::new(), Verdict::Ok),
        (Err(lack), Without::Told) => (lack.found, lack.mend, Verdict::Degraded),
        (Err(lack), _) => (lack.found, lack.mend, Verdict::Missing),
    };
    Check {
        what: what.to_owned(),
        found,
        needed: needed.to_owned(),
        verdict,
        mend,
    }
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
