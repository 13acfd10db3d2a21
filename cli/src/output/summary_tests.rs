use std::collections::BTreeMap;

use brig_proto::result::ResultDocument;
use brig_proto::v1;

use super::*;

fn success() -> v1::ExecutionResult {
    v1::ExecutionResult {
        status: v1::ExecutionStatus::Success.into(),
        duration: Some(prost_types::Duration {
            seconds: 1,
            nanos: 840_000_000,
        }),
        exit_code: Some(0),
        usage: Some(v1::Usage {
            memory_peak_bytes: Some(96_468_992),
            ..v1::Usage::default()
        }),
        ..v1::ExecutionResult::default()
    }
}

fn artifact(id: &str, path: &str, review: v1::ReviewState) -> v1::Artifact {
    v1::Artifact {
        artifact_id: id.to_owned(),
        path: path.to_owned(),
        r#type: "image/png".to_owned(),
        size_bytes: 84_231,
        class: v1::ArtifactClass::Chart.into(),
        handling: v1::ArtifactHandling::Preview.into(),
        review: review.into(),
        ..v1::Artifact::default()
    }
}

fn shown(result: &v1::ExecutionResult, saved: &Saved) -> String {
    render(&ResultDocument::from_proto(result), saved, Style::PLAIN)
}

#[test]
fn a_success_is_one_line() {
    assert_eq!(
        shown(&success(), &Saved::new()),
        "success in 1.8 s, 92 M of memory at peak\n"
    );
}

#[test]
fn colour_marks_the_status() {
    let text = render(&ResultDocument::from_proto(&success()), &Saved::new(), Style::COLORED);
    assert_eq!(text, "\u{1b}[32msuccess\u{1b}[0m in 1.8 s, 92 M of memory at peak\n");
}

#[test]
fn artifacts_say_where_they_went() {
    let none = v1::ReviewState::NotNeeded;
    let result = v1::ExecutionResult {
        artifacts: vec![
            artifact("a1", "chart.png", none),
            artifact("a2", "x\u{1b}.sh", v1::ReviewState::Pending),
            artifact("a3", "c", none),
        ],
        missing_outputs: vec!["summary.json".to_owned()],
        ..success()
    };
    let saved = BTreeMap::from([
        ("a1".to_owned(), Ok("out/chart.png".into())),
        ("a3".to_owned(), Err("out/c: no space left".to_owned())),
    ]);
    assert_eq!(
        shown(&result, &saved),
        "success in 1.8 s, 92 M of memory at peak\n\
         artifact   type       size    class          saved\n\
         chart.png  image/png  82.3 K  chart/preview  out/chart.png\n\
         x\\x1b.sh   image/png  82.3 K  chart/preview  pending review\n\
         c          image/png  82.3 K  chart/preview  not saved: out/c: no space left\n\
         missing: summary.json\n"
    );
}

#[test]
fn an_exception_shows_its_traceback_only_if_stderr_does_not() {
    let error = v1::ExecutionError {
        name: "KeyError".to_owned(),
        message: "'missing'".to_owned(),
        line: Some(7),
        traceback: "Traceback\n  line 7\nKeyError: 'missing'\n".to_owned(),
    };
    let silent = v1::ExecutionResult {
        status: v1::ExecutionStatus::Error.into(),
        exit_code: Some(1),
        error: Some(error.clone()),
        ..success()
    };
    let told = v1::ExecutionResult {
        stderr: error.traceback.clone().into(),
        ..silent.clone()
    };
    let headline = "error in 1.8 s, 92 M of memory at peak, exit code 1\n";
    let exception = "exception: KeyError: 'missing' (line 7)\n";
    assert_eq!(shown(&told, &Saved::new()), format!("{headline}{exception}"));
    assert_eq!(
        shown(&silent, &Saved::new()),
        format!("{headline}{}{exception}", error.traceback)
    );
}

#[test]
fn a_limit_says_what_happened_and_what_to_change() {
    let result = v1::ExecutionResult {
        status: v1::ExecutionStatus::Timeout.into(),
        exit_code: None,
        signal: Some(9),
        cause: Some(v1::Cause {
            kind: v1::CauseKind::WallTime.into(),
            message: "the code ran longer than 30 s".to_owned(),
            ..v1::Cause::default()
        }),
        limits_hit: vec![v1::CauseKind::WallTime.into(), v1::CauseKind::Disk.into()],
        hint: Some("use fewer rows".to_owned()),
        ..success()
    };
    assert_eq!(
        shown(&result, &Saved::new()),
        "timeout in 1.8 s, 92 M of memory at peak, signal 9\n\
         cause: the code ran longer than 30 s\n\
         note: the limit of disk was reached\n\
         hint: use fewer rows\n"
    );
}

#[test]
fn what_was_dropped_renamed_or_clamped_is_told() {
    let stdout = v1::StreamSummary {
        written_bytes: 20 << 20,
        dropped_bytes: 12 << 20,
        truncated: true,
    };
    let result = v1::ExecutionResult {
        output: Some(v1::OutputSummary {
            stdout: Some(stdout),
            stderr: None,
        }),
        clamped: vec![v1::ClampedLimit {
            limit: "timeout_ms".to_owned(),
            requested: 900_000.0,
            applied: 300_000.0,
        }],
        inputs: vec![v1::InputFile {
            name: "Q3 sales.csv".into(),
            path: "q3_sales.csv".into(),
            ..Default::default()
        }],
        ..success()
    };
    assert_eq!(
        shown(&result, &Saved::new()),
        "success in 1.8 s, 92 M of memory at peak\n\
         note: timeout_ms 900000 is above the policy's maximum, 300000 was used\n\
         note: 12 M of 20 M of stdout were dropped\n\
         note: input Q3 sales.csv is q3_sales.csv in the job\n"
    );
}
