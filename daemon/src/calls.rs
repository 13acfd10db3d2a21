//! What the services have in common: who may call, and what is recorded of a call.

use std::sync::Arc;
use std::time::SystemTime;

use brig_jailer::policy::Resolved;
use brig_proto::v1;
use tonic::Request;
use tracing::error;

use crate::config::Role;
use crate::ledger::{self, Ledger, Refused};
use crate::principal::Principal;
use crate::server::principal;
use crate::status::Problem;

/// A request that is turned down, as far as that is recorded.
#[derive(Debug, Clone, Default)]
pub struct Turned {
    pub request: String,
    pub origin: v1::Origin,
    /// As asked for.
    pub policy: String,
    /// Hash of all that was sent, once that is known.
    pub sha256: Option<[u8; 32]>,
}

/// Takes the principal of a call, which must have a role.
pub fn with_role<T>(request: &Request<T>, role: Role) -> Result<Arc<Principal>, Problem> {
    let principal = principal(request);
    if principal.may(role) {
        Ok(principal)
    } else {
        Err(Problem::Role(role))
    }
}

/// Does something to its end, also when the caller goes away meanwhile.
pub async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    let ended = tokio::spawn(work).await;
    ended.map_err(|error| Problem::Configuration(format!("a call broke off: {error}")))?
}

/// Records that something was asked for and not done.
pub async fn record_refusal(ledger: &Ledger, problem: &Problem, principal: &Principal, turned: Turned) {
    let refused = Refused {
        request: (!turned.request.is_empty()).then_some(turned.request),
        tenant: principal.tenant.clone(),
        user: principal.user.clone(),
        origin: record_origin(turned.origin),
        policy: turned.policy,
        reason: problem.reason().name().to_lowercase(),
        field: problem.field().to_owned(),
        message: problem.to_string(),
        time: SystemTime::now(),
    };
    // The caller is refused either way; a ledger that can't be written refuses whatever could run.
    if let Err(error) = ledger.refused(refused).await {
        error!(%error, "ledger refusal failed");
    }
}

/// An origin in the form of the ledger.
pub fn record_origin(origin: v1::Origin) -> ledger::Origin {
    ledger::Origin {
        user: origin.user,
        conversation: origin.conversation,
        request: origin.request,
    }
}

/// Limits in the form of the ledger.
pub fn record_limits(limits: &Resolved) -> ledger::Limits {
    ledger::Limits {
        timeout_ms: limits.timeout_ms,
        memory_bytes: limits.memory_bytes,
        cpu_millis: limits.cpu_millis,
        pids: limits.pids,
        disk_bytes: limits.disk_bytes,
        output_bytes: limits.output_bytes,
    }
}
