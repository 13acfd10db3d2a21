//! Pause and Resume: the answer comes when the jailer has done it.

use std::sync::Arc;
use std::time::Duration;

use brig_jailer::ids::Id;
use prost::Message;
use sha2::{Digest, Sha256};

use crate::host::Host;
use crate::jailer::JailerError;
use crate::run::fields::Fields;
use crate::run::kept::Session;
use crate::run::kept::files::{self, Answer, Begun, Turn};
use crate::status::Problem;

/// How long the jailer may take.
const SETTLE: Duration = Duration::from_secs(10);

/// Pauses a session, or lets it run again, once for each request_id: a request that comes again later does not undo what
/// others did meanwhile.
pub(super) async fn pause(
    host: &Host,
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
    let Some(turn) = begin(session, id, asked, paused).await? else {
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

/// A request that is being done.
struct Doing(Option<Turn>);

impl Doing {
    fn done(self) {
        if let Some(turn) = self.0 {
            turn.done(&Answer::default());
        }
    }
}

/// Waits for the turn of a request; `None` if it was done before.
async fn begin(
    session: &Arc<Session>,
    id: Option<Id>,
    asked: &impl Message,
    paused: bool,
) -> Result<Option<Doing>, Problem> {
    let Some(id) = id else { return Ok(Some(Doing(None))) };
    let digest = Sha256::new()
        .chain_update([u8::from(paused)])
        .chain_update(asked.encode_to_vec())
        .finalize()
        .into();
    loop {
        match files::begin(session, &id, digest, 0)? {
            Begun::New(turn, _) => return Ok(Some(Doing(Some(turn)))),
            Begun::Done(_) => return Ok(None),
            Begun::Running(_, mut over) => {
                // It ends with the turn that it is about.
                let _ = over.changed().await;
            }
        }
    }
}
