//! What executions left: kept apart from their sessions, reviewed where it must be, and handed out.
//!
//! When an execution is collected, each artifact gets a record in a database and its bytes a file in the quarantine: the
//! file is on the disk first, the row after it, and only then anybody is told of the artifact. So whenever brigd dies, no
//! row is without its bytes, and what no row names is swept at the next start.
//!
//! What the policy lets out, and what a reviewer approved, is moved from there into the artifact store (`objects`) by one
//! task, the `keeper`, which also removes what has expired. It is the only one that writes to the store or deletes from
//! it, so that nothing is deleted that was just put there.
//!
//! A decision (`decide`) is noted in the record, then written to the ledger, and only then counts. One that was on its way
//! when brigd died is brought to its end by the next one. What nobody decided about in time is decided the same way.
//!
//! The folder is brigd's alone: whoever opens it holds the lock of the ledger beside it.

mod decide;
mod download;
mod enter;
mod error;
mod keeper;
mod link;
mod objects;
mod read;
mod record;
mod records;
mod service;
mod show;
mod watch;

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use brig_jailer::ids::Id;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tracing::{error, info, warn};

use crate::artifacts::Review;
use crate::config;

pub(crate) use enter::{Collected, Left, NOT_KEPT};
pub use error::ArtifactsError;
use objects::Objects;
pub use read::Opened;
pub use record::{Place, Record, Source};
use records::Records;
pub use service::ArtifactsService;
use watch::Watchers;

/// What executions left; copies share it.
#[derive(Debug, Clone)]
pub struct ArtifactStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    records: Mutex<Records>,
    objects: Objects,
    limits: Mutex<config::Artifacts>,
    watchers: Watchers,
    /// Wakes the keeper.
    wake: Notify,
}

/// Which artifacts are to be erased: those that match everything that is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Which {
    pub(crate) tenant: Option<String>,
    /// Of the connection or of the origin.
    pub(crate) user: Option<String>,
    pub(crate) execution: Option<String>,
    /// Before this time, in milliseconds since 1970.
    pub(crate) to_ms: Option<i64>,
}

