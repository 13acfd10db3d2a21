//! An execution in a kept session.

use std::sync::Arc;

use tracing::{Instrument, info_span};

use super::Use;
use crate::host::Host;
use crate::run::admit::Job;
use crate::run::execution::Execution;
use crate::run::life::{Home, live};
use crate::run::queue::Place;

/// Runs an accepted execution to its end; the session stays.
pub async fn run(host: Arc<Host>, execution: Arc<Execution>, job: Job, place: Place, used: Use) {
    let span =
        info_span!("execution", id = %execution.id, session = %execution.session, tenant = %execution.principal.tenant);
    async {
        let permit = live(&host, &execution, job, place, Home::Kept(used.session())).await;
        host.registry.ended(&execution);
        drop(permit);
        // The session may be idle from here on.
        drop(used);
    }
    .instrument(span)
    .await;
}
