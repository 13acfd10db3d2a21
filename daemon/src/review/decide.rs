//! Decisions about artifacts: noted in the record, written to the ledger, and only then in force.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::SystemTime;

use brig_jailer::ids::Id;
use sha2::{Digest, Sha256};
use tracing::info;

use super::enter::check_kept;
use super::record::{Decision, Place, Record};
use super::records::Begun;
use super::{ArtifactStore, ArtifactsError, Shared};
use crate::artifacts::Review;
use crate::database::{to_millis, to_time};
use crate::ledger::{self, Ledger};
use crate::run::inputs::hex;
use crate::status::Problem;

/// What is decided, and by whom.
#[derive(Debug, Clone)]
pub(super) struct Ruling {
    /// Whose artifact it is.
    pub(super) tenant: String,
    pub(super) artifact: Id,
    pub(super) review: Review,
    /// What the reviewer looked at; needed to approve.
    pub(super) sha256: Option<[u8; 32]>,
    /// `tenant/user`.
    pub(super) reviewer: String,
    pub(super) user: String,
    pub(super) comment: String,
    pub(super) request: Option<Id>,
}

impl ArtifactStore {
    /// Decides about an artifact; gives it as it is then.
    ///
    /// Errors: it does not wait for a decision, it is not what was looked at, there is no room to keep it, or the ledger
    /// can't be written. Then nothing has changed.
    pub(super) async fn decide(&self, ledger: &Ledger, ruling: Ruling) -> Result<Record, Problem> {
        let decision = Decision {
            review: ruling.review.name().to_owned(),
            reviewer: ruling.reviewer.clone(),
            user: ruling.user.clone(),
            comment: ruling.comment.clone(),
            request: ruling.request.as_ref().map(Id::to_string),
            time_ms: to_millis(SystemTime::now()),
        };
        let begun = {
            let decision = decision.clone();
            self.blocking(move |shared| Ok(shared.begin(&ruling, &decision)))
        };
        let record = begun.await??;
        if let Err(error) = ledger.artifact_reviewed(entry(&record, &decision)).await {
            let id = record.id.clone();
            self.blocking(move |shared| Ok(shared.records().call_off(&id)?)).await?;
            return Err(error.into());
        }
        Ok(self.conclude(record, decision).await?)
    }

    /// Brings those decisions to their end that were on their way when brigd ended.
    pub(super) async fn recover(&self, ledger: &Ledger) -> Result<(), Problem> {
        let deciding = self.blocking(|shared| Ok(shared.records().deciding()?)).await?;
        for (record, decision) in deciding {
            ledger.artifact_reviewed(entry(&record, &decision)).await?;
            self.conclude(record, decision).await?;
        }
        Ok(())
    }

    async fn conclude(&self, before: Record, decision: Decision) -> Result<Record, ArtifactsError> {
        let decided = self
            .blocking(move |shared| {
                let mut records = shared.records();
                let Some((record, files)) = records.conclude(&before.id, &decision)? else {
                    // It was erased meanwhile.
                    return Ok(before);
                };
                shared.remove(&files);
                shared.tell([record.clone()]);
                Ok(record)
            })
            .await?;
        info!(
            artifact = %decided.id,
            tenant = decided.source.tenant,
            review = decided.review.name(),
            reviewer = decided.reviewer,
            "artifact reviewed"
        );
        self.shared.wake.notify_one();
        Ok(decided)
    }
}

impl Shared {
    /// Notes that a decision is on its way, if it may be made.
    fn begin(&self, ruling: &Ruling, decision: &Decision) -> Result<Record, Problem> {
        let failed = ArtifactsError::from;
        let (tenant, id) = (&ruling.tenant, &ruling.artifact);
        if ruling.review == Review::Approved {
            let found = self.records().find(tenant, id).map_err(failed)?;
            let record = found.ok_or_else(|| super::service::not_found(id.as_str()))?;
            self.check(&record, ruling)?;
        }
        match self.records().begin(tenant, id, decision).map_err(failed)? {
            Begun::Deciding(record) => Ok(*record),
            Begun::Not(record) => Err(not_pending(&record)),
            Begun::Unknown => Err(super::service::not_found(id.as_str())),
        }
    }

    /// Checks that an artifact can be approved: it is there, it is what was looked at, and there is room to keep it.
    fn check(&self, record: &Record, ruling: &Ruling) -> Result<(), Problem> {
        let id = record.id.to_string();
        if record.review != Review::Pending {
            return Err(not_pending(record));
        }
        if ruling.sha256 != Some(record.sha256) {
            let why = format!("it has the SHA-256 {}, another one was looked at", hex(&record.sha256));
            return Err(Problem::ArtifactNotPending(id, why));
        }
        if record.expire_time <= SystemTime::now() {
            return Err(Problem::ArtifactNotPending(
                id,
                "the time for its review is over".to_owned(),
            ));
        }
        if record.place != Place::Held {
            return Err(Problem::ArtifactNotPending(id, "its bytes are lost".to_owned()));
        }
        let path = self.quarantine().join(record.id.as_str());
        let found = hash(&path).map_err(|source| ArtifactsError::file(&path, source))?;
        if found != record.sha256 {
            let why = format!("they have the SHA-256 {}", hex(&found));
            return Err(ArtifactsError::Damaged { artifact: id, why }.into());
        }
        let used = self.records().amount(&record.source.tenant, false);
        let used = used.map_err(ArtifactsError::from)?;
        Ok(check_kept(&self.limits(), used, record.shown.size_bytes)?)
    }
}

fn not_pending(record: &Record) -> Problem {
    let why = match record.review {
        Review::Pending => "it is being decided about".to_owned(),
        Review::NotNeeded => "it needs no review".to_owned(),
        review => format!("it is {} already", review.name()),
    };
    Problem::ArtifactNotPending(record.id.to_string(), why)
}

/// The same for the ledger.
fn entry(record: &Record, decision: &Decision) -> ledger::ArtifactReviewed {
    let source = &record.source;
    ledger::ArtifactReviewed {
        artifact: record.id.clone(),
        execution: source.execution.clone(),
        session: source.session.clone(),
        request: decision.request.clone(),
        tenant: source.tenant.clone(),
        user: decision.user.clone(),
        origin: ledger::Origin {
            user: source.user.clone(),
            ..ledger::Origin::default()
        },
        review: decision.review.clone(),
        sha256: hex(&record.sha256),
        size_bytes: record.shown.size_bytes,
        message: decision.comment.clone(),
        time: to_time(decision.time_ms),
    }
}

fn hash(path: &Path) -> io::Result<[u8; 32]> {
    let (mut file, mut hash) = (File::open(path)?, Sha256::new());
    let mut bytes = vec![0; crate::artifacts::READ_MAX];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(hash.finalize().into()),
            read => hash.update(&bytes[..read]),
        }
    }
}
