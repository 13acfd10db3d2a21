//! How an artifact comes in: its bytes into the quarantine, and then a record of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use brig_jailer::ids::Id;
use brig_jailer::policy::{Download, Policy};
use brig_proto::v1;
use tracing::warn;

use super::record::{Place, Record, Source, raw_path};
use super::records::Amount;
use super::{ArtifactStore, ArtifactsError, Shared};
use crate::artifacts::{Review, Stored};
use crate::config;
use crate::database::{to_millis, to_time};
use crate::disk;
use crate::run::execution::Execution;

/// The flag of an artifact that could not be kept.
pub(crate) const NOT_KEPT: &str = "not_kept";

/// An artifact that was collected.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) id: Id,
    pub(crate) shown: v1::Artifact,
    pub(crate) sha256: [u8; 32],
    /// As the policy judges it.
    pub(crate) review: Review,
    /// Why its bytes are not in the quarantine, if they are not.
    pub(crate) not_held: Option<String>,
}

/// What all artifacts of an execution have in common.
#[derive(Debug, Clone)]
pub(crate) struct Left {
    pub(super) source: Source,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) download: Download,
    pub(super) retention: Duration,
    /// How long they are known.
    pub(super) known: Duration,
}

impl Left {
    /// What an execution leaves under a policy.
    pub(crate) fn by(execution: &Execution, policy: &Policy) -> Self {
        Self {
            source: Source {
                tenant: execution.principal.tenant.clone(),
                execution: execution.id.clone(),
                session: execution.session.clone(),
                user: execution.user.clone(),
                origin: execution.spec.origin.clone().unwrap_or_default(),
                policy: execution.policy.clone(),
            },
            labels: execution.spec.labels.clone(),
            download: policy.files.download,
            retention: policy.retention.artifacts.duration(),
            known: policy.retention.ledger.duration(),
        }
    }
}

impl ArtifactStore {
    /// Puts the bytes of an artifact into the quarantine, on the disk. Without a record they go at the next start.
    pub(crate) async fn hold(&self, id: &Id, stored: &Arc<Stored>) -> Result<(), ArtifactsError> {
        let (id, stored) = (id.clone(), Arc::clone(stored));
        self.blocking(move |shared| {
            let folder = shared.quarantine();
            let failed = |source| ArtifactsError::file(&folder, source);
            let free = File::open(&folder)
                .and_then(|folder| disk::free(&folder))
                .map_err(failed)?;
            let reserve = shared.limits().reserve.bytes();
            // They are there already, and are written once more if the store is a directory.
            if free.saturating_sub(stored.size()) < reserve {
                let more = stored.size();
                return Err(ArtifactsError::Full { free, more, reserve });
            }
            stored.keep_as(&folder.join(id.as_str())).map_err(failed)
        })
        .await
    }

    /// Enters what an execution left, all of it at once, and gives the records in the same order; `told` is what an
    /// earlier brigd told of already. What it had entered without telling keeps its id and its decision if it is the same
    /// file. What there is no room for is known, and not kept: it can't be approved.
    pub(crate) async fn enter(
        &self,
        left: Left,
        collected: Vec<Collected>,
        told: Vec<Id>,
    ) -> Result<Vec<Record>, ArtifactsError> {
        let entered = self
            .blocking(move |shared| shared.enter(&left, collected, &told))
            .await?;
        self.shared.wake.notify_one();
        Ok(entered)
    }
}

