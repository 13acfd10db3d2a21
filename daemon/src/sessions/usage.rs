//! What a session uses, and what is left to it: the jailer counts processes and memory, the file helper files.

use std::sync::Arc;
use std::time::Duration;

use brig_jailer::api::SessionUsage;
use brig_jailer::files::wire::{Place, Request, Response, Space};
use brig_proto::v1;
use tokio::time::timeout;
use tracing::debug;

use crate::jailer::Jailer;
use crate::run::execution::span;
use crate::run::kept::Session;

/// How long the two may take for their answers.
const ASK: Duration = Duration::from_secs(3);

/// Asks what a session uses; `None` where that is not known in time, or the session is over.
pub(super) async fn usage(jailer: &Jailer, session: &Arc<Session>) -> Option<v1::SessionUsage> {
    let counted = jailer.usage(session.id.clone());
    let (counted, space) = timeout(ASK, async { tokio::join!(counted, space(session)) })
        .await
        .ok()?;
    let counted: SessionUsage = counted.ok()??;
    let space = space?;
    Some(v1::SessionUsage {
        cpu_time: Some(span(Duration::from_micros(counted.cpu_us))),
        memory_bytes: counted.memory_bytes,
        processes: counted.processes,
        disk_bytes: space.used_bytes,
        inodes: space.used_inodes,
        contexts: u32::try_from(session.contexts.living()).unwrap_or(u32::MAX),
        executions: u32::try_from(session.executions()).unwrap_or(u32::MAX),
    })
}

/// Asks the file helper, which does not count as a use of the session.
async fn space(session: &Session) -> Option<Space> {
    // As many conversations as it may have go on already.
    let _place = session.files.place()?;
    let mut channel = session.helper.open(Place::Home).await.ok()?;
    match channel.ask(Request::Space).await {
        Ok(Response::Space(space)) => Some(space),
        other => {
            debug!(session = %session.id, ?other, "space not told");
            None
        }
    }
}
