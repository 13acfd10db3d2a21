//! Executions for tests that need one but run nothing.

use std::sync::Arc;

use brig_jailer::ids::Id;
use brig_jailer::policy::{Policy, RequestedLimits};
use brig_proto::v1::{ExecutionSpec, OnDisconnect};

use crate::config::Role;
use crate::principal::Principal;
use crate::run::admit::{ArtifactLimits, Conditions, Image, Job, Times, Work};
use crate::run::execution::Execution;

/// A checked command under a policy that lets everything leave, with limits as they are shipped.
pub(super) fn job(id: &str) -> Job {
    let classes = ["chart", "data", "report", "code", "executable", "archive", "other"];
    let rules = classes.map(|class| format!("[artifacts.{class}]\nhandling = \"download\"\n"));
    let text = format!(
        "template = \"base\"\n[syscalls]\ngroups = [\"base\"]\n{}",
        rules.concat()
    );
    let policy = Policy::parse("open", &text).unwrap();
    let (limits, clamped) = policy.resolve(&RequestedLimits::default()).unwrap();
    let template = Image {
        id: "base@000000000000".to_owned(),
        runs_code: false,
    };
    Job {
        execution: Id::parse(id).unwrap(),
        session: Id::parse(&format!("s{id}")).unwrap(),
        named: [false; 2],
        request: None,
        work: Work::Command {
            argv: vec![b"true".to_vec()],
            directory: None,
        },
        inputs: Vec::new(),
        environment: Vec::new(),
        stdin: None,
        stdin_open: false,
        terminal: None,
        merge_stderr: false,
        on_disconnect: OnDisconnect::Cancel,
        template,
        conditions: Conditions {
            policy: Arc::new(policy),
            limits,
            times: Times::default(),
            clamped,
            artifacts: ArtifactLimits {
                bytes_each: 50 << 20,
                count: 64,
                depth: 8,
            },
            expected: Vec::new(),
            want_inline: true,
        },
        ahead: None,
        dock: None,
    }
}

/// Somebody of the default tenant who may do everything.
pub(super) fn principal() -> Arc<Principal> {
    Arc::new(Principal {
        tenant: "default".to_owned(),
        class: "default".to_owned(),
        user: "somebody".to_owned(),
        roles: Role::ALL.to_vec(),
    })
}

/// An accepted execution.
pub(crate) fn execution(id: &str, spec: ExecutionSpec) -> Arc<Execution> {
    Arc::new(Execution::new(&job(id), spec, [0; 32], principal(), None))
}
