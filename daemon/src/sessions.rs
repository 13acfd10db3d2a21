//! The service Sessions, as far as it is built: all but Fork.

mod pause;
mod usage;
mod watch;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use brig_proto::v1;
use brig_proto::v1::sessions_server::Sessions;
use brig_proto::v1::{SessionCloseReason, SessionState};
use prost::Message;
use sha2::{Digest, Sha256};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};
use tracing::error;

use crate::calls::{Turned, record_origin, record_refusal, to_its_end, with_role};
use crate::config::Role;
use crate::host::Host;
use crate::ledger::{Keep, LedgerError, SessionOpened};
use crate::pages::{self, page};
use crate::principal::Principal;
use crate::run::fields::Fields;
use crate::run::inputs::hex;
use crate::run::kept::{self, Session, life};
use crate::run::past;
use crate::run::registry::{Entered, session_taken};
use crate::server::principal;
use crate::status::Problem;
use crate::unbuilt::unbuilt;

/// How long Close waits for the end of what it closes; then it says CLOSING.
const CLOSING: Duration = Duration::from_secs(20);

/// Serves Sessions.
#[derive(Debug, Clone)]
pub struct SessionsService(pub Arc<Host>);

#[tonic::async_trait]
impl Sessions for SessionsService {
    type WatchStream = BoxStream<v1::SessionsWatchResponse>;

    async fn create(
        &self,
        request: Request<v1::SessionsCreateRequest>,
    ) -> Result<Response<v1::SessionsCreateResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let sha256 = Sha256::digest(asked.encode_to_vec()).into();
        let turned = Turned {
            request: asked.request_id.clone(),
            origin: asked.origin.clone().unwrap_or_default(),
            policy: asked.policy.clone(),
            sha256: Some(sha256),
        };
        let started = self.start(asked, sha256, &principal).await;
        let session = match self.or_before(started, &principal, &turned.request, sha256).await {
            Ok(session) => session,
            Err(problem) => {
                record_refusal(&self.0.ledger, &problem, &principal, turned).await;
                return Err(problem.into());
            }
        };
        session.ready().await?;
        Ok(Response::new(v1::SessionsCreateResponse {
            session: Some(session.show()),
            access_token: String::new(),
        }))
    }

    async fn get(&self, request: Request<v1::SessionsGetRequest>) -> Result<Response<v1::SessionsGetResponse>, Status> {
        let principal = principal(&request);
        let session = self.0.registry.session(&principal, &request.into_inner().session_id)?;
        let usage = if session.is_up() {
            usage::usage(&self.0.jailer, &session).await
        } else {
            None
        };
        let shown = v1::Session {
            usage,
            ..session.show()
        };
        Ok(Response::new(v1::SessionsGetResponse { session: Some(shown) }))
    }

    async fn list(
        &self,
        request: Request<v1::SessionsListRequest>,
    ) -> Result<Response<v1::SessionsListResponse>, Status> {
        let principal = if request.get_ref().all_tenants {
            with_role(&request, Role::Operator)?
        } else {
            principal(&request)
        };
        let asked = request.into_inner();
        Ok(Response::new(list(&self.0.registry.sessions(), &asked, &principal)?))
    }

    async fn update(
        &self,
        request: Request<v1::SessionsUpdateRequest>,
    ) -> Result<Response<v1::SessionsUpdateResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let session = self.0.registry.session(&principal, &asked.session_id)?;
        let (id, settings) = kept::admit::admit_update(&asked, &session)?;
        let (tenant, call) = (&principal.tenant, "Sessions.Update");
        if let Some(turn) = self.0.repeats.begin(tenant, id, call, &asked).await? {
            if !session.is_up() {
                return Err(session.closed_problem().into());
            }
            session.set(settings);
            turn.done();
        }
        session.remember(&self.0.jailer).await;
        Ok(Response::new(v1::SessionsUpdateResponse {
            session: Some(session.show()),
        }))
    }

    async fn pause(
        &self,
        request: Request<v1::SessionsPauseRequest>,
    ) -> Result<Response<v1::SessionsPauseResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let session = self.0.registry.session(&principal, &asked.session_id)?;
        pause::pause(&self.0, &principal.tenant, &session, &asked.request_id, &asked, true).await?;
        Ok(Response::new(v1::SessionsPauseResponse {
            session: Some(session.show()),
        }))
    }

    async fn resume(
        &self,
        request: Request<v1::SessionsResumeRequest>,
    ) -> Result<Response<v1::SessionsResumeResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let session = self.0.registry.session(&principal, &asked.session_id)?;
        pause::pause(&self.0, &principal.tenant, &session, &asked.request_id, &asked, false).await?;
        Ok(Response::new(v1::SessionsResumeResponse {
            session: Some(session.show()),
        }))
    }

    async fn watch(&self, request: Request<v1::SessionsWatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let principal = principal(&request);
        let stream = watch::watch(&self.0, &principal, request.into_inner())?;
        Ok(Response::new(stream))
    }

    async fn close(
        &self,
        request: Request<v1::SessionsCloseRequest>,
    ) -> Result<Response<v1::SessionsCloseResponse>, Status> {
        let mut principal = principal(&request);
        if !principal.may(Role::Operator) {
            principal = with_role(&request, Role::Runner)?;
        }
        let asked = request.into_inner();
        let mut fields = Fields::default();
        fields.id("request_id", &asked.request_id);
        fields.done()?;
        let session = self.0.registry.session(&principal, &asked.session_id)?;
        session.end(SessionCloseReason::Asked);
        session.remember(&self.0.jailer).await;
        // The state says whether the time was enough.
        let _ = tokio::time::timeout(CLOSING, session.gone()).await;
        Ok(Response::new(v1::SessionsCloseResponse {
            session: Some(session.show()),
        }))
    }

    unbuilt! {
        fork(v1::SessionsForkRequest) -> v1::SessionsForkResponse, "Sessions.Fork";
    }
}

