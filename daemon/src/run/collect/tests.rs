use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use brig_jailer::files::wire::{self, Collected, Failure, HEADER, Op, Request, Response, Time};

use super::*;
use crate::names::RelativePath;
use crate::run::testing::{execution, job};

fn expected(path: &str, media_type: Option<&str>, max_bytes: Option<u64>) -> Expected {
    let path = RelativePath::parse("f", path).unwrap();
    Expected {
        path,
        media_type: media_type.map(str::to_owned),
        max_bytes,
    }
}

#[test]
fn an_output_is_missing_if_it_is_absent_of_another_type_or_too_large() {
    let artifact = Artifact {
        path: "a.png".to_owned(),
        r#type: "image/png".to_owned(),
        size_bytes: 10,
        ..Artifact::default()
    };
    let asked = [
        expected("a.png", Some("image/png"), Some(10)),
        expected("./a.png", None, None),
        expected("b.png", None, None),
        expected("a.png", Some("image/jpeg"), None),
        expected("a.png", None, Some(9)),
    ];
    assert_eq!(missing(&asked, &[artifact]), ["b.png", "a.png", "a.png"]);
}

#[test]
fn only_known_numbers_become_details() {
    let claims = [
        ("width".to_owned(), Detail::Number(1200)),
        ("rows".to_owned(), Detail::Number(12449)),
        ("height".to_owned(), Detail::Number(u64::MAX)),
        ("kind".to_owned(), Detail::Text("x".to_owned())),
    ];
    assert_eq!(
        details(&claims),
        ArtifactDetails {
            width: Some(1200),
            rows: Some(12448),
            ..ArtifactDetails::default()
        }
    );
}

#[test]
fn guest_paths_are_escaped_in_notices() {
    assert_eq!(shown_path(b"a\n\x1b[31m\xff"), "\"a\\n\\x1b[31m\\xff\"");
}

/// A helper that has these files, each with what it says of its size and with what it really sends.
fn helper(files: Vec<(&'static str, u64, usize)>, space: Space) -> Files {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    std::thread::spawn(move || {
        loop {
            let mut header = [0; HEADER];
            if theirs.read_exact(&mut header).is_err() {
                return;
            }
            let mut body = vec![0; wire::body_length(header).unwrap()];
            theirs.read_exact(&mut body).unwrap();
            for answer in answers(&files, space, wire::decode(&body).unwrap()) {
                if theirs.write_all(&wire::encode(&answer).unwrap()).is_err() {
                    return;
                }
            }
        }
    });
    Files::new(ours.into()).unwrap()
}

fn answers(files: &[(&str, u64, usize)], space: Space, request: Request) -> Vec<Response> {
    let failed = |path: Vec<u8>| {
        vec![Response::Failed(Failure {
            op: Op::Open,
            errno: 2,
            path,
        })]
    };
    match request {
        Request::Collect(_) => {
            let found = files.iter().map(|(path, size, _)| {
                Response::Found(Found {
                    path: path.as_bytes().to_vec(),
                    size: *size,
                    allocated: 0,
                    mode: 0o644,
                    mtime: Time::default(),
                    change: Change::Created,
                })
            });
            let totals = Collected {
                space,
                ..Collected::default()
            };
            found.chain([Response::Collected(totals)]).collect()
        }
        Request::Get(get) => match files.iter().find(|file| file.0.as_bytes() == get.path) {
            Some((_, _, sent)) => vec![Response::Data(vec![0; *sent]), Response::End { size: *sent as u64 }],
            None => failed(get.path),
        },
        Request::Inspect(inspect) => failed(inspect.path),
        other => panic!("{other:?}"),
    }
}

/// Collects from a session whose files may have 1,000 bytes.
async fn collected(files: Vec<(&'static str, u64, usize)>, space: Space) -> (Vec<String>, Vec<String>, Collection) {
    let mut job = job("e1");
    job.conditions.limits.disk_bytes = 1000;
    let execution = execution("e1", brig_proto::v1::ExecutionSpec::default());
    let spool = Spool::new(&std::env::temp_dir(), 1 << 20, 100);
    let mut workspace = Workspace::Own(helper(files, space));
    let directory = tempfile::tempdir().unwrap();
    let artifacts = ArtifactStore::open(directory.path(), &Default::default()).unwrap();
    let keep = Keep {
        spool: &spool,
        artifacts: &artifacts,
        scans: None,
    };
    let collection = collect(&mut workspace, None, &job, &execution, keep).await;
    assert_eq!(
        execution.log.holds().file_bytes,
        spool.used_bytes(),
        "what is skipped is not kept"
    );
    execution.log.finish(Default::default(), std::time::SystemTime::now());
    let mut follower = execution.log.follow(0, false);
    let mut notices = Vec::new();
    while let Some(event) = follower.next().await {
        if let Some(brig_proto::v1::execution_event::Event::Notice(notice)) = event.unwrap().event {
            notices.push(notice.message);
        }
    }
    let paths = collection
        .artifacts
        .iter()
        .map(|artifact| artifact.path.clone())
        .collect();
    (paths, notices, collection)
}

#[tokio::test]
async fn files_with_holes_are_collected_only_as_far_as_the_session_could_have_stored_them() {
    let files = vec![
        ("a.pdf", 600, 600),
        ("b.pdf", 600, 600),
        ("c.pdf", 400, 400),
        ("d.pdf", 1, 1),
    ];
    let (paths, notices, _) = collected(files, Space::default()).await;
    assert_eq!(paths, ["a.pdf", "c.pdf"]);
    let too_large = |path| format!("\"{path}\": is too large, all files together may have 1000 bytes");
    assert_eq!(notices, [too_large("b.pdf"), too_large("d.pdf")]);
}

#[tokio::test]
async fn a_helper_that_sends_more_than_the_rest_is_not_believed() {
    let (paths, notices, _) = collected(vec![("a", 600, 600), ("b", 1, 600)], Space::default()).await;
    assert_eq!(paths, ["a"]);
    assert_eq!(notices, ["\"b\": the file helper sent more bytes than were asked for"]);
}

#[tokio::test]
async fn what_the_session_uses_is_what_its_file_system_says_up_to_the_limit() {
    let space = |used_bytes, used_inodes| Space {
        used_bytes,
        total_bytes: 16 << 10,
        used_inodes,
        total_inodes: 10,
    };
    let mut of_1000 = job("e2");
    of_1000.conditions.limits.disk_bytes = 1000;
    for (space, disk_bytes, full) in [
        (space(500, 9), 500, None),
        (space(12 << 10, 9), 1000, None),
        // A disk has blocks that are smaller than a page.
        (space(13 << 10, 9), 1000, Some(Full::Bytes)),
        (space(16 << 10, 9), 1000, Some(Full::Bytes)),
        (space(500, 10), 500, Some(Full::Inodes)),
        (Space::default(), 0, None),
    ] {
        let (_, _, collection) = collected(Vec::new(), space).await;
        assert_eq!((collection.disk_bytes(&of_1000), collection.full()), (disk_bytes, full));
    }
}
