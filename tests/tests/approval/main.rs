//! Code that waits for a reviewer: what they see, who may decide, and what a decision sets going.
#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod bounds;
mod command;
mod kept;
mod once;
mod recorded;
mod restart;
mod who;

use brig_proto::v1::ExecutionSpec;
use brig_tests::Daemon;
use brig_tests::policies::{Policies, REVIEWED};
use brig_tests::spec::sh;

/// A policy beside the shipped ones under which everything is approved.
const ASKING: &str = "asking";

fn policies() -> Option<Policies> {
    Policies::with(&[(ASKING, REVIEWED)])
}

/// A daemon with that policy. The folder of the policies lives as long as it.
fn daemon(configuration: &str) -> Option<(Daemon, Policies)> {
    let policies = policies()?;
    Daemon::start_as(policies.path(), configuration).map(|daemon| (daemon, policies))
}

/// Has something wait under a name.
fn asking(name: &str, spec: ExecutionSpec) -> ExecutionSpec {
    ExecutionSpec {
        execution_id: name.to_owned(),
        policy: ASKING.to_owned(),
        ..spec
    }
}

fn script(name: &str, script: &str) -> ExecutionSpec {
    asking(name, sh(script))
}
