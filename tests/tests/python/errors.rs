//! Code that fails: the caller gets what Python would print, from the first line of the user's own code on.

use brig_proto::v1::{CauseKind, ExecutionStatus};
use brig_tests::spec::{code, small};
use brig_tests::{Outcome, daemon};
use serde_json::{Value, json};

const TYPICAL: &str = "\
import json

def total(orders):
    return sum(order['amount'] for order in orders)

orders = json.loads('[{\"amount\": 3}, {\"amout\": 4}]')
print(total(orders))
";

const TYPICAL_TRACEBACK: &str = "\
Traceback (most recent call last):
  File \"/home/user/main.py\", line 7, in <module>
    print(total(orders))
          ^^^^^^^^^^^^^
  File \"/home/user/main.py\", line 4, in total
    return sum(order['amount'] for order in orders)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File \"/home/user/main.py\", line 4, in <genexpr>
    return sum(order['amount'] for order in orders)
               ~~~~~^^^^^^^^^^
KeyError: 'amount'
";

fn error(outcome: &Outcome) -> Value {
    outcome.document()["error"].clone()
}

/// Status, exit code, name and message of the error, stderr.
fn end(outcome: &Outcome) -> Value {
    let document = outcome.document();
    json!([
        document["status"],
        document["exit_code"],
        document["error"]["name"],
        document["error"]["message"],
        document["stderr"]
    ])
}

#[test]
fn a_traceback_is_exactly_that_of_the_users_code() {
    let daemon = daemon!();
    let outcome = daemon.run(small(TYPICAL));
    let expected = json!({"name": "KeyError", "message": "'amount'", "line": 4, "traceback": TYPICAL_TRACEBACK});
    assert_eq!(error(&outcome), expected);
    assert_eq!(outcome.stderr(), TYPICAL_TRACEBACK);
    assert_eq!(
        (outcome.result.status(), outcome.result.exit_code),
        (ExecutionStatus::Error, Some(1))
    );
    assert_eq!(outcome.result.cause, None);
}

#[test]
fn a_syntax_error_is_shown_as_python_shows_it() {
    let daemon = daemon!();
    let outcome = daemon.run(small("total = 0\nfor x in range(3)\n    total += x\n"));
    let traceback = "  File \"/home/user/main.py\", line 2\n    for x in range(3)\n                     ^\nSyntaxError: expected ':'\n";
    let expected =
        json!({"name": "SyntaxError", "message": "expected ':' (main.py, line 2)", "line": 2, "traceback": traceback});
    assert_eq!(error(&outcome), expected);
    assert_eq!(outcome.stderr(), traceback);
}

#[test]
fn frames_of_a_library_stay_and_those_of_brig_go() {
    let daemon = daemon!();
    let outcome = daemon.run(code("import pandas as pd\n\ndf = pd.DataFrame({'a': [1]})\ndf['b']\n"));
    let error = error(&outcome);
    let traceback = error["traceback"].as_str().unwrap();
    assert!(
        traceback.contains("  File \"/home/user/main.py\", line 4, in <module>\n    df['b']\n"),
        "{traceback}"
    );
    assert!(traceback.contains("pandas/core/frame.py"), "{traceback}");
    assert!(!traceback.contains("brig"), "{traceback}");
    assert_eq!(
        (&error["name"], &error["message"], &error["line"]),
        (&json!("KeyError"), &json!("'b'"), &json!(4))
    );
}

#[test]
fn an_exception_of_awaited_code_and_its_cause_are_shown() {
    let daemon = daemon!();
    let source = "\
import asyncio

async def fetch():
    try:
        {}['rows']
    except KeyError as error:
        raise ValueError('no rows') from error

await fetch()
";
    let expected = "\
Traceback (most recent call last):
  File \"/home/user/main.py\", line 5, in fetch
    {}['rows']
    ~~^^^^^^^^
KeyError: 'rows'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File \"/home/user/main.py\", line 9, in <module>
    await fetch()
  File \"/home/user/main.py\", line 7, in fetch
    raise ValueError('no rows') from error
ValueError: no rows
";
    assert_eq!(daemon.run(small(source)).stderr(), expected);
}

#[test]
fn sys_exit_ends_as_it_says() {
    let daemon = daemon!();
    let exit = |argument: &str| end(&daemon.run(small(&format!("import sys\nprint('before')\nsys.exit({argument})"))));
    assert_eq!(exit(""), json!(["success", 0, null, null, ""]));
    assert_eq!(exit("0"), json!(["success", 0, null, null, ""]));
    assert_eq!(exit("3"), json!(["error", 3, "SystemExit", "3", ""]));
    assert_eq!(
        exit("'no data'"),
        json!(["error", 1, "SystemExit", "no data", "no data\n"])
    );
}

#[test]
fn an_exit_that_python_does_not_see_is_an_error_without_exception() {
    let daemon = daemon!();
    assert_eq!(
        end(&daemon.run(small("import os\nos._exit(7)"))),
        json!(["error", 7, null, null, ""])
    );
}

#[test]
fn a_keyboard_interrupt_is_an_error_by_its_name() {
    let daemon = daemon!();
    let source = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)";
    let outcome = daemon.run(small(source));
    assert_eq!(outcome.result.status(), ExecutionStatus::Error);
    assert_eq!(error(&outcome)["name"], "KeyboardInterrupt");
    assert!(
        error(&outcome)["traceback"]
            .as_str()
            .unwrap()
            .ends_with("KeyboardInterrupt\n")
    );
}

#[test]
fn an_interpreter_that_crashes_was_killed_by_its_signal() {
    let daemon = daemon!();
    let outcome = daemon.run(small("import ctypes\nprint('before')\nctypes.string_at(0)"));
    assert_eq!(outcome.result.status(), ExecutionStatus::Killed);
    assert_eq!(outcome.result.signal, Some(11));
    assert_eq!(outcome.result.cause.as_ref().unwrap().kind(), CauseKind::Signal);
    assert_eq!(outcome.stdout(), "before\n");
}

#[test]
fn endless_recursion_is_an_exception_not_a_crash() {
    let daemon = daemon!();
    let outcome = daemon.run(small("def f(x):\n    return f(x + 1)\n\nf(0)"));
    assert_eq!(error(&outcome)["name"], "RecursionError");
}

#[test]
fn a_missing_package_is_named_and_a_hint_says_what_to_do() {
    let daemon = daemon!();
    let outcome = daemon.run(code("import polars"));
    assert_eq!(error(&outcome)["message"], "No module named 'polars'");
    assert!(outcome.document()["hint"].as_str().is_some_and(|hint| !hint.is_empty()));
}
