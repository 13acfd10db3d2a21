//! What `brig run` asks for.

use brig_proto::v1::execution_spec::Work as SpecWork;
use brig_proto::v1::execution_spec::Work as WorkMessage;
use brig_proto::v1::{Code, ExecutionSpec, ExpectedOutput, SessionsCreateRequest, WantArtifacts};

use super::options::RunOptions;
use super::work::Work;
use crate::failure::Failure;
use crate::follow::inputs::Input;
use crate::spec;

/// Builds the spec of a job in a session of its own; its inputs follow it.
pub(crate) fn one_shot(options: &RunOptions, work: Work, stdin: Vec<u8>, inputs: &[Input]) -> ExecutionSpec {
    let job = job(options, work, stdin);
    ExecutionSpec {
        inputs: inputs.iter().map(Input::streamed).collect(),
        limits: job.limits.map(|limits| spec::bound(&options.sandbox, limits)),
        policy: options.sandbox.policy.clone().unwrap_or_default(),
        template: options.sandbox.template.clone().unwrap_or_default(),
        ..job
    }
}

/// Builds the spec of a job in a session that exists; its inputs are in it.
pub(crate) fn in_session(
    options: &RunOptions,
    work: Work,
    stdin: Vec<u8>,
    inputs: &[Input],
) -> Result<ExecutionSpec, Failure> {
    let mut job = job(options, work, stdin);
    if let Some(SpecWork::Code(code)) = &mut job.work
        && options.place.context.is_some()
    {
        // Tracebacks of a context count its pieces of code.
        code.filename.clear();
    }
    Ok(ExecutionSpec {
        inputs: inputs.iter().map(Input::inline).collect::<Result<_, _>>()?,
        ..job
    })
}

/// Builds the request for the session that a job leaves behind.
pub(crate) fn kept_session(options: &RunOptions) -> SessionsCreateRequest {
    SessionsCreateRequest {
        request_id: crate::identity::random_id(),
        ..crate::session::create::request(&options.sandbox, &options.job.record)
    }
}

fn job(options: &RunOptions, work: Work, stdin: Vec<u8>) -> ExecutionSpec {
    let want = if options.files.out.is_some() {
        WantArtifacts::Inline
    } else {
        WantArtifacts::None
    };
    ExecutionSpec {
        expected_outputs: options.files.expect.iter().map(|path| expected(path)).collect(),
        want_artifacts: want.into(),
        ..spec::job(&options.job, work_message(work), stdin)
    }
}

fn work_message(work: Work) -> WorkMessage {
    match work {
        Work::Code {
            source,
            filename,
            arguments,
        } => WorkMessage::Code(Code {
            source,
            language: String::new(),
            filename: filename.unwrap_or_default(),
            arguments,
        }),
        Work::Command { argv } => WorkMessage::Command(spec::command(&argv)),
    }
}

fn expected(path: &str) -> ExpectedOutput {
    ExpectedOutput {
        path: path.to_owned(),
        ..ExpectedOutput::default()
    }
}
