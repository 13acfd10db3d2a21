//! The request that options become.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use brig_jailer::units::Span;
use brig_proto::sizes::STDIN_MAX;
use brig_proto::v1::execution_spec::Work as WorkMessage;
use brig_proto::v1::input_source::Source;
use brig_proto::v1::{
    Code, Command, ExecutionSpec, ExpectedOutput, InputSource, Limits, Origin, StreamedInput, WantArtifacts,
};

use super::inputs::InputFile;
use super::options::{RunOptions, SandboxOptions};
use super::work::Work;
use crate::failure::Failure;
use crate::identity::random_id;

/// Builds the first message of a Run.
pub(crate) fn build(options: &RunOptions, work: Work, stdin: Vec<u8>, inputs: &[InputFile]) -> ExecutionSpec {
    let SandboxOptions {
        policy,
        template,
        env,
        user,
        label,
        ..
    } = &options.sandbox;
    let want = if options.files.out.is_some() {
        WantArtifacts::Inline
    } else {
        WantArtifacts::None
    };
    ExecutionSpec {
        request_id: random_id(),
        work: Some(work_message(work)),
        inputs: inputs.iter().map(input_source).collect(),
        expected_outputs: options.files.expect.iter().map(|path| expected(path)).collect(),
        limits: Some(limits(&options.sandbox)),
        environment: env.iter().cloned().collect(),
        stdin: stdin.into(),
        merge_stderr: options.output.merge_stderr,
        want_artifacts: want.into(),
        origin: user.as_ref().map(|user| Origin {
            user: user.clone(),
            ..Origin::default()
        }),
        labels: label.iter().cloned().collect(),
        policy: policy.clone().unwrap_or_default(),
        template: template.clone().unwrap_or_default(),
        ..ExecutionSpec::default()
    }
}

/// Reads what `--stdin` names, at most as much as a request carries.
pub(crate) fn read_stdin(file: Option<&Path>, ours: impl Read) -> Result<Vec<u8>, Failure> {
    let Some(file) = file else { return Ok(Vec::new()) };
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        ours.take(STDIN_MAX as u64 + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(STDIN_MAX as u64 + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| Failure::usage("stdin", format!("{}: {error}", file.display())))?;
    if bytes.len() > STDIN_MAX {
        let message = format!("{}: more than 1M", file.display());
        return Err(Failure::usage("stdin", message).hint("give it as a file: --input FILE"));
    }
    Ok(bytes)
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
        Work::Command { argv } => WorkMessage::Command(command(&argv)),
    }
}

fn command(argv: &[OsString]) -> Command {
    match argv.iter().map(|word| word.to_str().map(str::to_owned)).collect() {
        Some(argv) => Command {
            argv,
            ..Command::default()
        },
        None => Command {
            raw_argv: argv.iter().map(|word| word.as_bytes().to_vec().into()).collect(),
            ..Command::default()
        },
    }
}

fn input_source(input: &InputFile) -> InputSource {
    let streamed = StreamedInput {
        size_bytes: Some(input.size),
        ..StreamedInput::default()
    };
    InputSource {
        name: input.name.clone(),
        mode: None,
        source: Some(Source::Streamed(streamed)),
    }
}

fn expected(path: &str) -> ExpectedOutput {
    ExpectedOutput {
        path: path.to_owned(),
        ..ExpectedOutput::default()
    }
}

/// Leaves out what was not given: the policy's defaults hold then.
fn limits(options: &SandboxOptions) -> Limits {
    Limits {
        timeout: options.timeout.map(duration),
        memory_bytes: options.memory.map(|size| size.bytes()),
        // At most 64 bits of thousandths; a value that a float cannot hold is far above every maximum.
        cpus: options.cpus.map(|cpus| cpus.to_string().parse().unwrap_or(f64::MAX)),
        pids: options.pids.map(u64::from),
        disk_bytes: options.disk.map(|size| size.bytes()),
        output_bytes: options.max_output.map(|size| size.bytes()),
        ..Limits::default()
    }
}

fn duration(span: Span) -> prost_types::Duration {
    let millis = span.millis();
    let seconds = i64::try_from(millis / 1_000).unwrap_or(i64::MAX);
    let rest = i32::try_from(millis % 1_000).unwrap_or_default();
    prost_types::Duration {
        seconds,
        nanos: rest * 1_000_000,
    }
}
