//! What `make demo` does, without the building.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use brig_tests::host::{Places, can_run};
use serde_json::{Value, json};

fn demo(out: &Path) -> Output {
    let places = Places::find();
    let mut demo = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/run"));
    demo.arg(out).env("BRIG", places.program("brig"));
    demo.env("BRIG_PROGRAMS", &places.programs)
        .env("BRIG_POLICIES", &places.policies)
        .env("BRIG_KERNEL", &places.kernel)
        .env("BRIG_IMAGES", &places.images);
    demo.stdin(Stdio::null()).output().unwrap()
}

/// Exit code of each command that the demo proposes, pasted into one shell.
fn paste(shown: &str) -> Vec<i32> {
    let (_, next) = shown.split_once("What to try next").unwrap();
    let mut lines = next
        .lines()
        .skip(1)
        .map(str::trim)
        .filter(|line| !line.starts_with('#'));
    let export = lines.next().unwrap();
    let run = |line: &str| {
        let mut shell = Command::new("bash");
        shell
            .arg("-c")
            .arg(format!("{export}\n{line}"))
            .current_dir("/")
            .stdin(Stdio::null());
        let output = shell.output().unwrap();
        let code = output.status.code().unwrap();
        assert!(
            code < 126 || code == 137,
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        code
    };
    lines.map(run).collect()
}

#[test]
fn the_demo_makes_what_it_shows_and_its_next_commands_can_be_pasted() {
    if !can_run() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("demo");
    let output = demo(&out);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{shown}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        shown.contains("\nLoaded 12448 rows, 11970 clean; revenue 15.64M, best quarter 2025Q4"),
        "{shown}"
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("success in "));

    let read = |name: &str| -> Value { serde_json::from_slice(&std::fs::read(out.join(name)).unwrap()).unwrap() };
    let rows = json!({"loaded": 12448, "duplicates": 183, "incomplete": 279, "outliers": 16, "clean": 11970});
    assert_eq!(read("summary.json")["rows"], rows);
    let result = read("result.json");
    assert_eq!(
        (&result["status"], &result["missing_outputs"]),
        (&json!("success"), &json!([]))
    );
    for artifact in result["artifacts"].as_array().unwrap() {
        let size = std::fs::metadata(out.join(artifact["path"].as_str().unwrap()))
            .unwrap()
            .len();
        assert_eq!(artifact["size_bytes"], size);
    }
    assert_eq!(result["artifacts"].as_array().unwrap().len(), 3);

    // A value; memory; time; network; a program; the host, which may lack something.
    let codes = paste(&shown);
    assert_eq!((&codes[..5], codes.len()), (&[0, 137, 124, 1, 0][..], 6));
}
