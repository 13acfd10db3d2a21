//! `brig execution approve` and `reject`, and what a reviewer looks at before.

use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::{Execution, ExecutionState, ExecutionsApproveRequest, ExecutionsRejectRequest};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::{client, control, get, state};
use crate::failure::Failure;
use crate::identity::random_id;
use crate::options::{Format, FormatOptions};
use crate::output::screen::Screen;

/// Lets an execution run that waits for approval. Needs the role reviewer.
#[derive(Debug, Clone, Args)]
pub(crate) struct ApproveOptions {
    #[arg(value_name = "ID")]
    id: String,

    /// The work_sha256 that `show` printed; other work is not approved. Without it: that of the execution, whose work never
    /// changes.
    #[arg(long, value_name = "SHA256")]
    work: Option<String>,

    /// For the record.
    #[arg(long, value_name = "TEXT", default_value = "")]
    comment: String,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Refuses an execution that waits for approval: it ends as rejected, and nothing runs. Needs the role reviewer.
#[derive(Debug, Clone, Args)]
pub(crate) struct RejectOptions {
    #[arg(value_name = "ID")]
    id: String,

    /// Why, for the record and for whoever asked.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// What became of an execution that was decided about.
#[derive(Serialize)]
struct DecisionDocument<'a> {
    execution_id: &'a str,
    state: &'a str,
    review: &'a str,
    reviewer: &'a str,
    comment: &'a str,
}

/// Approves an execution.
pub(super) async fn approve(options: &ApproveOptions, format: Format, screen: &mut Screen) -> Result<(), Failure> {
    let work_sha256 = match &options.work {
        Some(work) => work.clone(),
        None => get(&options.id).await?.work_sha256,
    };
    let request = ExecutionsApproveRequest {
        request_id: random_id(),
        execution_id: options.id.clone(),
        work_sha256,
        comment: options.comment.clone(),
    };
    let answer = client().await?.approve(request).await;
    let answer = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
    print(
        &options.id,
        &answer.execution.unwrap_or_default(),
        "approved",
        format,
        screen,
    );
    Ok(())
}

/// Rejects an execution.
pub(super) async fn reject(options: &RejectOptions, format: Format, screen: &mut Screen) -> Result<(), Failure> {
    let request = ExecutionsRejectRequest {
        request_id: random_id(),
        execution_id: options.id.clone(),
        comment: options.reason.clone(),
    };
    let answer = client().await?.reject(request).await;
    let answer = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
    print(
        &options.id,
        &answer.execution.unwrap_or_default(),
        "rejected",
        format,
        screen,
    );
    Ok(())
}

fn print(id: &str, execution: &Execution, review: &str, format: Format, screen: &mut Screen) {
    let document = DecisionDocument {
        execution_id: id,
        state: state(execution.state()),
        review,
        reviewer: &execution.reviewer,
        comment: &execution.review_comment,
    };
    control::print(&document, &format!("{id} is {review}"), format, screen);
}

/// An execution that waits for a decision, with all that it is about.
pub(super) fn document(execution: &Execution) -> Value {
    let spec = execution.spec.clone().unwrap_or_default();
    let (code, command) = match &spec.work {
        Some(Work::Code(code)) => (json!({"source": code.source, "arguments": code.arguments}), Value::Null),
        Some(Work::Command(command)) => {
            // Where an argument is not UTF-8, they come as bytes.
            let raw = command
                .raw_argv
                .iter()
                .map(|argument| String::from_utf8_lossy(argument).into_owned());
            let argv: Vec<String> = command.argv.iter().cloned().chain(raw).collect();
            let command = json!({
                "argv": argv,
                "directory": command.directory,
                "terminal": command.terminal.is_some(),
            });
            (Value::Null, command)
        }
        None => (Value::Null, Value::Null),
    };
    let inputs = execution.inputs.iter().map(
        |input| json!({"name": input.name, "path": input.path, "size_bytes": input.size_bytes, "sha256": input.sha256}),
    );
    let stdin = (execution.stdin_bytes > 0)
        .then(|| json!({"size_bytes": execution.stdin_bytes, "sha256": execution.stdin_sha256}));
    let origin = spec.origin.unwrap_or_default();
    json!({
        "status": null,
        "state": state(ExecutionState::PendingApproval),
        "execution_id": execution.execution_id,
        "session_id": execution.session_id,
        "context_id": (!execution.context_id.is_empty()).then_some(&execution.context_id),
        "queue_position": execution.queue_position,
        "create_time": execution.create_time.map(|time| time.to_string()),
        "start_time": null,
        "approval_expire_time": execution.approval_expire_time.map(|time| time.to_string()),
        "work_sha256": execution.work_sha256,
        "code": code,
        "command": command,
        "inputs": inputs.collect::<Vec<Value>>(),
        "stdin": stdin,
        "stdin_open": spec.stdin_open,
        "environment": spec.environment.keys().collect::<Vec<_>>(),
        "policy": execution.policy,
        "template": execution.template,
        "tenant": execution.tenant,
        "user": execution.user,
        "origin": {"user": origin.user, "conversation": origin.conversation, "request": origin.request},
        "labels": spec.labels,
    })
}

#[cfg(test)]
mod tests {
    use brig_proto::v1::{Code, Command, ExecutionSpec, InputFile};

    use super::*;

    fn pending(work: Work) -> Value {
        let spec = ExecutionSpec {
            work: Some(work),
            environment: [("TZ".to_owned(), String::new())].into(),
            ..ExecutionSpec::default()
        };
        document(&Execution {
            execution_id: "e1".into(),
            state: ExecutionState::PendingApproval.into(),
            work_sha256: "ab".into(),
            policy: "asking@0123".into(),
            spec: Some(spec),
            inputs: vec![InputFile {
                name: "sales.csv".into(),
                path: "sales.csv".into(),
                size_bytes: 7,
                sha256: "cd".into(),
            }],
            ..Execution::default()
        })
    }

    #[test]
    fn a_reviewer_sees_what_would_run_and_on_what() {
        let code = pending(Work::Code(Code {
            source: "print(1)".into(),
            ..Code::default()
        }));
        assert_eq!(code["code"]["source"], "print(1)");
        assert_eq!(
            (&code["state"], &code["work_sha256"], &code["policy"]),
            (&json!("pending_approval"), &json!("ab"), &json!("asking@0123"))
        );
        assert_eq!(
            code["inputs"],
            json!([{"name": "sales.csv", "path": "sales.csv", "size_bytes": 7, "sha256": "cd"}])
        );
        assert_eq!((&code["environment"], &code["stdin"]), (&json!(["TZ"]), &Value::Null));
        let command = pending(Work::Command(Command {
            argv: vec!["ls".into(), "-l".into()],
            ..Command::default()
        }));
        assert_eq!(command["command"]["argv"], json!(["ls", "-l"]));
        assert_eq!(command["code"], Value::Null);
    }
}
