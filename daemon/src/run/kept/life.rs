//! The life of a kept session: make, wait for its end, close.
//!
//! The list is [`run`]. It ends by itself when it was idle for too long or has expired (unless it is paused then), when somebody asks for it, when
//! its pid 1 dies or its file helper can't be kept. Executions that run then are told, and waited for, before the
//! session counts as closed.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use brig_jailer::api::{CloseReason, Dock, Event, Make, Request};
use brig_jailer::faults::{Point, point};
use brig_proto::v1::{SessionCloseReason, SessionState, StartKind};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{Instrument, error, info, info_span, warn};

use super::{Session, helper};
use crate::files::Files;
use crate::host::Host;
use crate::jailer::Jail;
use crate::ledger::{LedgerError, SessionClosed};
use crate::run::execution::StopCause;
use crate::run::session::CLOSE;
use crate::run::start::{is_of_the_dock, make};
use crate::slots::Slot;
use crate::status::Problem;

/// How long executions may take to end that were told to; their kills and their records are bounded by themselves.
const EXECUTIONS: Duration = Duration::from_secs(15);

/// Makes a session and lives with it to its end.
pub async fn run(host: Arc<Host>, session: Arc<Session>, inbox: helper::Inbox, place: Slot) {
    let span = info_span!("session", id = %session.id, tenant = %session.principal.tenant);
    async {
        info!(policy = %session.policy.id(), template = %session.template.id, "session accepted");
        session.tell(&host.registry.watchers);
        let mut jail = None;
        match make_in_time(&host, &session, &mut jail).await {
            Ok(files) => serve_and_live(&host, &session, files, inbox, &mut jail).await,
            Err(problem) => {
                warn!(%problem, reason = problem.reason().name(), "session not made");
                session.refuse(problem.status());
                session.end(SessionCloseReason::Failed);
            }
        }
        close(&host, &session, jail).await;
        drop(place);
    }
    .instrument(span)
    .await;
}

/// Lives to its end with a session that an earlier brigd made.
pub async fn resume(host: Arc<Host>, session: Arc<Session>, inbox: helper::Inbox, place: Slot, jail: Jail) {
    let span = info_span!("session", id = %session.id, tenant = %session.principal.tenant);
    async {
        let mut jail = Some(jail);
        session.tell(&host.registry.watchers);
        // The helper's socket went with the earlier brigd: another one is asked for when it is needed.
        serve_and_live(&host, &session, Files::none(), inbox, &mut jail).await;
        close(&host, &session, jail).await;
        drop(place);
    }
    .instrument(span)
    .await;
}

async fn serve_and_live(
    host: &Host,
    session: &Arc<Session>,
    files: Files,
    inbox: helper::Inbox,
    jail: &mut Option<Jail>,
) {
    let helper = helper::serve(Arc::downgrade(session), host.jailer.clone(), files, inbox);
    tokio::spawn(helper);
    live(session, jail).await;
}

/// Makes the jail, unless somebody has the session end before.
async fn make_in_time(host: &Host, session: &Session, slot: &mut Option<Jail>) -> Result<Files, Problem> {
    let most = session.limits.start_timeout_ms;
    let deadline = Instant::now() + Duration::from_millis(most);
    let make_in = |dock| Make {
        session: session.id.clone(),
        policy: session.policy.name.clone(),
        policy_hash: session.policy.hash.clone(),
        template: session.template.id.clone(),
        quantities: session.limits.quantities(),
        held: true,
        waiting: false,
        dock,
        memo: session.memo(),
    };
    let making = async {
        if let Some(dock) = host.pool.nest(session) {
            match make(&host.jailer, make_in(Dock::Of(dock)), slot).await {
                Err(problem) if is_of_the_dock(&problem) => {
                    host.pool.zygote_failed();
                    warn!(%problem, "no session below that of a zygote; it is made beside it");
                }
                made => {
                    session.contexts.fork(made.is_ok());
                    return made;
                }
            }
        }
        make(&host.jailer, make_in(Dock::None), slot).await
    };
    tokio::select! {
        biased;
        _reason = session.told_to_end() => Err(session.closed_problem()),
        made = making => {
            let (enforced, files) = made?;
            session.made(enforced);
            host.pool.count(StartKind::Cold);
            info!("session up");
            Ok(files)
        }
        () = sleep_until(deadline) => Err(Problem::StartTimeout(most, "its session was being made")),
    }
}

