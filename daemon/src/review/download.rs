//! Download: the bytes of an artifact, through the gate.

use std::time::Duration;

use brig_proto::v1;
use brig_proto::v1::artifacts_download_response::Part;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::codegen::BoxStream;
use tracing::info;

use super::record::Record;
use super::service::{find, not_found};
use super::{ArtifactStore, Opened, show};
use crate::artifacts::Review;
use crate::run::gate::{self, Way};
use crate::run::inputs::hex;
use crate::status::Problem;

/// Messages on their way to one client.
const MESSAGES: usize = 4;
/// How long a client may think between two messages.
const PATIENCE: Duration = Duration::from_secs(60);

type Sender = mpsc::Sender<Result<v1::ArtifactsDownloadResponse, Status>>;

/// Begins to send what was opened.
pub(super) fn stream(opened: Opened) -> BoxStream<v1::ArtifactsDownloadResponse> {
    let (sender, receiver) = mpsc::channel(MESSAGES);
    tokio::spawn(send(opened, sender));
    Box::pin(ReceiverStream::new(receiver))
}

impl ArtifactStore {
    /// Opens a part of an artifact of a tenant, if the gate lets it out this way. `length` is to the end if absent.
    ///
    /// For every call that hands artifacts out: [`Opened::record`] says what it is, [`Opened::next`] gives its bytes.
    pub async fn release(
        &self,
        tenant: &str,
        id: &str,
        way: fn(Review) -> Way,
        offset: u64,
        length: Option<u64>,
    ) -> Result<Opened, Problem> {
        let record = find(self, tenant, id).await?;
        check_gate(&record, way(record.review))?;
        let size = record.shown.size_bytes;
        if offset > size {
            return Err(Problem::OutOfRange {
                field: "offset",
                asked: offset,
                there: size,
            });
        }
        let left = size - offset;
        let end = offset + length.map_or(left, |length| length.min(left));
        let opened = self.read(record, offset..end).await?;
        opened.ok_or_else(|| not_found(id))
    }
}

pub(super) fn check_gate(record: &Record, way: Way) -> Result<(), Problem> {
    let shut = |shut: gate::Shut| shut.problem(record.id.to_string());
    gate::may_leave(record.download, way).map_err(shut)
}

/// Sends everything, at the pace of the client.
async fn send(mut opened: Opened, to: Sender) {
    let sending = async {
        pass(&to, Part::Artifact(show::show(opened.record()))).await?;
        let mut sent = 0;
        loop {
            let data = opened.next().await?;
            if data.is_empty() {
                break;
            }
            sent += data.len() as u64;
            pass(&to, Part::Data(data)).await?;
        }
        let digest = v1::ContentDigest {
            size_bytes: sent,
            sha256: hex(&opened.sha256()),
        };
        info!(artifact = %opened.record().id, sent, "artifact downloaded");
        pass(&to, Part::Digest(digest)).await
    };
    if let Err(problem) = sending.await {
        // Nobody may be there to hear it.
        let _ = tokio::time::timeout(PATIENCE, to.send(Err(problem.into()))).await;
    }
}

async fn pass(to: &Sender, part: Part) -> Result<(), Problem> {
    let message = v1::ArtifactsDownloadResponse { part: Some(part) };
    match tokio::time::timeout(PATIENCE, to.send(Ok(message))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Problem::CallerGone),
        Err(_) => Err(Problem::Stream("nothing was read for 60 s".to_owned())),
    }
}
