//! How much is kept, for how long, and for whom.

use std::os::unix::process::CommandExt;
use std::time::Duration;

use brig_proto::v1::InputSpec;
use brig_tests::spec::span;
use brig_tests::{Brig, Daemon, Refused, daemon, eventually};

use super::{bytes, delete, get, hex, put, spec};

/// Groups of Debian that nobody is in, by number. Source: base-passwd.
const DAEMON: u32 = 1;
const BIN: u32 = 2;
/// Whoever runs in one of those groups is somebody else.
const CLIENTS: &str = "
[[client]]
group = \"daemon\"
tenant = \"other\"
roles = [\"runner\"]

[[client]]
group = \"bin\"
roles = [\"auditor\"]

[[client]]
uid = 0
roles = [\"runner\", \"reviewer\", \"auditor\", \"operator\"]
";

fn files(daemon: &Daemon) -> usize {
    std::fs::read_dir(daemon.directory().join("inputs/files"))
        .unwrap()
        .count()
        + std::fs::read_dir(daemon.directory().join("inputs/incoming"))
            .unwrap()
            .count()
}

fn told(refused: Refused) -> (String, Vec<String>) {
    (refused.reason, refused.fields)
}

fn why(reason: &str, fields: &[&str]) -> (String, Vec<String>) {
    (
        reason.to_owned(),
        fields.iter().map(|&field| field.to_owned()).collect(),
    )
}

#[test]
fn another_tenant_finds_nothing_and_another_role_stores_nothing() {
    let Some(daemon) = Daemon::start_configured(CLIENTS) else {
        return;
    };
    put(&daemon, spec("mine"), b"abc").unwrap();
    let brig = |group: u32, arguments: &[&str]| {
        let mut line = Brig::command(&daemon.socket(), arguments);
        line.command.gid(group);
        line.run()
    };
    for arguments in [
        &["input", "show", "mine", "--json"][..],
        &["input", "remove", "mine", "--json"],
        &[
            "run",
            "--template",
            "base",
            "--json",
            "--input",
            "input:mine",
            "--",
            "true",
        ],
    ] {
        let refused = brig(DAEMON, arguments).expect(2).json();
        assert_eq!(refused["refused"]["reason"], "input_not_found", "{arguments:?}");
        assert_eq!(refused["refused"]["code"], "not_found");
    }
    let list = |group: u32| brig(group, &["input", "list", "--json"]).expect(0).json();
    assert_eq!(list(DAEMON)["inputs"], serde_json::json!([]));
    assert_eq!(list(BIN)["inputs"][0]["input_id"], "mine");
    // The id is free there, and what is under it is theirs.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "theirs").unwrap();
    let file = file.path().to_str().unwrap();
    brig(DAEMON, &["input", "put", "--id", "mine", file]).expect(0);
    let run = [
        "run",
        "-q",
        "--template",
        "base",
        "--input",
        "input:mine=x",
        "--",
        "cat",
        "x",
    ];
    assert_eq!(brig(DAEMON, &run).expect(0).text(), "theirs");
    assert_eq!(get(&daemon, "mine").unwrap().sha256, hex(b"abc"));
    for arguments in [
        &["input", "put", "--json", file][..],
        &["input", "remove", "--json", "mine"],
    ] {
        let refused = brig(BIN, arguments).expect(77).json();
        assert_eq!(refused["refused"]["reason"], "role_missing", "{arguments:?}");
    }
}

#[test]
fn what_is_above_a_limit_says_which_and_leaves_nothing() {
    let configuration = "[inputs]\nsize = \"1M\"\ntenant_files = 3\ntenant_bytes = \"2M\"\nretention_max = \"2d\"\n";
    let Some(daemon) = Daemon::start_configured(configuration) else {
        return;
    };
    let refused = |spec: InputSpec, bytes: &[u8]| put(&daemon, spec, bytes).unwrap_err();
    let sized = |size| InputSpec {
        size_bytes: Some(size),
        ..spec("a")
    };
    assert_eq!(told(refused(sized(1 << 21), b"")), why("TOO_LARGE", &["size_bytes"]));
    assert_eq!(
        told(refused(spec("a"), &vec![0; (1 << 20) + 1])),
        why("TOO_LARGE", &["data"])
    );
    assert_eq!(told(refused(sized(3), b"ab")), why("DIGEST_MISMATCH", &["size_bytes"]));
    let other = InputSpec {
        sha256: hex(b"other"),
        ..spec("a")
    };
    assert_eq!(told(refused(other, b"ab")), why("DIGEST_MISMATCH", &["sha256"]));
    let long = InputSpec {
        retention: Some(span(Duration::from_secs(3 * 86_400))),
        ..spec("a")
    };
    assert_eq!(told(refused(long, b"ab")), why("INVALID_VALUE", &["retention"]));
    assert_eq!(files(&daemon), 0);
    for id in ["a", "b"] {
        put(&daemon, spec(id), &vec![0; 1 << 20]).unwrap();
    }
    let full = refused(spec("c"), b"x");
    assert_eq!(
        (full.reason.as_str(), full.code),
        ("STORAGE_QUOTA", tonic::Code::ResourceExhausted)
    );
    assert!(full.message.contains("inputs.tenant_bytes"), "{}", full.message);
    put(&daemon, spec("c"), b"").unwrap();
    let full = refused(spec("d"), b"");
    assert!(full.message.contains("inputs.tenant_files: 3 of 3"), "{}", full.message);
    assert_eq!(files(&daemon), 3);
    delete(&daemon, "a").unwrap();
    put(&daemon, spec("d"), b"x").unwrap();
}

#[test]
fn what_expires_is_not_found_and_its_bytes_go() {
    let daemon = daemon!();
    let short = InputSpec {
        retention: Some(span(Duration::from_secs(1))),
        ..spec("short")
    };
    let stored = put(&daemon, short, b"abc").unwrap();
    let (from, until) = (stored.create_time.unwrap(), stored.expire_time.unwrap());
    assert_eq!((until.seconds - from.seconds, until.nanos), (1, from.nanos));
    put(&daemon, spec("long"), b"abc").unwrap();
    eventually("it expires", *brig_tests::DEADLINE, || match get(&daemon, "short") {
        Err(refused) if refused.reason == "INPUT_NOT_FOUND" => Ok(()),
        other => Err(other.map(|input| input.expire_time)),
    });
    eventually("its bytes go", *brig_tests::DEADLINE, || match files(&daemon) {
        1 => Ok(()),
        other => Err(other),
    });
    // It is gone already, which is no error; what never was is one.
    delete(&daemon, "short").unwrap();
    assert_eq!(delete(&daemon, "never").unwrap_err().reason, "INPUT_NOT_FOUND");
}

#[test]
fn records_and_answers_live_through_a_restart() {
    let Some(mut daemon) = Daemon::start() else {
        return;
    };
    let bytes = bytes(1 << 20);
    let given = InputSpec {
        request_id: "r1".to_owned(),
        ..spec("stays")
    };
    let first = put(&daemon, given.clone(), &bytes).unwrap();
    for planned in [true, false] {
        let next = if planned {
            // The directory is the next one's too.
            daemon.terminate();
            daemon.start_again()
        } else {
            daemon.kill();
            daemon.start_again()
        };
        daemon = next;
        assert_eq!(get(&daemon, "stays").unwrap(), first);
        assert_eq!(put(&daemon, given.clone(), &bytes).unwrap(), first);
        assert_eq!(
            put(&daemon, given.clone(), b"other").unwrap_err().reason,
            "REQUEST_ID_REUSED"
        );
        assert_eq!(put(&daemon, spec("stays"), b"x").unwrap_err().reason, "ID_TAKEN");
    }
}
