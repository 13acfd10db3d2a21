//! What goes into a program that runs: bytes of its standard input, and the size of its terminal.
//!
//! Nothing here touches a pipe or a terminal of a guest: the thread that moves the execution's bytes does.

use std::time::Duration;

use brig_proto::v1;
use brig_proto::v1::{ExecutionsInputRequest, Reason};
use rustix::io::Errno;
use tokio_stream::StreamExt;
use tonic::{Response, Status, Streaming};

use super::{running, wrong_field};
use crate::host::Host;
use crate::principal::Principal;
use crate::run::admit::check_size;
use crate::run::execution::{Execution, has_terminal};
use crate::run::fields::Fields;
use crate::run::stdin::Refused;
use crate::status::Problem;

/// The most bytes of one message.
const DATA_MAX: usize = 256 * 1024;
/// How long a terminal may take to have another size: only its own programs can hold it up.
const RESIZE: Duration = Duration::from_secs(5);

/// Takes input as it comes, and waits while the program does not read it; the call's own deadline ends that.
pub(super) async fn input(
    host: &Host,
    principal: &Principal,
    mut stream: Streaming<ExecutionsInputRequest>,
) -> Result<Response<v1::ExecutionsInputResponse>, Status> {
    let first = stream.next().await.transpose()?;
    let mut next = first.ok_or_else(|| Problem::Stream("execution_id: the first message must name it".to_owned()))?;
    let execution = host.registry.get(principal, "execution_id", &next.execution_id)?;
    running(&execution)?;
    loop {
        if !next.execution_id.is_empty() && next.execution_id != execution.id.as_str() {
            let message = "is another than in the first message";
            return Err(wrong_field("execution_id", Reason::InvalidValue, message).into());
        }
        if next.data.len() > DATA_MAX {
            let message = "has more than 256 KiB; send it in several messages";
            return Err(wrong_field("data", Reason::TooLarge, message).into());
        }
        let added = execution.stdin.add(next.offset, &next.data).await;
        let total_bytes = added.map_err(|refused| problem(&execution, &refused, next.offset))?;
        if next.close {
            let closed = execution.stdin.close();
            closed.map_err(|refused| problem(&execution, &refused, None))?;
            return Ok(Response::new(v1::ExecutionsInputResponse { total_bytes }));
        }
        match stream.next().await.transpose()? {
            Some(message) => next = message,
            None => return Ok(Response::new(v1::ExecutionsInputResponse { total_bytes })),
        }
    }
}

/// Says that no more input comes.
pub(super) fn close(
    host: &Host,
    principal: &Principal,
    asked: &v1::ExecutionsCloseInputRequest,
) -> Result<v1::ExecutionsCloseInputResponse, Problem> {
    let mut fields = Fields::default();
    fields.id("request_id", &asked.request_id);
    fields.done()?;
    let execution = host.registry.get(principal, "execution_id", &asked.execution_id)?;
    running(&execution)?;
    let closed = execution.stdin.close();
    closed.map_err(|refused| problem(&execution, &refused, None))?;
    Ok(v1::ExecutionsCloseInputResponse {})
}

/// Gives a terminal another size.
pub(super) async fn resize(
    host: &Host,
    principal: &Principal,
    asked: &v1::ExecutionsResizeRequest,
) -> Result<v1::ExecutionsResizeResponse, Problem> {
    let mut fields = Fields::default();
    fields.id("request_id", &asked.request_id);
    let size = match &asked.size {
        Some(size) => check_size("size", size, &mut fields),
        None => {
            fields.wrong("size", Reason::MissingValue, "says how large the terminal is to be");
            None
        }
    };
    fields.done()?;
    let execution = host.registry.get(principal, "execution_id", &asked.execution_id)?;
    if !has_terminal(&execution.spec) {
        return Err(Problem::NoTerminal(execution.id.to_string()));
    }
    running(&execution)?;
    if let Some(size) = size {
        let set = tokio::time::timeout(RESIZE, execution.size.set(size.columns, size.rows)).await;
        match set {
            Ok(Ok(())) => {}
            // It ended meanwhile, or its programs hold it.
            Ok(Err(_)) | Err(_) => {
                running(&execution)?;
                let message = "its terminal did not take the size".to_owned();
                return Err(Problem::Step {
                    step: "streams",
                    message,
                });
            }
        }
    }
    Ok(v1::ExecutionsResizeResponse {})
}

/// What a caller is told whose input was not taken.
fn problem(execution: &Execution, refused: &Refused, offset: Option<u64>) -> Problem {
    match refused {
        Refused::Gap(there) => Problem::OutOfRange {
            field: "offset",
            asked: offset.unwrap_or_default(),
            there: *there,
        },
        Refused::File(Errno::NOMEM | Errno::NOSPC) => {
            Problem::Configuration("no memory for the input of a program".to_owned())
        }
        Refused::File(error) => Problem::Step {
            step: "streams",
            message: format!("input not kept: {error}"),
        },
        Refused::ByProgram if execution.log.is_finished() => Problem::NotRunning(execution.id.to_string(), "has ended"),
        Refused::NotOpened | Refused::Closed | Refused::ByProgram => {
            Problem::InputClosed(execution.id.to_string(), refused.to_string())
        }
    }
}
