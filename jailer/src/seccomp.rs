//! Syscall filters: from groups of reasons to the programs that the kernel runs.
//!
//! A group is a file that lists system calls, each with the reason why a guest needs it; a policy names groups. What no
//! group lists fails with ENOSYS, the answer of a kernel that does not have the call, so that the C library and Python
//! take their other ways (with EPERM for clone3, no thread starts). Calls of a foreign architecture kill the process:
//! they have other numbers. All filters are allow-lists, which also covers what later kernels add.
//!
//! Filters are inherited and only narrow. That of pid 1 therefore allows what its session's programs may do, and what
//! it needs to start them (group `init`).
//!
//! Source: seccomp(2).
#![forbid(unsafe_code)]

mod constants;
mod evaluate;
mod group;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule, TargetArch};
use sha2::{Digest, Sha256};

pub use self::evaluate::{ALLOW, ENOSYS, KILL_PROCESS, evaluate};
use self::group::{Condition, Group};
use crate::policy::{LoadError, Trust, hex, list, nearest, read_text};

/// The group that belongs to pid 1; no policy may name it.
const INIT: &str = "init";
/// The group that belongs to zygotes; no policy may name it.
const ZYGOTE: &str = "zygote";
/// The group that every program needs, pid 1 too.
const BASE: &str = "base";

/// The groups of system calls that policies name.
#[derive(Debug, Clone, Default)]
pub struct Groups(BTreeMap<String, Group>);

/// A compiled filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// What it was compiled for.
    pub name: String,
    /// The first 12 hex digits of SHA-256 over the programs.
    pub hash: String,
    /// Programs in the order in which they are installed: `struct sock_filter`, 8 bytes each.
    pub programs: Vec<Vec<u8>>,
}

/// Why groups could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    #[error("no syscall group named {name:?}{}; there are: {}", meant(.name, .existing), .existing.join(", "))]
    UnknownGroup { name: String, existing: Vec<String> },
    #[error("the syscall group {0:?} belongs to Brig's own processes in a jail, no policy may name it")]
    Reserved(String),
    #[error("syscall filter {name}: {source}")]
    Backend {
        name: String,
        source: seccompiler::BackendError,
    },
}

fn meant(name: &str, existing: &[String]) -> String {
    let found = nearest(name, existing.iter().map(String::as_str));
    found
        .map(|found| format!(", did you mean {found:?}?"))
        .unwrap_or_default()
}

/// What a filter allows: for each call the sets of conditions of which one must hold; an empty set always does.
type Allowed = BTreeMap<i64, BTreeSet<Vec<Condition>>>;

impl Groups {
    /// Reads all groups; a file of a later folder replaces one with the same name whole.
    pub fn load(folders: &[PathBuf], trust: Trust) -> Result<Self, LoadError> {
        let mut files = BTreeMap::new();
        for folder in folders {
            files.extend(list(folder, trust)?);
        }
        if files.is_empty() {
            return Err(LoadError::Empty {
                what: "syscall group",
                folders: folders.to_vec(),
            });
        }
        let mut groups = BTreeMap::new();
        let mut problems = Vec::new();
        for (name, path) in files {
            match Group::parse(&path, &read_text(&path, trust)?) {
                Ok(group) => drop(groups.insert(name, group)),
                Err(found) => problems.extend(found),
            }
        }
        if problems.is_empty() {
            Ok(Self(groups))
        } else {
            Err(LoadError::Invalid(problems))
        }
    }

