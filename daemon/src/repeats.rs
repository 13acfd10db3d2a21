//! Calls that change something and make nothing, such as Signal: each is done once, however often its request comes.
//!
//! What calls make is remembered by the ledger for a day. These are remembered here, so no longer than this daemon runs.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brig_jailer::ids::Id;
use prost::Message;
use sha2::{Digest, Sha256};
use tokio::sync::SetOnce;
use tokio::time::Instant;

use crate::ledger::REMEMBERED;
use crate::run::registry::reused;
use crate::status::Problem;

/// The most requests of a tenant that are remembered, the newest ones.
const REQUESTS_MAX: usize = 1024;

/// The requests that were done. Tenants are those of the configuration, so that there is a bound to them too.
#[derive(Debug, Clone, Default)]
pub struct Repeats(Arc<Mutex<HashMap<String, VecDeque<Request>>>>);

#[derive(Debug)]
struct Request {
    id: Id,
    digest: [u8; 32],
    time: Instant,
    /// Whether it was done, once that is known.
    done: Arc<SetOnce<bool>>,
}

/// A request that is being done; dropped before its end it may be done again.
#[derive(Debug)]
pub struct Turn {
    /// None where the request has no id.
    request: Option<(Repeats, String, Id, Arc<SetOnce<bool>>)>,
}

impl Repeats {
    /// Begins a request; `None` if the same one was done before. `call` is the name of the call.
    pub async fn begin(
        &self,
        tenant: &str,
        id: Option<Id>,
        call: &str,
        payload: &impl Message,
    ) -> Result<Option<Turn>, Problem> {
        let Some(id) = id else {
            return Ok(Some(Turn { request: None }));
        };
        let digest = Sha256::new()
            .chain_update(call)
            .chain_update(payload.encode_to_vec())
            .finalize()
            .into();
        loop {
            match self.enter(tenant, &id, digest)? {
                Ok(turn) => return Ok(Some(turn)),
                Err(other) if *other.wait().await => return Ok(None),
                // It failed: this one may be luckier.
                Err(_) => {}
            }
        }
    }

    /// Enters a request; if the same one is there already, gives what tells of its end.
    fn enter(&self, tenant: &str, id: &Id, digest: [u8; 32]) -> Result<Result<Turn, Arc<SetOnce<bool>>>, Problem> {
        let mut tenants = self.lock();
        let requests = tenants.entry(tenant.to_owned()).or_default();
        while requests
            .front()
            .is_some_and(|oldest| oldest.time.elapsed() >= REMEMBERED)
        {
            requests.pop_front();
        }
        if let Some(known) = requests.iter().find(|known| known.id == *id) {
            return if known.digest == digest {
                Ok(Err(Arc::clone(&known.done)))
            } else {
                Err(reused(id))
            };
        }
        if requests.len() >= REQUESTS_MAX {
            requests.pop_front();
        }
        let done = Arc::new(SetOnce::new());
        requests.push_back(Request {
            id: id.clone(),
            digest,
            time: Instant::now(),
            done: Arc::clone(&done),
        });
        let request = Some((self.clone(), tenant.to_owned(), id.clone(), done));
        Ok(Ok(Turn { request }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, VecDeque<Request>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Says that the request was done.
    pub fn done(mut self) {
        if let Some((.., done)) = self.request.take() {
            let _ = done.set(true);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some((repeats, tenant, id, done)) = self.request.take() else {
            return;
        };
        if let Some(requests) = repeats.lock().get_mut(&tenant) {
            requests.retain(|request| request.id != id || !Arc::ptr_eq(&request.done, &done));
        }
        let _ = done.set(false);
    }
}

#[cfg(test)]
mod tests {
    use brig_proto::v1::ExecutionsSignalRequest;

    use super::*;

    fn signal(signal: u32) -> ExecutionsSignalRequest {
        ExecutionsSignalRequest {
            signal,
            ..ExecutionsSignalRequest::default()
        }
    }

    fn id(text: &str) -> Option<Id> {
        Some(Id::parse(text).unwrap())
    }

    #[tokio::test]
    async fn a_request_is_done_once_and_again_only_if_it_failed() {
        let repeats = Repeats::default();
        let turn = repeats.begin("t", id("r"), "Signal", &signal(1)).await.unwrap();
        drop(turn.unwrap());
        let turn = repeats.begin("t", id("r"), "Signal", &signal(1)).await.unwrap();
        let again = repeats.clone();
        let waiting = tokio::spawn(async move { again.begin("t", id("r"), "Signal", &signal(1)).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "it waits for the first");
        turn.unwrap().done();
        assert!(waiting.await.unwrap().unwrap().is_none());
        // Without an id, and for another tenant, it is another one.
        assert!(repeats.begin("t", None, "Signal", &signal(1)).await.unwrap().is_some());
        assert!(
            repeats
                .begin("u", id("r"), "Signal", &signal(1))
                .await
                .unwrap()
                .is_some()
        );
    }

    #[tokio::test]
    async fn another_payload_or_call_is_refused() {
        let repeats = Repeats::default();
        let turn = repeats.begin("t", id("r"), "Signal", &signal(1)).await.unwrap();
        turn.unwrap().done();
        for (call, number) in [("Signal", 2), ("Interrupt", 1)] {
            let refused = repeats.begin("t", id("r"), call, &signal(number)).await.unwrap_err();
            assert_eq!(refused.reason(), brig_proto::v1::Reason::RequestIdReused);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_forgotten_after_a_day_and_the_oldest_when_there_are_too_many() {
        let repeats = Repeats::default();
        for number in 0..=REQUESTS_MAX {
            let turn = repeats
                .begin("t", id(&format!("r{number}")), "Signal", &signal(1))
                .await;
            turn.unwrap().unwrap().done();
        }
        let is_new = async |name: &str| {
            let turn = repeats.begin("t", id(name), "Signal", &signal(1)).await.unwrap();
            turn.is_some()
        };
        assert!(!is_new("r1").await);
        assert!(is_new("r0").await);
        tokio::time::advance(REMEMBERED).await;
        assert!(is_new("r1024").await);
        assert_eq!(repeats.lock()["t"].len(), 0);
    }
}
