//! Executions.Approve and Reject: a reviewer decides about an execution that waits.

use std::sync::Arc;

use brig_jailer::ids::Id;
use brig_proto::sizes::SENTENCE_MAX;
use brig_proto::v1;
use brig_proto::v1::Reason;
use prost::Message;

use crate::calls::to_its_end;
use crate::host::Host;
use crate::principal::Principal;
use crate::run::approval::{Decision, Verdict, decide};
use crate::run::execution::Execution;
use crate::run::fields::Fields;
use crate::status::Problem;

/// A decision that somebody asks for.
struct Asked<M> {
    message: M,
    call: &'static str,
    request: Option<Id>,
    execution: String,
    /// What was looked at, where that matters.
    work: Option<String>,
    decision: Decision,
}

/// Lets an execution run.
pub(super) async fn approve(
    host: &Arc<Host>,
    reviewer: &Arc<Principal>,
    asked: v1::ExecutionsApproveRequest,
) -> Result<Arc<Execution>, Problem> {
    let mut fields = Fields::default();
    let request = fields.id("request_id", &asked.request_id);
    check_comment(&asked.comment, &mut fields);
    if asked.work_sha256.is_empty() {
        let message = "must be Execution.work_sha256 of what was looked at";
        fields.wrong("work_sha256", Reason::MissingValue, message);
    }
    fields.done()?;
    let asked = Asked {
        call: "Executions.Approve",
        request,
        execution: asked.execution_id.clone(),
        work: Some(asked.work_sha256.clone()),
        decision: Decision::of(reviewer, Verdict::Approved, &asked.comment),
        message: asked,
    };
    asked.decide(host, reviewer).await
}

/// Refuses an execution, and waits for its end.
pub(super) async fn reject(
    host: &Arc<Host>,
    reviewer: &Arc<Principal>,
    asked: v1::ExecutionsRejectRequest,
) -> Result<Arc<Execution>, Problem> {
    let mut fields = Fields::default();
    let request = fields.id("request_id", &asked.request_id);
    check_comment(&asked.comment, &mut fields);
    fields.done()?;
    let asked = Asked {
        call: "Executions.Reject",
        request,
        execution: asked.execution_id.clone(),
        work: None,
        decision: Decision::of(reviewer, Verdict::Rejected, &asked.comment),
        message: asked,
    };
    let execution = asked.decide(host, reviewer).await?;
    execution.log.ended().await;
    Ok(execution)
}

impl<M: Message + 'static> Asked<M> {
    async fn decide(self, host: &Arc<Host>, reviewer: &Arc<Principal>) -> Result<Arc<Execution>, Problem> {
        let execution = host.registry.get(reviewer, "execution_id", &self.execution)?;
        let (host, reviewer) = (Arc::clone(host), Arc::clone(reviewer));
        to_its_end(async move {
            let (tenant, request) = (&reviewer.tenant, self.request.clone());
            let Some(turn) = host.repeats.begin(tenant, request, self.call, &self.message).await? else {
                return Ok(execution);
            };
            // Before it is recorded, nothing can be decided about it.
            if !execution.is_admitted().await {
                return Err(Problem::NotPending(self.execution, "was not accepted".to_owned()));
            }
            if self.work.is_some_and(|work| work != execution.work_sha256) {
                let why = format!(
                    "runs other work than was looked at: its SHA-256 is {}",
                    execution.work_sha256
                );
                return Err(Problem::NotPending(self.execution, why));
            }
            decide(&host, &execution, &reviewer, self.request.as_ref(), self.decision).await?;
            turn.done();
            Ok(execution)
        })
        .await
    }
}

fn check_comment(comment: &str, fields: &mut Fields) {
    if comment.len() > SENTENCE_MAX {
        fields.wrong("comment", Reason::TooLarge, "has more than 1 KiB");
    }
}
