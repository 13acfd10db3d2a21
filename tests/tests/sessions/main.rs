//! Kept sessions, with real jails.
#![allow(clippy::unwrap_used, reason = "a test that can't go on should stop")]

mod ends;
mod life;
mod pause;
mod restart;
mod usage;
mod watch;

use std::time::{Duration, Instant};

use brig_proto::v1::executions_client::ExecutionsClient;
use brig_proto::v1::sessions_client::SessionsClient;
use brig_proto::v1::{
    ExecuteRequest, ExecutionEvent, ExecutionSpec, ExecutionsInterruptRequest, Session, SessionState,
    SessionsCloseRequest, SessionsCreateRequest, SessionsGetRequest,
};
use brig_tests::{DEADLINE, Daemon, Live, Outcome};
use tonic::{Status, Streaming};

/// What a client does with sessions of a daemon.
struct Kept<'d> {
    daemon: &'d Daemon,
}

/// An execution in a session; whoever holds it is its caller.
struct Running {
    _caller: Streaming<ExecutionEvent>,
    live: Live,
}

impl Kept<'_> {
    fn sessions(&self) -> SessionsClient<tonic::transport::Channel> {
        SessionsClient::new(self.daemon.connect())
    }

    fn create(&self, request: SessionsCreateRequest) -> Session {
        let answer = self.daemon.wait(self.sessions().create(request)).unwrap();
        answer.into_inner().session.unwrap()
    }

    fn shown(&self, id: &str) -> Session {
        let request = SessionsGetRequest {
            session_id: id.to_owned(),
        };
        let answer = self.daemon.wait(self.sessions().get(request)).unwrap();
        answer.into_inner().session.unwrap()
    }

    fn close(&self, id: &str) -> Session {
        let request = SessionsCloseRequest {
            session_id: id.to_owned(),
            ..SessionsCloseRequest::default()
        };
        let answer = self.daemon.wait(self.sessions().close(request)).unwrap();
        answer.into_inner().session.unwrap()
    }

    fn closed(&self, id: &str) -> Session {
        let deadline = Instant::now() + *DEADLINE;
        loop {
            let session = self.shown(id);
            if session.state() == SessionState::Closed {
                return session;
            }
            assert!(Instant::now() < deadline, "{session:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn try_execute(&self, session: &str, spec: ExecutionSpec) -> Result<Streaming<ExecutionEvent>, Status> {
        let mut client = ExecutionsClient::new(self.daemon.connect());
        let request = ExecuteRequest {
            session_id: session.to_owned(),
            context_id: String::new(),
            spec: Some(spec),
        };
        Ok(self.daemon.wait(client.execute(request))?.into_inner())
    }

    /// Starts something under a name.
    fn begin(&self, session: &str, id: &str, spec: ExecutionSpec) -> Running {
        let spec = ExecutionSpec {
            execution_id: id.to_owned(),
            ..spec
        };
        let caller = self.try_execute(session, spec).unwrap();
        Running {
            _caller: caller,
            live: self.daemon.attach(id, 0).unwrap(),
        }
    }

    fn execute(&self, session: &str, id: &str, spec: ExecutionSpec) -> Outcome {
        let running = self.begin(session, id, spec);
        running.live.finish()
    }

    fn interrupt(&self, execution: &str) {
        let request = ExecutionsInterruptRequest {
            execution_id: execution.to_owned(),
            ..ExecutionsInterruptRequest::default()
        };
        self.daemon.wait(self.daemon.client().interrupt(request)).unwrap();
    }
}

/// A session under a name, in the small image.
fn named(id: &str) -> SessionsCreateRequest {
    SessionsCreateRequest {
        session_id: id.to_owned(),
        template: "base".to_owned(),
        ..SessionsCreateRequest::default()
    }
}
