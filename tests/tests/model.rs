//! What a language model does with Brig: it calls the tool, reads the result, and mends its code by the hint.
//!
//! The model is a script. It sees what a real one would: the definition of the tool, and of each result the JSON.
#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::time::Duration;

use brig_proto::tool::ToolCall;
use brig_proto::v1::{ExecutionSpec, Limits};
use brig_tests::spec::{code, input, small, span, with_limits};
use brig_tests::{Brig, Daemon, daemon};
use serde_json::{Value, json};

const ROWS: usize = 240;

fn sales() -> Vec<u8> {
    let regions = ["north", "south", "east"];
    let rows = (0..ROWS).map(|row| format!("{},{}\n", regions[row % 3], row));
    std::iter::once("region,amount\n".to_owned())
        .chain(rows)
        .collect::<String>()
        .into_bytes()
}

/// An application: it has one file, takes calls of its tool, and gives results to the model.
struct Application<'d> {
    daemon: &'d Daemon,
    calls: usize,
}

impl Application<'_> {
    /// Does what the model asks for, as the JSON of its call says it.
    fn call(&mut self, arguments: &Value) -> Value {
        self.calls += 1;
        let call: ToolCall = serde_json::from_value(arguments.clone()).unwrap();
        let spec = call
            .spec(|name| (name == "sales.csv").then(|| input(name, &sales())))
            .unwrap();
        self.daemon.run(spec).document()
    }
}

/// The script of the model: its next call after a result, or what it says to its user.
fn next(result: Option<&Value>) -> Result<Value, String> {
    let call = |code: &str| {
        Ok(json!({
            "code": code,
            "input_files": ["sales.csv"],
            "expected_outputs": ["summary.csv"],
            "timeout_seconds": 120,
        }))
    };
    let Some(result) = result else {
        return call("import polars as pl\nprint(pl.read_csv('sales.csv').height)");
    };
    let hint = result["hint"].as_str().unwrap_or_default();
    if hint.contains("module polars") && hint.contains("pandas") {
        return call(
            "import pandas as pd\n\
             sums = pd.read_csv('sales.csv').groupby('region', as_index=False)['amount'].sum()\n\
             sums.to_csv('/tmp/summary.csv', index=False)\nprint(len(sums))",
        );
    }
    if hint.contains("\"summary.csv\"") {
        return call(
            "import pandas as pd\n\
             sums = pd.read_csv('sales.csv').groupby('region', as_index=False)['amount'].sum()\n\
             sums.to_csv('summary.csv', index=False)\nprint(f'{len(sums)} regions, {sums.amount.sum()} in all')",
        );
    }
    Err(result["stdout"].as_str().unwrap().trim().to_owned())
}

#[test]
fn a_model_mends_its_code_by_the_hints_until_its_summary_is_true() {
    let daemon = daemon!();
    let mut application = Application {
        daemon: &daemon,
        calls: 0,
    };
    let mut results: Vec<Value> = Vec::new();
    let summary = loop {
        match next(results.last()) {
            Ok(call) => results.push(application.call(&call)),
            Err(summary) => break summary,
        }
        assert!(application.calls < 6, "the hints lead nowhere: {results:?}");
    };
    let [first, second, third] = &results[..] else {
        panic!("{results:?}")
    };
    assert_eq!(
        (&first["status"], &first["error"]["name"]),
        (&json!("error"), &json!("ModuleNotFoundError"))
    );
    assert_eq!(
        (&second["status"], &second["missing_outputs"]),
        (&json!("success"), &json!(["summary.csv"]))
    );
    assert_eq!((&third["status"], &third["hint"]), (&json!("success"), &Value::Null));
    // The application believes what it can check: the facts of the file.
    let artifact = &third["artifacts"][0];
    assert_eq!(artifact["path"], "summary.csv");
    let (rows, columns) = (&artifact["details"]["rows"], &artifact["details"]["columns"]);
    assert_eq!((rows, columns), (&json!(3), &json!(2)));
    assert_eq!(summary, format!("{rows} regions, {} in all", (0..ROWS).sum::<usize>()));
}

