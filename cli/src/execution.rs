//! `brig execution`: what the daemon runs and has run.

mod attach;
mod control;
mod review;
mod signals;

use brig_proto::result::{ResultDocument, Status};
use brig_proto::v1::executions_client::ExecutionsClient;
use brig_proto::v1::{Execution, ExecutionState, ExecutionsGetRequest, ExecutionsListRequest};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tonic::transport::Channel;

use self::attach::AttachOptions;
use self::control::{SignalOptions, TargetOptions};
use self::review::{ApproveOptions, RejectOptions};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions, parse_pair};
use crate::output::screen::Screen;
use crate::output::style::Style;
use crate::output::table::{self, Cell};
use crate::output::{amount, escape};

/// Shows what the daemon runs and has run, follows it, and ends it.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ExecutionCommand {
    /// Lists executions that the daemon still knows, newest first.
    List(Filter),
    /// Shows an execution as JSON: the result, or where it is if it has not ended. One that waits for approval is shown
    /// with its code, its inputs and its policy.
    Show {
        #[arg(value_name = "ID")]
        id: String,
    },
    Attach(AttachOptions),
    /// Ends an execution, queued or running. One that has ended is no error.
    Cancel(TargetOptions),
    /// Interrupts the code as Ctrl-C would; the state of its interpreter is kept.
    Interrupt(TargetOptions),
    Signal(SignalOptions),
    Approve(ApproveOptions),
    Reject(RejectOptions),
}

/// Which executions.
#[derive(Debug, Clone, Args)]
pub(crate) struct Filter {
    /// Of this session.
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,

    /// With this label. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,

    /// In this state. Can be repeated.
    #[arg(long, value_name = "STATE", value_parser = parse_state)]
    state: Vec<ExecutionState>,

    /// How many at most.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,

    #[command(flatten)]
    format: FormatOptions,
}

impl ExecutionCommand {
    /// What stdout is. An execution is always shown as JSON.
    pub(crate) fn format(&self) -> Format {
        match self {
            Self::List(filter) => filter.format.format(),
            Self::Show { .. } => Format::Json,
            Self::Attach(options) => options.output.format.format(),
            Self::Cancel(options) | Self::Interrupt(options) => options.format.format(),
            Self::Signal(options) => options.format.format(),
            Self::Approve(options) => options.format.format(),
            Self::Reject(options) => options.format.format(),
        }
    }
}

/// Runs a command about executions.
pub(crate) fn execution(command: &ExecutionCommand, screen: &mut Screen) -> Result<Exit, Failure> {
    let format = command.format();
    if let ExecutionCommand::Attach(options) = command {
        return Ok(attach::attach(options, screen));
    }
    connect::runtime()?.block_on(async {
        match command {
            ExecutionCommand::List(filter) => {
                let executions = list(filter).await?;
                print_list(&executions, format, screen);
            }
            ExecutionCommand::Show { id } => screen.out.json(&document(&get(id).await?)),
            ExecutionCommand::Cancel(options) => control::cancel(options, format, screen).await?,
            ExecutionCommand::Interrupt(options) => control::interrupt(options, format, screen).await?,
            ExecutionCommand::Signal(options) => control::signal(options, format, screen).await?,
            ExecutionCommand::Approve(options) => review::approve(options, format, screen).await?,
            ExecutionCommand::Reject(options) => review::reject(options, format, screen).await?,
            ExecutionCommand::Attach(_) => {}
        }
        Ok(Exit::Success)
    })
}

fn print_list(executions: &[Execution], format: Format, screen: &mut Screen) {
    let documents = executions.iter().map(document);
    match format {
        Format::Text => {
            let text = render(executions, screen.out.style());
            screen.out.text(&text);
        }
        Format::Json => {
            let executions: Vec<Value> = documents.collect();
            screen.out.json(&json!({"executions": executions}));
        }
        Format::Jsonl => documents.for_each(|document| screen.out.json_line(&document)),
    }
}

/// An execution as a document: its result, or where it is if it has none.
fn document(execution: &Execution) -> Value {
    match &execution.result {
        Some(result) => json!(ResultDocument::from_proto(result)),
        None if execution.state() == ExecutionState::PendingApproval => review::document(execution),
        None => json!({
            "status": null,
            "state": state(execution.state()),
            "execution_id": execution.execution_id,
            "session_id": execution.session_id,
            "queue_position": execution.queue_position,
            "create_time": execution.create_time.map(|time| time.to_string()),
            "start_time": execution.start_time.map(|time| time.to_string()),
        }),
    }
}