impl Shared {
    fn enter(&self, left: &Left, collected: Vec<Collected>, told: &[Id]) -> Result<Vec<Record>, ArtifactsError> {
        let (limits, now) = (self.limits(), SystemTime::now());
        let files: Vec<Id> = collected.iter().map(|collected| collected.id.clone()).collect();
        let mut records = self.records();
        let entered = (|| {
            let tenant = &left.source.tenant;
            let mut rooms = [true, false].map(|pending| Room::new(&limits, pending));
            for room in &mut rooms {
                room.used = records.amount(tenant, room.pending)?;
            }
            let mut untold = records.untold(&left.source.execution, told)?;
            let (mut entered, mut unwanted) = (Vec::with_capacity(collected.len()), Vec::new());
            for collected in collected {
                if let Some(same) = untold.iter().position(|earlier| is_same(earlier, &collected)) {
                    unwanted.push(collected.id);
                    entered.push((false, untold.swap_remove(same)));
                    continue;
                }
                let [pending, kept] = &mut rooms;
                let room = if collected.review == Review::Pending {
                    pending
                } else {
                    kept
                };
                entered.push((true, record(left, collected, room, &limits, now)));
            }
            self.sync_quarantine()?;
            let new: Vec<&Record> = entered
                .iter()
                .filter(|(is_new, _)| *is_new)
                .map(|(_, new)| new)
                .collect();
            let replaced: Vec<Id> = untold.into_iter().map(|earlier| earlier.id).collect();
            unwanted.extend(records.insert(&new, &replaced)?);
            let gone = new.iter().filter(|record| record.place == Place::Gone);
            unwanted.extend(gone.map(|record| record.id.clone()));
            self.remove(&unwanted);
            self.tell(new.into_iter().cloned());
            Ok::<_, ArtifactsError>(entered.into_iter().map(|(_, record)| record).collect())
        })();
        if entered.is_err() {
            self.remove(&files);
        }
        entered
    }
}

/// Whether an artifact that an earlier brigd entered is the file that was collected now.
fn is_same(earlier: &Record, collected: &Collected) -> bool {
    earlier.sha256 == collected.sha256 && raw_path(&earlier.shown) == raw_path(&collected.shown)
}

/// How much one more artifact may take up.
struct Room {
    pending: bool,
    used: Amount,
    files: u64,
    bytes: u64,
}

impl Room {
    fn new(limits: &config::Artifacts, pending: bool) -> Self {
        let (files, bytes) = if pending {
            (limits.pending_files, limits.pending_bytes)
        } else {
            (limits.tenant_files, limits.tenant_bytes)
        };
        Self {
            pending,
            used: Amount::default(),
            files: files as u64,
            bytes: bytes.bytes(),
        }
    }

    fn take(&mut self, more: u64) -> Result<(), ArtifactsError> {
        let keys = if self.pending {
            ["pending_files", "pending_bytes"]
        } else {
            ["tenant_files", "tenant_bytes"]
        };
        let each = [(1, self.used.files, self.files), (more, self.used.bytes, self.bytes)];
        for (key, (more, used, most)) in keys.into_iter().zip(each) {
            if used.checked_add(more).is_none_or(|sum| sum > most) {
                return Err(ArtifactsError::Quota { key, used, most, more });
            }
        }
        self.used.files += 1;
        self.used.bytes += more;
        Ok(())
    }
}

/// Whether a tenant may keep one more artifact that may leave.
pub(super) fn check_kept(limits: &config::Artifacts, used: Amount, more: u64) -> Result<(), ArtifactsError> {
    let mut room = Room::new(limits, false);
    room.used = used;
    room.take(more)
}

fn record(left: &Left, collected: Collected, room: &mut Room, limits: &config::Artifacts, now: SystemTime) -> Record {
    let problem = collected.not_held.or_else(|| {
        room.take(collected.shown.size_bytes)
            .err()
            .map(|error| error.to_string())
    });
    if let Some(why) = &problem {
        warn!(artifact = %collected.id, why, "artifact not kept");
    }
    let mut shown = collected.shown;
    // What can't be looked at can't be approved.
    let review = match (collected.review, &problem) {
        (Review::Pending, Some(_)) => Review::Rejected,
        (review, _) => review,
    };
    shown.review = review.shown().into();
    shown.flags.extend(problem.is_some().then(|| NOT_KEPT.to_owned()));
    // In whole milliseconds, as it will be read.
    let create_time = to_time(to_millis(now));
    let keep = match review {
        Review::Pending => limits.review.duration(),
        _ => left.retention,
    };
    Record {
        id: collected.id,
        source: left.source.clone(),
        shown,
        sha256: collected.sha256,
        labels: left.labels.clone(),
        download: left.download,
        review,
        reviewer: String::new(),
        place: if problem.is_some() { Place::Gone } else { Place::Held },
        comment: problem.unwrap_or_default(),
        review_time: None,
        create_time,
        expire_time: create_time + keep,
        retention: left.retention,
        forget_time: create_time + left.known.max(keep),
    }
}