#[test]
fn the_tool_is_told_in_each_form_that_models_take() {
    let form = |form: &str| Brig::alone(&["schema", "tool", "--form", form]).run().expect(0).json();
    let plain = Brig::alone(&["schema", "tool"]).run().expect(0).json();
    assert_eq!(plain, form("input_schema"));
    assert_eq!(form("mcp")["inputSchema"], plain["input_schema"]);
    let function = form("function");
    assert_eq!(function["type"], "function");
    assert_eq!(function["function"]["parameters"], plain["input_schema"]);
}

/// What the result of code advises.
fn hint(daemon: &Daemon, spec: ExecutionSpec) -> String {
    let document = daemon.run(spec).document();
    document["hint"]
        .as_str()
        .map_or_else(|| panic!("no hint: {document}"), str::to_owned)
}

#[test]
fn each_hint_comes_of_a_real_end() {
    let daemon = daemon!();
    let limited = |limits: Limits, source: &str| with_limits(limits, small(source));
    let memory = Limits {
        memory_bytes: Some(64 << 20),
        disk_bytes: Some(1 << 20),
        ..Limits::default()
    };
    let disk = Limits {
        disk_bytes: Some(4 << 20),
        ..Limits::default()
    };
    let time = Limits {
        timeout: Some(span(Duration::from_secs(1) * brig_tests::slow())),
        ..Limits::default()
    };
    let output = Limits {
        output_bytes: Some(1000),
        ..Limits::default()
    };
    let fetch = "import urllib.request\nurllib.request.urlopen('http://example.com/')";
    let full = "with open('f', 'wb') as f:\n    while True: f.write(b'x' * 65536)";
    let expecting = |source: &str| {
        let expected = brig_proto::v1::ExpectedOutput {
            path: "chart.csv".to_owned(),
            ..brig_proto::v1::ExpectedOutput::default()
        };
        ExecutionSpec {
            expected_outputs: vec![expected],
            ..small(source)
        }
    };
    let cases = [
        (
            limited(memory, "x = bytearray(300 << 20)"),
            vec!["load less at one time", "ask for more memory (at most"],
        ),
        (
            limited(time, "while True: pass"),
            vec!["make it faster", "ask for more time (at most"],
        ),
        (
            limited(disk, full),
            vec!["There is room for 4 MiB of files", "write less"],
        ),
        (
            limited(output, "print('x' * 5000)"),
            vec!["1000 bytes of output", "print less"],
        ),
        (
            code("import nosuch.part"),
            vec!["The module nosuch is not installed", "pandas", "numpy"],
        ),
        (
            small("import pandas"),
            vec!["The module pandas is not installed", "no other packages here"],
        ),
        (small(fetch), vec!["There is no network here"]),
        (
            small("open('/usr/x', 'w')"),
            vec!["Only the working directory and /tmp can be written"],
        ),
        (small("open('sales.csv')"), vec!["no input files were given"]),
        (
            ExecutionSpec {
                inputs: vec![input("Q3 sales.csv", b"a\n")],
                ..small("open('Q3 sales.csv')")
            },
            vec!["the input files are \"q3_sales.csv\""],
        ),
        (
            expecting("import os; os.mkdir('out'); open('out/chart.csv', 'w').write('a\\n')"),
            vec!["Write the expected file \"chart.csv\"", "not as \"out/chart.csv\""],
        ),
        (
            small("open('f', 'wb').write(b'\\xff'); open('f', encoding='utf-8').read()"),
            vec!["not UTF-8", "encoding"],
        ),
        (small("input()"), vec!["nobody to answer input()"]),
    ];
    for (spec, parts) in cases {
        let hint = hint(&daemon, spec);
        for part in parts {
            assert!(hint.contains(part), "{part}: {hint}");
        }
    }
}

#[test]
fn an_error_is_short_enough_for_a_chat_and_its_traceback_has_all_of_it() {
    let daemon = daemon!();
    let outcome = daemon.run(small("raise ValueError('begin ' + 'x' * 3000 + ' end')"));
    let error = outcome.result.error.unwrap();
    assert!(error.message.len() <= 1024, "{}", error.message.len());
    assert!(
        error.message.starts_with("begin x") && error.message.ends_with("x end"),
        "{}",
        error.message
    );
    assert!(error.message.contains(" [...] "));
    assert!(error.traceback.contains(&"x".repeat(3000)));
    assert_eq!(error.line, Some(1));
}
