//! Input records: files that were uploaded once, and go into any number of sessions.
//!
//! Bytes come in under a name in `incoming` that nobody knows, are hashed as they come and never looked into. Once they
//! are on the disk they get their place in `files`, and only then a row in a database says that they are there. A row
//! that goes goes first, its file second. So whenever brigd dies, no row is without its bytes, and what no row names is
//! swept at the next start.
//!
//! The folder is brigd's alone: whoever opens it holds the lock of the ledger beside it.

mod draft;
mod error;
mod records;
mod room;
mod service;
mod show;
mod turns;
mod upload;

use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use brig_jailer::ids::Id;
use tokio::task::spawn_blocking;
use tracing::{error, info, warn};

use crate::config::InputLimits;

pub use draft::Opened;
use draft::{Draft, Settled};
pub use error::InputsError;
pub use records::Record;
use records::{Asked, Known, Left, Records};
use room::Room;
pub use service::InputsService;
pub(crate) use service::not_found;
use turns::{Turn, Turns};

/// Time between two looks for what has expired.
const SWEEP: Duration = Duration::from_secs(5);

/// The store of input records; copies share it.
#[derive(Debug, Clone)]
pub struct Inputs {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    records: Mutex<Records>,
    room: Arc<Room>,
    turns: Arc<Turns>,
}

/// What became of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removed {
    Now,
    Before,
    Never,
}

impl Inputs {
    /// Opens the store, or makes it, and sweeps what a brigd that died has left.
    ///
    /// Blocks for a short time: meant for start-up.
    pub fn open(folder: &Path, limits: InputLimits) -> Result<Self, InputsError> {
        for folder in [folder.to_owned(), folder.join("incoming"), folder.join("files")] {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            made.map_err(|source| InputsError::file(&folder, source))?;
        }
        let shared = Shared {
            folder: folder.to_owned(),
            records: Mutex::new(Records::open(&folder.join("records.db"))?),
            room: Room::new(limits),
            turns: Arc::default(),
        };
        shared.settle()?;
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Takes other limits. What is stored stays.
    pub fn resize(&self, limits: InputLimits) {
        self.shared.room.resize(limits);
    }

    /// Finds a record of a tenant that is there.
    pub async fn find(&self, tenant: &str, id: &Id) -> Result<Option<Record>, InputsError> {
        match self.known(tenant, id).await? {
            Known::Here(record) => Ok(Some(*record)),
            Known::Gone | Known::Never => Ok(None),
        }
    }

    /// Opens the bytes of a record, unless it is gone.
    pub async fn bytes(&self, record: &Record) -> Result<Option<Opened>, InputsError> {
        let record = record.clone();
        self.blocking(move |shared| {
            let known = shared.records().find(&record.tenant, &record.id, SystemTime::now())?;
            match known {
                Known::Here(found) if found.file == record.file => {}
                _ => return Ok(None),
            }
            match Opened::open(&shared.place(&record.file), record.size, record.sha256) {
                // It went between the two.
                Err(InputsError::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
                opened => opened.map(Some),
            }
        })
        .await
    }

    /// Removes what has expired, again and again; ends with the task.
    pub async fn sweep(self) {
        let mut ticks = tokio::time::interval(SWEEP);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.blocking(Shared::expire).await {
                error!(%error, "input sweep failed");
            }
        }
    }

    async fn known(&self, tenant: &str, id: &Id) -> Result<Known, InputsError> {
        let (tenant, id) = (tenant.to_owned(), id.clone());
        self.blocking(move |shared| shared.records().find(&tenant, &id, SystemTime::now()))
            .await
    }

    async fn made_by(&self, tenant: &str, request: &Id) -> Result<Option<(Record, [u8; 32])>, InputsError> {
        let (tenant, request) = (tenant.to_owned(), request.clone());
        self.blocking(move |shared| shared.records().made_by(&tenant, &request))
            .await
    }

    async fn remove(&self, tenant: &str, id: &Id) -> Result<Removed, InputsError> {
        let (tenant, id) = (tenant.to_owned(), id.clone());
        self.blocking(move |shared| {
            let now = SystemTime::now();
            let (known, left) = {
                let records = shared.records();
                (records.find(&tenant, &id, now)?, records.remove(&tenant, &id, now)?)
            };
            let removed = match known {
                Known::Here(_) => Removed::Now,
                Known::Gone => Removed::Before,
                Known::Never => Removed::Never,
            };
            if let Some(left) = left {
                shared.drop_file(&left);
            }
            Ok(removed)
        })
        .await
    }

    /// Begins the file of an upload.
    async fn begin(&self, tenant: &str, announced: Option<u64>) -> Result<Draft, InputsError> {
        let tenant = tenant.to_owned();
        self.blocking(move |shared| {
            let limits = shared.room.limits();
            let share = shared.room.begin(&tenant, announced.unwrap_or(0))?;
            let path = shared.folder.join("incoming").join(new_name());
            let most = announced.unwrap_or(u64::MAX).min(limits.size.bytes());
            Draft::create(&path, share, announced.unwrap_or(0), most, limits.reserve.bytes())
        })
        .await
    }

    /// Gives a file that is on the disk its place, and enters its record.
    async fn enter(
        &self,
        mut settled: Settled,
        record: Record,
        asked: Asked,
        turn: Option<Turn>,
    ) -> Result<Record, InputsError> {
        self.blocking(move |shared| {
            let _turn = turn;
            settled.rename(&shared.place(&record.file))?;
            shared.records().insert(&record, &asked)?;
            settled.keep();
            Ok(record)
        })
        .await
    }

    /// Does something that can block, to its end, also when nobody waits for it any more.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, InputsError> + Send + 'static,
    ) -> Result<T, InputsError> {
        let shared = Arc::clone(&self.shared);
        let done = spawn_blocking(move || work(&shared)).await;
        done.unwrap_or_else(|error| {
            let error = std::io::Error::other(error);
            Err(InputsError::file(&self.shared.folder, error))
        })
    }
}

