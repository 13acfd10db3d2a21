//! `brig-files` as brig-init starts it: uid 999, two ambient capabilities, the socket as descriptor 3. Needs root.
#![cfg(feature = "files")]
#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use brig_jailer::files::wire::{
    Change, Collect, Collected, Detail, Get, HEADER, Inspect, Op, Put, Request, Response, Skip, Walk, body_length,
    decode, encode,
};
use sha2::{Digest, Sha256};

const AS_INIT_DOES: &str = "--reuid 999 --regid 999 --clear-groups --inh-caps=-all,+setuid,+setgid --ambient-caps=-all,+setuid,+setgid \
                            --bounding-set=-all,+setuid,+setgid --no-new-privs";

const WALK: Walk = Walk {
    max_entries: 10,
    max_depth: 8,
    time_ms: 10_000,
};

struct Helper {
    socket: UnixStream,
    process: Child,
    home: tempfile::TempDir,
    /// A copy of the program where uid 999 can reach it.
    _program: tempfile::TempDir,
}

impl Helper {
    /// Starts the program in a directory of uid 1000's, by way of setpriv.
    fn start(privileges: &str) -> Self {
        let (home, program) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o700)).unwrap();
        chown(home.path(), Some(1000), Some(1000)).expect("root");
        std::fs::set_permissions(program.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let copy = program.path().join("brig-files");
        // By another process: a descriptor open for writing here would travel into the children of other tests.
        assert!(
            Command::new("cp")
                .arg(env!("CARGO_BIN_EXE_brig-files"))
                .arg(&copy)
                .status()
                .unwrap()
                .success()
        );
        let (near, far) = UnixStream::pair().unwrap();
        // As in a jail, the directory is at /home/user: in a mount namespace of the helper's own.
        let script = format!(
            "mount -t tmpfs none /home && mkdir /home/user && mount --bind {} /home/user && cd / && \
             exec setpriv {privileges} {} ignored arguments 3<&0 </dev/null",
            home.path().display(),
            copy.display()
        );
        let process = Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .env("LD_PRELOAD", "")
            .stdin(Stdio::from(OwnedFd::from(far)))
            .spawn()
            .unwrap();
        Self {
            socket: near,
            process,
            home,
            _program: program,
        }
    }

    fn send(&mut self, request: &Request) {
        self.socket.write_all(&encode(request).unwrap()).unwrap();
    }

    fn receive(&mut self) -> Response {
        let mut header = [0; HEADER];
        self.socket.read_exact(&mut header).unwrap();
        let mut body = vec![0; body_length(header).unwrap()];
        self.socket.read_exact(&mut body).unwrap();
        decode(&body).unwrap()
    }

    fn put(&mut self, path: &str, bytes: &[u8]) -> Response {
        let (path, size) = (path.as_bytes().to_vec(), bytes.len() as u64);
        self.send(&Request::Put(Put {
            path,
            size,
            mode: 0o640,
            mtime: None,
            make_parents: true,
            overwrite: false,
        }));
        self.send(&Request::Data(bytes.to_vec()));
        self.send(&Request::End);
        self.receive()
    }

    /// A line of the process's status, as `Uid`.
    fn status(&self, field: &str) -> Vec<String> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
            .unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn end(mut self) -> ExitStatus {
        self.socket.shutdown(std::net::Shutdown::Both).unwrap();
        self.process.wait().unwrap()
    }
}

#[test]
fn files_belong_to_the_guest_and_come_back() {
    let mut helper = Helper::start(AS_INIT_DOES);
    assert!(matches!(helper.put("in/data.csv", b"a,b\n1,2\n"), Response::Stored(sum) if sum.size == 8));
    for (path, mode) in [("in", 0o40755), ("in/data.csv", 0o100_640)] {
        let metadata = std::fs::metadata(helper.home.path().join(path)).unwrap();
        assert_eq!(
            (metadata.uid(), metadata.gid(), metadata.mode()),
            (1000, 1000, mode),
            "{path}"
        );
    }
    let get = Get {
        path: b"in/data.csv".to_vec(),
        offset: 0,
        length: None,
        max_bytes: 100,
    };
    helper.send(&Request::Get(get));
    assert_eq!(helper.receive(), Response::Data(b"a,b\n1,2\n".to_vec()));
    assert!(matches!(helper.receive(), Response::End { size: 8 }));
    assert_eq!(helper.end().code(), Some(0));
}

