//! Values and figures that come out of code.

use brig_tests::spec::{code, small};
use brig_tests::{Outcome, daemon, slow};
use serde_json::{Value, json};

fn results(outcome: &Outcome) -> Vec<Value> {
    outcome.document()["results"].as_array().unwrap().clone()
}

/// Width and height of a PNG that came as base64.
fn size_of_png(datum: &Value) -> (u32, u32) {
    let head = base64(&datum.as_str().unwrap()[..32]);
    assert_eq!(&head[..8], b"\x89PNG\r\n\x1a\n");
    let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |byte: &u8| u32::try_from(DIGITS.iter().position(|digit| digit == byte).unwrap()).unwrap();
    let groups = text.as_bytes().chunks_exact(4);
    let bytes = groups.map(|group| group.iter().fold(0, |sum, byte| sum << 6 | digit(byte)).to_be_bytes());
    bytes.flat_map(|bytes| [bytes[1], bytes[2], bytes[3]]).collect()
}

#[test]
fn the_value_of_the_last_expression_is_a_result() {
    let daemon = daemon!();
    let outcome = daemon.run(small("x = [1, 2]\nx + [3]")).expect_success();
    let expected = json!({"main": true, "display_id": null, "data": {"text/plain": "[1, 2, 3]"}, "chart": null});
    assert_eq!(results(&outcome), [expected]);
    assert_eq!(outcome.stdout(), "");
}

#[test]
fn statements_none_and_a_semicolon_give_no_result() {
    let daemon = daemon!();
    for source in ["x = 1", "None", "print('x')", "1 + 1;", "if True:\n    2", ""] {
        assert_eq!(
            results(&daemon.run(small(source)).expect_success()),
            Vec::<Value>::new(),
            "{source}"
        );
    }
}

#[test]
fn a_table_is_shown_as_text_and_html() {
    let daemon = daemon!();
    let source = "import pandas as pd\npd.DataFrame({'region': ['North', 'South'], 'revenue': [10.5, 20.25]})";
    let results = results(&daemon.run(code(source)).expect_success());
    assert_eq!(results.len(), 1);
    assert_eq!(
        results[0]["data"]["text/plain"],
        "  region  revenue\n0  North    10.50\n1  South    20.25"
    );
    let html = results[0]["data"]["text/html"].as_str().unwrap();
    assert!(
        html.contains("<th>revenue</th>") && html.contains("<td>20.25</td>"),
        "{html}"
    );
}

#[test]
fn open_figures_are_sent_as_png() {
    let daemon = daemon!();
    let source = "\
import matplotlib.pyplot as plt
fig, ax = plt.subplots(figsize=(4, 3), dpi=100)
ax.plot([1, 4, 9])
plt.show()
print('between')
plt.figure(figsize=(2, 2), dpi=50)
plt.bar(['a', 'b'], [1, 2])
'done'
";
    let outcome = daemon.run(code(source)).expect_success();
    let results = results(&outcome);
    assert_eq!((results.len(), outcome.stderr()), (3, String::new()));
    let (width, height) = size_of_png(&results[0]["data"]["image/png"]);
    assert!(
        (300..=420).contains(&width) && (220..=320).contains(&height),
        "{width} {height}"
    );
    assert_eq!(results[0]["main"], false);
    let mains: Vec<&Value> = results.iter().filter(|result| result["main"] == true).collect();
    assert_eq!(mains.len(), 1);
    assert_eq!(mains[0]["data"], json!({"text/plain": "'done'"}));
}

#[test]
fn a_figure_as_last_value_is_sent_once() {
    let daemon = daemon!();
    let source = "import seaborn as sns\nax = sns.barplot(x=['a', 'b'], y=[1, 2])\nax.figure";
    let results = results(&daemon.run(code(source)).expect_success());
    assert_eq!(results.len(), 1);
    assert_eq!(results[0]["main"], true);
    size_of_png(&results[0]["data"]["image/png"]);
}

#[test]
fn display_shows_values_on_the_way() {
    let daemon = daemon!();
    let source = "\
class Note:
    def _repr_markdown_(self):
        return '**note**'

display(Note(), 7)
";
    let results = results(&daemon.run(small(source)).expect_success());
    assert_eq!(results.len(), 2);
    assert_eq!(results[0]["data"]["text/markdown"], "**note**");
    assert_eq!(
        (&results[1]["data"], &results[1]["main"]),
        (&json!({"text/plain": "7"}), &json!(false))
    );
}

#[test]
fn matplotlib_is_warm() {
    let daemon = daemon!();
    let source = "\
import logging
logging.basicConfig(level=logging.DEBUG, format='%(message)s')
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.title('Größe')
plt.savefig('figure.png')
";
    let outcome = daemon.run(code(source)).expect_success();
    let log = outcome.stderr();
    assert!(log.contains("Using fontManager instance from"), "{log}");
    assert!(!log.contains("generated new fontManager"), "{log}");
    assert_eq!(outcome.paths(), ["figure.png"]);
    // Looking for fonts alone would take longer.
    let used = outcome.document()["usage"]["cpu_ms"].as_u64().unwrap();
    assert!(used < 5000 * u64::from(slow()), "{used} ms of CPU");
}

#[test]
fn a_value_that_cannot_be_shown_is_no_error_of_the_code() {
    let daemon = daemon!();
    let outcome = daemon
        .run(small(
            "class C:\n    def __repr__(self):\n        raise ValueError('no')\nC()",
        ))
        .expect_success();
    assert!(
        outcome.stderr().contains("repr of a C failed: ValueError: no"),
        "{}",
        outcome.stderr()
    );
}
