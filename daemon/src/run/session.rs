//! The life of a session of one execution: it is made for it, and closed behind the answer.

use std::sync::Arc;
use std::time::Duration;

use brig_jailer::faults::{Point, point};
use tokio::time::Instant;
use tracing::{Instrument, debug, info_span, warn};

use crate::host::Host;
use crate::jailer::Jail;
use crate::run::admit::Job;
use crate::run::approval::Admission;
use crate::run::execution::Execution;
use crate::run::life::{Home, live};

/// How long a jail may take to go.
pub const CLOSE: Duration = Duration::from_secs(10);

/// Runs an accepted execution to its end, and closes its session.
pub async fn run(host: Arc<Host>, execution: Arc<Execution>, mut job: Job, admission: Admission) {
    let span =
        info_span!("execution", id = %execution.id, session = %execution.session, tenant = %execution.principal.tenant);
    async {
        let mut jail = None;
        let ahead = job.ahead.take();
        let home = Home::Own { jail: &mut jail, ahead };
        let permit = live(&host, &execution, job, admission, home).await;
        host.registry.ended(&execution);
        if let Some(jail) = jail {
            close(jail).await;
        }
        // The place is free only now, so that there are never more jails than places.
        drop(permit);
    }
    .instrument(span)
    .await;
}

async fn close(mut jail: Jail) {
    let start = Instant::now();
    point(Point::DaemonBeforeClose);
    if jail.close(CLOSE).await {
        debug!(ms = start.elapsed().as_millis(), "session closed");
    } else {
        warn!("session not confirmed closed");
    }
}
