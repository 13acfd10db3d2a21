//! Watch: every artifact that matches, then each that changed, at the pace of the client.
//!
//! All who watch share one bounded queue of changes; who does not keep up loses what is pushed out of it, and is told so.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use brig_jailer::ids::Id;
use brig_proto::v1;
use brig_proto::v1::artifacts_watch_response::Event;
use brig_proto::v1::{WatchOverflow, WatchReady};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::codegen::BoxStream;

use super::ArtifactStore;
use super::record::Record;
use super::show::{Filter, show, some};
use crate::run::kept::watchers::WATCHERS_MAX;
use crate::status::Problem;

/// The most who watch of all tenants.
const ALL_MAX: usize = 64;
/// Changes that may wait for the slowest.
const WAITING_MAX: usize = 256;
/// Events on their way to one client.
const EVENTS: usize = 4;
/// Artifacts that are read together at the beginning.
const BATCH: usize = 64;

type Sender = mpsc::Sender<Result<v1::ArtifactsWatchResponse, Status>>;

/// Everybody who watches.
#[derive(Debug)]
pub(super) struct Watchers {
    changes: broadcast::Sender<Arc<Change>>,
    /// How many of each tenant.
    places: Arc<Mutex<HashMap<String, usize>>>,
    over: CancellationToken,
}

/// An artifact that changed, as it was then.
#[derive(Debug)]
struct Change {
    time: SystemTime,
    record: Record,
}

/// A place among those who watch, free again when this is dropped.
#[derive(Debug)]
struct Seat {
    places: Arc<Mutex<HashMap<String, usize>>>,
    tenant: String,
}

impl Default for Watchers {
    fn default() -> Self {
        Self {
            changes: broadcast::Sender::new(WAITING_MAX),
            places: Arc::default(),
            over: CancellationToken::new(),
        }
    }
}

impl Watchers {
    /// Tells of an artifact as it is now.
    pub(super) fn tell(&self, time: SystemTime, record: Record) {
        // Nobody may be there to hear it.
        let _ = self.changes.send(Arc::new(Change { time, record }));
    }

    fn sit(&self, tenant: &str) -> Result<Seat, Problem> {
        let mut places = lock(&self.places);
        let (own, all) = (places.get(tenant).copied().unwrap_or(0), places.values().sum::<usize>());
        if own >= WATCHERS_MAX || all >= ALL_MAX {
            return Err(Problem::WatchQuota(own));
        }
        *places.entry(tenant.to_owned()).or_default() += 1;
        Ok(Seat {
            places: Arc::clone(&self.places),
            tenant: tenant.to_owned(),
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut places = lock(&self.places);
        if let Some(own) = places.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                places.remove(&self.tenant);
            }
        }
    }
}

fn lock(places: &Mutex<HashMap<String, usize>>) -> MutexGuard<'_, HashMap<String, usize>> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ArtifactStore {
    /// Has all watching end.
    pub fn end_watches(&self) {
        self.shared.watchers.over.cancel();
    }
}

/// Begins to watch.
pub(super) fn watch(store: &ArtifactStore, filter: Filter) -> Result<BoxStream<v1::ArtifactsWatchResponse>, Problem> {
    let watchers = &store.shared.watchers;
    if watchers.over.is_cancelled() {
        return Err(Problem::Draining);
    }
    let seat = watchers.sit(&filter.of.tenant)?;
    let (sender, receiver) = mpsc::channel(EVENTS);
    let watching = Watching {
        // From before the first look, so that nothing is missed between.
        changes: watchers.changes.subscribe(),
        known: HashSet::new(),
        store: store.clone(),
        filter,
        to: sender,
        _seat: seat,
    };
    tokio::spawn(watching.run());
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

struct Watching {
    store: ArtifactStore,
    filter: Filter,
    changes: broadcast::Receiver<Arc<Change>>,
    /// Those that matched when they were told last: a change after which they don't is told too.
    known: HashSet<Id>,
    to: Sender,
    _seat: Seat,
}

impl Watching {
    /// Tells until the client goes away, or the daemon ends.
    async fn run(mut self) {
        let (over, to) = (self.store.shared.watchers.over.clone(), self.to.clone());
        let end = tokio::select! {
            end = self.tell() => end,
            () = over.cancelled() => Err(Problem::Draining),
            () = to.closed() => return,
        };
        if let Err(problem) = end {
            // A client that does not read holds nothing but its own stream.
            let _ = to.try_send(Err(problem.into()));
        }
    }

    /// Errors: `CallerGone` when nobody reads any more.
    async fn tell(&mut self) -> Result<(), Problem> {
        let mut behind = None;
        loop {
            let mut batch = Vec::new();
            behind = some(&self.store, &self.filter, behind, |record| {
                let fits = batch.len() < BATCH;
                if fits {
                    batch.push(record.clone());
                }
                fits
            })
            .await?;
            for record in batch {
                self.known.insert(record.id.clone());
                self.send(SystemTime::now(), Event::Artifact(show(&record))).await?;
            }
            if behind.is_none() {
                break;
            }
        }
        self.send(SystemTime::now(), Event::Ready(WatchReady {})).await?;
        loop {
            match self.changes.recv().await {
                Ok(change) => self.changed(&change).await?,
                Err(RecvError::Lagged(_)) => {
                    self.send(SystemTime::now(), Event::Overflow(WatchOverflow {})).await?;
                }
                Err(RecvError::Closed) => return Err(Problem::Draining),
            }
        }
    }

    async fn changed(&mut self, change: &Change) -> Result<(), Problem> {
        let id = &change.record.id;
        let matches = self.filter.matches(&change.record);
        if matches {
            self.known.insert(id.clone());
        }
        if matches || self.known.remove(id) {
            self.send(change.time, Event::Artifact(show(&change.record))).await?;
        }
        Ok(())
    }

    async fn send(&self, time: SystemTime, event: Event) -> Result<(), Problem> {
        let response = v1::ArtifactsWatchResponse {
            time: Some(time.into()),
            event: Some(event),
        };
        let sent = self.to.send(Ok(response)).await;
        sent.map_err(|_gone| Problem::CallerGone)
    }
}
