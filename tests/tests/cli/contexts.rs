//! `brig context`, and `brig run` in one.

use brig_tests::{Daemon, daemon};
use serde_json::json;

use crate::run as run_small;

fn session(daemon: &Daemon) {
    daemon
        .brig(&["session", "create", "--id", "sales", "--template", "base"])
        .expect(0);
}

#[test]
fn a_context_is_made_used_shown_reset_and_closed() {
    let daemon = daemon!();
    session(&daemon);
    let made = ["context", "create", "sales", "--id", "main", "--label", "a=b"];
    assert_eq!(daemon.brig(&made).expect(0).text(), "main\n");
    let run = |code: &str| daemon.brig(&["run", "-q", "--session", "sales", "--context", "main", "-c", code]);
    run("x = 20").expect(0);
    assert_eq!(run("print(x)\nx + 1").expect(0).text(), "20\n21\n");
    let listed = daemon.brig(&["context", "list", "sales", "--json"]).expect(0);
    let document: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let shown = &document["contexts"][0];
    for (key, value) in [
        ("context_id", json!("main")),
        ("language", json!("python")),
        ("directory", json!("/home/user")),
        ("state", json!("idle")),
        ("execution_count", json!(2)),
        ("generation", json!(1)),
        ("labels", json!({"a": "b"})),
    ] {
        assert_eq!(shown[key], value, "{key}");
    }
    let table = daemon.brig(&["context", "list", "sales"]).expect(0).text();
    assert!(table.contains("main") && table.contains("python"), "{table}");
    daemon.brig(&["context", "reset", "sales", "main"]).expect(0);
    let lost = run("print(x)").expect(1);
    assert!(lost.stderr.contains("NameError"), "{}", lost.stderr);
    // What ends its interpreter says that the state is gone.
    let left = daemon.brig(&[
        "run",
        "--session",
        "sales",
        "--context",
        "main",
        "-c",
        "import os; os._exit(3)",
    ]);
    let left = left.expect(1);
    assert!(left.stderr.contains("its state is gone"), "{}", left.stderr);
    daemon.brig(&["context", "close", "sales", "main"]).expect(0);
    let refused = run("1").expect(2);
    assert!(refused.stderr.contains("context"), "{}", refused.stderr);
}

#[test]
fn a_shell_is_a_context_too_and_options_that_make_no_sense_are_refused() {
    let daemon = daemon!();
    session(&daemon);
    let made = ["context", "create", "sales", "--id", "shell", "--language", "bash"];
    daemon.brig(&made).expect(0);
    let run = |code: &str| daemon.brig(&["run", "-q", "--session", "sales", "--context", "shell", "-c", code]);
    run("n=7; cd /tmp").expect(0);
    assert_eq!(run("echo $n $PWD").expect(0).text(), "7 /tmp\n");
    let unknown = daemon
        .brig(&["context", "create", "sales", "--language", "perl"])
        .expect(2);
    assert!(unknown.stderr.contains("python and bash"), "{}", unknown.stderr);
    let alone = run_small(&daemon, &["--context", "shell", "-c", "1"]).expect(2);
    assert!(alone.stderr.contains("--session"), "{}", alone.stderr);
}
