//! Names: made, moved, removed, listed and watched.

use brig_proto::v1::files_watch_response::Event;
use brig_proto::v1::{FileChangeKind, FileKind, FilesRemoveRequest, FilesWatchRequest, FilesWatchResponse};
use tonic::Streaming;

use super::{Rig, SESSION};

fn remove(path: &str, recursive: bool, missing_ok: bool) -> FilesRemoveRequest {
    FilesRemoveRequest {
        path: path.to_owned(),
        recursive,
        missing_ok,
        ..FilesRemoveRequest::default()
    }
}

#[test]
fn names_are_made_moved_and_removed() {
    let Some(rig) = Rig::open("download = \"any\"") else {
        return;
    };
    assert_eq!(rig.make_dir("a/b/c", false).unwrap_err().reason, "FILE_NOT_FOUND");
    assert_eq!(rig.make_dir("a/b/c", true).unwrap().kind(), FileKind::Directory);
    assert_eq!(rig.make_dir("a/b/c", true).unwrap_err().reason, "FILE_EXISTS");
    rig.put("a/b/c/file", b"x");
    rig.sh("ln -s /etc/passwd a/link; mkdir -p /tmp/x/y");
    assert_eq!(rig.rename("a/b", "moved").unwrap().path, "moved");
    assert_eq!(rig.rename("a/b", "again").unwrap_err().fields, ["source"]);
    let refused = rig.rename("a/link", "moved").unwrap_err();
    assert_eq!(refused.reason, "FILE_EXISTS");
    assert_eq!(refused.fields, ["destination"]);
    assert_eq!(rig.rename("a/link", "/tmp/link").unwrap_err().reason, "INVALID_PATH");
    assert_eq!(
        rig.rename("a/link", "moved/link").unwrap().symlink_target.as_deref(),
        Some("/etc/passwd")
    );
    let paths = |path: &str| {
        let files = rig.list(path, 32, 2).unwrap();
        files.into_iter().map(|file| file.path).collect::<Vec<_>>()
    };
    assert_eq!(paths(""), ["a", "moved", "moved/c", "moved/c/file", "moved/link"]);
    assert_eq!(paths("/tmp"), ["/tmp/x", "/tmp/x/y"]);
    assert_eq!(
        rig.remove(remove("moved", false, false)).unwrap_err().reason,
        "DIRECTORY_NOT_EMPTY"
    );
    assert_eq!(rig.remove(remove("moved", true, false)).unwrap(), 4);
    assert_eq!(
        rig.remove(remove("moved", true, false)).unwrap_err().reason,
        "FILE_NOT_FOUND"
    );
    assert_eq!(rig.remove(remove("moved", true, true)).unwrap(), 0);
    assert_eq!(rig.remove(remove("a", false, false)).unwrap(), 1);
    let twice = FilesRemoveRequest {
        request_id: "removal".to_owned(),
        ..remove("/tmp/x", true, false)
    };
    assert_eq!(rig.remove(twice.clone()).unwrap(), 2);
    assert_eq!(rig.remove(twice).unwrap(), 2);
    assert_eq!(paths(""), Vec::<String>::new());
}

#[test]
fn a_tree_of_thousands_is_listed_in_pages_and_removed() {
    let Some(rig) = Rig::open("download = \"any\"") else {
        return;
    };
    rig.sh("for i in $(seq 40); do mkdir -p t/$i; (cd t/$i; seq 100 | xargs touch); done; d=t; for i in $(seq 100); do d=$d/d; done; mkdir -p $d");
    let files = rig.list("t", 2, 1000).unwrap();
    assert_eq!(files.len(), 40 + 4000 + 2);
    assert!(files.is_sorted_by_key(|file| file.path.clone()));
    assert_eq!(rig.remove(remove("t", true, false)).unwrap(), 1 + 40 + 4000 + 100);
    assert_eq!(rig.sh("ls -A"), "");
}

fn next(rig: &Rig, stream: &mut Streaming<FilesWatchResponse>) -> Event {
    rig.daemon.wait(stream.message()).unwrap().unwrap().event.unwrap()
}

#[test]
fn a_watch_tells_all_that_is_made_and_holds_nobody_up() {
    let Some(rig) = Rig::open("download = \"any\"") else {
        return;
    };
    let request = FilesWatchRequest {
        session_id: SESSION.to_owned(),
        recursive: true,
        want_file: true,
        ..FilesWatchRequest::default()
    };
    let mut stream = rig.daemon.ask(rig.daemon.files().watch(request.clone())).unwrap();
    assert!(matches!(next(&rig, &mut stream), Event::Ready(_)));
    rig.sh("for i in $(seq 50); do mkdir -p $i/a && echo x > $i/a/file; done; mv 7 seven; rm -r 8; touch end");
    let mut seen = Vec::new();
    loop {
        let Event::Change(change) = next(&rig, &mut stream) else {
            panic!("{seen:?}")
        };
        let is_end = change.path == "end";
        if change.kind() == FileChangeKind::Created && change.path == "3/a/file" {
            assert_eq!(change.file.as_ref().unwrap().path, "3/a/file");
        }
        seen.push((change.kind(), change.path));
        if is_end {
            break;
        }
    }
    for number in (1..=50).filter(|number| ![7, 8].contains(number)) {
        let created = (FileChangeKind::Created, format!("{number}/a/file"));
        assert_eq!(
            seen.iter().filter(|change| **change == created).count(),
            1,
            "{created:?}"
        );
    }
    assert!(seen.contains(&(FileChangeKind::Renamed, "7".to_owned())));
    assert!(seen.contains(&(FileChangeKind::Created, "seven".to_owned())));
    assert!(seen.contains(&(FileChangeKind::Removed, "8".to_owned())));
    // Others that nobody reads hold up neither transfers nor executions.
    let others: Vec<_> = (0..3)
        .map(|_| rig.daemon.ask(rig.daemon.files().watch(request.clone())).unwrap())
        .collect();
    let refused = rig.daemon.ask(rig.daemon.files().watch(request)).unwrap_err();
    assert_eq!(refused.reason, "FILE_QUOTA");
    rig.put("still", b"works");
    assert_eq!(rig.sh("cat still"), "works");
    drop(others);
    rig.daemon.close(SESSION);
    let end = loop {
        match rig.daemon.wait(stream.message()) {
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    assert_eq!(end.unwrap_err().code(), tonic::Code::FailedPrecondition);
}
