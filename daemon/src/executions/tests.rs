use std::time::SystemTime;

use brig_proto::v1::{ExecutionError, ExecutionResult, ExecutionStatus, RichResult};

use super::*;
use crate::run::testing::execution;

fn ended(id: &str, label: usize) -> Arc<Execution> {
    let spec = ExecutionSpec {
        labels: [("key".to_owned(), "x".repeat(label))].into(),
        ..ExecutionSpec::default()
    };
    let execution = execution(id, spec);
    let result = ExecutionResult {
        status: ExecutionStatus::Error.into(),
        exit_code: Some(3),
        stdout: vec![b'x'; 1000].into(),
        stderr: vec![b'x'; 1000].into(),
        results: vec![RichResult::default()],
        error: Some(ExecutionError {
            name: "KeyError".to_owned(),
            traceback: "x".repeat(1000),
            ..ExecutionError::default()
        }),
        ..ExecutionResult::default()
    };
    execution.log.finish(result, SystemTime::now());
    execution
}

#[test]
fn a_list_says_how_each_one_ended_without_what_it_wrote() {
    let running = execution("running", ExecutionSpec::default());
    let page = list(&[running, ended("ended", 0)], &v1::ExecutionsListRequest::default()).unwrap();
    assert_eq!(page.executions[0].result, None);
    let result = page.executions[1].result.clone().unwrap();
    let expected = ExecutionResult {
        status: ExecutionStatus::Error.into(),
        exit_code: Some(3),
        error: Some(ExecutionError {
            name: "KeyError".to_owned(),
            ..ExecutionError::default()
        }),
        ..ExecutionResult::default()
    };
    assert_eq!((result, page.next_page_token.as_str()), (expected, ""));
}

#[test]
fn a_page_that_would_not_fit_a_message_is_shorter_than_asked_and_the_next_one_goes_on() {
    let all: Vec<_> = ["e1", "e2", "e3", "e4"].map(|id| ended(id, MESSAGE_MAX)).into();
    let mut asked = v1::ExecutionsListRequest::default();
    let mut pages = Vec::new();
    loop {
        let page = list(&all, &asked).unwrap();
        assert!(page.encoded_len() < 4 * MESSAGE_MAX);
        pages.push(
            page.executions
                .iter()
                .map(|e| e.execution_id.clone())
                .collect::<Vec<_>>(),
        );
        if page.next_page_token.is_empty() {
            break;
        }
        asked.page_token = page.next_page_token;
    }
    assert_eq!(pages, [vec!["e1", "e2"], vec!["e3", "e4"]]);
    let huge = list(&[ended("huge", 4 * MESSAGE_MAX)], &v1::ExecutionsListRequest::default()).unwrap();
    assert_eq!(
        (huge.executions.len(), huge.next_page_token.as_str()),
        (1, ""),
        "never an empty page"
    );
}