impl Shared {
    /// Brings rows and files together, and counts them.
    fn settle(&self) -> Result<(), InputsError> {
        let mut records = self.records();
        let expired = records.expire(SystemTime::now())?.len();
        let incoming = names(&self.folder.join("incoming"))?;
        for path in incoming.values() {
            remove(path);
        }
        let mut files = names(&self.folder.join("files"))?;
        for (id, left) in records.here()? {
            let size = files
                .remove(&left.file)
                .and_then(|path| path.metadata().ok())
                .map(|metadata| metadata.len());
            if size == Some(left.size) {
                self.room.add(&left.tenant, left.size);
            } else {
                // Not by a crash: somebody or a broken disk has changed it.
                warn!(input = %id, tenant = left.tenant, found = ?size, wanted = left.size, "input damaged; removed");
                records.remove(&left.tenant, &id, SystemTime::now())?;
                remove(&self.place(&left.file));
            }
        }
        for path in files.values() {
            remove(path);
        }
        info!(
            expired,
            incoming = incoming.len(),
            without_record = files.len(),
            "inputs opened"
        );
        Ok(())
    }

    fn expire(&self) -> Result<(), InputsError> {
        let lefts = self.records().expire(SystemTime::now())?;
        for left in &lefts {
            self.drop_file(left);
        }
        if !lefts.is_empty() {
            info!(count = lefts.len(), "inputs expired");
        }
        Ok(())
    }

    /// Removes the file of a record that is gone. Who has opened it still reads it.
    fn drop_file(&self, left: &Left) {
        remove(&self.place(&left.file));
        self.room.remove(&left.tenant, left.size);
    }

    fn place(&self, file: &str) -> PathBuf {
        self.folder.join("files").join(file)
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn new_name() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}

/// What lies in a folder, by name.
fn names(folder: &Path) -> Result<HashMap<String, PathBuf>, InputsError> {
    let failed = |source| InputsError::file(folder, source);
    let mut found = HashMap::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        found.insert(entry.file_name().to_string_lossy().into_owned(), entry.path());
    }
    Ok(found)
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        error!(%error, path = %path.display(), "file of an input not removed");
    }
}

#[cfg(test)]
mod tests;
