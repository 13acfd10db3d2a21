//! The approval of an execution: it waits until a reviewer decides, or until it is too late for that.
//!
//! A decision is claimed first, then recorded, then told: of two reviewers, and of a reviewer and the end of the time,
//! one decides. Until then nothing is made for the execution; its start has all of its time afterwards.

mod quota;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use brig_jailer::ids::Id;
use brig_jailer::policy::{Policy, Review};
use brig_proto::v1::ExecutionState;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{error, info};

pub use quota::{Approvals, Pending};

use crate::host::Host;
use crate::ledger::{LedgerError, Reviewed};
use crate::principal::Principal;
use crate::run::execution::{Execution, StopCause};
use crate::run::life::NotStarted;
use crate::run::queue::Place;
use crate::status::Problem;

/// How an accepted execution comes to its place.
#[derive(Debug)]
pub enum Admission {
    /// It has one, or waits for it.
    Direct(Place),
    /// A reviewer decides first.
    Reviewed(Pending),
}

/// The decision that an execution waits for.
#[derive(Debug)]
pub struct Approval {
    pub expire_time: SystemTime,
    deadline: Instant,
    phase: watch::Sender<Phase>,
}

#[derive(Debug, Clone)]
enum Phase {
    /// Nobody has decided.
    Open,
    /// Somebody does: it is being recorded.
    Claimed,
    Decided(Arc<Decision>),
}

/// What was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub verdict: Verdict,
    /// `tenant/user`; empty if no reviewer decided.
    pub reviewer: String,
    pub comment: String,
}

/// The kinds of decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    Approved,
    Rejected,
    /// Nobody decided in time.
    Expired,
    /// It was ended before somebody decided.
    Withdrawn,
}

/// The right to decide; the next one has it if this is dropped before.
#[derive(Debug)]
pub struct Claim<'a> {
    approval: &'a Approval,
    is_open: bool,
}

impl Approval {
    /// What an execution under a policy has to wait for.
    pub fn asked_by(policy: &Policy) -> Option<Self> {
        let rules = &policy.execution;
        (rules.review == Review::Required).then(|| Self::within(rules.review_timeout.duration()))
    }

    /// One that was made by an earlier brigd.
    pub fn restore(expire_time: SystemTime, decision: Decision) -> Self {
        Self {
            expire_time,
            deadline: Instant::now(),
            phase: watch::Sender::new(Phase::Decided(Arc::new(decision))),
        }
    }

    fn within(time: Duration) -> Self {
        Self {
            expire_time: SystemTime::now() + time,
            deadline: Instant::now() + time,
            phase: watch::Sender::new(Phase::Open),
        }
    }

    /// What was decided, if somebody has.
    pub fn decision(&self) -> Option<Arc<Decision>> {
        self.phase.borrow().decision()
    }

    /// Takes the right to decide, once nobody else has it. Gives what was decided before, if somebody has.
    pub async fn claim(&self) -> Result<Claim<'_>, Arc<Decision>> {
        let mut changes = self.phase.subscribe();
        loop {
            let is_won = self.phase.send_if_modified(|phase| {
                let is_open = matches!(phase, Phase::Open);
                if is_open {
                    *phase = Phase::Claimed;
                }
                is_open
            });
            if is_won {
                return Ok(Claim {
                    approval: self,
                    is_open: true,
                });
            }
            if let Some(decision) = changes.borrow_and_update().decision() {
                return Err(decision);
            }
            // The sender lives as long as this.
            let _ = changes.changed().await;
        }
    }

    /// Waits until it is decided.
    async fn decided(&self) {
        let mut changes = self.phase.subscribe();
        // The sender lives as long as this.
        let _ = changes.wait_for(|phase| phase.decision().is_some()).await;
    }
}

impl Phase {
    fn decision(&self) -> Option<Arc<Decision>> {
        match self {
            Self::Decided(decision) => Some(Arc::clone(decision)),
            Self::Open | Self::Claimed => None,
        }
    }
}

impl Claim<'_> {
    /// Decides.
    pub fn decide(mut self, decision: Decision) -> Arc<Decision> {
        let decision = Arc::new(decision);
        self.is_open = false;
        self.approval.phase.send_replace(Phase::Decided(Arc::clone(&decision)));
        decision
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.approval.phase.send_replace(Phase::Open);
        }
    }
}

