//! The review of artifacts and their store, with real jails.
#![allow(clippy::unwrap_used, reason = "a test that can't go on should stop")]

mod bucket;
mod command;
mod flow;
mod followed;
mod gate;
mod killed;
mod links;

use brig_proto::v1::{ArtifactRecord, ArtifactsListRequest, LedgerEntry, LedgerEntryKind, LedgerListRequest};
use brig_tests::{Client, artifacts};
use sha2::{Digest, Sha256};

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The artifact of the newest execution that has this path.
fn artifact(client: &Client, path: &str) -> ArtifactRecord {
    let mut all = artifacts::list(client, ArtifactsListRequest::default());
    all.retain(|record| record.artifact.as_ref().unwrap().path == path);
    all.into_iter()
        .next()
        .unwrap_or_else(|| panic!("there is no artifact {path}"))
}

fn id(record: &ArtifactRecord) -> &str {
    &record.artifact.as_ref().unwrap().artifact_id
}

/// The decisions in the ledger, oldest first.
fn reviews(client: &Client) -> Vec<LedgerEntry> {
    let (mut request, mut entries) = (
        LedgerListRequest {
            kinds: vec![LedgerEntryKind::Reviewed.into()],
            ..LedgerListRequest::default()
        },
        Vec::new(),
    );
    loop {
        let page = client.ask(client.ledger().list(request.clone())).unwrap();
        entries.extend(page.entries);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    entries.reverse();
    entries
}
