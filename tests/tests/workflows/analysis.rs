//! Questions about uploaded data.

use brig_tests::daemon;
use serde_json::json;

use crate::workflow::Workflow;

const SHEET: &str = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";

#[test]
fn a_csv_file_is_analysed() {
    let daemon = daemon!();
    let workflow = Workflow::start(&daemon, "csv_analysis");
    let done = workflow.run("main.py");
    done.expect_success();
    let described = "      quantity       price\nmean     5.059  152.791206\nmin      1.000   49.990000\nmax      9.000  349.000000\n";
    assert_eq!(done.text("stdout"), described);
    assert!(
        done.document["results"][0]["data"]["text/plain"]
            .as_str()
            .unwrap()
            .starts_with("region\nEast ")
    );
    let inputs = &done.document["inputs"][0];
    assert_eq!(
        (&inputs["name"], &inputs["path"]),
        (&json!("orders 2025.csv"), &json!("orders_2025.csv"))
    );
    assert_eq!(
        done.artifacts(),
        [
            "monthly.csv text/csv data download",
            "summary.json application/json data download"
        ]
    );
    workflow.check(&done);
}

#[test]
fn a_workbook_of_several_sheets_is_analysed() {
    let daemon = daemon!();
    let workflow = Workflow::start(&daemon, "excel_analysis");
    let done = workflow.run("main.py");
    done.expect_success();
    assert!(
        done.text("stdout").starts_with("Sheets: Q1, Q2, Q3, Q4\n20 rows, "),
        "{}",
        done.text("stdout")
    );
    assert_eq!(done.artifacts(), [format!("budget_report.xlsx {SHEET} data download")]);
    workflow.check(&done);
}

#[test]
fn nested_json_is_analysed() {
    let daemon = daemon!();
    let workflow = Workflow::start(&daemon, "json_analysis");
    let done = workflow.run("main.py");
    done.expect_success();
    assert_eq!(
        done.document["results"][0]["data"],
        json!({"text/plain": "['Customer 017', 305599]"})
    );
    assert_eq!(
        done.artifacts(),
        [
            "analysis.json application/json data download",
            "order_lines.csv text/csv data download"
        ]
    );
    workflow.check(&done);
}

#[test]
fn a_compressed_log_is_analysed() {
    let daemon = daemon!();
    let workflow = Workflow::start(&daemon, "log_analysis");
    let done = workflow.run("main.py");
    done.expect_success();
    assert_eq!(done.text("stdout"), "19933 requests, 556 server errors\n");
    assert_eq!(
        done.artifacts(),
        [
            "findings.json application/json data download",
            "report.md text/markdown report preview"
        ]
    );
    workflow.check(&done);
}

#[test]
fn dirty_data_is_cleaned() {
    let daemon = daemon!();
    let workflow = Workflow::start(&daemon, "cleaning");
    let done = workflow.run("main.py");
    done.expect_success();
    assert!(
        done.text("stdout").contains("age                    Int64"),
        "{}",
        done.text("stdout")
    );
    assert_eq!(
        done.artifacts(),
        [
            "clean.csv text/csv data download",
            "issues.json application/json data download"
        ]
    );
    workflow.check(&done);
}

#[test]
fn a_model_is_trained_and_measured() {
    let daemon = daemon!();
    let workflow = Workflow::start(&daemon, "machine_learning");
    let done = workflow.run("main.py");
    done.expect_success();
    assert!(done.text("stdout").contains("accuracy"), "{}", done.text("stdout"));
    let artifacts = done.artifacts();
    // A pickle runs code where it is loaded: it waits for a person.
    assert!(
        artifacts[1].starts_with("model.joblib ") && artifacts[1].ends_with(" other review pending"),
        "{artifacts:?}"
    );
    assert!(!done.file("model.joblib").exists());
    workflow.check(&done);
}
