//! The commands around `brig run`.

use brig_tests::{Brig, daemon, host};

use crate::{folder, run, text};

#[test]
fn policies_are_checked_with_file_line_and_suggestion() {
    if !host::can_run() {
        return;
    }
    let shipped = host::Places::find().policies;
    for name in ["data.toml", "strict.toml"] {
        let brig = Brig::alone(&["policy", "check", text(&shipped.join(name))])
            .run()
            .expect(0);
        assert!(
            brig.text().contains("timeout") || brig.text().contains("time"),
            "{}",
            brig.text()
        );
    }
    let folder = folder();
    let copied = std::process::Command::new("cp")
        .arg("-rT")
        .arg(&shipped)
        .arg(folder.path())
        .status()
        .unwrap();
    assert!(copied.success());
    let good = std::fs::read_to_string(shipped.join("data.toml")).unwrap();
    for (from, to, said) in [
        ("inodes = 50000", "inode = 50000", "did you mean"),
        ("pids = 128", "pids = 0", "limits.pids"),
        (
            "memory = { default = \"512M\", max = \"2G\" }",
            "memory = { default = \"4G\", max = \"2G\" }",
            "limits.memory",
        ),
        (
            "groups = [\"base\", \"python\", \"inet\"]",
            "groups = [\"base\", \"pyton\"]",
            "pyton",
        ),
        ("mode = \"none\"", "mode = \"all\"", "network.mode"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        let file = folder.path().join("bad.toml");
        std::fs::write(&file, bad).unwrap();
        let brig = Brig::alone(&["policy", "check", text(&file)]).run().expect(2);
        assert!(
            brig.stderr.contains("bad.toml:") && brig.stderr.contains(said),
            "{}",
            brig.stderr
        );
    }
}

#[test]
fn doctor_says_what_is_enforced_with_and_without_a_daemon() {
    let daemon = daemon!();
    for brig in [
        daemon.brig(&["doctor", "-o", "json"]),
        Brig::alone(&["doctor", "-o", "json"]).run(),
    ] {
        assert!(
            [Some(0), Some(1)].contains(&brig.code),
            "{:?} {}",
            brig.code,
            brig.stderr
        );
        let document = brig.json();
        let checks = document["checks"].as_array().unwrap();
        let names: Vec<&str> = checks.iter().map(|check| check["what"].as_str().unwrap()).collect();
        for part in ["kernel", "cgroup", "landlock", "seccomp"] {
            assert!(
                names.iter().any(|name| name.contains(part)),
                "{part} is not among {names:?}"
            );
        }
        let unmended = checks
            .iter()
            .filter(|check| check["verdict"] != "ok" && check["mend"] == "");
        assert_eq!(unmended.count(), 0, "{document}");
    }
    let text = daemon.brig(&["doctor"]);
    assert!(
        text.text().contains("kernel") && !text.text().contains('\u{1b}'),
        "{}",
        text.text()
    );
}

#[test]
fn templates_are_listed_with_their_hash() {
    if !host::can_run() {
        return;
    }
    let brig = Brig::alone(&["template", "list"]).run().expect(0);
    for name in ["base@", "data@"] {
        assert!(brig.text().contains(name), "{}", brig.text());
    }
    let shown = Brig::alone(&["template", "show", "data"]).run().expect(0).json();
    let packages = shown["image"]["packages"].as_array().unwrap();
    assert!(packages.iter().any(|package| package["name"] == "pandas"));
    Brig::alone(&["template", "show", "nosuch"]).run().expect(2);
}

#[test]
fn executions_can_be_looked_at_afterwards() {
    let daemon = daemon!();
    let id = run(&daemon, &["--json", "--label", "job=x", "-c", "print(1)"]).json()["execution_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let listed = daemon.brig(&["execution", "list"]).expect(0);
    assert!(listed.text().contains(&id), "{}", listed.text());
    let shown = daemon.brig(&["execution", "show", &id]).expect(0);
    assert!(shown.text().contains("success"), "{}", shown.text());
}

#[test]
fn the_schema_is_the_committed_one() {
    if !host::can_run() {
        return;
    }
    assert_eq!(
        Brig::alone(&["schema", "result"]).run().expect(0).text(),
        brig_proto::schema::RESULT
    );
    assert_eq!(
        Brig::alone(&["schema", "refusal"]).run().expect(0).text(),
        brig_proto::schema::REFUSAL
    );
}
