//! Where artifacts are kept that may leave: a directory, or a bucket of an S3-compatible store.
//!
//! An object is named by its tenant and the SHA-256 of its bytes, and appears whole or not at all. In a directory it is
//! synced before it has its name, and its folder after.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use brig_proto::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, DynObjectStore, GetOptions, GetRange, GetResultPayload, MultipartUpload,
    ObjectStoreExt, RetryConfig,
};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use super::ArtifactsError;
use super::read::Source;
use crate::config::Bucket;
use crate::run::inputs::hex;

/// What is put in one request; larger objects come in parts of this size. Source: the smallest part that S3 takes is
/// 5 MiB.
const PART: usize = 8 * 1024 * 1024;
/// How long the store may take to answer, and to send what comes next.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long one request may take, with its content.
const REQUEST: Duration = Duration::from_secs(10 * 60);
/// How long a request is tried again that the store did not answer well.
const RETRY: Duration = Duration::from_secs(10);

/// The store.
#[derive(Debug)]
pub(super) struct Objects {
    store: Arc<DynObjectStore>,
    prefix: Path,
}

/// What the file of credentials has.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Credentials {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
}

impl Objects {
    /// Opens the store that the configuration names; `folder` is the directory.
    pub(super) fn open(folder: &FilePath, bucket: &Bucket) -> Result<Self, ArtifactsError> {
        if bucket.bucket.is_empty() {
            return Self::directory(folder);
        }
        let store = s3(bucket)?;
        let prefix = Path::parse(&bucket.prefix)
            .map_err(|error| ArtifactsError::Bucket(format!("prefix {:?}: {error}", bucket.prefix)))?;
        info!(
            bucket = bucket.bucket,
            endpoint = bucket.endpoint,
            "artifacts in a bucket"
        );
        Ok(Self {
            store: Arc::new(store),
            prefix,
        })
    }

    fn directory(folder: &FilePath) -> Result<Self, ArtifactsError> {
        let failed = |source| ArtifactsError::file(folder, source);
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(failed)?;
        sweep(folder).map_err(failed)?;
        let store = LocalFileSystem::new_with_prefix(folder)?.with_fsync(true);
        Ok(Self {
            store: Arc::new(store),
            prefix: Path::default(),
        })
    }

    /// Stores the bytes of a file, which must have this SHA-256.
    pub(super) async fn put(&self, tenant: &str, sha256: [u8; 32], file: File) -> Result<(), ArtifactsError> {
        let place = self.place(tenant, sha256);
        let mut reader = Reader {
            file: Some(file),
            hash: Sha256::new(),
        };
        let first = reader.part().await?;
        if first.len() < PART {
            reader.check(sha256)?;
            self.store.put(&place, first.into()).await?;
            return Ok(());
        }
        let mut upload = self.store.put_multipart(&place).await?;
        let sent = send(upload.as_mut(), first, &mut reader, sha256).await;
        if sent.is_err()
            && let Err(error) = upload.abort().await
        {
            warn!(%error, "an upload to the artifact store was not called off");
        }
        sent
    }

