//! What is known of one artifact, and of a decision about it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use brig_jailer::ids::Id;
use brig_jailer::policy::Download;
use brig_proto::v1;
use prost::Message;
use rusqlite::Row;
use serde::{Deserialize, Serialize};

use crate::artifacts::Review;
use crate::database::{digest, id, json, size, to_time, unreadable};

/// An artifact, without its bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub id: Id,
    pub source: Source,
    /// As it was collected, in the form of the API; the state of its review is that of then.
    pub shown: v1::Artifact,
    pub sha256: [u8; 32],
    pub labels: BTreeMap<String, String>,
    /// What the policy said about downloads.
    pub download: Download,
    pub review: Review,
    /// Who decided, what they said, and when.
    pub reviewer: String,
    pub comment: String,
    pub review_time: Option<SystemTime>,
    pub place: Place,
    pub create_time: SystemTime,
    /// Until when a reviewer may decide, or its bytes are kept.
    pub expire_time: SystemTime,
    /// How long the policy has them kept.
    pub retention: Duration,
    /// Until when it is known at all.
    pub forget_time: SystemTime,
}

/// Where an artifact comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    pub tenant: String,
    pub execution: Id,
    pub session: Id,
    /// Who asked: the application's user, else the connection's.
    pub user: String,
    pub origin: v1::Origin,
    /// `name@hash`.
    pub policy: String,
}

/// Where the bytes of an artifact are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Nowhere.
    Gone,
    /// In the quarantine: it waits for a decision, or for its place in the store.
    Held,
    Store,
}

/// A decision, from its beginning to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Decision {
    /// The state that it leads to, by its name.
    pub(super) review: String,
    /// `tenant/user`.
    pub(super) reviewer: String,
    pub(super) user: String,
    pub(super) comment: String,
    pub(super) request: Option<String>,
    pub(super) time_ms: i64,
}

impl Place {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Held => "held",
            Self::Store => "store",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Gone, Self::Held, Self::Store]
            .into_iter()
            .find(|place| place.name() == name)
    }
}

/// The name of what a policy says about downloads.
pub(super) fn download_name(download: Download) -> &'static str {
    match download {
        Download::Any => "any",
        Download::Artifacts => "artifacts",
        Download::None => "none",
    }
}

/// The path of an artifact, whether or not it is text.
pub(super) fn raw_path(shown: &v1::Artifact) -> &[u8] {
    if shown.raw_path.is_empty() {
        shown.path.as_bytes()
    } else {
        &shown.raw_path
    }
}

impl Record {
    /// The same without its bytes.
    pub(super) fn gone(self) -> Self {
        Self {
            place: Place::Gone,
            ..self
        }
    }

    /// It in the form of the API, with the state of its review.
    pub(crate) fn shown_now(&self) -> v1::Artifact {
        v1::Artifact {
            review: self.review.shown().into(),
            ..self.shown.clone()
        }
    }

    /// Reads a row with all columns.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let word = |column: &str| row.get::<_, String>(column);
        let download = match word("download")?.as_str() {
            "any" => Download::Any,
            "artifacts" => Download::Artifacts,
            _ => Download::None,
        };
        let shown: Vec<u8> = row.get("shown")?;
        let review_ms: Option<i64> = row.get("review_ms")?;
        Ok(Self {
            id: id(row, "artifact")?,
            source: Source {
                tenant: row.get("tenant")?,
                execution: id(row, "execution")?,
                session: id(row, "session")?,
                user: row.get("user")?,
                origin: v1::Origin {
                    user: row.get("origin_user")?,
                    conversation: row.get("origin_conversation")?,
                    request: row.get("origin_request")?,
                },
                policy: row.get("policy")?,
            },
            shown: v1::Artifact::decode(&shown[..]).map_err(unreadable)?,
            sha256: digest(row, "sha256")?,
            labels: json(row, "labels")?,
            download,
            // What can't be read lets nothing out.
            review: Review::from_name(&word("review")?).unwrap_or(Review::Rejected),
            reviewer: row.get("reviewer")?,
            comment: row.get("comment")?,
            review_time: review_ms.map(to_time),
            place: Place::from_name(&word("place")?).unwrap_or(Place::Gone),
            create_time: to_time(row.get("create_ms")?),
            expire_time: to_time(row.get("expire_ms")?),
            retention: Duration::from_millis(size(row.get("retention_ms")?)),
            forget_time: to_time(row.get("forget_ms")?),
        })
    }
}
