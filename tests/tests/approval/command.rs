//! The command line of whoever asks, and that of the reviewer.

use std::io::Read;
use std::process::Child;

use brig_tests::{Brig, Daemon};
use serde_json::json;

use crate::{ASKING, daemon};

/// Runs a job as whoever asks, and waits until it waits.
fn ask(daemon: &Daemon, code: &str) -> (Child, String) {
    let arguments = ["run", "--policy", ASKING, "--template", "base", "-c", code];
    let child = Brig::command(&daemon.socket(), &arguments).spawn();
    let list = ["execution", "list", "--state", "pending_approval", "--json"];
    brig_tests::eventually(
        "it waits",
        std::time::Duration::from_secs(20) * brig_tests::slow(),
        || {
            let list = daemon.brig(&list).expect(0).json();
            match list["executions"][0]["execution_id"].as_str() {
                Some(_) => Ok(()),
                None => Err(list),
            }
        },
    );
    let list = daemon.brig(&list).expect(0).json();
    (
        child,
        list["executions"][0]["execution_id"].as_str().unwrap().to_owned(),
    )
}

fn end(mut child: Child) -> (Option<i32>, String, String) {
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    (child.wait().unwrap().code(), out, err)
}

#[test]
fn a_reviewer_lists_shows_and_approves() {
    let Some((daemon, _policies)) = daemon("") else { return };
    let (child, id) = ask(&daemon, "print(6 * 7)");
    let shown = daemon.brig(&["execution", "show", &id]).expect(0).json();
    assert_eq!(
        (&shown["state"], &shown["code"]["source"]),
        (&json!("pending_approval"), &json!("print(6 * 7)"))
    );
    let work = shown["work_sha256"].as_str().unwrap();
    let wrong = daemon.brig(&["execution", "approve", &id, "--work", &"0".repeat(64), "--json"]);
    assert_eq!(wrong.expect(2).json()["refused"]["reason"], "not_pending");
    let approved = daemon.brig(&["execution", "approve", &id, "--work", work, "--comment", "fine"]);
    assert_eq!(approved.expect(0).text(), format!("{id} is approved\n"));
    let (code, out, err) = end(child);
    assert_eq!((code, out.as_str()), (Some(0), "42\n"), "{err}");
    assert!(err.contains(&format!("brig execution show {id}")), "{err}");
}

#[test]
fn a_rejected_job_says_why_and_ends_with_77() {
    let Some((daemon, _policies)) = daemon("") else { return };
    let (child, id) = ask(&daemon, "print(1)");
    let rejected = daemon.brig(&["execution", "reject", &id, "--reason", "not today", "--json"]);
    let rejected = rejected.expect(0).json();
    assert_eq!(
        rejected,
        json!({"execution_id": id, "state": "finished", "review": "rejected", "reviewer": "default/uid 0", "comment": "not today"})
    );
    let (code, out, err) = end(child);
    assert_eq!((code, out.as_str()), (Some(77), ""), "{err}");
    assert!(err.contains("not today"), "{err}");
}
