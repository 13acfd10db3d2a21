//! Running code and commands to their end: what is told on the way, and how the end is named.
#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod ends;
mod events;
mod given;
mod requests;

use brig_proto::v1::{Execution, ExecutionState, ExecutionsCancelRequest, ExecutionsGetRequest};
use brig_tests::{Daemon, Outcome};

/// An execution as the daemon shows it.
fn get(daemon: &Daemon, execution: &str) -> Execution {
    let request = ExecutionsGetRequest {
        execution_id: execution.to_owned(),
    };
    let answer = daemon.wait(daemon.client().get(request)).unwrap();
    answer.into_inner().execution.unwrap()
}

/// Cancels an execution and says where it was.
fn cancel(daemon: &Daemon, execution: &str) -> ExecutionState {
    let request = ExecutionsCancelRequest {
        execution_id: execution.to_owned(),
        ..ExecutionsCancelRequest::default()
    };
    let answer = daemon.wait(daemon.client().cancel(request)).unwrap();
    answer.into_inner().state()
}

/// Name, message and line of the exception.
fn error(outcome: &Outcome) -> (&str, &str, Option<u32>) {
    let error = outcome.result.error.as_ref().unwrap();
    (&error.name, &error.message, error.line)
}
