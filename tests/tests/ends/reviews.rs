//! Ends of what waits for a reviewer: each in every way in which work can be run. Nothing of it ever runs.

use brig_proto::v1::{
    CauseKind, ContextsCreateRequest, ExecutionSpec, ExecutionStatus as Status, SessionsCreateRequest,
};
use brig_tests::policies::{Policies, REVIEWED};
use brig_tests::spec::{sh, small};
use brig_tests::{Daemon, Live};

/// What is provoked here.
pub(crate) const ENDS: [(Status, Option<CauseKind>); 5] = [
    (Status::Rejected, Some(CauseKind::Rejected)),
    (Status::Rejected, Some(CauseKind::ApprovalExpired)),
    (Status::Cancelled, Some(CauseKind::Cancel)),
    (Status::Cancelled, Some(CauseKind::ClientGone)),
    (Status::Cancelled, Some(CauseKind::SessionClosed)),
];

/// How work is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    RunCode,
    RunCommand,
    ExecuteCode,
    ExecuteCommand,
    InContext,
}

const WAYS: [Way; 5] = [
    Way::RunCode,
    Way::RunCommand,
    Way::ExecuteCode,
    Way::ExecuteCommand,
    Way::InContext,
];

/// Begins something under a policy that wants it approved, and waits until it waits.
fn begin(daemon: &Daemon, way: Way, policy: &str, name: &str) -> Live {
    let spec = match way {
        Way::RunCode | Way::ExecuteCode | Way::InContext => small("print('ran')"),
        Way::RunCommand | Way::ExecuteCommand => sh("echo ran"),
    };
    let spec = ExecutionSpec {
        execution_id: name.to_owned(),
        // Commands in a kept session would go on.
        on_disconnect: brig_proto::v1::OnDisconnect::Cancel.into(),
        ..spec
    };
    let session = format!("s{name}");
    let kept = || {
        daemon.create(SessionsCreateRequest {
            session_id: session.clone(),
            policy: policy.to_owned(),
            template: "base".to_owned(),
            ..SessionsCreateRequest::default()
        });
        ExecutionSpec {
            template: String::new(),
            ..spec.clone()
        }
    };
    let mut live = match way {
        Way::RunCode | Way::RunCommand => daemon.begin(ExecutionSpec {
            policy: policy.to_owned(),
            ..spec.clone()
        }),
        Way::ExecuteCode | Way::ExecuteCommand => daemon.execute(&session, kept()).unwrap(),
        Way::InContext => {
            let spec = kept();
            let request = ContextsCreateRequest {
                session_id: session.clone(),
                context_id: "c".to_owned(),
                language: "python".to_owned(),
                ..ContextsCreateRequest::default()
            };
            daemon.context(request).unwrap();
            daemon.execute_in(&session, "c", spec).unwrap()
        }
    };
    live.until_pending();
    live
}

fn compare(daemon: &Daemon, live: Live, name: &str, end: (Status, Option<CauseKind>)) {
    let outcome = live.finish();
    assert_eq!(outcome.end(), end, "{name}");
    let result = &outcome.result;
    assert_eq!(
        (result.exit_code, result.signal, &result.error),
        (None, None, &None),
        "{name}"
    );
    assert!(
        result.limits_hit.is_empty() && result.stdout.is_empty(),
        "{name}: {result:?}"
    );
    assert!(!outcome.order().contains(&"started"), "{name}: {:?}", outcome.order());
    // Whoever asks later is told the same, and nobody can let it run any more.
    assert_eq!(daemon.execution(name).result.as_ref(), Some(result), "{name}");
    assert_eq!(daemon.approve(name).unwrap_err().reason, "NOT_PENDING", "{name}");
}

fn daemon() -> Option<Daemon> {
    let policies = Policies::with(&[("asking", REVIEWED)])?;
    let soon = ("review_timeout = \"24h\"", "review_timeout = \"700ms\"");
    let policies = policies.and("hasty", &[REVIEWED, soon]);
    Daemon::start_with(policies.path())
}

#[test]
fn what_is_rejected_cancelled_or_left_ends_so_in_every_way_of_running() {
    let Some(daemon) = daemon() else { return };
    for (place, way) in WAYS.into_iter().enumerate() {
        let name = |what: &str| format!("{what}{place}");
        let live = begin(&daemon, way, "asking", &name("no"));
        daemon.reject(&name("no"), "it reads too much").unwrap();
        compare(&daemon, live, &name("no"), ENDS[0]);
        let live = begin(&daemon, way, "asking", &name("cancel"));
        daemon.cancel(&name("cancel"));
        compare(&daemon, live, &name("cancel"), ENDS[2]);
        drop(begin(&daemon, way, "asking", &name("gone")));
        let live = daemon.attach(&name("gone"), 0).unwrap();
        compare(&daemon, live, &name("gone"), ENDS[3]);
    }
}

#[test]
fn what_nobody_decides_about_in_time_has_expired_in_every_way_of_running() {
    let Some(daemon) = daemon() else { return };
    for (place, way) in WAYS.into_iter().enumerate() {
        let name = format!("late{place}");
        let live = begin(&daemon, way, "hasty", &name);
        compare(&daemon, live, &name, ENDS[1]);
    }
}

#[test]
fn what_waits_in_a_session_or_context_ends_with_it() {
    let Some(daemon) = daemon() else { return };
    let live = begin(&daemon, Way::ExecuteCommand, "asking", "e1");
    daemon.close("se1");
    compare(&daemon, live, "e1", ENDS[4]);
    let live = begin(&daemon, Way::InContext, "asking", "e2");
    daemon.close_context("se2", "c");
    compare(&daemon, live, "e2", ENDS[2]);
}
