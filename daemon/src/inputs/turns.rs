//! Uploads that have a request id and go on: whoever asks again has given up the call before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use brig_jailer::ids::Id;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::InputsError;
use crate::run::registry::reused;
use crate::status::Problem;

/// How long the call that was given up for another one may take to end.
const REPLACED: Duration = Duration::from_secs(10);

/// The uploads by tenant and request: as many as go on, which are bounded.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Key, Running>>);

type Key = (String, Id);

#[derive(Debug)]
struct Running {
    /// Of the spec.
    digest: [u8; 32],
    replaced: CancellationToken,
    over: watch::Receiver<()>,
}

/// An upload that goes on.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    key: Key,
    /// Cancelled when the same request comes again.
    pub(super) replaced: CancellationToken,
    _over: watch::Sender<()>,
}

impl Turns {
    /// Waits until no other call does the same request. Errors: it came with another spec, or does not end.
    pub(super) async fn take(self: &Arc<Self>, tenant: &str, request: &Id, digest: [u8; 32]) -> Result<Turn, Problem> {
        let deadline = Instant::now() + REPLACED;
        let key = (tenant.to_owned(), request.clone());
        loop {
            let mut over = match self.begin(&key, digest)? {
                Ok(turn) => return Ok(turn),
                Err(over) => over,
            };
            if tokio::time::timeout_at(deadline, over.changed()).await.is_err() {
                return Err(Problem::Inputs(InputsError::Busy(1)));
            }
        }
    }

    /// Begins a turn, or tells who has it to end; that is awaited then.
    fn begin(self: &Arc<Self>, key: &Key, digest: [u8; 32]) -> Result<Result<Turn, watch::Receiver<()>>, Problem> {
        let mut running = self.lock();
        if let Some(other) = running.get(key) {
            if other.digest != digest {
                return Err(reused(&key.1));
            }
            other.replaced.cancel();
            return Ok(Err(other.over.clone()));
        }
        let (sender, over) = watch::channel(());
        let replaced = CancellationToken::new();
        let entry = Running {
            digest,
            replaced: replaced.clone(),
            over,
        };
        running.insert(key.clone(), entry);
        Ok(Ok(Turn {
            turns: Arc::clone(self),
            key: key.clone(),
            replaced,
            _over: sender,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.lock().remove(&self.key);
    }
}
