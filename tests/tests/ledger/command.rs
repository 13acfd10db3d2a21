//! `brig ledger`, as auditors, operators and others use it.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use brig_tests::{Brig, DEADLINE, Daemon, daemon, eventually, host};
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::holds;

/// Uids that the configuration below gives roles.
const RUNNER: u32 = 65_501;
const AUDITOR: u32 = 65_502;
const OPERATOR: u32 = 65_503;
const STRANGER: u32 = 65_504;

const CLIENTS: &str = "
socket_mode = \"0666\"
[[client]]
uid = 0
roles = [\"runner\", \"auditor\"]
[[client]]
uid = 65501
tenant = \"blue\"
[[client]]
uid = 65502
tenant = \"blue\"
roles = [\"auditor\"]
[[client]]
uid = 65503
tenant = \"house\"
user = \"olga\"
roles = [\"auditor\", \"operator\"]
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

fn lines(brig: &Brig) -> Vec<Value> {
    brig.text()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn run(daemon: &Daemon, uid: u32, user: &str, script: &str) -> Brig {
    brig(
        daemon,
        uid,
        &["run", "--template", "base", "--user", user, "--", "sh", "-c", script],
    )
}

#[test]
fn auditors_see_their_tenant_and_operators_what_they_ask_for() {
    let Some(daemon) = tenants() else { return };
    run(&daemon, RUNNER, "ann", "echo blue-output").expect(0);
    run(&daemon, 0, "root", "echo default-output").expect(0);
    let own = brig(&daemon, AUDITOR, &["ledger", "list", "-o", "jsonl"]).expect(0);
    let tenants: Vec<_> = lines(&own).iter().map(|line| line["tenant"].clone()).collect();
    assert_eq!(tenants, [json!("blue"), json!("blue")]);
    for arguments in [
        &["ledger", "list", "--tenant", "default"][..],
        &["ledger", "list", "--all-tenants"],
        &["ledger", "export", "--tenant", "default"],
        &["ledger", "follow", "--all-tenants"],
        &["ledger", "erase", "--user", "ann", "--comment", "no"],
        &["ledger", "sweep"],
    ] {
        let refused = brig(&daemon, AUDITOR, arguments).expect(77);
        assert!(
            refused.stderr.contains("the role operator is needed"),
            "{}",
            refused.stderr
        );
        assert!(!refused.text().contains("default-output"));
    }
    for call in ["list", "follow", "export", "verify"] {
        brig(&daemon, RUNNER, &["ledger", call]).expect(77);
    }
    brig(&daemon, STRANGER, &["ledger", "list"]).expect(77);
    // A foreign execution looks like one that never was.
    let foreign = brig(&daemon, AUDITOR, &["ledger", "list", "--user", "root", "-o", "jsonl"]).expect(0);
    assert_eq!(lines(&foreign), Vec::<Value>::new());
    let exported = brig(&daemon, AUDITOR, &["ledger", "export"]).expect(0).text();
    assert!(exported.contains("blue-output") && !exported.contains("default-output"));
    let all = brig(&daemon, OPERATOR, &["ledger", "export", "--all-tenants"])
        .expect(0)
        .text();
    assert!(all.contains("blue-output") && all.contains("default-output"));
    let theirs = brig(
        &daemon,
        OPERATOR,
        &["ledger", "list", "--tenant", "default", "-o", "json"],
    )
    .expect(0);
    assert_eq!(theirs.json()["entries"].as_array().unwrap().len(), 2);
    // Who was refused is in the record: the auditor six times, the runner four; the stranger under no tenant.
    let refused = ["ledger", "list", "--all-tenants", "--kind", "refused", "-o", "jsonl"];
    let entered = || lines(&brig(&daemon, OPERATOR, &refused).expect(0));
    // Who was refused is told that before it is entered.
    eventually("all of them are entered", *DEADLINE, || match entered() {
        entered if entered.len() < 11 => Err(entered),
        _ => Ok(()),
    });
    let refused = entered();
    let told: Vec<_> = refused
        .iter()
        .rev()
        .map(|line| (line["tenant"].as_str().unwrap(), line["reason"].as_str().unwrap()))
        .collect();
    let missing = [("blue", "role_missing"); 10];
    assert_eq!(told, [&missing[..], &[("", "unauthenticated")]].concat());
    assert_eq!(refused[0]["user"], "uid 65504");
    let verified = brig(&daemon, AUDITOR, &["ledger", "verify"]).expect(0).text();
    assert!(verified.starts_with("intact: 15 entries"), "{verified}");
}

#[test]
fn what_was_erased_is_gone_and_the_rest_verifies() {
    let Some(daemon) = tenants() else { return };
    run(&daemon, RUNNER, "canaryann", "echo canary-output-ann").expect(0);
    run(&daemon, RUNNER, "canarybob", "echo canary-output-bob").expect(0);
    let erase = |more: &[&str]| {
        let fixed = [
            "ledger",
            "erase",
            "--tenant",
            "blue",
            "--user",
            "canaryann",
            "-o",
            "json",
        ];
        brig(&daemon, OPERATOR, &[&fixed[..], more].concat())
    };
    erase(&["--dry-run"]).expect(2);
    let counted = erase(&["--comment", "asked by letter", "--dry-run"]).expect(0);
    assert_eq!(counted.json(), json!({"entries": 2, "artifacts": 0, "dry_run": true}));
    assert!(holds(daemon.directory(), "canaryann"));
    let named = ["--comment", "asked by letter", "--request-id", "letter1"];
    let erased = erase(&named).expect(0);
    assert_eq!(erased.json(), json!({"entries": 2, "artifacts": 0, "dry_run": false}));
    assert_eq!(
        erase(&named).expect(0).json(),
        erased.json(),
        "the same request has the same answer"
    );
    erase(&["--comment", "another reason", "--request-id", "letter1"]).expect(2);
    for canary in ["canaryann", "canary-output-ann"] {
        assert!(!holds(daemon.directory(), canary), "{canary}");
    }
    assert!(holds(daemon.directory(), "canary-output-bob"));
    let listed = brig(&daemon, AUDITOR, &["ledger", "list"]).expect(0).text();
    assert!(listed.contains("(removed)") && listed.contains("canarybob"), "{listed}");
    assert!(
        listed.contains("2 entries of one user: asked by letter") && listed.contains("olga"),
        "{listed}"
    );
    brig(&daemon, AUDITOR, &["ledger", "verify"]).expect(0);
    let swept = brig(&daemon, OPERATOR, &["ledger", "sweep", "--dry-run", "-o", "json"]).expect(0);
    assert_eq!(
        swept.json(),
        json!({"works": 0, "outputs": 0, "names": 0, "bytes": 0, "dry_run": true})
    );
    brig(&daemon, OPERATOR, &["ledger", "erase", "--comment", "all of it"]).expect(2);
}

#[test]
fn a_ledger_that_somebody_changed_is_broken() {
    let mut daemon = daemon!();
    for _ in 0..3 {
        daemon.brig(&["run", "--template", "base", "--", "true"]).expect(0);
    }
    let head = daemon.brig(&["ledger", "verify", "-o", "json"]).expect(0).json();
    let head = format!("6:{}", head["head_hash"].as_str().unwrap());
    daemon.brig(&["ledger", "verify", "--head", &head]).expect(0);
    daemon.kill();
    let change = |sql: &str| {
        let ledger = Connection::open(daemon.directory().join("ledger.db")).unwrap();
        ledger.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
        ledger.execute_batch(sql).unwrap();
    };
    change("DELETE FROM entries WHERE number > 4; UPDATE sqlite_sequence SET seq = 4 WHERE name = 'entries'");
    let mut next = daemon.start_again();
    // What is left fits, but not the note.
    let cut = next
        .brig(&["ledger", "verify", "--head", &head, "-o", "json"])
        .expect(1)
        .json();
    assert_eq!((&cut["intact"], &cut["broken_sequence"]), (&json!(false), &json!(5)));
    next.kill();
    change("UPDATE entries SET data = replace(data, 'success', 'failure') WHERE number = 2");
    let next = next.start_again();
    let changed = next.brig(&["ledger", "verify"]).expect(1).text();
    assert!(changed.starts_with("broken: entry 2 was changed"), "{changed}");
    next.brig(&["ledger", "verify", "--head", "nonsense"]).expect(2);
}

#[test]
fn hostile_names_command_no_terminal_and_break_no_line() {
    let daemon = daemon!();
    let evil = "a\u{1b}[2J\u{9b}\u{202e}b";
    let arguments = [
        "run",
        "--template",
        "base",
        "--user",
        evil,
        "--label",
        &format!("k={evil}"),
        "--",
        "echo",
        evil,
    ];
    daemon.brig(&arguments).expect(0);
    for format in [
        &["list"][..],
        &["list", "-o", "json"],
        &["list", "-o", "jsonl"],
        &["export"],
    ] {
        let shown = daemon.brig(&[&["ledger"], format].concat()).expect(0).text();
        let harmful = |character: char| character != '\n' && (character.is_control() || character == '\u{202e}');
        assert!(!shown.chars().any(harmful) && shown.contains('a'), "{shown:?}");
    }
    assert_eq!(daemon.brig(&["ledger", "list"]).text().lines().count(), 3);
    let found = daemon
        .brig(&["ledger", "list", "--user", evil, "-o", "json"])
        .expect(0)
        .json();
    assert_eq!(found["entries"][1]["origin"]["user"], evil);
}

#[test]
fn who_follows_sees_entries_as_lines() {
    use std::io::{BufRead, BufReader};
    let daemon = daemon!();
    daemon.brig(&["run", "--template", "base", "--", "true"]).expect(0);
    let mut child = Brig::command(&daemon.socket(), &["ledger", "follow", "-o", "jsonl"]).spawn();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap()["kind"].clone();
    assert_eq!([next(), next()], ["accepted", "finished"]);
    daemon
        .brig(&["run", "--template", "base", "--policy", "nosuch", "--", "true"])
        .expect(2);
    assert_eq!(next(), "refused");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn without_a_daemon_each_says_so() {
    if !host::can_run() {
        return;
    }
    for arguments in [&["list"][..], &["follow"], &["export"], &["verify"], &["sweep"]] {
        Brig::alone(&[&["ledger"], arguments].concat()).run().expect(69);
    }
}