async fn client() -> Result<ExecutionsClient<Channel>, Failure> {
    Ok(ExecutionsClient::new(connect::connect(&connect::socket()?).await?))
}

async fn list(filter: &Filter) -> Result<Vec<Execution>, Failure> {
    let limit = usize::try_from(filter.limit).unwrap_or(usize::MAX);
    let mut request = ExecutionsListRequest {
        page_size: filter.limit,
        session_id: filter.session.clone().unwrap_or_default(),
        labels: filter.label.iter().cloned().collect(),
        states: filter.state.iter().map(|state| (*state).into()).collect(),
        ..ExecutionsListRequest::default()
    };
    let mut client = client().await?;
    let mut executions = Vec::new();
    // A page may have fewer than were asked for, so that it fits a message.
    loop {
        let answer = client.list(request.clone()).await;
        let page = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
        let is_last = page.next_page_token.is_empty() || page.executions.is_empty();
        executions.extend(page.executions);
        if is_last || executions.len() >= limit {
            break;
        }
        request.page_token = page.next_page_token;
    }
    executions.truncate(limit);
    Ok(executions)
}

async fn get(id: &str) -> Result<Execution, Failure> {
    let request = ExecutionsGetRequest {
        execution_id: id.to_owned(),
    };
    let answer = client()
        .await?
        .get(request)
        .await
        .map_err(|status| Failure::from_status(&status))?;
    answer
        .into_inner()
        .execution
        .ok_or_else(|| Failure::new(Exit::Failed, "the daemon answered without an execution"))
}

fn render(executions: &[Execution], style: Style) -> String {
    let rows: Vec<Vec<Cell>> = executions.iter().map(row).collect();
    table::render(
        &["execution", "state", "created", "duration", "policy", "user"],
        &rows,
        style,
    )
}

fn row(execution: &Execution) -> Vec<Cell> {
    let document = execution.result.as_ref().map(ResultDocument::from_proto);
    let ended = match &document {
        Some(document) if document.status == Status::Success => Cell::painted("success", Style::green),
        Some(document) => Cell::painted(crate::output::summary::name(&document.status), Style::red),
        None => Cell::new(state(execution.state())),
    };
    let created = execution.create_time.map(|time| time.to_string()).unwrap_or_default();
    let duration = document
        .as_ref()
        .map(|document| amount::span(document.duration_ms.into()))
        .unwrap_or_default();
    let rest = [created, duration, execution.policy.clone(), execution.user.clone()]
        .map(|text| Cell::new(escape::line(&text)));
    [Cell::new(escape::line(&execution.execution_id)), ended]
        .into_iter()
        .chain(rest)
        .collect()
}

fn parse_state(text: &str) -> Result<ExecutionState, String> {
    let all = [
        ExecutionState::Queued,
        ExecutionState::PendingApproval,
        ExecutionState::Running,
        ExecutionState::Finished,
    ];
    all.into_iter()
        .find(|found| state(*found) == text)
        .ok_or_else(|| format!("one of {} is accepted", all.map(state).join(", ")))
}

/// The name of a state in documents.
fn state(state: ExecutionState) -> &'static str {
    match state {
        ExecutionState::Queued => "queued",
        ExecutionState::PendingApproval => "pending_approval",
        ExecutionState::Running => "running",
        ExecutionState::Finished => "finished",
        ExecutionState::Unspecified => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use brig_proto::v1::{ExecutionResult, ExecutionStatus};

    use super::*;

    #[test]
    fn the_list_says_how_each_one_ended() {
        let result = ExecutionResult {
            status: ExecutionStatus::OutOfMemory.into(),
            duration: Some(prost_types::Duration { seconds: 2, nanos: 0 }),
            ..ExecutionResult::default()
        };
        let ended = Execution {
            execution_id: "e1".into(),
            policy: "data@0123".into(),
            result: Some(result),
            ..Execution::default()
        };
        let state = ExecutionState::Running.into();
        let running = Execution {
            execution_id: "e2".into(),
            state,
            policy: "strict@4567".into(),
            ..Execution::default()
        };
        assert_eq!(
            render(&[ended, running], Style::PLAIN),
            "execution  state          duration  policy\n\
             e1         out of memory  2 s       data@0123\n\
             e2         running                  strict@4567\n"
        );
    }
}