#[test]
fn the_helper_keeps_no_capability_and_is_out_of_the_guests_reach() {
    let mut helper = Helper::start(AS_INIT_DOES);
    helper.put("ready", b"");
    assert_eq!(helper.status("Uid"), ["999", "999", "999", "1000"]);
    assert_eq!(helper.status("Gid"), ["999", "999", "999", "1000"]);
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(helper.status(set), ["0000000000000000"], "{set}");
    }
    assert_eq!(
        (helper.status("NoNewPrivs"), helper.status("Threads")),
        (vec!["1".to_owned()], vec!["1".to_owned()])
    );
    let as_guest = |script: String| {
        let setpriv = [
            "--reuid",
            "1000",
            "--regid",
            "1000",
            "--clear-groups",
            "--bounding-set=-all",
            "sh",
            "-c",
        ];
        Command::new("setpriv")
            .args(setpriv)
            .arg(script)
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success()
    };
    let pid = helper.process.id();
    assert!(!as_guest(format!("kill -0 {pid}")));
    assert!(!as_guest(format!(
        "cat /proc/{pid}/mem || cat /proc/{pid}/environ || ls /proc/{pid}/fd"
    )));
    // Not dumpable: its files in /proc belong to root, not to uid 999.
    assert_eq!(std::fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid(), 0);
    assert_eq!(helper.end().code(), Some(0));
}

#[test]
fn every_request_works_after_the_seal() {
    let mut helper = Helper::start(AS_INIT_DOES);
    helper.put("in.json", b"[1,2]");
    helper.send(&Request::Snapshot(WALK));
    assert_eq!(
        helper.receive(),
        Response::Snapshotted {
            files: 1,
            truncated: None
        }
    );
    std::fs::write(helper.home.path().join("in.json"), "[3,4]").unwrap();
    std::fs::write(helper.home.path().join("out.csv"), "a,b\n").unwrap();
    helper.send(&Request::Collect(Collect {
        walk: WALK,
        max_files: 8,
        since: None,
        max_bytes_each: None,
        expected: vec![],
    }));
    let mut changes = Vec::new();
    let totals = loop {
        match helper.receive() {
            Response::Found(found) => changes.push((found.path, found.change)),
            other => break other,
        }
    };
    changes.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        changes,
        [
            (b"in.json".to_vec(), Change::Modified),
            (b"out.csv".to_vec(), Change::Created)
        ]
    );
    let Response::Collected(totals) = totals else {
        panic!("{totals:?}")
    };
    assert!(totals.space.used_bytes > 0, "{totals:?}");
    assert_eq!(
        totals,
        Collected {
            examined: 2,
            changed: 2,
            space: totals.space,
            ..Collected::default()
        }
    );
    let media_type = "application/json".to_owned();
    let content = std::fs::read(helper.home.path().join("in.json")).unwrap();
    let inspect = Inspect {
        path: b"in.json".to_vec(),
        media_type,
        size: content.len() as u64,
        sha256: Sha256::digest(&content).into(),
        max_bytes: 100,
        time_ms: 10_000,
    };
    helper.send(&Request::Inspect(inspect.clone()));
    match helper.receive() {
        Response::Inspected(seen) => assert_eq!(seen.details[1], ("entries".to_owned(), Detail::Number(2))),
        other => panic!("{other:?}"),
    }
    // What is there now may be something else than what was read before.
    for other in [
        Inspect {
            sha256: [0; 32],
            ..inspect.clone()
        },
        Inspect { size: 3, ..inspect },
    ] {
        helper.send(&Request::Inspect(other));
        match helper.receive() {
            Response::Failed(failure) => assert_eq!((failure.op, failure.errno), (Op::Read, libc::EBADMSG)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_file_without_permission_is_skipped_as_unreadable() {
    let mut helper = Helper::start(AS_INIT_DOES);
    let closed = helper.home.path().join("closed");
    std::fs::write(&closed, "x").unwrap();
    chown(&closed, Some(1000), Some(1000)).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o000)).unwrap();
    let walk = Walk {
        max_entries: 10,
        max_depth: 8,
        time_ms: 10_000,
    };
    helper.send(&Request::Collect(Collect {
        walk,
        max_files: 8,
        since: None,
        max_bytes_each: None,
        expected: vec![],
    }));
    assert_eq!(
        helper.receive(),
        Response::Skipped {
            path: b"closed".to_vec(),
            why: Skip::Unreadable
        }
    );
    match helper.receive() {
        Response::Collected(totals) => assert_eq!((totals.examined, totals.changed, totals.skipped), (1, 1, 1)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_helper_that_cannot_seal_itself_names_the_step_and_serves_nothing() {
    let mut helper = Helper::start("--reuid 999 --regid 999 --clear-groups --no-new-privs");
    match helper.receive() {
        Response::Failed(failure) => assert_eq!((failure.op, failure.path), (Op::Seal, b"file identity".to_vec())),
        other => panic!("{other:?}"),
    }
    assert_eq!(helper.socket.read(&mut [0]).unwrap(), 0);
    assert_eq!(helper.process.wait().unwrap().code(), Some(1));
}

#[test]
fn the_exit_status_tells_a_broken_protocol_from_a_bad_start() {
    let mut helper = Helper::start(AS_INIT_DOES);
    helper.socket.write_all(&[0xff; 64]).unwrap();
    assert_eq!(helper.process.wait().unwrap().code(), Some(2));
    let program: &Path = env!("CARGO_BIN_EXE_brig-files").as_ref();
    let alone = Command::new("sh")
        .args(["-c", "exec 3<&-; exec \"$0\""])
        .arg(program)
        .status()
        .unwrap();
    assert_eq!(alone.code(), Some(1));
}