    /// Begins to read a part of an object; nothing if it is not there.
    pub(super) async fn get(
        &self,
        tenant: &str,
        sha256: [u8; 32],
        range: std::ops::Range<u64>,
    ) -> Result<Option<Source>, ArtifactsError> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())).filter(|_| !range.is_empty()),
            ..GetOptions::default()
        };
        match self.store.get_opts(&self.place(tenant, sha256), options).await {
            Ok(found) => Ok(Some(match found.payload {
                GetResultPayload::File(file, _) => Source::File(Arc::new(file), range),
                GetResultPayload::Stream(stream) => Source::Stream(stream, Bytes::new()),
            })),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes an object. One that is not there is no error.
    pub(super) async fn delete(&self, tenant: &str, sha256: [u8; 32]) -> Result<(), ArtifactsError> {
        match self.store.delete(&self.place(tenant, sha256)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn place(&self, tenant: &str, sha256: [u8; 32]) -> Path {
        let name = hex(&sha256);
        let parts = [tenant, &name[..2], &name];
        parts.iter().fold(self.prefix.clone(), |path, part| path.join(*part))
    }
}

async fn send(
    upload: &mut dyn MultipartUpload,
    first: Bytes,
    reader: &mut Reader,
    sha256: [u8; 32],
) -> Result<(), ArtifactsError> {
    let mut part = first;
    while !part.is_empty() {
        upload.put_part(part.into()).await?;
        part = reader.part().await?;
    }
    reader.check(sha256)?;
    upload.complete().await?;
    Ok(())
}

/// Reads a file part by part, and hashes it.
struct Reader {
    /// Absent while a read runs, and after one that failed.
    file: Option<File>,
    hash: Sha256,
}

impl Reader {
    async fn part(&mut self) -> Result<Bytes, ArtifactsError> {
        let gone = || std::io::Error::other("a read was interrupted");
        let file = self.file.take().ok_or_else(gone);
        let read = match file {
            Ok(mut file) => spawn_blocking(move || {
                let mut bytes = Vec::new();
                let read = (&mut file).take(PART as u64).read_to_end(&mut bytes);
                read.map(|_| (file, bytes))
            })
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error))),
            Err(error) => Err(error),
        };
        let (file, bytes) = read.map_err(|source| ArtifactsError::file(FilePath::new("quarantine"), source))?;
        self.file = Some(file);
        self.hash.update(&bytes);
        Ok(bytes.into())
    }

    fn check(&self, sha256: [u8; 32]) -> Result<(), ArtifactsError> {
        let found: [u8; 32] = self.hash.clone().finalize().into();
        if found == sha256 {
            return Ok(());
        }
        Err(ArtifactsError::Damaged {
            artifact: hex(&sha256),
            why: format!("they have the SHA-256 {}", hex(&found)),
        })
    }
}

fn s3(bucket: &Bucket) -> Result<object_store::aws::AmazonS3, ArtifactsError> {
    let credentials = credentials(&bucket.credentials)?;
    // Whoever has installed one before has the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = ClientOptions::new()
        .with_allow_http(bucket.endpoint.starts_with("http://"))
        .with_connect_timeout(PATIENCE)
        .with_read_timeout(PATIENCE)
        .with_timeout(REQUEST);
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&bucket.bucket)
        .with_region(&bucket.region)
        .with_access_key_id(credentials.access_key_id)
        .with_secret_access_key(credentials.secret_access_key)
        .with_client_options(options)
        .with_retry(RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: 3,
            retry_timeout: RETRY,
        });
    if let Some(token) = credentials.session_token {
        builder = builder.with_token(token);
    }
    if !bucket.endpoint.is_empty() {
        builder = builder.with_endpoint(&bucket.endpoint);
    }
    Ok(builder.build()?)
}

/// Reads the file of credentials. What is in it is never told, also not where it is wrong.
fn credentials(path: &FilePath) -> Result<Credentials, ArtifactsError> {
    let wrong = |what: &str| ArtifactsError::Bucket(format!("credentials {}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error.to_string()))?;
    let mode = std::fs::metadata(path).map_err(|error| wrong(&error.to_string()))?;
    if mode.permissions().mode() & 0o007 != 0 {
        return Err(wrong(
            "everybody can read it or write to it; chmod 0640 or less is accepted",
        ));
    }
    toml::from_str(&text).map_err(|_what_is_in_it| {
        wrong("is no TOML with access_key_id and secret_access_key, and perhaps session_token, all of them texts")
    })
}

/// Removes what uploads left behind that broke off: the names of their drafts end with a number.
fn sweep(folder: &FilePath) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sweep(&entry.path())?;
        } else if entry.file_name().to_string_lossy().contains('#') {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
