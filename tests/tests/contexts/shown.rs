//! What code of a context shows, and the Python that it is written in.

use brig_proto::v1::rich_datum::Content;
use brig_proto::v1::{NoticeKind, RichResult};
use brig_tests::daemon;

use super::Kept;

/// The media types of a result with their texts.
fn texts(result: &RichResult) -> Vec<(&str, &str)> {
    let text = |content: &Option<Content>| match content {
        Some(Content::Text(text)) => text.clone().leak() as &str,
        _ => "",
    };
    result
        .data
        .iter()
        .map(|datum| (datum.r#type.as_str(), text(&datum.content)))
        .collect()
}

#[test]
fn what_is_shown_comes_by_media_type_as_far_as_it_may_leave() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    let source = "class Shown:\n    def _repr_html_(self): return '<b>7</b>'\n    def _repr_svg_(self): return '<svg/>'\n    \
                  def _repr_latex_(self): return '$7$'\n    def _repr_markdown_(self): return '*7*'\n    \
                  def _repr_json_(self): return {'n': 7}\n    def _repr_javascript_(self): return 'alert(7)'\n    \
                  def __repr__(self): return 'seven'\nShown()";
    let outcome = kept.run(source).expect_success();
    let [result] = outcome.result.results.as_slice() else {
        panic!("{:?}", outcome.result.results)
    };
    let mut shown = texts(result);
    shown.sort_unstable();
    let expected = [
        ("application/json", "{\"n\": 7}"),
        ("image/svg+xml", "<svg/>"),
        ("text/html", "<b>7</b>"),
        ("text/latex", "$7$"),
        ("text/markdown", "*7*"),
        ("text/plain", "seven"),
    ];
    assert_eq!(shown, expected);
    // The policy has code reviewed before it leaves.
    let [notice] = outcome.notices(NoticeKind::ResultDropped)[..] else {
        panic!("{:?}", outcome.order())
    };
    assert!(notice.starts_with("1 forms of a result"), "{notice}");
}

#[test]
fn a_display_can_be_replaced_from_a_later_execution() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    let first = kept.run("handle = display('one', display_id='place')\nhandle.update('two')");
    let names = |outcome: &brig_tests::Outcome| -> Vec<(String, String)> {
        let results = outcome.result.results.iter();
        let named = results.map(|result| {
            (
                result.display_id.clone().unwrap_or_default(),
                texts(result)[0].1.to_owned(),
            )
        });
        named.collect()
    };
    let entry = |text: &str| ("place".to_owned(), text.to_owned());
    assert_eq!(names(&first.expect_success()), [entry("'one'"), entry("'two'")]);
    let later = kept.run("handle.update('three')").expect_success();
    assert_eq!(names(&later), [entry("'three'")]);
}

#[test]
fn python_is_that_of_a_notebook() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    let awaited = kept
        .run("import asyncio\nawait asyncio.sleep(0, result=6) * 7")
        .expect_success();
    assert_eq!(texts(&awaited.result.results[0]), [("text/plain", "42")]);
    assert_eq!(kept.stdout("print(_)"), "42\n");
    assert_eq!(kept.stdout("%%bash\necho \"in $BASH_VERSINFO\" | cut -c1-2\n"), "in\n");
    assert!(kept.stdout("%time x = 5").contains("Wall time"));
    assert_eq!(kept.stdout("!echo {x}"), "5\n");
    let failed = kept.run("def f():\n    return x / 0\nf()");
    let error = failed.result.error.as_ref().unwrap();
    assert_eq!((error.name.as_str(), error.line), ("ZeroDivisionError", Some(2)));
    assert!(
        error.traceback.contains("<cell 6>") && error.traceback.contains("return x / 0"),
        "{}",
        error.traceback
    );
}

#[test]
fn results_beyond_the_bounds_are_counted_and_the_context_goes_on() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    let outcome = kept
        .run("for n in range(70): display(n)\ndisplay('x' * 600_000)")
        .expect_success();
    assert_eq!(outcome.result.results.len(), 64);
    let [notice] = outcome.notices(NoticeKind::ResultDropped)[..] else {
        panic!("{:?}", outcome.order())
    };
    assert!(notice.contains("too large or too many"), "{notice}");
    assert_eq!(kept.stdout("print(n)"), "69\n");
}
