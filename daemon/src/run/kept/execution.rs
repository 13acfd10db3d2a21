//! An execution in a kept session.

use std::sync::Arc;

use brig_jailer::api::Request;
use tracing::{Instrument, Span, info_span};

use super::Use;
use crate::host::Host;
use crate::run::admit::{Conditions, Job};
use crate::run::approval::Admission;
use crate::run::execution::Execution;
use crate::run::life::{Home, Running, live, to_end};
use crate::run::queue::Permit;

/// Runs an accepted execution to its end; the session stays.
pub async fn run(host: Arc<Host>, execution: Arc<Execution>, job: Job, admission: Admission, used: Use) {
    let span = span(&execution);
    async {
        let permit = live(&host, &execution, job, admission, Home::Kept(used.session())).await;
        ended(&host, &execution).await;
        drop(permit);
        // The session may be idle from here on.
        drop(used);
    }
    .instrument(span)
    .await;
}

/// Goes on to its end with an execution that an earlier brigd began.
pub async fn resume(
    host: Arc<Host>,
    execution: Arc<Execution>,
    conditions: Conditions,
    running: Running,
    place: Permit,
    used: Use,
) {
    let span = span(&execution);
    async {
        to_end(&host, &execution, &conditions, running).await;
        ended(&host, &execution).await;
        drop(place);
        drop(used);
    }
    .instrument(span)
    .await;
}

/// Keeps what has ended for those who ask; of the oldest nobody needs to know any more.
async fn ended(host: &Host, execution: &Execution) {
    host.registry.ended(execution);
    for (execution, session) in host.registry.take_unwanted() {
        let execution = Some(execution);
        // A jailer that is gone has forgotten.
        let _ = host.jailer.ask(Request::Forget { session, execution }).await;
    }
}

fn span(execution: &Execution) -> Span {
    info_span!("execution", id = %execution.id, session = %execution.session, tenant = %execution.principal.tenant)
}
