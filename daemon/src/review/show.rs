//! Records in the form of the API.

use brig_jailer::ids::Id;
use brig_proto::sizes::{PAGE_DEFAULT, PAGE_MAX};
use brig_proto::v1;
use brig_proto::v1::Reason;
use prost::Message;

use super::record::{Place, Record};
use super::records::{Behind, Of, STEP};
use super::{ArtifactStore, ArtifactsError};
use crate::database::to_millis;
use crate::pages::BYTES;
use crate::run::admit::check_labels;
use crate::run::fields::Fields;
use crate::status::{FieldProblem, Problem};

/// Which artifacts are wanted: those that match everything that is set.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    pub(super) of: Of,
    /// Of the API; none is all.
    reviews: Vec<i32>,
    classes: Vec<i32>,
    labels: std::collections::BTreeMap<String, String>,
    origin: v1::Origin,
}

impl Filter {
    /// Reads the filter of a list.
    pub(super) fn of_list(tenant: &str, asked: &v1::ArtifactsListRequest) -> Result<Self, Problem> {
        let mut fields = Fields::default();
        check_labels(&asked.labels, asked.origin.as_ref(), &mut fields);
        let text = |id: Option<Id>| id.map(String::from);
        let of = Of {
            tenant: tenant.to_owned(),
            execution: text(fields.id("execution_id", &asked.execution_id)),
            session: text(fields.id("session_id", &asked.session_id)),
        };
        fields.done()?;
        Ok(Self {
            of,
            reviews: asked.reviews.clone(),
            classes: asked.classes.clone(),
            labels: asked.labels.clone(),
            origin: asked.origin.clone().unwrap_or_default(),
        })
    }

    /// Reads the filter of a watch.
    pub(super) fn of_watch(tenant: &str, asked: &v1::ArtifactsWatchRequest) -> Result<Self, Problem> {
        let list = v1::ArtifactsListRequest {
            session_id: asked.session_id.clone(),
            reviews: asked.reviews.clone(),
            labels: asked.labels.clone(),
            ..v1::ArtifactsListRequest::default()
        };
        Self::of_list(tenant, &list)
    }

    /// Whether an artifact is one of them.
    pub(super) fn matches(&self, record: &Record) -> bool {
        let source = &record.source;
        let is = |wanted: &Option<String>, has: &Id| wanted.as_ref().is_none_or(|wanted| wanted == has.as_str());
        let fits = |wanted: &str, has: &str| wanted.is_empty() || wanted == has;
        let among = |wanted: &[i32], has: i32| wanted.is_empty() || wanted.contains(&has);
        source.tenant == self.of.tenant
            && is(&self.of.execution, &source.execution)
            && is(&self.of.session, &source.session)
            && among(&self.reviews, record.review.shown().into())
            && among(&self.classes, record.shown.class)
            && self
                .labels
                .iter()
                .all(|(key, value)| record.labels.get(key) == Some(value))
            && fits(&self.origin.user, &source.origin.user)
            && fits(&self.origin.conversation, &source.origin.conversation)
            && fits(&self.origin.request, &source.origin.request)
    }
}

/// Shows a record.
pub(super) fn show(record: &Record) -> v1::ArtifactRecord {
    let source = &record.source;
    let stored = record.place != Place::Gone;
    v1::ArtifactRecord {
        artifact: Some(record.shown_now()),
        execution_id: source.execution.to_string(),
        session_id: source.session.to_string(),
        tenant: source.tenant.clone(),
        user: source.user.clone(),
        origin: (source.origin != v1::Origin::default()).then(|| source.origin.clone()),
        labels: record.labels.clone(),
        create_time: Some(record.create_time.into()),
        expire_time: stored.then(|| record.expire_time.into()),
        review_time: record.review_time.map(Into::into),
        reviewer: record.reviewer.clone(),
        review_comment: record.comment.clone(),
        stored,
        policy: source.policy.clone(),
    }
}

/// Some artifacts that match, newest first, and where the next ones begin; none if these were the last.
///
/// `take` says whether there is room for one more.
pub(super) async fn some(
    store: &ArtifactStore,
    filter: &Filter,
    mut behind: Option<Behind>,
    mut take: impl FnMut(&Record) -> bool,
) -> Result<Option<Behind>, ArtifactsError> {
    loop {
        let (of, from) = (filter.of.clone(), behind.clone());
        let rows = store.blocking(move |shared| Ok(shared.records().newest(&of, from.as_ref())?));
        let rows = rows.await?;
        let is_last = i64::try_from(rows.len()).unwrap_or(i64::MAX) < STEP;
        for record in rows {
            if filter.matches(&record) && !take(&record) {
                return Ok(behind);
            }
            behind = Some((to_millis(record.create_time), record.id.to_string()));
        }
        if is_last {
            return Ok(None);
        }
    }
}

/// Shows one page of a tenant's artifacts.
pub(super) async fn page(
    store: &ArtifactStore,
    tenant: &str,
    asked: v1::ArtifactsListRequest,
) -> Result<v1::ArtifactsListResponse, Problem> {
    let filter = Filter::of_list(tenant, &asked)?;
    let behind = read_token(&asked.page_token)?;
    let size = match asked.page_size {
        0 => PAGE_DEFAULT,
        size => size.min(PAGE_MAX),
    };
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let (mut artifacts, mut bytes) = (Vec::new(), 0);
    let next = some(store, &filter, behind, |record| {
        let shown = show(record);
        bytes += shown.encoded_len() + 8;
        let fits = artifacts.is_empty() || (artifacts.len() < size && bytes <= BYTES);
        if fits {
            artifacts.push(shown);
        }
        fits
    });
    let next = next.await?;
    Ok(v1::ArtifactsListResponse {
        artifacts,
        next_page_token: next.map(|(time, id)| format!("{time}.{id}")).unwrap_or_default(),
    })
}

fn read_token(token: &str) -> Result<Option<Behind>, Problem> {
    if token.is_empty() {
        return Ok(None);
    }
    let parts = token.split_once('.');
    let read = parts.and_then(|(time, id)| Some((time.parse().ok()?, id.to_owned())));
    read.map(Some).ok_or_else(|| {
        Problem::Fields(vec![FieldProblem {
            field: "page_token".to_owned(),
            message: "is of no page; begin again without it".to_owned(),
            reason: Reason::InvalidValue,
        }])
    })
}