    /// Lists the names that a policy may use.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0
            .keys()
            .map(String::as_str)
            .filter(|name| ![INIT, ZYGOTE].contains(name))
    }

    /// Compiles the filter of a policy's guests.
    pub fn compile(&self, policy: &str, groups: &[String]) -> Result<Filter, SeccompError> {
        compile(policy, self.allowed(groups)?)
    }

    /// Compiles the filter of pid 1 of a session with this policy.
    pub fn compile_init(&self, policy: &str, groups: &[String]) -> Result<Filter, SeccompError> {
        let mut allowed = self.allowed(groups)?;
        self.add(&mut allowed, BASE)?;
        self.add(&mut allowed, INIT)?;
        compile(&format!("{policy}-{INIT}"), allowed)
    }

    /// Compiles the filter of a zygote whose children are guests of this policy.
    pub fn compile_zygote(&self, policy: &str, groups: &[String]) -> Result<Filter, SeccompError> {
        let mut allowed = self.allowed(groups)?;
        self.add(&mut allowed, BASE)?;
        self.add(&mut allowed, ZYGOTE)?;
        compile(&format!("{policy}-{ZYGOTE}"), allowed)
    }

    /// Compiles the filter of pid 1 of the session that a zygote lives in: filters are inherited.
    pub fn compile_keeper(&self, policy: &str, groups: &[String]) -> Result<Filter, SeccompError> {
        let mut allowed = self.allowed(groups)?;
        for group in [BASE, INIT, ZYGOTE] {
            self.add(&mut allowed, group)?;
        }
        compile(&format!("{policy}-keeper"), allowed)
    }

    fn allowed(&self, groups: &[String]) -> Result<Allowed, SeccompError> {
        let mut allowed = Allowed::new();
        for name in groups {
            if [INIT, ZYGOTE].contains(&name.as_str()) {
                return Err(SeccompError::Reserved(name.clone()));
            }
            self.add(&mut allowed, name)?;
        }
        Ok(allowed)
    }

    fn add(&self, allowed: &mut Allowed, name: &str) -> Result<(), SeccompError> {
        let group = self.0.get(name).ok_or_else(|| SeccompError::UnknownGroup {
            name: name.chars().take(60).collect(),
            existing: self.names().map(str::to_owned).collect(),
        })?;
        for (number, conditions) in &group.allow {
            allowed.entry(*number).or_default().insert(conditions.clone());
        }
        Ok(())
    }
}

impl Filter {
    /// Counts the instructions of all programs; the kernel takes 4,096 of one.
    pub fn instructions(&self) -> usize {
        self.programs.iter().map(|program| program.len() / 8).sum()
    }

    /// Gives the name with the hash, as results show it.
    pub fn id(&self) -> String {
        format!("{}@{}", self.name, self.hash)
    }
}

fn compile(name: &str, allowed: Allowed) -> Result<Filter, SeccompError> {
    let failed = |source| SeccompError::Backend {
        name: name.to_owned(),
        source,
    };
    let mut rules = BTreeMap::new();
    for (number, alternatives) in allowed {
        rules.insert(number, alternatives_rules(&alternatives).map_err(failed)?);
    }
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(failed)?;
    let refuse = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, architecture).map_err(failed)?;
    let program = BpfProgram::try_from(filter).map_err(failed)?;
    let program: Vec<u8> = program.iter().flat_map(instruction_bytes).collect();
    let hash = hex(&Sha256::digest(&program))[..12].to_owned();
    Ok(Filter {
        name: name.to_owned(),
        hash,
        programs: vec![program],
    })
}

/// No rule means that the call is allowed whatever its arguments are.
fn alternatives_rules(alternatives: &BTreeSet<Vec<Condition>>) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    if alternatives.contains(&Vec::new()) {
        return Ok(Vec::new());
    }
    let rule = |conditions: &Vec<Condition>| {
        let conditions: Result<Vec<_>, _> = conditions.iter().map(|condition| condition.compiled()).collect();
        SeccompRule::new(conditions?)
    };
    alternatives.iter().map(rule).collect()
}

fn instruction_bytes(instruction: &seccompiler::sock_filter) -> [u8; 8] {
    let [code_low, code_high] = instruction.code.to_le_bytes();
    let [a, b, c, d] = instruction.k.to_le_bytes();
    [code_low, code_high, instruction.jt, instruction.jf, a, b, c, d]
}

#[cfg(test)]
mod tests;
