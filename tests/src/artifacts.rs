//! The service Artifacts as tests ask it.

use brig_proto::v1::artifacts_download_response::Part;
use brig_proto::v1::{
    ArtifactRecord, ArtifactsApproveRequest, ArtifactsDownloadRequest, ArtifactsGetRequest, ArtifactsListRequest,
    ArtifactsRejectRequest,
};

use crate::{Client, Refused};

/// The artifacts that a filter finds, newest first, on one page.
pub fn list(client: &Client, request: ArtifactsListRequest) -> Vec<ArtifactRecord> {
    client.ask(client.artifacts().list(request)).unwrap().artifacts
}

/// An artifact as it is now.
pub fn get(client: &Client, id: &str) -> Result<ArtifactRecord, Refused> {
    let request = ArtifactsGetRequest {
        artifact_id: id.to_owned(),
    };
    Ok(client.ask(client.artifacts().get(request))?.artifact.unwrap())
}

/// Approves what has this SHA-256.
pub fn approve(client: &Client, id: &str, sha256: &str) -> Result<ArtifactRecord, Refused> {
    let request = ArtifactsApproveRequest {
        artifact_id: id.to_owned(),
        sha256: sha256.to_owned(),
        ..ArtifactsApproveRequest::default()
    };
    Ok(client.ask(client.artifacts().approve(request))?.artifact.unwrap())
}

/// Rejects an artifact.
pub fn reject(client: &Client, id: &str, comment: &str) -> Result<ArtifactRecord, Refused> {
    let request = ArtifactsRejectRequest {
        artifact_id: id.to_owned(),
        comment: comment.to_owned(),
        ..ArtifactsRejectRequest::default()
    };
    Ok(client.ask(client.artifacts().reject(request))?.artifact.unwrap())
}

/// Downloads what is asked for, and checks that what came is what the digest says.
pub fn download(client: &Client, request: ArtifactsDownloadRequest) -> Result<Vec<u8>, Refused> {
    let mut stream = client.ask(client.artifacts().download(request))?;
    let (mut bytes, mut artifact, mut digest) = (Vec::new(), None, None);
    while let Some(message) = client.wait(stream.message()).map_err(|status| Refused::new(&status))? {
        assert!(digest.is_none(), "the digest is last");
        match message.part.unwrap() {
            Part::Artifact(told) => assert!(artifact.replace(told).is_none() && bytes.is_empty()),
            Part::Data(data) => {
                assert!(!data.is_empty() && data.len() <= 256 << 10);
                bytes.extend_from_slice(&data);
            }
            Part::Digest(told) => digest = Some(told),
        }
    }
    assert!(artifact.is_some());
    assert_eq!(digest.unwrap().size_bytes, bytes.len() as u64);
    Ok(bytes)
}

/// Downloads all of an artifact.
pub fn bytes(client: &Client, id: &str) -> Result<Vec<u8>, Refused> {
    let request = ArtifactsDownloadRequest {
        artifact_id: id.to_owned(),
        ..ArtifactsDownloadRequest::default()
    };
    download(client, request)
}

/// Downloads all of it as a reviewer does.
pub fn look(client: &Client, id: &str) -> Result<Vec<u8>, Refused> {
    let request = ArtifactsDownloadRequest {
        artifact_id: id.to_owned(),
        for_review: true,
        ..ArtifactsDownloadRequest::default()
    };
    download(client, request)
}
