//! The system calls that the policy `data` allows, for peers that take names. Conditions on arguments are left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Context;
use brig_jailer::policy::{PolicySet, Trust};
use serde::Deserialize;
use serde_json::{Value, json};

/// What a call answers that is not allowed. Source: errno(3), ENOSYS.
pub(super) const REFUSED: u32 = 38;

/// A file of `policies/syscalls`, as far as it matters here.
#[derive(Debug, Deserialize)]
struct Group {
    allow: Vec<Call>,
}

#[derive(Debug, Deserialize)]
struct Call {
    syscall: String,
}

/// Their names.
pub(super) fn calls(policies: &Path) -> anyhow::Result<BTreeSet<String>> {
    let set = PolicySet::load(&[policies.to_owned()], Trust::RootOwned)?;
    let mut calls = BTreeSet::new();
    for name in &set.get("data")?.rules.syscalls.groups {
        let path = policies.join(format!("syscalls/{name}.toml"));
        let text = fs::read_to_string(&path)?;
        let group: Group = toml::from_str(&text).with_context(|| path.display().to_string())?;
        calls.extend(group.allow.into_iter().map(|call| call.syscall));
    }
    Ok(calls)
}

/// The filter as runtimes of containers take it.
pub(super) fn filter(calls: &BTreeSet<String>) -> Value {
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": REFUSED,
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{"names": calls, "action": "SCMP_ACT_ALLOW"}],
    })
}
