//! Bytes in and out.

use brig_proto::v1::files_upload_request::Part as Sent;
use brig_proto::v1::{FileKind, FilesUploadRequest, UploadSpec};
use brig_tests::DEADLINE;
use tokio_stream::wrappers::ReceiverStream;

use super::{Rig, SESSION, hex, spec};

#[test]
fn what_goes_in_comes_out_and_programs_see_it() {
    let Some(rig) = Rig::open("download = \"any\"") else {
        return;
    };
    let bytes: Vec<u8> = (0..700_000_u32).flat_map(u32::to_le_bytes).collect();
    let given = UploadSpec {
        mode: Some(0o750),
        make_parents: true,
        size_bytes: Some(bytes.len() as u64),
        sha256: hex(&bytes),
        modify_time: Some(prost_types::Timestamp {
            seconds: 1_000_000_000,
            nanos: 0,
        }),
        ..spec("in/data.bin")
    };
    let file = rig.upload(given, &bytes).unwrap();
    assert_eq!((file.kind(), file.mode, file.uid), (FileKind::Regular, 0o750, 1000));
    assert_eq!((file.size_bytes, &file.sha256), (bytes.len() as u64, &hex(&bytes)));
    let seen = rig.sh("sha256sum < in/data.bin; stat -c '%a %U %Y' in/data.bin; echo -n more > /tmp/out");
    assert_eq!(seen, format!("{}  -\n750 user 1000000000\n", hex(&bytes)));
    assert_eq!(rig.download("in/data.bin", 0, None).unwrap().1, bytes);
    let (file, part) = rig.download("/home/user/in/data.bin", 1000, Some(300_000)).unwrap();
    assert_eq!(
        (file.path.as_str(), part.as_slice()),
        ("/home/user/in/data.bin", &bytes[1000..301_000])
    );
    assert_eq!(rig.download("/tmp/out", 2, None).unwrap().1, b"re");
    assert_eq!(rig.download("/tmp/out", 4, None).unwrap().1, b"");
    assert_eq!(
        rig.download("/tmp/out", 5, None).unwrap_err().reason,
        "OFFSET_OUT_OF_RANGE"
    );
    assert_eq!(rig.stat("in/data.bin").unwrap().sha256, hex(&bytes));
}

#[test]
fn what_can_not_be_written_says_why_and_leaves_nothing() {
    let Some(rig) = Rig::open("download = \"any\"") else {
        return;
    };
    rig.put("there", b"1");
    rig.sh("mkdir d; ln -s there link; mkfifo fifo; chmod 500 d");
    let long = format!("{}/x", "a".repeat(300));
    let refused = |given: UploadSpec, bytes: &[u8]| {
        let refused = rig.upload(given, bytes).unwrap_err();
        (refused.reason, refused.fields.first().cloned().unwrap_or_default())
    };
    let why = |reason: &str, field: &str| (reason.to_owned(), field.to_owned());
    assert_eq!(refused(spec("there"), b"2"), why("FILE_EXISTS", "path"));
    assert_eq!(refused(spec("none/x"), b"2"), why("FILE_NOT_FOUND", "path"));
    assert_eq!(refused(spec("there/x"), b"2"), why("NOT_DIRECTORY", "path"));
    assert_eq!(refused(spec("link/x"), b"2"), why("NOT_REGULAR_FILE", "path"));
    assert_eq!(refused(spec("d/x"), b"2"), why("FILE_NOT_ACCESSIBLE", "path"));
    assert_eq!(refused(spec(&long), b"2"), why("INVALID_PATH", "path"));
    assert_eq!(refused(spec("/etc/x"), b"2"), why("INVALID_PATH", "path"));
    let over = |path: &str| UploadSpec {
        overwrite: true,
        ..spec(path)
    };
    assert_eq!(refused(over("d"), b"2"), why("IS_DIRECTORY", "path"));
    let other = UploadSpec {
        sha256: hex(b"other"),
        ..over("there")
    };
    assert_eq!(refused(other, b"2"), why("DIGEST_MISMATCH", "path"));
    for size in [1, 3] {
        let sized = UploadSpec {
            size_bytes: Some(size),
            ..over("there")
        };
        let reason = if size == 1 { "TOO_LARGE" } else { "DIGEST_MISMATCH" };
        assert_eq!(refused(sized, b"22").0, reason);
    }
    rig.sh("head -c 600M /dev/zero > fill || :");
    assert_eq!(refused(spec("full"), &vec![0; 1 << 20]).0, "DISK_FULL");
    rig.sh("rm fill");
    assert_eq!(rig.download("there", 0, None).unwrap().1, b"1");
    let names: Vec<_> = rig.list("", 8, 0).unwrap().into_iter().map(|file| file.path).collect();
    assert_eq!(names, ["d", "fifo", "link", "there"]);
    for (path, reason) in [
        ("fifo", "NOT_REGULAR_FILE"),
        ("link", "NOT_REGULAR_FILE"),
        ("d", "IS_DIRECTORY"),
    ] {
        assert_eq!(rig.download(path, 0, None).unwrap_err().reason, reason, "{path}");
    }
}

#[test]
fn an_upload_that_breaks_off_is_gone_on_with_and_a_done_one_is_not_done_again() {
    let Some(rig) = Rig::open("download = \"any\"") else {
        return;
    };
    let given = UploadSpec {
        request_id: "upload".to_owned(),
        sha256: hex(b"0123456789"),
        ..spec("file")
    };
    let message = |part| FilesUploadRequest { part: Some(part) };
    // The first try stands still: the next one takes its place.
    let begin = || {
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        sender.try_send(message(Sent::Spec(given.clone()))).unwrap();
        sender.try_send(message(Sent::Data(b"01234"[..].into()))).unwrap();
        let mut client = rig.daemon.files();
        let upload = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime
                .block_on(async { client.upload(ReceiverStream::new(receiver)).await })
                .unwrap_err()
        });
        (sender, upload)
    };
    let (mut sender, mut first) = begin();
    let from = |offset| UploadSpec {
        resume_offset: Some(offset),
        ..given.clone()
    };
    let deadline = std::time::Instant::now() + *DEADLINE;
    while rig.upload(from(100), b"").unwrap_err().offset != Some(5) {
        assert!(std::time::Instant::now() < deadline, "no byte arrived");
        // The question takes the place of what it asks about, which may have had no time to bring anything.
        if first.is_finished() {
            (sender, first) = begin();
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
    drop(sender);
    assert_eq!(first.join().unwrap().code(), tonic::Code::Aborted);
    let file = rig.upload(from(5), b"56789").unwrap();
    assert_eq!((file.size_bytes, file.sha256), (10, hex(b"0123456789")));
    assert_eq!(rig.download("file", 0, None).unwrap().1, b"0123456789");
    rig.sh("rm file");
    // The answer of before, and nothing is written.
    assert_eq!(rig.upload(given.clone(), b"0123456789").unwrap().size_bytes, 10);
    assert_eq!(rig.stat("file").unwrap_err().reason, "FILE_NOT_FOUND");
    let other = UploadSpec {
        path: "other".to_owned(),
        ..given
    };
    assert_eq!(rig.upload(other, b"x").unwrap_err().reason, "REQUEST_ID_REUSED");
    assert_eq!(rig.sh("ls -A"), "");
    let nameless = UploadSpec {
        resume_offset: Some(1),
        ..spec("x")
    };
    assert_eq!(rig.upload(nameless, b"").unwrap_err().fields, ["request_id"]);
    assert_eq!(rig.daemon.session(SESSION).session_id, SESSION);
}
