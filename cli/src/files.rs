//! `brig put`, `get`, `ls` and `watch`: the files of a session.
//!
//! What lies in a session is named as `SESSION:PATH`, as scp and docker cp name what lies elsewhere.

mod get;
mod ls;
pub(crate) mod progress;
mod put;
pub(crate) mod target;
mod watch;

use std::str::FromStr;

use brig_proto::v1::files_client::FilesClient;
use brig_proto::v1::{FileInfo, FileKind};
use serde::Serialize;
use tonic::transport::Channel;

pub(crate) use self::get::{GetOptions, get};
pub(crate) use self::ls::{LsOptions, ls};
pub(crate) use self::put::{PutOptions, put};
pub(crate) use self::watch::{WatchOptions, watch};
use crate::connect;
use crate::failure::Failure;

/// A path in a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) session: String,
    /// Empty for the working directory, where that is meant.
    pub(crate) path: String,
}

impl FromStr for Remote {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (session, path) = text.split_once(':').unwrap_or((text, ""));
        if session.is_empty() {
            return Err(format!("{text:?} names no session: give SESSION:PATH"));
        }
        Ok(Self {
            session: session.to_owned(),
            path: path.to_owned(),
        })
    }
}

/// Reads `SESSION:PATH`, where the path is needed.
fn with_path(text: &str) -> Result<Remote, String> {
    let remote = Remote::from_str(text)?;
    if remote.path.is_empty() {
        return Err(format!("{text:?} has no path: give SESSION:PATH"));
    }
    Ok(remote)
}

/// A file of a session as a JSON document. Every key is always present.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct FileDocument {
    path: String,
    kind: &'static str,
    size_bytes: u64,
    /// Octal digits.
    mode: String,
    uid: u32,
    gid: u32,
    modify_time: Option<String>,
    symlink_target: Option<String>,
    /// Null unless it was asked for.
    sha256: Option<String>,
}

impl FileDocument {
    fn new(file: &FileInfo) -> Self {
        Self {
            path: file.path.clone(),
            kind: kind(file.kind()),
            size_bytes: file.size_bytes,
            mode: format!("{:04o}", file.mode),
            uid: file.uid,
            gid: file.gid,
            modify_time: file.modify_time.as_ref().map(ToString::to_string),
            symlink_target: file.symlink_target.clone(),
            sha256: (!file.sha256.is_empty()).then(|| file.sha256.clone()),
        }
    }
}

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Unspecified | FileKind::Other => "other",
    }
}

async fn client() -> Result<FilesClient<Channel>, Failure> {
    Ok(FilesClient::new(connect::connect(&connect::socket()?).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_a_session_is_named_by_session_and_path() {
        let remote = |text: &str| Remote::from_str(text).map(|remote| (remote.session, remote.path));
        let pair = |session: &str, path: &str| Ok((session.to_owned(), path.to_owned()));
        assert_eq!(remote("s:a/b"), pair("s", "a/b"));
        assert_eq!(remote("s:/tmp/a:b"), pair("s", "/tmp/a:b"));
        assert_eq!(remote("s"), pair("s", ""));
        assert!(remote(":a").is_err() && with_path("s").is_err() && with_path("s:").is_err());
    }
}
