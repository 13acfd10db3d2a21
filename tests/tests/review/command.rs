//! `brig artifact`, as runners, reviewers and others use it.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use brig_tests::{Brig, Daemon, daemon, http};
use serde_json::{Value, json};

use crate::sha256;

/// Uids that the configuration below gives roles.
const RUNNER: u32 = 65_501;
const REVIEWER: u32 = 65_502;
const STRANGER: u32 = 65_503;

const CLIENTS: &str = "
socket_mode = \"0666\"
[links]
listen = \"127.0.0.1:0\"
[[client]]
uid = 0
[[client]]
uid = 65501
tenant = \"blue\"
[[client]]
uid = 65502
tenant = \"blue\"
user = \"rita\"
roles = [\"reviewer\"]
[[client]]
uid = 65503
tenant = \"red\"
roles = [\"runner\", \"reviewer\", \"operator\"]
";

/// A command of somebody else.
fn brig(daemon: &Daemon, uid: u32, arguments: &[&str]) -> Brig {
    let mut line = Brig::command(&daemon.socket(), arguments);
    line.command.uid(uid).gid(uid).current_dir("/");
    line.run()
}

/// A daemon with tenants, that others than root can reach.
fn tenants() -> Option<Daemon> {
    let daemon = Daemon::start_configured(CLIENTS)?;
    std::fs::set_permissions(daemon.directory(), PermissionsExt::from_mode(0o711)).unwrap();
    Some(daemon)
}

/// Has the runner leave a file that must be reviewed, and gives its id.
fn leave(daemon: &Daemon) -> String {
    let run = [
        "run",
        "-q",
        "--template",
        "base",
        "--user",
        "ann",
        "--",
        "sh",
        "-c",
        "echo 'print(1)' > tool.py",
    ];
    brig(daemon, RUNNER, &run).expect(0);
    let pending = ["artifact", "list", "--review", "pending", "-o", "json"];
    let listed = brig(daemon, RUNNER, &pending).expect(0).json();
    listed["artifacts"][0]["artifact_id"].as_str().unwrap().to_owned()
}

#[test]
fn who_runs_code_does_not_review_it_and_who_reviews_has_no_need_to_run() {
    let Some(daemon) = tenants() else { return };
    let id = leave(&daemon);
    let hash = sha256(b"print(1)\n");
    brig(&daemon, RUNNER, &["artifact", "approve", &id, "--sha256", &hash]).expect(77);
    brig(&daemon, RUNNER, &["artifact", "reject", &id]).expect(77);
    brig(&daemon, RUNNER, &["artifact", "get", "--for-review", &id, "-"]).expect(77);
    brig(&daemon, RUNNER, &["artifact", "get", &id, "-"]).expect(77);
    brig(&daemon, RUNNER, &["artifact", "sweep"]).expect(77);
    // Another tenant's are not there, whatever one may do.
    for call in [&["show"][..], &["get", "--for-review"], &["reject"]] {
        let to = if call[0] == "get" { &["-"][..] } else { &[] };
        let refused = brig(&daemon, STRANGER, &[&["artifact"], call, &[&id], to].concat()).expect(2);
        assert!(refused.stderr.contains("no artifact"), "{}", refused.stderr);
    }
    let looked_at = brig(&daemon, REVIEWER, &["artifact", "get", "--for-review", &id, "-"]).expect(0);
    assert_eq!(looked_at.text(), "print(1)\n");
    let approve = [
        "artifact",
        "approve",
        &id,
        "--sha256",
        &hash,
        "--comment",
        "read it",
        "-o",
        "json",
    ];
    let approved = brig(&daemon, REVIEWER, &approve).expect(0).json();
    assert_eq!(
        [
            &approved["review"],
            &approved["reviewer"],
            &approved["review_comment"],
            &approved["user"]
        ],
        ["approved", "blue/rita", "read it", "ann"]
    );
    brig(&daemon, REVIEWER, &["artifact", "reject", &id]).expect(2);
    assert_eq!(
        brig(&daemon, RUNNER, &["artifact", "get", &id, "-"]).expect(0).text(),
        "print(1)\n"
    );
    let shown = brig(&daemon, RUNNER, &["artifact", "show", &id]).expect(0).text();
    for line in [
        "path         tool.py",
        "review       approved",
        "reviewer     blue/rita",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    let saved = brig(
        &daemon,
        RUNNER,
        &["artifact", "save", &id, "--label", "a=b", "-o", "json"],
    )
    .expect(0);
    assert_eq!(saved.json()["labels"], json!({"a": "b"}));
    let swept = brig(&daemon, STRANGER, &["artifact", "sweep", "--dry-run", "-o", "json"]).expect(0);
    assert_eq!(
        swept.json(),
        json!({"expired": 0, "expired_bytes": 0, "kept": 0, "kept_bytes": 0, "dry_run": true})
    );
}

#[test]
fn who_runs_code_links_to_what_may_leave_of_their_tenant() {
    let Some(daemon) = tenants() else { return };
    let id = leave(&daemon);
    let link = |uid: u32, rest: &[&str]| brig(&daemon, uid, &[&["artifact", "link", &id], rest].concat());
    link(RUNNER, &[]).expect(77);
    let hash = sha256(b"print(1)\n");
    brig(&daemon, REVIEWER, &["artifact", "approve", &id, "--sha256", &hash]).expect(0);
    link(REVIEWER, &[]).expect(77);
    let refused = link(STRANGER, &[]).expect(2);
    assert!(refused.stderr.contains("no artifact"), "{}", refused.stderr);
    let url = link(RUNNER, &["--lifetime", "1m"]).expect(0).text();
    assert_eq!(http::get(&daemon, url.trim_end()).body, b"print(1)\n");
    let document = link(RUNNER, &["-o", "json"]).expect(0).json();
    assert_eq!(
        [&document["artifact_id"], &document["disposition"]],
        [&json!(id), &json!("attachment")]
    );
    let url = document["url"].as_str().unwrap();
    assert!(url.starts_with("http://127.0.0.1:") && document["expire_time"].is_string());
    assert!(!url.contains("blue") && !url.contains(&id), "{url}");
    link(RUNNER, &["--inline"]).expect(77);
    link(RUNNER, &["--lifetime", "2h"]).expect(2);
}

#[test]
fn hostile_names_command_no_terminal_and_name_no_other_file() {
    let daemon = daemon!();
    let script = "mkdir d; printf x > \"$(printf 'd/a\\033[2J\\n.py')\"";
    daemon
        .brig(&["run", "-q", "--template", "base", "--", "sh", "-c", script])
        .expect(0);
    for format in [&[][..], &["-o", "json"], &["-o", "jsonl"]] {
        let shown = daemon.brig(&[&["artifact", "list"], format].concat()).expect(0).text();
        let harmful = |character: char| character != '\n' && character.is_control();
        assert!(!shown.chars().any(harmful) && shown.contains("d/a"), "{shown:?}");
    }
    let listed = daemon.brig(&["artifact", "list", "-o", "json"]).expect(0).json();
    let id = listed["artifacts"][0]["artifact_id"].as_str().unwrap().to_owned();
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().to_str().unwrap();
    daemon
        .brig(&["artifact", "get", "-q", "--for-review", &id, to])
        .expect(0);
    assert_eq!(std::fs::read(folder.path().join(&id)).unwrap(), b"x");
    daemon
        .brig(&["artifact", "get", "-q", "--for-review", &id, to])
        .expect(2);
}

#[test]
fn an_erasure_takes_the_artifacts_too() {
    let daemon = daemon!();
    let run = |user: &str| {
        let script = "echo 'print(1)' > tool.py; echo a > out.csv";
        daemon
            .brig(&[
                "run",
                "-q",
                "--template",
                "base",
                "--user",
                user,
                "--",
                "sh",
                "-c",
                script,
            ])
            .expect(0);
    };
    run("ann");
    run("bob");
    let erase = [
        "ledger",
        "erase",
        "--user",
        "ann",
        "--comment",
        "asked by letter",
        "-o",
        "json",
    ];
    let counted = daemon.brig(&[&erase[..], &["--dry-run"]].concat()).expect(0).json();
    assert_eq!(counted["artifacts"], 2);
    assert_eq!(daemon.brig(&erase).expect(0).json()["artifacts"], 2);
    let left = daemon.brig(&["artifact", "list", "-o", "json"]).expect(0).json();
    let users: Vec<&Value> = left["artifacts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|left| &left["user"])
        .collect();
    assert_eq!(users, ["bob", "bob"]);
}
