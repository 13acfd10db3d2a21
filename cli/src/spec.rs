//! The requests that options become.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use brig_jailer::units::Span;
use brig_proto::sizes::STDIN_MAX;
use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::{Command, ExecutionSpec, Limits, Origin};

use crate::failure::Failure;
use crate::identity::random_id;
use crate::options::{JobOptions, RecordOptions, SandboxOptions};

/// What every execution has: the work, and what `JobOptions` say.
pub(crate) fn job(options: &JobOptions, work: Work, stdin: Vec<u8>) -> ExecutionSpec {
    ExecutionSpec {
        request_id: request_id(&options.record),
        work: Some(work),
        limits: Some(Limits {
            timeout: options.timeout.map(duration),
            output_bytes: options.max_output.map(|size| size.bytes()),
            ..Limits::default()
        }),
        environment: options.env.iter().cloned().collect(),
        stdin: stdin.into(),
        merge_stderr: options.merge_stderr,
        origin: origin(&options.record),
        labels: options.record.label.iter().cloned().collect(),
        ..ExecutionSpec::default()
    }
}

/// Bounds a new session. What was not given is left out: the policy's defaults hold then.
pub(crate) fn bound(options: &SandboxOptions, limits: Limits) -> Limits {
    Limits {
        memory_bytes: options.memory.map(|size| size.bytes()),
        // At most 64 bits of thousandths; a value that a float cannot hold is far above every maximum.
        cpus: options.cpus.map(|cpus| cpus.to_string().parse().unwrap_or(f64::MAX)),
        pids: options.pids.map(u64::from),
        disk_bytes: options.disk.map(|size| size.bytes()),
        ..limits
    }
}

/// The name of a request: what was given, else a new one, so that the call can be repeated when its connection breaks.
pub(crate) fn request_id(options: &RecordOptions) -> String {
    options.request_id.clone().unwrap_or_else(random_id)
}

/// Who it is for, if that was said.
pub(crate) fn origin(options: &RecordOptions) -> Option<Origin> {
    options.user.as_ref().map(|user| Origin {
        user: user.clone(),
        ..Origin::default()
    })
}

/// A program and its arguments, as bytes where one of them is not UTF-8.
pub(crate) fn command(argv: &[OsString]) -> Command {
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
        let message = format!("{}: is larger than 1M; accepted: at most 1M", file.display());
        return Err(Failure::usage("stdin", message));
    }
    Ok(bytes)
}

/// A span as the API has it.
pub(crate) fn duration(span: Span) -> prost_types::Duration {
    let millis = span.millis();
    let seconds = i64::try_from(millis / 1_000).unwrap_or(i64::MAX);
    let rest = i32::try_from(millis % 1_000).unwrap_or_default();
    prost_types::Duration {
        seconds,
        nanos: rest * 1_000_000,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn arguments_that_are_not_text_travel_as_bytes() {
        let argv = [OsString::from("ls"), OsString::from_vec(b"\xff".to_vec())];
        let command = command(&argv);
        assert_eq!(command.argv, Vec::<String>::new());
        assert_eq!(command.raw_argv, [&b"ls"[..], &b"\xff"[..]]);
    }

    #[test]
    fn too_much_standard_input_is_refused() {
        let failure = read_stdin(Some(Path::new("-")), std::io::repeat(b'x')).unwrap_err();
        assert_eq!(failure.field.as_deref(), Some("stdin"));
        let all = read_stdin(Some(Path::new("-")), std::io::repeat(b'x').take(STDIN_MAX as u64)).unwrap();
        assert_eq!(all.len(), STDIN_MAX);
    }
}
