//! The service Contexts: interpreters in kept sessions whose state stays.

use std::sync::Arc;
use std::time::Duration;

use brig_proto::v1;
use brig_proto::v1::contexts_server::Contexts;
use tonic::{Request, Response, Status};

use crate::calls::with_role;
use crate::config::Role;
use crate::host::Host;
use crate::pages::{self, page};
use crate::principal::Principal;
use crate::run::context::admit::admit;
use crate::run::context::{Context, life};
use crate::run::fields::Fields;
use crate::run::kept::Session;
use crate::run::registry::Entered;
use crate::server::principal;
use crate::status::Problem;

/// How long Reset and Close wait for the end of what they cancel.
const ENDING: Duration = Duration::from_secs(20);

/// Serves Contexts.
#[derive(Debug, Clone)]
pub struct ContextsService(pub Arc<Host>);

#[tonic::async_trait]
impl Contexts for ContextsService {
    async fn create(
        &self,
        request: Request<v1::ContextsCreateRequest>,
    ) -> Result<Response<v1::ContextsCreateResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let session = self.session(&principal, &asked.session_id)?;
        // While its interpreter starts, the session is not idle.
        let _used = session.enter()?;
        let context = Arc::new(admit(asked, &session)?);
        let context = match session.contexts.enter(&context)? {
            Entered::Known(known) => known,
            Entered::New => {
                let task = life::run(Arc::clone(&self.0), Arc::clone(&session), Arc::clone(&context));
                self.0.spawn_kept(task);
                context
            }
        };
        if let Err(status) = context.ready().await {
            session.contexts.withdraw_unmade(&context);
            return Err(status);
        }
        Ok(Response::new(v1::ContextsCreateResponse {
            context: Some(context.show()),
        }))
    }

    async fn list(
        &self,
        request: Request<v1::ContextsListRequest>,
    ) -> Result<Response<v1::ContextsListResponse>, Status> {
        let principal = principal(&request);
        let asked = request.into_inner();
        let session = self.0.registry.session(&principal, &asked.session_id)?;
        let which = pages::Asked {
            size: asked.page_size,
            token: &asked.page_token,
            bytes: pages::BYTES,
        };
        let has = |context: &Context| {
            let mut labels = asked.labels.iter();
            labels.all(|(key, value)| context.labels.get(key) == Some(value))
        };
        let all = session.contexts.list();
        let page = page(&all, which, |context| context.id.as_str(), has, Context::show)?;
        Ok(Response::new(v1::ContextsListResponse {
            contexts: page.shown,
            next_page_token: page.next,
        }))
    }

    async fn reset(
        &self,
        request: Request<v1::ContextsResetRequest>,
    ) -> Result<Response<v1::ContextsResetResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let mut fields = Fields::default();
        let request = fields.id("request_id", &asked.request_id);
        fields.done()?;
        let session = self.session(&principal, &asked.session_id)?;
        let _used = session.enter()?;
        let context = session.contexts.get(&asked.context_id)?;
        let number = context.ask_reset(request.as_ref())?;
        let most = ENDING + Duration::from_millis(session.limits.start_timeout_ms);
        match tokio::time::timeout(most, context.reset(number)).await {
            Ok(done) => done?,
            Err(_elapsed) => {
                let millis = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
                return Err(Problem::StartTimeout(millis, "its context was being reset").into());
            }
        }
        Ok(Response::new(v1::ContextsResetResponse {
            context: Some(context.show()),
        }))
    }

    async fn close(
        &self,
        request: Request<v1::ContextsCloseRequest>,
    ) -> Result<Response<v1::ContextsCloseResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let mut fields = Fields::default();
        fields.id("request_id", &asked.request_id);
        fields.done()?;
        let session = self.0.registry.session(&principal, &asked.session_id)?;
        let context = session.contexts.get(&asked.context_id)?;
        context.close();
        // It ends by itself where this is not enough.
        let _ = tokio::time::timeout(ENDING, context.gone()).await;
        Ok(Response::new(v1::ContextsCloseResponse {}))
    }
}

impl ContextsService {
    /// Finds a session that something can be started in.
    fn session(&self, principal: &Principal, id: &str) -> Result<Arc<Session>, Problem> {
        let host = &self.0;
        if host.draining.is_cancelled() {
            return Err(Problem::Draining);
        }
        host.pumps.check()?;
        host.registry.session(principal, id)
    }
}
