//! Pause and Resume: the answer comes when the jailer has done it.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;

use crate::host::Host;
use crate::jailer::JailerError;
use crate::run::fields::Fields;
use crate::run::kept::Session;
use crate::status::Problem;

/// How long the jailer may take.
const SETTLE: Duration = Duration::from_secs(10);

/// Pauses a session, or lets it run again, once for each request_id: a request that comes again later does not undo what
/// others did meanwhile.
pub(super) async fn pause(
    host: &Host,
    tenant: &str,
    session: &Arc<Session>,
    request_id: &str,
    asked: &impl Message,
    paused: bool,
) -> Result<(), Problem> {
    let mut fields = Fields::default();
    let id = fields.id("request_id", request_id);
    fields.done()?;
    // While it is being made, its state is not known yet.
    let _refused = session.ready().await;
    let call = if paused { "Sessions.Pause" } else { "Sessions.Resume" };
    let Some(turn) = host.repeats.begin(tenant, id, call, asked).await? else {
        return Ok(());
    };
    if !session.is_up() {
        return Err(session.closed_problem());
    }
    if paused {
        session.pause();
    } else {
        session.resume()?;
    }
    session.remember(&host.jailer).await;
    let settled = tokio::time::timeout(SETTLE, session.settled(paused)).await;
    settled.map_err(|_elapsed| JailerError::Silent)?;
    if !session.is_up() {
        return Err(session.closed_problem());
    }
    turn.done();
    Ok(())
}
