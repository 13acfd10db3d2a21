//! Things made for people: charts, files in other formats, reports; and code that is tried, mended and tried again.

use std::path::Path;

use brig_proto::v1::{ExecutionSpec, WantArtifacts};
use brig_tests::daemon;
use brig_tests::spec::{code, input};
use serde_json::{Value, json};

use crate::workflow::{Workflow, files, job};

const SHEET: &str = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";

#[test]
fn a_chart_is_drawn_from_uploaded_data() {
    let daemon = daemon!();
    let workflow = Workflow::start(&daemon, "chart");
    let done = workflow.run("main.py");
    done.expect_success();
    assert_eq!(
        done.artifacts(),
        [
            "highest.json application/json data download",
            "temperatures.jpg image/jpeg chart preview",
            "temperatures.png image/png chart preview",
            "temperatures.svg image/svg+xml chart preview",
        ]
    );
    assert_eq!(
        done.document["artifacts"][2]["details"],
        json!({"width": 1500, "height": 900})
    );
    workflow.check(&done);
}

#[test]
fn a_table_goes_through_four_formats_unharmed() {
    let daemon = daemon!();
    let workflow = Workflow::start(&daemon, "conversion");
    let done = workflow.run("main.py");
    done.expect_success();
    assert_eq!(done.text("stdout"), "same: True\n");
    assert_eq!(
        done.artifacts(),
        [
            "table.json application/json data download".to_owned(),
            "table.parquet application/vnd.apache.parquet data download".to_owned(),
            format!("table.xlsx {SHEET} data download"),
        ]
    );
    workflow.check(&done);
}

#[test]
fn a_simulation_agrees_with_the_theory() {
    let daemon = daemon!();
    let workflow = Workflow::start(&daemon, "simulation");
    let done = workflow.run("main.py");
    done.expect_success();
    assert!(
        done.text("stdout").ends_with(", exact 9.12\n"),
        "{}",
        done.text("stdout")
    );
    workflow.check(&done);
}

#[test]
fn a_report_is_written_as_markdown_and_pdf() {
    let daemon = daemon!();
    let workflow = Workflow::start(&daemon, "report");
    let done = workflow.run("main.py");
    done.expect_success();
    assert_eq!(
        done.artifacts(),
        [
            "notes.txt text/plain report preview",
            "report.md text/markdown report preview",
            "report.pdf application/pdf report preview",
        ]
    );
    workflow.check(&done);
}

#[test]
fn a_snippet_is_tested_mended_and_tested_again() {
    let daemon = daemon!();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("workflows/testing");
    let tests = folder.join("test_pricing.py");
    let failed = job(
        &daemon,
        &folder.join("main.py"),
        &[folder.join("pricing.py"), tests.clone()],
    );
    let end = (
        failed.text("status"),
        failed.exit,
        &failed.document["exit_code"],
        &failed.document["error"]["name"],
    );
    assert_eq!(end, ("error", Some(1), &json!(1), &json!("SystemExit")));
    assert!(
        failed.text("stdout").contains("AssertionError: 64.8 != 72"),
        "{}",
        failed.text("stdout")
    );
    let report = |done: &crate::workflow::Done| -> Value {
        serde_json::from_slice(&std::fs::read(done.file("report.json")).unwrap()).unwrap()
    };
    let skipped = json!(["no currencies yet"]);
    let expected =
        json!({"run": 6, "failed": ["test_pricing.Discount.test_ten_percent"], "errors": [], "skipped": skipped});
    assert_eq!(report(&failed), expected);

    let mended = std::fs::read_to_string(folder.join("pricing.py")).unwrap();
    let place = tempfile::tempdir().unwrap();
    let pricing = place.path().join("pricing.py");
    std::fs::write(&pricing, mended.replacen(" * (1 - percent / 100)", "", 1)).unwrap();
    let passed = job(&daemon, &folder.join("main.py"), &[pricing, tests]);
    passed.expect_success();
    assert_eq!(
        report(&passed),
        json!({"run": 6, "failed": [], "errors": [], "skipped": skipped})
    );
}

#[test]
fn artifacts_of_one_step_are_the_inputs_of_the_next() {
    let daemon = daemon!();
    let workflow = Workflow::start(&daemon, "steps");
    let extracted = workflow.run("extract.py");
    extracted.expect_success();
    let aggregated = workflow.run_with("aggregate.py", &files(extracted.out.path()));
    aggregated.expect_success();
    let html = aggregated.document["results"][0]["data"]["text/html"].as_str().unwrap();
    assert!(html.contains("<th>count</th>"), "{html}");
    let drawn = workflow.run_with("draw.py", &files(aggregated.out.path()));
    drawn.expect_success();
    assert_eq!(
        extracted.document["artifacts"][0]["sha256"], aggregated.document["inputs"][0]["sha256"],
        "the bytes are the same"
    );
    workflow.check_files(&[aggregated.file("means.csv"), drawn.file("means.png")]);
}

#[test]
fn artifact_bytes_that_came_by_the_api_go_in_again() {
    let daemon = daemon!();
    let first = ExecutionSpec {
        want_artifacts: WantArtifacts::Inline.into(),
        ..code("import numpy as np\nnp.savetxt('squares.csv', np.arange(100_000) ** 2, fmt='%d')")
    };
    let outcome = daemon.run(first).expect_success();
    let bytes = outcome.bytes(outcome.artifact("squares.csv")).unwrap();
    let second = ExecutionSpec {
        inputs: vec![input("squares.csv", &bytes[..100_000])],
        ..code("print(sum(int(line) for line in open('squares.csv') if line.endswith('\\n')))")
    };
    let text = std::str::from_utf8(&bytes[..100_000]).unwrap();
    let lines: Vec<u64> = text[..=text.rfind('\n').unwrap()]
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    assert_eq!(lines[..4], [0, 1, 4, 9]);
    assert_eq!(daemon.stdout(second).trim(), lines.iter().sum::<u64>().to_string());
}

#[test]
fn errors_and_hints_lead_to_code_that_works() {
    let daemon = daemon!();
    let workflow = Workflow::start(&daemon, "correction");
    let first = workflow.run("first.py");
    let error = json!({"name": "ModuleNotFoundError", "message": "No module named 'polars'", "line": 1,
        "traceback": "Traceback (most recent call last):\n  File \"/home/user/first.py\", line 1, in <module>\n    \
            import polars as pl\nModuleNotFoundError: No module named 'polars'\n"});
    assert_eq!((first.text("status"), &first.document["error"]), ("error", &error));
    assert!(
        first.text("hint").contains("packages of the template"),
        "{}",
        first.text("hint")
    );

    // It printed the columns before it failed: the next attempt knows better.
    let second = workflow.run("second.py");
    let error = &second.document["error"];
    assert_eq!((&error["name"], &error["line"]), (&json!("KeyError"), &json!(6)));
    assert!(error["message"].as_str().unwrap().contains("revenue"), "{error}");
    assert_eq!(second.text("stdout"), "Columns: ['month', 'net revenue']\n");
    assert_eq!(second.artifacts(), Vec::<String>::new());

    let third = workflow.run("third.py");
    third.expect_success();
    workflow.check(&third);
}
