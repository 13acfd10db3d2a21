//! What an accepted execution waits for before it runs.

use std::sync::Arc;

use brig_proto::v1;

use crate::host::Host;
use crate::run::admit::Job;
use crate::run::approval::Admission;
use crate::run::context::execution::Admission as ContextAdmission;
use crate::run::execution::Execution;
use crate::status::Problem;

/// How an accepted execution comes to run, by itself or in a context.
pub(super) enum Admitted {
    Alone(Admission),
    InContext(ContextAdmission),
}

/// Takes what an execution waits for: approval where that is asked for, else a turn in its context or a place.
pub(super) fn take_place(host: &Host, execution: &Arc<Execution>, job: &Job) -> Result<Admitted, Problem> {
    let context = match (&execution.kept, &execution.seat) {
        (Some(session), Some(seat)) => Some(session.contexts.get(seat.context.as_str())?),
        _ => None,
    };
    if execution.approval.is_some() {
        let tenant = &execution.principal.tenant;
        let pending = host.approvals.enter(tenant, job, execution.kept.is_some())?;
        let admitted = match context {
            None => Admitted::Alone(Admission::Reviewed(pending)),
            Some(context) => Admitted::InContext(ContextAdmission::Reviewed(pending, context.expect(execution)?)),
        };
        execution.log.place(v1::ExecutionState::PendingApproval, 0);
        return Ok(admitted);
    }
    let Some(context) = context else {
        let place = host.queue.enter(&execution.log)?;
        return Ok(Admitted::Alone(Admission::Direct(place)));
    };
    let place = match context.queue(execution)? {
        // It takes its place when it is its turn.
        (turn, false) => ContextAdmission::Direct(turn, None),
        (turn, true) => ContextAdmission::Direct(turn, Some(host.queue.enter(&execution.log)?)),
    };
    Ok(Admitted::InContext(place))
}