/// Waits for the reason that it ends for.
async fn live(session: &Arc<Session>, slot: &mut Option<Jail>) {
    let Some(jail) = slot else { return };
    let mut changes = session.watch();
    changes.mark_unchanged();
    // What the jailer was asked for last; a session that was adopted is as it is.
    let mut paused = session.phase() == SessionState::Paused;
    while session.is_up() {
        if session.is_pausing() != paused {
            paused = !paused;
            let request = Request::Pause {
                session: session.id.clone(),
                paused,
            };
            // A jailer that is gone shows in the events.
            let _ = jail.ask(request).await;
        }
        let due = session.due();
        tokio::select! {
            message = jail.next() => match message.map(|message| (message.event, message.fds)) {
                Some((Event::Files { .. }, mut fds)) => {
                    if let Some(socket) = fds.pop() {
                        session.helper.arrived(socket);
                    }
                }
                Some((Event::Closed { reason, .. }, _)) => session.end(close_reason(reason)),
                Some((Event::Paused { paused, .. }, _)) => session.paused(paused),
                Some(_) => {}
                None => session.end(SessionCloseReason::Lost),
            },
            // The sender lives as long as the session.
            _ = changes.changed() => session.remember(jail.jailer()).await,
            () = sleep_until(due.at) => session.act_if_due(),
        }
    }
}

/// Ends what runs in it, and the jail, and records it.
async fn close(host: &Host, session: &Arc<Session>, jail: Option<Jail>) {
    let reason = session.told_to_end().await;
    info!(reason = reason.as_str_name(), "session closing");
    if let Some(cause) = stop_cause(reason) {
        for execution in host.registry.of_session(&session.id) {
            execution.stop.tell(cause);
        }
    }
    point(Point::DaemonBeforeClose);
    let mut confirmed = true;
    if let Some(mut jail) = jail {
        // Whoever comes next closes it for the same reason.
        session.remember(jail.jailer()).await;
        confirmed = jail.close(CLOSE).await;
    }
    if timeout(EXECUTIONS, session.unused()).await.is_err() {
        warn!("executions of a closed session did not end");
    }
    let record = SessionClosed {
        session: session.id.clone(),
        reason: word(reason),
        time: SystemTime::now(),
    };
    match host.ledger.session_closed(record).await {
        // A record that is there already says the same.
        Ok(()) | Err(LedgerError::NotRunning(_)) => {
            let request = Request::Forget {
                session: session.id.clone(),
                execution: None,
            };
            // A jailer that is gone has forgotten.
            let _ = host.jailer.ask(request).await;
        }
        Err(error) => error!(%error, "ledger session close failed"),
    }
    session.helper.end();
    session.ended();
    host.registry.session_ended(session);
    info!(confirmed, "session closed");
}

/// What the executions of a session end of when it does.
pub fn stop_cause(reason: SessionCloseReason) -> Option<StopCause> {
    match reason {
        SessionCloseReason::Asked | SessionCloseReason::Idle => Some(StopCause::SessionClosed),
        SessionCloseReason::Expired => Some(StopCause::SessionAge),
        SessionCloseReason::Shutdown => Some(StopCause::Shutdown),
        // The jailer tells what became of them.
        _ => None,
    }
}

/// Why the jailer closed a session that nobody here closed.
pub fn close_reason(reason: CloseReason) -> SessionCloseReason {
    match reason {
        CloseReason::SessionAge => SessionCloseReason::Expired,
        CloseReason::Died => SessionCloseReason::Died,
        CloseReason::Asked => SessionCloseReason::Shutdown,
        CloseReason::Abandoned => SessionCloseReason::Lost,
    }
}

/// A reason as the ledger writes it.
pub fn word(reason: SessionCloseReason) -> String {
    let name = reason.as_str_name();
    name.trim_start_matches("SESSION_CLOSE_REASON_").to_lowercase()
}
