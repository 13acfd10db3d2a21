//! What the file helper tells, in the words of the API.

use std::time::{Duration, SystemTime};

use brig_jailer::files::wire::{Changed, Info, Kind, Time, What};
use brig_proto::v1::{FileChange, FileChangeKind, FileInfo, FileKind};
use prost_types::Timestamp;

use crate::run::inputs::hex;

/// What is at a path.
pub(super) fn info(path: &[u8], info: &Info) -> FileInfo {
    let (path, raw_path) = text(path);
    FileInfo {
        path,
        raw_path: raw_path.into(),
        kind: match info.kind {
            Kind::Regular => FileKind::Regular,
            Kind::Directory => FileKind::Directory,
            Kind::Symlink => FileKind::Symlink,
            Kind::Other => FileKind::Other,
        }
        .into(),
        size_bytes: info.size,
        mode: info.mode,
        uid: info.uid,
        gid: info.gid,
        modify_time: Some(timestamp(info.mtime)),
        symlink_target: info.target.as_ref().map(|target| text(target).0),
        sha256: info.sha256.as_ref().map(|sha256| hex(sha256)).unwrap_or_default(),
    }
}

/// A change; `file` is what is there, under the path that it is found by.
pub(super) fn change(changed: &Changed, file: Option<FileInfo>, time: SystemTime) -> FileChange {
    let (path, raw_path) = text(&changed.path);
    FileChange {
        kind: match changed.what {
            What::Created => FileChangeKind::Created,
            What::Written => FileChangeKind::Written,
            What::Removed => FileChangeKind::Removed,
            What::Renamed => FileChangeKind::Renamed,
            What::Attributes => FileChangeKind::Attributes,
        }
        .into(),
        path,
        raw_path: raw_path.into(),
        file,
        time: Some(time.into()),
    }
}

/// A path as text, and as bytes where it is none.
fn text(path: &[u8]) -> (String, Vec<u8>) {
    match String::from_utf8(path.to_vec()) {
        Ok(text) => (text, Vec::new()),
        Err(_) => (String::from_utf8_lossy(path).into_owned(), path.to_vec()),
    }
}

/// A guest can set any time; what no timestamp can say is told as the nearest that one can.
fn timestamp(time: Time) -> Timestamp {
    const FIRST: i64 = -62_135_596_800;
    const LAST: i64 = 253_402_300_799;
    Timestamp {
        seconds: time.seconds.clamp(FIRST, LAST),
        nanos: i32::try_from(time.nanoseconds).unwrap_or(0),
    }
}

/// A time in the form of the helper.
pub(super) fn time(timestamp: Timestamp) -> Option<Time> {
    let time = SystemTime::try_from(timestamp).ok()?;
    let whole = |span: Duration| i64::try_from(span.as_secs()).ok();
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => Some(Time {
            seconds: whole(since)?,
            nanoseconds: since.subsec_nanos(),
        }),
        Err(before) => {
            let before = before.duration();
            let borrow = i64::from(before.subsec_nanos() > 0);
            Some(Time {
                seconds: -whole(before)? - borrow,
                nanoseconds: (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_are_no_text_come_as_bytes_too() {
        assert_eq!(text(b"a/b"), ("a/b".to_owned(), Vec::new()));
        assert_eq!(text(b"\xff"), ("\u{fffd}".to_owned(), b"\xff".to_vec()));
    }

    #[test]
    fn times_are_those_that_were_given() {
        let given = |seconds, nanos| time(Timestamp { seconds, nanos }).unwrap();
        let told = |seconds, nanoseconds| Time { seconds, nanoseconds };
        assert_eq!(given(1_700_000_000, 5), told(1_700_000_000, 5));
        assert_eq!(given(-2, 0), told(-2, 0));
        assert_eq!(given(-2, 500_000_000), told(-2, 500_000_000));
        assert_eq!(timestamp(told(i64::MAX, 0)).seconds, 253_402_300_799);
    }
}
