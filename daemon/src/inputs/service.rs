//! The service Inputs.

use std::sync::Arc;

use brig_jailer::ids::Id;
use brig_proto::v1;
use brig_proto::v1::Reason;
use tonic::{Request, Response, Status, Streaming};
use tracing::info;

use super::{InputsError, Removed, show, upload};
use crate::calls::{Turned, record_refusal, with_role};
use crate::config::Role;
use crate::host::Host;
use crate::run::fields::Fields;
use crate::run::inputs::hex;
use crate::server::principal;
use crate::status::Problem;

/// Serves Inputs.
#[derive(Debug, Clone)]
pub struct InputsService(pub Arc<Host>);

#[tonic::async_trait]
impl v1::inputs_server::Inputs for InputsService {
    async fn create(
        &self,
        request: Request<Streaming<v1::InputsCreateRequest>>,
    ) -> Result<Response<v1::InputsCreateResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let mut stream = request.into_inner();
        if self.0.draining.is_cancelled() {
            return Err(Problem::Draining.into());
        }
        let spec = upload::first_message(&mut stream).await?;
        let turned = Turned {
            request: spec.request_id.clone(),
            origin: spec.origin.clone().unwrap_or_default(),
            policy: String::new(),
            sha256: None,
        };
        let stored = upload::upload(&self.0.inputs, &principal, spec, &mut stream).await;
        match stored {
            Ok(record) => {
                let sha256 = hex(&record.sha256);
                info!(input = %record.id, tenant = record.tenant, size = record.size, sha256, "input stored");
                let input = Some(show::show(&record));
                Ok(Response::new(v1::InputsCreateResponse { input }))
            }
            Err(problem) => {
                record_refusal(&self.0.ledger, &problem, &principal, turned).await;
                Err(problem.into())
            }
        }
    }

    async fn get(&self, request: Request<v1::InputsGetRequest>) -> Result<Response<v1::InputsGetResponse>, Status> {
        let tenant = principal(&request).tenant.clone();
        let asked = request.into_inner().input_id;
        let found = match Id::parse(&asked) {
            Ok(id) => self.0.inputs.find(&tenant, &id).await.map_err(Problem::from)?,
            Err(_) => None,
        };
        let record = found.ok_or_else(|| not_found("input_id", &asked))?;
        let input = Some(show::show(&record));
        Ok(Response::new(v1::InputsGetResponse { input }))
    }

    async fn list(&self, request: Request<v1::InputsListRequest>) -> Result<Response<v1::InputsListResponse>, Status> {
        let tenant = principal(&request).tenant.clone();
        let page = show::page(&self.0.inputs, &tenant, request.into_inner()).await?;
        Ok(Response::new(page))
    }

    async fn delete(
        &self,
        request: Request<v1::InputsDeleteRequest>,
    ) -> Result<Response<v1::InputsDeleteResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let mut fields = Fields::default();
        fields.id("request_id", &asked.request_id);
        fields.done()?;
        let removed = match Id::parse(&asked.input_id) {
            Ok(id) => self
                .0
                .inputs
                .remove(&principal.tenant, &id)
                .await
                .map_err(Problem::from)?,
            Err(_) => Removed::Never,
        };
        match removed {
            Removed::Never => return Err(not_found("input_id", &asked.input_id).into()),
            Removed::Now => info!(input = asked.input_id, tenant = principal.tenant, "input removed"),
            Removed::Before => {}
        }
        Ok(Response::new(v1::InputsDeleteResponse {}))
    }
}

/// What is told of an input that is not there.
pub(crate) fn not_found(field: &str, id: &str) -> Problem {
    Problem::NotFound {
        kind: "input",
        name: id.chars().take(60).collect(),
        why: format!("{field}: not of this tenant, expired or removed"),
        reason: Reason::InputNotFound,
    }
}

impl From<InputsError> for Problem {
    fn from(error: InputsError) -> Self {
        Self::Inputs(error)
    }
}
