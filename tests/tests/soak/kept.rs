//! Sessions that are kept for several executions, and how they end.

use std::time::{Duration, SystemTime};

use brig_proto::v1::files_download_response::Part as Got;
use brig_proto::v1::files_upload_request::Part as Sent;
use brig_proto::v1::{
    CauseKind, ExecutionSpec, ExecutionStatus as Status, FilesDownloadRequest, FilesUploadRequest, Limits,
    SessionCloseReason, SessionState, SessionsCreateRequest, SessionsUpdateRequest, UploadSpec,
};
use brig_tests::spec::{sh, small, span, timeout};
use brig_tests::{Daemon, Live, eventually, slow};

/// How a kept session is used and ends, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Several executions, then Close.
    Commands,
    /// Files in and out, then Close.
    Files,
    /// What ends executions and not the session, then Close.
    Ends,
    /// Close while something runs.
    ClosedUnder,
    /// Nobody uses it any more.
    Idle,
    /// It expires under what runs.
    Expired,
}

/// How its executions end, and why the session does.
pub(crate) type Ends = (&'static [(Status, Option<CauseKind>)], SessionCloseReason);

const SUCCESS: (Status, Option<CauseKind>) = (Status::Success, None);

impl Kind {
    pub(crate) const ALL: [Kind; 6] = [
        Kind::Commands,
        Kind::Files,
        Kind::Ends,
        Kind::ClosedUnder,
        Kind::Idle,
        Kind::Expired,
    ];

    pub(crate) fn ends(self) -> Ends {
        use SessionCloseReason as Reason;
        match self {
            Kind::Commands => (&[SUCCESS, (Status::Error, None), SUCCESS], Reason::Asked),
            Kind::Files => (&[SUCCESS], Reason::Asked),
            Kind::Ends => (
                &[
                    (Status::Timeout, Some(CauseKind::WallTime)),
                    (Status::OutOfMemory, Some(CauseKind::Memory)),
                    (Status::Cancelled, Some(CauseKind::Cancel)),
                ],
                Reason::Asked,
            ),
            Kind::ClosedUnder => (
                &[SUCCESS, (Status::Cancelled, Some(CauseKind::SessionClosed))],
                Reason::Asked,
            ),
            Kind::Idle => (&[SUCCESS], Reason::Idle),
            Kind::Expired => (&[(Status::Timeout, Some(CauseKind::SessionAge))], Reason::Expired),
        }
    }

    fn executions(self) -> Vec<ExecutionSpec> {
        let forever = || sh("echo up; (setsid sleep 100 &); sleep 100");
        match self {
            Kind::Commands => vec![sh("echo a > a"), sh("cat a; exit 3"), small("print(open('a').read())")],
            Kind::Files => vec![sh("cat put.csv put.csv > made.csv")],
            Kind::Ends => vec![
                ExecutionSpec {
                    limits: timeout(3000),
                    ..forever()
                },
                sh("exec tail /dev/zero"),
                forever(),
            ],
            Kind::ClosedUnder => vec![sh("head -c 100000 /dev/zero"), forever()],
            Kind::Idle => vec![sh("echo fine")],
            Kind::Expired => vec![forever()],
        }
    }

    fn request(self, name: &str) -> SessionsCreateRequest {
        SessionsCreateRequest {
            session_id: name.to_owned(),
            request_id: name.to_owned(),
            policy: "strict".to_owned(),
            template: "base".to_owned(),
            limits: Some(Limits {
                disk_bytes: Some(1 << 20),
                memory_bytes: Some(24 << 20),
                ..Limits::default()
            }),
            ..SessionsCreateRequest::default()
        }
    }
}

/// One session from its start to its end.
pub(crate) fn session(daemon: &Daemon, kind: Kind, name: &str) {
    daemon.create(kind.request(name));
    if kind == Kind::Files {
        put(daemon, name);
    }
    let (ends, reason) = kind.ends();
    let mut last = None;
    for (number, spec) in kind.executions().into_iter().enumerate() {
        let execution = format!("{name}n{number}");
        let live = begin(daemon, name, &execution, spec);
        if matches!(ends[number].1, Some(CauseKind::SessionClosed | CauseKind::SessionAge)) {
            last = Some((live, ends[number]));
            break;
        }
        if ends[number].1 == Some(CauseKind::Cancel) {
            daemon.cancel(&execution);
        }
        let outcome = live.finish();
        assert_eq!(outcome.end(), ends[number], "{execution}: {:?}", outcome.result);
    }
    if kind == Kind::Files {
        get(daemon, name);
    }
    match reason {
        SessionCloseReason::Idle => update(daemon, name, "idle_timeout"),
        SessionCloseReason::Expired => update(daemon, name, "expire_time"),
        _ => drop(daemon.close(name)),
    }
    if let Some((live, end)) = last {
        assert_eq!(live.finish().end(), end, "{name}");
    }
    eventually("the session is closed", Duration::from_secs(20) * slow(), || {
        let session = daemon.session(name);
        match session.state() {
            SessionState::Closed => Ok(()),
            state => Err(state),
        }
    });
    assert_eq!(daemon.session(name).close_reason(), reason, "{name}");
}

fn begin(daemon: &Daemon, session: &str, execution: &str, spec: ExecutionSpec) -> Live {
    let is_long = spec.work == sh("echo up; (setsid sleep 100 &); sleep 100").work;
    let spec = ExecutionSpec {
        execution_id: execution.to_owned(),
        request_id: execution.to_owned(),
        template: String::new(),
        ..spec
    };
    let mut live = daemon.execute(session, spec).unwrap();
    if is_long {
        live.until_written("up\n");
    }
    live
}

/// Has a session end soon if nobody uses it, or anyhow.
fn update(daemon: &Daemon, session: &str, field: &str) {
    let soon = Duration::from_millis(50);
    let request = SessionsUpdateRequest {
        request_id: format!("{session}update"),
        session_id: session.to_owned(),
        update_mask: Some(prost_types::FieldMask {
            paths: vec![field.to_owned()],
        }),
        idle_timeout: Some(span(soon)),
        expire_time: Some((SystemTime::now() + soon * 40).into()),
        ..SessionsUpdateRequest::default()
    };
    daemon.ask(daemon.sessions().update(request)).unwrap();
}

const CONTENT: &[u8] = b"a,b\n1,2\n";

fn put(daemon: &Daemon, session: &str) {
    let spec = UploadSpec {
        request_id: format!("{session}put"),
        session_id: session.to_owned(),
        path: "put.csv".to_owned(),
        ..UploadSpec::default()
    };
    let parts = [Sent::Spec(spec), Sent::Data(CONTENT.into())];
    let messages = parts.map(|part| FilesUploadRequest { part: Some(part) });
    let put = daemon.ask(daemon.files().upload(tokio_stream::iter(messages)));
    assert_eq!(put.unwrap().file.unwrap().size_bytes, CONTENT.len() as u64);
}

fn get(daemon: &Daemon, session: &str) {
    let request = FilesDownloadRequest {
        session_id: session.to_owned(),
        path: "made.csv".to_owned(),
        ..FilesDownloadRequest::default()
    };
    let mut stream = daemon.ask(daemon.files().download(request)).unwrap();
    let mut got = Vec::new();
    while let Some(message) = daemon.wait(stream.message()).unwrap() {
        if let Some(Got::Data(data)) = message.part {
            got.extend_from_slice(&data);
        }
    }
    assert_eq!(got, CONTENT.repeat(2));
}