impl ArtifactStore {
    /// Opens it, or makes it, and sweeps what a brigd that died has left.
    ///
    /// Blocks for a short time: meant for start-up.
    pub fn open(folder: &Path, config: &config::Artifacts) -> Result<Self, ArtifactsError> {
        for folder in [folder.to_owned(), folder.join("quarantine")] {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            made.map_err(|source| ArtifactsError::file(&folder, source))?;
        }
        let shared = Shared {
            folder: folder.to_owned(),
            records: Mutex::new(Records::open(&folder.join("records.db"))?),
            objects: Objects::open(&folder.join("store"), &config.s3)?,
            limits: Mutex::new(config.clone()),
            watchers: Watchers::default(),
            wake: Notify::new(),
        };
        shared.settle()?;
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Takes other limits. What is there stays.
    pub fn resize(&self, config: &config::Artifacts) {
        self.shared
            .limits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(config);
    }

    /// Finds an artifact of a tenant.
    pub async fn find(&self, tenant: &str, id: &Id) -> Result<Option<Record>, ArtifactsError> {
        let (tenant, id) = (tenant.to_owned(), id.clone());
        self.blocking(move |shared| Ok(shared.records().find(&tenant, &id)?))
            .await
    }

    /// The review of the artifact of a session that has this path and content; none if there is no such artifact.
    pub async fn review_of(
        &self,
        session: &Id,
        path: &[u8],
        sha256: [u8; 32],
    ) -> Result<Option<Review>, ArtifactsError> {
        let (session, path) = (session.clone(), path.to_owned());
        self.blocking(move |shared| Ok(shared.records().review_of(&session, &path, sha256)?))
            .await
    }

    /// Opens a part of the bytes of an artifact, wherever they are; nothing if they are nowhere. Whether they may be handed
    /// out is the gate's to say.
    async fn read(&self, record: Record, range: Range<u64>) -> Result<Option<Opened>, ArtifactsError> {
        let mut record = record;
        // The keeper may move them meanwhile, once.
        for _ in 0..2 {
            let source = match record.place {
                Place::Gone => None,
                Place::Held => self.open_held(&record, range.clone()).await?,
                Place::Store => {
                    let (tenant, sha256) = (&record.source.tenant, record.sha256);
                    self.shared.objects.get(tenant, sha256, range.clone()).await?
                }
            };
            if let Some(source) = source {
                return Ok(Some(Opened::new(record, source, &range)));
            }
            match self.find(&record.source.tenant, &record.id).await? {
                Some(now) if now.place != Place::Gone => record = now,
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Takes the expiry and the labels of a record; gives it as it is then, if it is there.
    async fn save(&self, record: Record) -> Result<Option<Record>, ArtifactsError> {
        self.blocking(move |shared| {
            let records = shared.records();
            records.save(&record)?;
            let saved = records.find(&record.source.tenant, &record.id)?;
            shared.tell(saved.clone());
            Ok(saved)
        })
        .await
    }

    /// Removes artifacts with all that is known of them, or counts them.
    pub(crate) async fn erase(&self, which: Which, only_count: bool) -> Result<u64, ArtifactsError> {
        let count = self
            .blocking(move |shared| {
                let (count, files) = shared.records().erase(&which, only_count)?;
                shared.remove(&files);
                Ok(count)
            })
            .await?;
        self.shared.wake.notify_one();
        Ok(count)
    }

    async fn open_held(&self, record: &Record, range: Range<u64>) -> Result<Option<read::Source>, ArtifactsError> {
        let (id, size) = (record.id.clone(), record.shown.size_bytes);
        self.blocking(move |shared| {
            let path = shared.quarantine().join(id.as_str());
            match read::open(&path, range, size) {
                Ok(source) => Ok(Some(source)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(ArtifactsError::file(&path, error)),
            }
        })
        .await
    }

    /// Does something that can block, to its end, also when nobody waits for it any more.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, ArtifactsError> + Send + 'static,
    ) -> Result<T, ArtifactsError> {
        let shared = Arc::clone(&self.shared);
        let done = spawn_blocking(move || work(&shared)).await;
        done.unwrap_or_else(|error| {
            let error = std::io::Error::other(error);
            Err(ArtifactsError::file(&self.shared.folder, error))
        })
    }
}

impl Shared {
    /// Brings rows and files together.
    fn settle(&self) -> Result<(), ArtifactsError> {
        let records = self.records();
        let mut files = names(&self.quarantine())?;
        let mut lost = 0;
        for (id, wanted) in records.held()? {
            let found = files.get(id.as_str()).and_then(|path| path.metadata().ok());
            if found.is_some_and(|found| found.len() == wanted) {
                files.remove(id.as_str());
            } else {
                // Not by a crash: somebody or a broken disk has changed it.
                warn!(artifact = %id, wanted, "artifact damaged; its bytes are given up");
                records.lost(&id)?;
                lost += 1;
            }
        }
        let without_record = files.len();
        files.values().for_each(|path| remove_file(path));
        info!(without_record, lost, "artifacts opened");
        Ok(())
    }

    fn quarantine(&self) -> PathBuf {
        self.folder.join("quarantine")
    }

    fn sync_quarantine(&self) -> Result<(), ArtifactsError> {
        let folder = self.quarantine();
        let synced = File::open(&folder).and_then(|folder| folder.sync_all());
        synced.map_err(|source| ArtifactsError::file(&folder, source))
    }

    /// Removes files of the quarantine that no record has any more. Who has opened one still reads it.
    fn remove(&self, files: &[Id]) {
        for id in files {
            remove_file(&self.quarantine().join(id.as_str()));
        }
    }

    /// Tells those who watch of artifacts that changed. Under the lock of the records, so that what is told last is true.
    fn tell(&self, records: impl IntoIterator<Item = Record>) {
        let now = SystemTime::now();
        records.into_iter().for_each(|record| self.watchers.tell(now, record));
    }

    fn limits(&self) -> config::Artifacts {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What lies in a folder, by name.
fn names(folder: &Path) -> Result<HashMap<String, PathBuf>, ArtifactsError> {
    let failed = |source| ArtifactsError::file(folder, source);
    let mut found = HashMap::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        found.insert(entry.file_name().to_string_lossy().into_owned(), entry.path());
    }
    Ok(found)
}

fn remove_file(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        error!(%error, path = %path.display(), "file of an artifact not removed");
    }
}

#[cfg(test)]
mod tests;
