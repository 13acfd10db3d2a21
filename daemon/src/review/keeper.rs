//! The task that keeps order: it ends reviews whose time is over, moves into the store what may be there, and removes
//! what has expired.

use std::fs::File;
use std::time::{Duration, SystemTime};

use tokio::time::MissedTickBehavior;
use tracing::{error, info, warn};

use super::decide::Ruling;
use super::record::Record;
use super::records::Amount;
use super::{ArtifactStore, ArtifactsError};
use crate::artifacts::Review;
use crate::ledger::Ledger;
use crate::status::Problem;

/// Time between two looks for what has expired, and after which what failed is tried again.
const LOOK: Duration = Duration::from_secs(5);

/// What was removed because its time had run out, or would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Swept {
    /// What nobody decided about in time.
    pub(super) expired: Amount,
    /// What was kept long enough.
    pub(super) kept: Amount,
}

impl ArtifactStore {
    /// Keeps order, again and again; ends with the task.
    pub async fn keep(self, ledger: Ledger) {
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut recovered = false;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.shared.wake.notified() => {}
            }
            if !recovered {
                match self.recover(&ledger).await {
                    Ok(()) => recovered = true,
                    Err(error) => warn!(%error, "decisions not brought to their end"),
                }
            }
            if let Err(error) = self.sweep(&ledger).await {
                error!(%error, "artifact sweep failed");
            }
            if let Err(error) = self.tidy().await {
                warn!(%error, "artifact store not brought up to date; tried again");
                // What woke it may come at any time; the store may need some.
                ticks.tick().await;
            }
        }
    }

    /// Removes what has expired; gives how much that was.
    pub(super) async fn sweep(&self, ledger: &Ledger) -> Result<Swept, Problem> {
        let mut swept = Swept::default();
        loop {
            let overdue = self.blocking(|shared| Ok(shared.records().overdue(SystemTime::now())?));
            let overdue = overdue.await?;
            if overdue.is_empty() {
                break;
            }
            for record in overdue {
                add(&mut swept.expired, &record);
                match self.decide(ledger, expiry(&record)).await {
                    // A reviewer was faster, or it was erased.
                    Ok(_) | Err(Problem::ArtifactNotPending(..) | Problem::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        loop {
            let expired = self
                .blocking(|shared| {
                    let mut records = shared.records();
                    let (expired, files) = records.expire(SystemTime::now())?;
                    shared.remove(&files);
                    shared.tell(expired.iter().cloned().map(Record::gone));
                    Ok(expired)
                })
                .await?;
            if expired.is_empty() {
                break;
            }
            expired.iter().for_each(|record| add(&mut swept.kept, record));
        }
        if swept != Swept::default() {
            let (expired, kept) = (swept.expired, swept.kept);
            info!(
                expired = expired.files,
                expired_bytes = expired.bytes,
                kept = kept.files,
                kept_bytes = kept.bytes,
                "artifacts swept"
            );
            self.shared.wake.notify_one();
        }
        Ok(swept)
    }

    /// Counts what [`ArtifactStore::sweep`] would remove.
    pub(super) async fn count_due(&self) -> Result<Swept, ArtifactsError> {
        let [expired, kept] = self
            .blocking(|shared| Ok(shared.records().due(SystemTime::now())?))
            .await?;
        Ok(Swept { expired, kept })
    }

    /// Brings the store up to date with the records.
    pub(super) async fn tidy(&self) -> Result<(), ArtifactsError> {
        loop {
            let held = self.blocking(|shared| Ok(shared.records().to_store()?)).await?;
            if held.is_empty() {
                break;
            }
            for record in held {
                self.move_to_store(record).await?;
            }
        }
        loop {
            let leftovers = self.blocking(|shared| Ok(shared.records().leftovers()?)).await?;
            if leftovers.is_empty() {
                return Ok(());
            }
            for (tenant, sha256, is_wanted) in leftovers {
                if !is_wanted {
                    self.shared.objects.delete(&tenant, sha256).await?;
                }
                self.blocking(move |shared| Ok(shared.records().cleaned(&tenant, sha256)?))
                    .await?;
            }
        }
    }

    /// Moves the bytes of an artifact from the quarantine into the store.
    async fn move_to_store(&self, record: Record) -> Result<(), ArtifactsError> {
        let announced = record.clone();
        let file = self
            .blocking(move |shared| {
                let path = shared.quarantine().join(announced.id.as_str());
                match File::open(&path) {
                    Ok(file) => {
                        // Before it is there, so that it is found whatever happens.
                        shared.records().announce(&announced)?;
                        Ok(Some(file))
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(ArtifactsError::file(&path, error)),
                }
            })
            .await?;
        let put = match file {
            Some(file) => {
                self.shared
                    .objects
                    .put(&record.source.tenant, record.sha256, file)
                    .await
            }
            // It was erased, or has expired, meanwhile; or somebody took it away.
            None => Err(ArtifactsError::Damaged {
                artifact: record.id.to_string(),
                why: "there is no such file".to_owned(),
            }),
        };
        if let Err(error @ ArtifactsError::Damaged { .. }) = &put {
            let still_there = self.find(&record.source.tenant, &record.id).await?;
            if still_there.is_some_and(|now| now.place == record.place) {
                error!(%error, "bytes of an artifact are given up");
            }
            return self
                .blocking(move |shared| {
                    shared.records().lost(&record.id)?;
                    shared.remove(&[record.id]);
                    Ok(())
                })
                .await;
        }
        put?;
        self.blocking(move |shared| {
            // Behind the row: who reads it finds the file or the object.
            if shared.records().stored(&record)? {
                shared.remove(&[record.id]);
            }
            Ok(())
        })
        .await
    }
}

/// Nobody has decided in time.
fn expiry(record: &Record) -> Ruling {
    Ruling {
        tenant: record.source.tenant.clone(),
        artifact: record.id.clone(),
        review: Review::Expired,
        sha256: None,
        reviewer: String::new(),
        user: String::new(),
        comment: "nobody decided in time".to_owned(),
        request: None,
    }
}

fn add(amount: &mut Amount, record: &Record) {
    amount.files += 1;
    amount.bytes += record.shown.size_bytes;
}