impl Decision {
    /// What a reviewer decided.
    pub fn of(reviewer: &Principal, verdict: Verdict, comment: &str) -> Self {
        Self {
            verdict,
            reviewer: format!("{}/{}", reviewer.tenant, reviewer.user),
            comment: comment.to_owned(),
        }
    }

    fn of_nobody(verdict: Verdict) -> Self {
        Self {
            verdict,
            reviewer: String::new(),
            comment: String::new(),
        }
    }
}

impl Verdict {
    /// As the ledger writes it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// Waits until an accepted execution may begin, and gives its place.
pub(in crate::run) async fn admit(
    host: &Host,
    execution: &Execution,
    admission: Admission,
) -> Result<Place, NotStarted> {
    match admission {
        Admission::Direct(place) => Ok(place),
        Admission::Reviewed(pending) => {
            approved(host, execution).await?;
            drop(pending);
            host.queue.join(&execution.log).map_err(NotStarted::Failed)
        }
    }
}

/// Waits until an execution is approved.
pub(in crate::run) async fn approved(host: &Host, execution: &Execution) -> Result<(), NotStarted> {
    let Some(approval) = &execution.approval else {
        return Ok(());
    };
    let cause = tokio::select! {
        biased;
        cause = execution.stop.told() => Some(cause),
        // It would be lost with this brigd at the latest when nobody has decided by then.
        () = host.draining.cancelled() => Some(StopCause::Shutdown),
        () = approval.decided() => None,
        () = sleep_until(approval.deadline) => None,
    };
    let decision = match (approval.claim().await, cause) {
        (Ok(claim), Some(_)) => claim.decide(Decision::of_nobody(Verdict::Withdrawn)),
        (Ok(claim), None) => {
            let decision = Decision::of_nobody(Verdict::Expired);
            // The end of the execution says the same.
            if let Err(error) = record(host, execution, None, &decision, None).await {
                error!(%error, "ledger review failed");
            }
            claim.decide(decision)
        }
        (Err(decision), _) => decision,
    };
    info!(verdict = decision.verdict.word(), "execution reviewed");
    match (decision.verdict, cause) {
        (Verdict::Rejected | Verdict::Expired, _) => Err(NotStarted::Rejected(decision)),
        (_, Some(cause)) => Err(NotStarted::Stopped(cause)),
        (Verdict::Approved, None) => Ok(()),
        (Verdict::Withdrawn, None) => Err(NotStarted::Stopped(StopCause::Cancel)),
    }
}

/// Decides about an execution in the name of a reviewer.
pub async fn decide(
    host: &Host,
    execution: &Execution,
    reviewer: &Principal,
    request: Option<&Id>,
    decision: Decision,
) -> Result<(), Problem> {
    let not_pending = |why: &str| Problem::NotPending(execution.id.to_string(), why.to_owned());
    let approval = execution
        .approval
        .as_ref()
        .ok_or_else(|| not_pending("needs no approval"))?;
    let claim = approval
        .claim()
        .await
        .map_err(|decision| not_pending(before(decision.verdict)))?;
    if Instant::now() >= approval.deadline {
        return Err(not_pending(before(Verdict::Expired)));
    }
    record(host, execution, Some(reviewer), &decision, request).await?;
    if decision.verdict == Verdict::Approved {
        // Whoever is told of the approval sees that it waits for a place.
        execution.log.place(ExecutionState::Queued, 0);
    }
    claim.decide(decision);
    Ok(())
}

/// What a reviewer is told who comes too late.
fn before(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Approved => "was approved before",
        Verdict::Rejected => "was rejected before",
        Verdict::Expired => "was not decided about in time",
        Verdict::Withdrawn => "has ended before somebody decided",
    }
}

async fn record(
    host: &Host,
    execution: &Execution,
    reviewer: Option<&Principal>,
    decision: &Decision,
    request: Option<&Id>,
) -> Result<(), LedgerError> {
    let reviewed = Reviewed {
        execution: execution.id.clone(),
        request: request.map(ToString::to_string),
        reviewer_tenant: reviewer.map(|reviewer| reviewer.tenant.clone()).unwrap_or_default(),
        user: reviewer.map(|reviewer| reviewer.user.clone()).unwrap_or_default(),
        review: decision.verdict.word().to_owned(),
        work_sha256: execution.work_sha256.clone(),
        message: decision.comment.clone(),
        time: SystemTime::now(),
    };
    host.ledger.reviewed(reviewed).await
}

#[cfg(test)]
mod tests;