impl SessionsService {
    /// Has a session made, or finds the one that the same request made before. A caller that goes away meanwhile leaves
    /// no half of it.
    async fn start(
        &self,
        asked: v1::SessionsCreateRequest,
        sha256: [u8; 32],
        principal: &Arc<Principal>,
    ) -> Result<Arc<Session>, Problem> {
        let host = &self.0;
        if host.draining.is_cancelled() {
            return Err(Problem::Draining);
        }
        let (session, inbox) = kept::admit::admit(asked, sha256, &host.store, principal)?;
        let session = Arc::new(session);
        if let Entered::Known(known) = host.registry.enter_session(&session)? {
            return Ok(known);
        }
        let service = self.clone();
        to_its_end(async move {
            let accepted = service.accept(&session, inbox).await;
            if let Err(problem) = &accepted {
                service.0.registry.withdraw_session(&session);
                // Whoever found it meanwhile hears the same.
                session.refuse(problem.status());
                session.end(SessionCloseReason::Failed);
            }
            accepted.map(|()| session)
        })
        .await
    }

    /// What was refused may have been made before, and for that very reason be refused now.
    async fn or_before(
        &self,
        started: Result<Arc<Session>, Problem>,
        principal: &Principal,
        request: &str,
        sha256: [u8; 32],
    ) -> Result<Arc<Session>, Problem> {
        let problem = match started {
            Ok(session) => return Ok(session),
            Err(problem) => problem,
        };
        match past::repeated_session(&self.0, principal, request, sha256).await {
            Ok(Some(id)) => {
                let known = self.0.registry.session(principal, id.as_str());
                known.map_err(|_forgotten| Problem::SessionClosed(id.to_string()))
            }
            Ok(None) => Err(problem),
            // What was wrong before that is still true.
            Err(Problem::Ledger(error)) => {
                error!(%error, "ledger not asked for the request");
                Err(problem)
            }
            Err(reused) => Err(reused),
        }
    }

    /// Takes a place, records the session, and hands it to its task.
    async fn accept(&self, session: &Arc<Session>, inbox: kept::helper::Inbox) -> Result<(), Problem> {
        let host = &self.0;
        let place = host.session_places.try_take();
        let place = place.ok_or_else(|| Problem::SessionQuota(host.session_places.taken()))?;
        host.ledger
            .session_opened(open_record(session))
            .await
            .map_err(|error| match error {
                LedgerError::Exists(id) => session_taken(&id),
                error => Problem::Ledger(error),
            })?;
        let task = life::run(Arc::clone(host), Arc::clone(session), inbox, place);
        host.spawn_kept(task);
        Ok(())
    }
}

fn open_record(session: &Session) -> SessionOpened {
    SessionOpened {
        session: session.id.clone(),
        request: session.request.as_ref().map(ToString::to_string),
        request_sha256: Some(hex(&session.digest)),
        tenant: session.principal.tenant.clone(),
        user: session.principal.user.clone(),
        origin: record_origin(session.origin.clone()),
        labels: session.settings().labels,
        policy: session.policy.name.clone(),
        policy_hash: session.policy.hash.clone(),
        template: session.template.id.clone(),
        limits: crate::calls::record_limits(&session.limits),
        keep: Keep::from(&session.policy.retention),
        expire_time: session.settings().expire_time,
        time: session.create_time,
    }
}

fn list(
    all: &[Arc<Session>],
    asked: &v1::SessionsListRequest,
    principal: &Principal,
) -> Result<v1::SessionsListResponse, Problem> {
    let which = pages::Asked {
        size: asked.page_size,
        token: &asked.page_token,
        bytes: pages::BYTES,
    };
    let page = page(
        all,
        which,
        |session| session.id.as_str(),
        |session| (asked.all_tenants || session.principal.tenant == principal.tenant) && matches(session, asked),
        Session::show,
    )?;
    Ok(v1::SessionsListResponse {
        sessions: page.shown,
        next_page_token: page.next,
    })
}

fn matches(session: &Session, asked: &v1::SessionsListRequest) -> bool {
    let none = v1::Origin::default();
    let (wanted, has) = (asked.origin.as_ref().unwrap_or(&none), &session.origin);
    let fits = |wanted: &str, has: &str| wanted.is_empty() || wanted == has;
    let name = |id: &str| id.split('@').next().unwrap_or_default().to_owned();
    let phase = session.phase();
    let in_state = if asked.states.is_empty() {
        phase != SessionState::Closed
    } else {
        asked.states.contains(&phase.into())
    };
    let from = asked.create_time_from.and_then(|time| SystemTime::try_from(time).ok());
    let labels = session.settings().labels;
    in_state
        && asked.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
        && fits(&wanted.user, &has.user)
        && fits(&wanted.conversation, &has.conversation)
        && fits(&wanted.request, &has.request)
        && fits(&asked.policy, &session.policy.name)
        && fits(&asked.template, &name(&session.template.id))
        && from.is_none_or(|from| session.create_time >= from)
}
