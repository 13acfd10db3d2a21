//! The sessions of the daemon.

use std::pin::Pin;

use brig_proto::v1::sessions_server::Sessions;
use brig_proto::v1::sessions_watch_response::Event;
use brig_proto::v1::{
    Reason, Session, SessionState, SessionsCloseRequest, SessionsCloseResponse, SessionsCreateRequest,
    SessionsCreateResponse, SessionsForkRequest, SessionsForkResponse, SessionsGetRequest, SessionsGetResponse,
    SessionsListRequest, SessionsListResponse, SessionsPauseRequest, SessionsPauseResponse, SessionsResumeRequest,
    SessionsResumeResponse, SessionsUpdateRequest, SessionsUpdateResponse, SessionsWatchRequest, SessionsWatchResponse,
    WatchOverflow, WatchReady,
};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, async_trait};

use super::executions::reason;
use super::{Scripted, unused};

/// Sessions on a page, whatever is asked for.
const PAGE: usize = 2;

impl Scripted {
    fn paused(&self, paused: bool, id: &str, request: String) -> Result<Session, Status> {
        self.note(|asked| asked.paused.push((paused, id.to_owned(), request)))?;
        let state = if paused {
            SessionState::Paused
        } else {
            SessionState::Running
        };
        Ok(Session {
            state: state.into(),
            ..self.session(id)?
        })
    }

    fn session(&self, id: &str) -> Result<Session, Status> {
        let found = self.script.sessions.iter().find(|session| session.session_id == id);
        found
            .cloned()
            .ok_or_else(|| reason(Reason::SessionNotFound, &format!("no session {id:?}")))
    }
}

#[async_trait]
impl Sessions for Scripted {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<SessionsWatchResponse, Status>> + Send>>;

    async fn create(
        &self,
        request: Request<SessionsCreateRequest>,
    ) -> Result<Response<SessionsCreateResponse>, Status> {
        let request = request.into_inner();
        self.note(|asked| asked.created.push(request.clone()))?;
        let session_id = match request.session_id.as_str() {
            "" => "s1".to_owned(),
            id => id.to_owned(),
        };
        let session = Session {
            session_id,
            state: SessionState::Running.into(),
            idle_timeout: Some(prost_types::Duration { seconds: 600, nanos: 0 }),
            labels: request.labels,
            ..Session::default()
        };
        Ok(Response::new(SessionsCreateResponse {
            session: Some(session),
            access_token: String::new(),
        }))
    }

    async fn get(&self, request: Request<SessionsGetRequest>) -> Result<Response<SessionsGetResponse>, Status> {
        self.note(|_| ())?;
        let session = self.session(&request.into_inner().session_id)?;
        Ok(Response::new(SessionsGetResponse { session: Some(session) }))
    }

    async fn list(&self, request: Request<SessionsListRequest>) -> Result<Response<SessionsListResponse>, Status> {
        let request = request.into_inner();
        self.note(|asked| asked.listed.push(request.clone()))?;
        let from = request.page_token.parse().unwrap_or(0);
        let all = &self.script.sessions;
        let sessions: Vec<_> = all.iter().skip(from).take(PAGE).cloned().collect();
        let next = from + sessions.len();
        let next_page_token = if next < all.len() {
            next.to_string()
        } else {
            String::new()
        };
        Ok(Response::new(SessionsListResponse {
            sessions,
            next_page_token,
        }))
    }

    async fn update(
        &self,
        request: Request<SessionsUpdateRequest>,
    ) -> Result<Response<SessionsUpdateResponse>, Status> {
        let request = request.into_inner();
        self.note(|asked| asked.updated.push(request.clone()))?;
        let session = self.session(&request.session_id)?;
        Ok(Response::new(SessionsUpdateResponse { session: Some(session) }))
    }

    async fn close(&self, request: Request<SessionsCloseRequest>) -> Result<Response<SessionsCloseResponse>, Status> {
        let id = request.into_inner().session_id;
        self.note(|asked| asked.closed.push(id.clone()))?;
        let session = Session {
            state: SessionState::Closed.into(),
            ..self.session(&id)?
        };
        Ok(Response::new(SessionsCloseResponse { session: Some(session) }))
    }

    async fn pause(&self, request: Request<SessionsPauseRequest>) -> Result<Response<SessionsPauseResponse>, Status> {
        let request = request.into_inner();
        let session = self.paused(true, &request.session_id, request.request_id)?;
        Ok(Response::new(SessionsPauseResponse { session: Some(session) }))
    }

    async fn resume(
        &self,
        request: Request<SessionsResumeRequest>,
    ) -> Result<Response<SessionsResumeResponse>, Status> {
        let request = request.into_inner();
        let session = self.paused(false, &request.session_id, request.request_id)?;
        Ok(Response::new(SessionsResumeResponse { session: Some(session) }))
    }

    async fn fork(&self, _: Request<SessionsForkRequest>) -> Result<Response<SessionsForkResponse>, Status> {
        Err(unused())
    }

    async fn watch(&self, request: Request<SessionsWatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        self.note(|asked| asked.watched.push(request))?;
        let sessions = self.script.sessions.iter().cloned().map(Event::Session);
        let events: Vec<_> = sessions
            .chain([Event::Ready(WatchReady {}), Event::Overflow(WatchOverflow {})])
            .map(|event| {
                Ok(SessionsWatchResponse {
                    time: Some(prost_types::Timestamp { seconds: 0, nanos: 0 }),
                    event: Some(event),
                })
            })
            .collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }
}
