//! The service Artifacts.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use brig_jailer::ids::Id;
use brig_proto::sizes::{LABELS_MAX, SENTENCE_MAX};
use brig_proto::v1;
use brig_proto::v1::Reason;
use prost::Message;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::decide::Ruling;
use super::record::Record;
use super::show::{self, Filter};
use super::{ArtifactStore, ArtifactsError, download, link, watch};
use crate::artifacts::Review;
use crate::calls::{note_refusal, to_its_end, with_role};
use crate::config::Role;
use crate::database::{to_millis, to_time};
use crate::host::Host;
use crate::principal::Principal;
use crate::run::admit::check_labels;
use crate::run::fields::{Fields, millis};
use crate::run::gate::Way;
use crate::server::principal;
use crate::status::Problem;

/// Serves Artifacts.
#[derive(Debug, Clone)]
pub struct ArtifactsService(pub Arc<Host>);

#[tonic::async_trait]
impl v1::artifacts_server::Artifacts for ArtifactsService {
    type DownloadStream = BoxStream<v1::ArtifactsDownloadResponse>;
    type WatchStream = BoxStream<v1::ArtifactsWatchResponse>;

    async fn list(
        &self,
        request: Request<v1::ArtifactsListRequest>,
    ) -> Result<Response<v1::ArtifactsListResponse>, Status> {
        let tenant = principal(&request).tenant.clone();
        let page = show::page(&self.0.artifacts, &tenant, request.into_inner()).await?;
        Ok(Response::new(page))
    }

    async fn get(
        &self,
        request: Request<v1::ArtifactsGetRequest>,
    ) -> Result<Response<v1::ArtifactsGetResponse>, Status> {
        let tenant = principal(&request).tenant.clone();
        let record = find(&self.0.artifacts, &tenant, &request.into_inner().artifact_id).await?;
        let artifact = Some(show::show(&record));
        Ok(Response::new(v1::ArtifactsGetResponse { artifact }))
    }

    async fn download(
        &self,
        request: Request<v1::ArtifactsDownloadRequest>,
    ) -> Result<Response<Self::DownloadStream>, Status> {
        let (role, way): (_, fn(Review) -> Way) = if request.get_ref().for_review {
            (Role::Reviewer, Way::Look)
        } else {
            (Role::Runner, Way::Artifact)
        };
        let principal = with_role(&request, role)?;
        let asked = request.into_inner();
        let (tenant, store) = (&principal.tenant, &self.0.artifacts);
        let opened = store.release(tenant, &asked.artifact_id, way, asked.offset, asked.length);
        let opened = opened.await.inspect_err(|problem| {
            if matches!(
                problem,
                Problem::DownloadForbidden(_) | Problem::ReviewRequired(_) | Problem::ReviewRefused(_)
            ) {
                note_refusal(&self.0.ledger, problem, &principal);
            }
        })?;
        Ok(Response::new(download::stream(opened)))
    }

    async fn approve(
        &self,
        request: Request<v1::ArtifactsApproveRequest>,
    ) -> Result<Response<v1::ArtifactsApproveResponse>, Status> {
        let principal = with_role(&request, Role::Reviewer)?;
        let asked = request.into_inner();
        let mut fields = Fields::default();
        let sha256 = fields.sha256("sha256", &asked.sha256);
        if asked.sha256.is_empty() {
            let message = "is required: that of the bytes that were looked at";
            fields.wrong("sha256", Reason::MissingValue, message);
        }
        let decision = Asked {
            call: "Artifacts.Approve",
            review: Review::Approved,
            artifact: &asked.artifact_id,
            request: &asked.request_id,
            sha256,
            comment: &asked.comment,
        };
        let record = decide(&self.0, principal, decision, fields, &asked).await?;
        let artifact = Some(show::show(&record));
        Ok(Response::new(v1::ArtifactsApproveResponse { artifact }))
    }

    async fn reject(
        &self,
        request: Request<v1::ArtifactsRejectRequest>,
    ) -> Result<Response<v1::ArtifactsRejectResponse>, Status> {
        let principal = with_role(&request, Role::Reviewer)?;
        let asked = request.into_inner();
        let decision = Asked {
            call: "Artifacts.Reject",
            review: Review::Rejected,
            artifact: &asked.artifact_id,
            request: &asked.request_id,
            sha256: None,
            comment: &asked.comment,
        };
        let record = decide(&self.0, principal, decision, Fields::default(), &asked).await?;
        let artifact = Some(show::show(&record));
        Ok(Response::new(v1::ArtifactsRejectResponse { artifact }))
    }

