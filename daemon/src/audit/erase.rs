//! Removing bodies and names on request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use brig_proto::sizes::SENTENCE_MAX;
use brig_proto::v1;
use brig_proto::v1::Reason;
use prost::Message;
use sha2::{Digest, Sha256};

use super::filter::{self, Asked};
use crate::host::Host;
use crate::ledger::{Erased, LedgerError};
use crate::principal::Principal;
use crate::review::Which;
use crate::run::fields::Fields;
use crate::status::Problem;

/// How long a request is remembered.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);
/// Requests that are remembered at most.
const REQUESTS: usize = 256;

/// Requests that were answered. In memory alone: after a restart the same request removes nothing more, and is recorded
/// again.
#[derive(Debug, Default)]
pub(super) struct Remembered(Mutex<VecDeque<Answered>>);

#[derive(Debug)]
struct Answered {
    tenant: String,
    request: String,
    digest: [u8; 32],
    time: Instant,
    answer: v1::LedgerEraseResponse,
}

/// Removes what is asked for, or counts it.
///
/// What was begun goes on when the caller is gone: it is recorded already.
pub(super) async fn erase(
    host: &Host,
    remembered: &Arc<Remembered>,
    asked: &v1::LedgerEraseRequest,
    principal: &Principal,
) -> Result<v1::LedgerEraseResponse, Problem> {
    check(asked)?;
    let filter = filter::read(Asked::from(asked), principal)?;
    let which = Which {
        tenant: filter.tenant.clone(),
        user: filter.user.clone(),
        execution: filter.execution.clone(),
        to_ms: filter.to_ms,
    };
    if asked.dry_run {
        return Ok(v1::LedgerEraseResponse {
            entries: host.ledger.count(filter).await?,
            artifacts: host.artifacts.erase(which, true).await?,
        });
    }
    let digest = Sha256::digest(asked.encode_to_vec()).into();
    if let Some(known) = remembered.find(&principal.tenant, &asked.request_id, &digest)? {
        return Ok(known);
    }
    let record = Erased {
        request: (!asked.request_id.is_empty()).then(|| asked.request_id.clone()),
        tenant: filter.tenant.clone().unwrap_or_default(),
        user: principal.user.clone(),
        one_user: filter.user.is_some(),
        execution: filter.execution.clone(),
        to_time: asked.time_to.and_then(|time| SystemTime::try_from(time).ok()),
        entries: 0,
        message: asked.comment.clone(),
        time: SystemTime::now(),
    };
    let (ledger, store, remembered) = (host.ledger.clone(), host.artifacts.clone(), Arc::clone(remembered));
    let (tenant, request) = (principal.tenant.clone(), asked.request_id.clone());
    let erasing = tokio::spawn(async move {
        let entries = ledger.erase(filter, record).await?;
        let artifacts = store.erase(which, false).await?;
        let answer = v1::LedgerEraseResponse { entries, artifacts };
        remembered.add(&tenant, &request, digest, answer);
        Ok(answer)
    });
    erasing.await.unwrap_or(Err(Problem::Ledger(LedgerError::Closed)))
}

fn check(asked: &v1::LedgerEraseRequest) -> Result<(), Problem> {
    let mut fields = Fields::default();
    fields.id("request_id", &asked.request_id);
    if asked.user.is_empty() && asked.execution_id.is_empty() && asked.time_to.is_none() {
        let message = "nothing says what is to be removed: give user, execution_id or time_to";
        fields.wrong("user", Reason::MissingValue, message);
    }
    match asked.comment.len() {
        0 => fields.wrong("comment", Reason::MissingValue, "must say why, for the record"),
        length if length > SENTENCE_MAX => {
            let message = format!("has {length} bytes, at most {SENTENCE_MAX} are accepted");
            fields.wrong("comment", Reason::TooLarge, message);
        }
        _ => {}
    }
    fields.done()
}

impl Remembered {
    fn find(&self, tenant: &str, request: &str, digest: &[u8; 32]) -> Result<Option<v1::LedgerEraseResponse>, Problem> {
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        requests.retain(|known| known.time.elapsed() < REMEMBERED);
        let is_same = |known: &&Answered| !request.is_empty() && known.tenant == tenant && known.request == request;
        match requests.iter().find(is_same) {
            None => Ok(None),
            Some(known) if known.digest == *digest => Ok(Some(known.answer)),
            Some(_) => Err(Problem::Exists {
                kind: "request",
                name: request.to_owned(),
                why: "was used for another erasure within 24 h",
                reason: Reason::RequestIdReused,
            }),
        }
    }

    fn add(&self, tenant: &str, request: &str, digest: [u8; 32], answer: v1::LedgerEraseResponse) {
        if request.is_empty() {
            return;
        }
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.len() == REQUESTS {
            requests.pop_front();
        }
        requests.push_back(Answered {
            tenant: tenant.to_owned(),
            request: request.to_owned(),
            digest,
            time: Instant::now(),
            answer,
        });
    }
}
