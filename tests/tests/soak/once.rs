//! Sessions of one execution.

use std::time::Duration;

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{CauseKind, ExecutionSpec, ExecutionStatus as Status, Limits};
use brig_tests::Daemon;
use brig_tests::spec::{input, sh, small, span};

/// How a session ends, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Success,
    Python,
    Error,
    Timeout,
    OutOfMemory,
    Cancelled,
    ClientGone,
    Flood,
    Killed,
    Files,
}

impl Kind {
    pub(crate) const ALL: [Kind; 10] = [
        Kind::Success,
        Kind::Error,
        Kind::Timeout,
        Kind::OutOfMemory,
        Kind::Cancelled,
        Kind::ClientGone,
        Kind::Flood,
        Kind::Killed,
        Kind::Files,
        Kind::Python,
    ];

    pub(crate) fn end(self) -> (Status, Option<CauseKind>) {
        match self {
            Kind::Success | Kind::Flood | Kind::Files | Kind::Python => (Status::Success, None),
            Kind::Error => (Status::Error, None),
            Kind::Timeout => (Status::Timeout, Some(CauseKind::WallTime)),
            Kind::OutOfMemory => (Status::OutOfMemory, Some(CauseKind::Memory)),
            Kind::Cancelled => (Status::Cancelled, Some(CauseKind::Cancel)),
            Kind::ClientGone => (Status::Cancelled, Some(CauseKind::ClientGone)),
            Kind::Killed => (Status::Killed, Some(CauseKind::Signal)),
        }
    }

    fn spec(self) -> ExecutionSpec {
        let limits = |limits, spec| ExecutionSpec {
            limits: Some(limits),
            ..spec
        };
        match self {
            Kind::Success => sh("echo fine"),
            Kind::Python => small("print(sum(range(1000)))"),
            Kind::Error => sh("(setsid sleep 100 &); exit 3"),
            Kind::Timeout => {
                let timeout = Some(span(Duration::from_millis(150)));
                limits(
                    Limits {
                        timeout,
                        ..Limits::default()
                    },
                    sh("(setsid sleep 100 &); sleep 100"),
                )
            }
            Kind::OutOfMemory => {
                let (memory_bytes, disk_bytes) = (Some(16 << 20), Some(1 << 20));
                limits(
                    Limits {
                        memory_bytes,
                        disk_bytes,
                        ..Limits::default()
                    },
                    sh("exec tail /dev/zero"),
                )
            }
            Kind::Cancelled | Kind::ClientGone => sh("echo up; sleep 100"),
            Kind::Flood => limits(
                Limits {
                    output_bytes: Some(10_000),
                    ..Limits::default()
                },
                sh("head -c 2000000 /dev/zero"),
            ),
            Kind::Killed => sh("kill -9 $$"),
            Kind::Files => ExecutionSpec {
                inputs: vec![input("a.csv", b"a\n1\n")],
                ..sh("cp a.csv b.csv; mkfifo f; ln -s /etc/passwd p")
            },
        }
    }
}

/// One session from its start to its end.
pub(crate) fn session(daemon: &Daemon, kind: Kind, name: &str) {
    let mut live = daemon.begin(ExecutionSpec {
        policy: "strict".to_owned(),
        session_id: name.to_owned(),
        execution_id: name.to_owned(),
        ..kind.spec()
    });
    if matches!(kind, Kind::Cancelled | Kind::ClientGone) {
        live.until(|event| matches!(event, Event::Output(_)));
    }
    if kind == Kind::Cancelled {
        daemon.cancel(name);
    }
    if kind == Kind::ClientGone {
        drop(live);
        live = daemon.attach(name, 0).unwrap();
    }
    let outcome = live.finish();
    assert_eq!(outcome.end(), kind.end(), "{name}: {:?}", outcome.result);
}
