//! `brig execution cancel`, `interrupt` and `signal`.

use brig_proto::v1::{ExecutionState, ExecutionsCancelRequest, ExecutionsInterruptRequest, ExecutionsSignalRequest};
use clap::Args;
use serde::Serialize;

use super::{client, signals, state};
use crate::failure::Failure;
use crate::identity::random_id;
use crate::options::{Format, FormatOptions};
use crate::output::escape;
use crate::output::screen::Screen;

/// Which execution.
#[derive(Debug, Clone, Args)]
pub(crate) struct TargetOptions {
    #[arg(value_name = "ID")]
    id: String,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Sends a signal to the main process of an execution, or to its group.
#[derive(Debug, Clone, Args)]
pub(crate) struct SignalOptions {
    #[arg(value_name = "ID")]
    id: String,

    /// Its name or number: TERM, SIGUSR1, 9.
    #[arg(value_name = "SIGNAL", value_parser = signals::parse)]
    signal: u32,

    /// To all processes of its group, not only to the main one.
    #[arg(long)]
    group: bool,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Where an execution was when the request came.
#[derive(Serialize)]
struct StateDocument<'a> {
    execution_id: &'a str,
    state: &'a str,
}

#[derive(Serialize)]
struct SignalDocument<'a> {
    execution_id: &'a str,
    signal: u32,
}

/// Cancels an execution.
pub(super) async fn cancel(options: &TargetOptions, format: Format, screen: &mut Screen) -> Result<(), Failure> {
    let request = ExecutionsCancelRequest {
        request_id: random_id(),
        execution_id: options.id.clone(),
    };
    let answer = client().await?.cancel(request).await;
    let before = answer
        .map_err(|status| Failure::from_status(&status))?
        .into_inner()
        .state();
    print_state(&options.id, before, "cancelled", format, screen);
    Ok(())
}

/// Interrupts an execution.
pub(super) async fn interrupt(options: &TargetOptions, format: Format, screen: &mut Screen) -> Result<(), Failure> {
    let request = ExecutionsInterruptRequest {
        request_id: random_id(),
        execution_id: options.id.clone(),
    };
    let answer = client().await?.interrupt(request).await;
    let before = answer
        .map_err(|status| Failure::from_status(&status))?
        .into_inner()
        .state();
    print_state(&options.id, before, "interrupted", format, screen);
    Ok(())
}

/// Sends a signal.
pub(super) async fn signal(options: &SignalOptions, format: Format, screen: &mut Screen) -> Result<(), Failure> {
    let (id, signal) = (options.id.as_str(), options.signal);
    let request = ExecutionsSignalRequest {
        request_id: random_id(),
        execution_id: id.to_owned(),
        signal,
        group: options.group,
    };
    let answer = client().await?.signal(request).await;
    answer.map_err(|status| Failure::from_status(&status))?;
    let document = SignalDocument {
        execution_id: id,
        signal,
    };
    let text = format!("{id} was sent signal {signal}");
    print(&document, &text, format, screen);
    Ok(())
}

/// Says what is being done to an execution, or that it had ended already.
fn print_state(id: &str, before: ExecutionState, done: &str, format: Format, screen: &mut Screen) {
    let document = StateDocument {
        execution_id: id,
        state: state(before),
    };
    let text = match before {
        ExecutionState::Finished => format!("{id} had ended already"),
        _ => format!("{id} is being {done}"),
    };
    print(&document, &text, format, screen);
}

pub(super) fn print(document: &impl Serialize, text: &str, format: Format, screen: &mut Screen) {
    match format {
        Format::Text => screen.out.text(&format!("{}\n", escape::line(text))),
        Format::Json => screen.out.json(document),
        Format::Jsonl => screen.out.json_line(document),
    }
}
