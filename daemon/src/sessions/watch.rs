//! Watch: every session that matches, then each that changed, at the pace of the client.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use brig_jailer::ids::Id;
use brig_proto::v1;
use brig_proto::v1::sessions_watch_response::Event;
use brig_proto::v1::{Reason, WatchOverflow, WatchReady};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::codegen::BoxStream;

use crate::host::Host;
use crate::principal::Principal;
use crate::run::admit::check_labels;
use crate::run::fields::Fields;
use crate::run::kept::Session;
use crate::run::kept::watchers::{Told, Watch, Which};
use crate::status::Problem;

/// The most sessions that a call names.
const IDS_MAX: usize = 1000;
/// Events on their way to one client.
const EVENTS: usize = 4;

type Sender = mpsc::Sender<Result<v1::SessionsWatchResponse, Status>>;

/// Begins to watch.
pub(super) fn watch(
    host: &Host,
    principal: &Principal,
    asked: v1::SessionsWatchRequest,
) -> Result<BoxStream<v1::SessionsWatchResponse>, Problem> {
    let which = check(principal, asked)?;
    let (watch, first) = host.registry.watch(which)?;
    let (sender, receiver) = mpsc::channel(EVENTS);
    tokio::spawn(run(watch, first, sender));
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

fn check(principal: &Principal, asked: v1::SessionsWatchRequest) -> Result<Which, Problem> {
    let mut fields = Fields::default();
    fields.at_most("session_ids", asked.session_ids.len(), IDS_MAX);
    check_labels(&asked.labels, None, &mut fields);
    let mut id = |(index, text): (usize, &String)| {
        let field = format!("session_ids[{index}]");
        if text.is_empty() {
            fields.wrong(&field, Reason::InvalidId, "is empty");
        }
        fields.id(&field, text)
    };
    let ids = asked.session_ids.iter().take(IDS_MAX).enumerate();
    let ids = ids.filter_map(&mut id).collect();
    fields.done()?;
    Ok(Which {
        tenant: principal.tenant.clone(),
        ids,
        labels: asked.labels,
    })
}

/// Tells until the client goes away, or the daemon ends.
async fn run(mut watch: Watch, first: Vec<Arc<Session>>, to: Sender) {
    tokio::select! {
        () = tell(&mut watch, first, &to) => {}
        () = to.closed() => return,
    }
    // A client that does not read holds nothing but its own stream.
    let _ = to.try_send(Err(Problem::Draining.into()));
}

async fn tell(watch: &mut Watch, first: Vec<Arc<Session>>, to: &Sender) {
    // How new what was told first is, for what was on its way by then.
    let mut told: HashMap<Id, u64> = HashMap::new();
    for session in first {
        let (shown, revision) = session.show_with_revision();
        told.insert(session.id.clone(), revision);
        if !send(to, SystemTime::now(), Event::Session(shown)).await {
            return;
        }
    }
    if !send(to, SystemTime::now(), Event::Ready(WatchReady {})).await {
        return;
    }
    while let Some(next) = watch.next().await {
        let is_sent = match next {
            Told::Overflow => send(to, SystemTime::now(), Event::Overflow(WatchOverflow {})).await,
            Told::Change(change) => {
                if told.get(&change.id).is_some_and(|known| *known >= change.revision) {
                    continue;
                }
                told.remove(&change.id);
                send(to, change.time, Event::Session(change.session.as_ref().clone())).await
            }
        };
        if !is_sent {
            return;
        }
    }
}

async fn send(to: &Sender, time: SystemTime, event: Event) -> bool {
    let response = v1::SessionsWatchResponse {
        time: Some(time.into()),
        event: Some(event),
    };
    to.send(Ok(response)).await.is_ok()
}