    async fn link(
        &self,
        request: Request<v1::ArtifactsLinkRequest>,
    ) -> Result<Response<v1::ArtifactsLinkResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let linked = link::link(&self.0, &principal, request.into_inner()).await?;
        Ok(Response::new(linked))
    }

    async fn save(
        &self,
        request: Request<v1::ArtifactsSaveRequest>,
    ) -> Result<Response<v1::ArtifactsSaveResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let record = save(&self.0, &principal, request.into_inner()).await?;
        let artifact = Some(show::show(&record));
        Ok(Response::new(v1::ArtifactsSaveResponse { artifact }))
    }

    async fn watch(&self, request: Request<v1::ArtifactsWatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let tenant = principal(&request).tenant.clone();
        let filter = Filter::of_watch(&tenant, request.get_ref())?;
        Ok(Response::new(watch::watch(&self.0.artifacts, filter)?))
    }

    async fn sweep(
        &self,
        request: Request<v1::ArtifactsSweepRequest>,
    ) -> Result<Response<v1::ArtifactsSweepResponse>, Status> {
        with_role(&request, Role::Operator)?;
        let (store, ledger) = (self.0.artifacts.clone(), self.0.ledger.clone());
        let swept = if request.into_inner().dry_run {
            store.count_due().await.map_err(Problem::from)?
        } else {
            to_its_end(async move { store.sweep(&ledger).await }).await?
        };
        Ok(Response::new(v1::ArtifactsSweepResponse {
            expired: swept.expired.files,
            expired_bytes: swept.expired.bytes,
            kept: swept.kept.files,
            kept_bytes: swept.kept.bytes,
        }))
    }
}

/// A decision that is asked for.
struct Asked<'a> {
    call: &'static str,
    review: Review,
    artifact: &'a str,
    request: &'a str,
    sha256: Option<[u8; 32]>,
    comment: &'a str,
}

async fn decide(
    host: &Arc<Host>,
    reviewer: Arc<Principal>,
    asked: Asked<'_>,
    mut fields: Fields,
    payload: &(impl Message + Clone + 'static),
) -> Result<Record, Problem> {
    let request = fields.id("request_id", asked.request);
    if asked.comment.len() > SENTENCE_MAX {
        let message = format!("has {} bytes, at most {SENTENCE_MAX} are accepted", asked.comment.len());
        fields.wrong("comment", Reason::TooLarge, message);
    }
    fields.done()?;
    let tenant = reviewer.tenant.clone();
    let artifact = Id::parse(asked.artifact).map_err(|_no_id| not_found(asked.artifact))?;
    let Some(turn) = host
        .repeats
        .begin(&tenant, request.clone(), asked.call, payload)
        .await?
    else {
        return find(&host.artifacts, &tenant, asked.artifact).await;
    };
    let ruling = Ruling {
        reviewer: format!("{tenant}/{}", reviewer.user),
        user: reviewer.user.clone(),
        tenant,
        artifact,
        review: asked.review,
        sha256: asked.sha256,
        comment: asked.comment.to_owned(),
        request,
    };
    let host = Arc::clone(host);
    to_its_end(async move {
        let record = host.artifacts.decide(&host.ledger, ruling).await?;
        turn.done();
        Ok(record)
    })
    .await
}

async fn save(host: &Arc<Host>, principal: &Principal, asked: v1::ArtifactsSaveRequest) -> Result<Record, Problem> {
    let mut fields = Fields::default();
    let request = fields.id("request_id", &asked.request_id);
    let wanted = fields.keep_some(millis("retention", asked.retention.as_ref()));
    check_labels(&asked.labels, None, &mut fields);
    fields.done()?;
    let tenant = &principal.tenant;
    let mut record = find(&host.artifacts, tenant, &asked.artifact_id).await?;
    let Some(turn) = host.repeats.begin(tenant, request, "Artifacts.Save", &asked).await? else {
        return Ok(record);
    };
    let mut fields = Fields::default();
    let most = u64::try_from(record.retention.as_millis()).unwrap_or(u64::MAX);
    let span = wanted.unwrap_or(most);
    if !(1..=most).contains(&span) {
        let message = format!("{span} ms is not in 1 ms to {most} ms, how long the policy keeps artifacts");
        fields.wrong("retention", Reason::InvalidValue, message);
    }
    record.labels.extend(asked.labels.clone());
    fields.at_most("labels", record.labels.len(), LABELS_MAX);
    fields.done()?;
    download::check_gate(&record, Way::Artifact(record.review))?;
    let now = to_time(to_millis(SystemTime::now()));
    record.expire_time = record.expire_time.max(now + Duration::from_millis(span));
    let host = Arc::clone(host);
    to_its_end(async move {
        let saved = host.artifacts.save(record).await?;
        turn.done();
        saved.ok_or_else(|| not_found(&asked.artifact_id))
    })
    .await
}

pub(super) async fn find(store: &ArtifactStore, tenant: &str, asked: &str) -> Result<Record, Problem> {
    let found = match Id::parse(asked) {
        Ok(id) => store.find(tenant, &id).await?,
        Err(_) => None,
    };
    found.ok_or_else(|| not_found(asked))
}

/// What is told of an artifact that is not there.
pub(super) fn not_found(id: &str) -> Problem {
    Problem::NotFound {
        kind: "artifact",
        name: id.chars().take(60).collect(),
        why: "artifact_id: not of this tenant, or its bytes are gone".to_owned(),
        reason: Reason::ArtifactNotFound,
    }
}

impl From<ArtifactsError> for Problem {
    fn from(error: ArtifactsError) -> Self {
        Self::Artifacts(error)
    }
}
