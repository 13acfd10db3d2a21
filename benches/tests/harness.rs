//! The bench itself works: a short run of it leaves a table, a report and plots. What it measures is not looked at.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

use brig_tests::host::can_run;
use serde_json::Value;

/// All but what needs programs that `make bench` installs, and a gigabyte.
const ROWS: &str = "pool-print,pool-pandas,fresh-print,fresh-pandas,fresh-base,pool-base,sustained,collect,ledger,deadline,transfer,live,idle,waiting";

#[test]
fn a_short_run_leaves_a_report_as_it_is_described() {
    if !can_run() {
        return;
    }
    let folder = tempfile::Builder::new().prefix("brig-bench-").tempdir().unwrap();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_brig-bench"));
    bench.args(["--rounds", "1", "--rows", ROWS]);
    bench.args(["--bytes", "1000000", "--sessions", "2", "--contexts", "1"]);
    bench.args(["--live", "8", "--live-rounds", "1", "--waiting", "2", "--span", "3"]);
    bench.arg("--out").arg(folder.path());
    bench.arg("--scripts").arg(env!("CARGO_MANIFEST_DIR"));
    let output = bench.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");

    let report: Value = serde_json::from_slice(&std::fs::read(folder.path().join("report.json")).unwrap()).unwrap();
    assert_eq!(keys(&report), ["machine", "rows"]);
    let machine = [
        "cgroup",
        "cores",
        "cpu",
        "disk",
        "kernel",
        "load_at_start",
        "memory_mib",
    ];
    assert_eq!(keys(&report["machine"]), machine);
    let rows = report["rows"].as_array().unwrap();
    for row in rows {
        assert_eq!(
            keys(row),
            ["least", "met", "name", "of", "ours", "peer", "ratio", "unit"]
        );
        assert_eq!(keys(&row["ours"]), ["n", "p50", "p95"]);
        assert!(row["ours"]["n"].as_u64() >= Some(1), "{row}");
        if !row["peer"].is_null() {
            assert_eq!(keys(&row["peer"]), ["n", "name", "p50", "p95"]);
            assert!(row["ratio"].as_f64() > Some(0.0), "{row}");
        }
    }
    let found = |name: &str, peer: &str| {
        rows.iter()
            .any(|row| row["name"] == name && row["peer"]["name"] == peer)
    };
    // Needs nothing that the bench has to install.
    assert!(
        found("fresh session by a fork, print(1), to first output", "bare python3")
            && found(
                "fresh session of base from the pool, print(1), to first output",
                "bare python3"
            ),
        "{rows:#?}"
    );
    assert!(
        found(
            "start on demand beside 8 live sessions, print(1), to first output",
            "beside 1"
        ),
        "{rows:#?}"
    );
    let starts = [
        "idle session with a context",
        "collection after an execution",
        "fresh pandas sessions, 8 clients",
        "deadline to all reaped",
        "waiting session, cold",
        "waiting session, warmed by a pandas line",
    ];
    for start in starts {
        let has = |row: &Value| row["name"].as_str().unwrap().starts_with(start);
        assert!(rows.iter().any(has), "{start}");
    }

    let table = std::fs::read_to_string(folder.path().join("report.txt")).unwrap();
    assert!(table.contains("fresh session by a fork, pandas, torn down"), "{table}");
    let plots = files(&folder.path().join("plots"));
    assert!(
        plots.contains(&folder.path().join("plots/upload-of-1-mb-sha-256-included.svg")),
        "{plots:?}"
    );
    for plot in plots {
        assert!(
            std::fs::read_to_string(&plot).unwrap().contains("</svg>"),
            "{}",
            plot.display()
        );
    }
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}
