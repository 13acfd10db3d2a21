//! `brig exec`: a program in a session that exists.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use brig_proto::result::{ResultDocument, Status};
use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::{Command, ExecuteRequest, ExecutionSpec, OnDisconnect, OutputMode};
use clap::Args;
use rustix::io::Errno;
use serde_json::json;

use crate::failure::Failure;
use crate::follow::inputs::Input;
use crate::follow::{self, Begin};
use crate::interact::{self, End, Wiring};
use crate::options::{Format, JobOptions, OutputOptions};
use crate::output::escape;
use crate::output::screen::Screen;
use crate::show::{self, Ending, Show};
use crate::spec;

/// Brig itself is why there is no exit code of the program.
pub(crate) const BRIG_FAILED: u8 = 125;
/// The program is there and can't be run.
const NOT_EXECUTABLE: u8 = 126;
/// The program is not there.
const NOT_FOUND: u8 = 127;

/// More time than a policy gives; the daemon clamps it.
const ALL_TIME: prost_types::Duration = prost_types::Duration {
    seconds: 7 * 24 * 3600,
    nanos: 0,
};

const EXAMPLES: &str = "\
Examples:
  brig exec sales -- ls -l                     a program, its output as it comes
  brig exec sales --workdir /tmp -- sh -c 'sort in.txt > out.txt'
  brig exec sales --stdin data.csv -- wc -l    with standard input
  tar c . | brig exec -i sales -- tar x        with ours, however long it is
  brig exec -it sales -- bash                  at a terminal; Ctrl-P Ctrl-Q leaves it running
  brig exec sales --detach -- sh serve.sh      in the background; prints the execution's id
                                               (brig execution attach ID shows its output)

Exit codes:
  the program's own, or 128 and the number of the signal that ended it
  125 Brig itself: nothing ran, or how it ended is not known
  126 the program can't be run      127 there is no such program";

/// Runs a program in a session and waits for its end.
///
/// The session was made before (brig session create) and stays. When this command goes away, the program goes on;
/// Ctrl-C cancels it. With -it every key goes to the program, Ctrl-C too.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES, override_usage = "brig exec [OPTIONS] SESSION -- PROGRAM [ARG]...")]
pub(crate) struct ExecOptions {
    /// The session.
    #[arg(value_name = "SESSION")]
    session: String,

    /// The program, looked up in PATH if it has no slash, and its arguments.
    #[arg(value_name = "PROGRAM", num_args = 1.., required = true, trailing_var_arg = true)]
    argv: Vec<OsString>,

    /// Gives the program our standard input as it comes. Its output is not bounded then: it waits while we don't read.
    #[arg(short, long, conflicts_with = "stdin")]
    interactive: bool,

    /// Gives the program a terminal, ours: its output is shown as it is. With -i, keys go to the program, but for Ctrl-P
    /// Ctrl-Q, which leaves it running; it then has as much time as the policy gives at most, unless --timeout says less.
    #[arg(short, long, conflicts_with = "stdin")]
    tty: bool,

    /// Directory that the program starts in, absolute or below /home/user.
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,

    /// File for the working directory, under its own name or NAME, at most 512K; input:ID is a record of `brig input`
    /// (./input:ID a file of that name). Can be repeated.
    #[arg(long, value_name = "FILE[=NAME]|input:ID[=NAME]")]
    input: Vec<OsString>,

    /// Leaves the program running and prints the id of the execution.
    #[arg(short, long)]
    detach: bool,

    #[command(flatten)]
    job: JobOptions,

    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// Runs the program; refusals are shown here too, as the format has its own way.
pub(crate) fn exec(options: &ExecOptions, screen: &mut Screen) -> ExitCode {
    let code = if options.detach {
        detach(options, screen)
    } else {
        let mut output = options.output;
        // A terminal's sequences are for ours.
        output.raw |= options.tty;
        show::with(screen, output, Ending::Trouble, |show| follow(options, show))
    };
    // Output that nobody could be given is no success.
    if code == 0 && screen.out.failed() {
        return BRIG_FAILED.into();
    }
    code.into()
}

fn follow(options: &ExecOptions, show: &mut dyn Show) -> u8 {
    let wiring = Wiring {
        input: options.interactive,
        terminal: options.tty,
    };
    let end = check_tty(options)
        .and_then(|()| begin(options))
        .and_then(|begin| interact::follow(&begin, wiring, show));
    match end {
        // What was left runs on, as it was wanted.
        Ok(mut end) => {
            if let End::Finished(outcome) = &mut end
                && options.wants_all_time()
            {
                // Nobody has asked for it by name.
                outcome.document.clamped.retain(|clamped| clamped.limit != "timeout_ms");
            }
            interact::show_end(&end, show).map_or(0, |document| code_of_end(&document))
        }
        Err(failure) => refuse(&failure, show),
    }
}

/// Refuses what needs our terminal where there is none.
fn check_tty(options: &ExecOptions) -> Result<(), Failure> {
    if !options.tty {
        return Ok(());
    }
    if options.output.format.format() != Format::Text {
        return Err(Failure::usage(
            "tty",
            "a terminal has no documents: leave out -t, or -o and --json",
        ));
    }
    interact::at_terminal().map_err(|none| {
        Failure::usage(
            "tty",
            format!("{none} is not a terminal; leave out -t to do without one"),
        )
    })
}

impl ExecOptions {
    /// Whether somebody sits at a terminal and has named no end: it takes as long as the policy lets it.
    fn wants_all_time(&self) -> bool {
        self.interactive && self.tty && self.job.timeout.is_none()
    }
}

fn detach(options: &ExecOptions, screen: &mut Screen) -> u8 {
    let started = show::with(screen, options.output, Ending::Trouble, |show| {
        let id = begin(options).and_then(|begin| follow::on_daemon(show, async |call| call.until_start(&begin).await));
        id.map_err(|failure| refuse(&failure, show))
    });
    let id = match started {
        Ok(id) => id,
        Err(code) => return code,
    };
    match options.output.format.format() {
        Format::Text => screen.out.text(&format!("{}\n", escape::line(&id))),
        Format::Json => screen
            .out
            .json(&json!({"execution_id": id, "session_id": options.session})),
        // The event `accepted` has told it.
        Format::Jsonl => {}
    }
    0
}

fn refuse(failure: &Failure, show: &mut dyn Show) -> u8 {
    show.refused(failure);
    code_of_refusal(failure)
}

fn begin(options: &ExecOptions) -> Result<Begin, Failure> {
    let streams = !options.detach && (options.interactive || options.tty);
    let output_mode = if streams {
        OutputMode::Stream
    } else {
        OutputMode::Unspecified
    };
    let command = Command {
        directory: options.workdir.clone().unwrap_or_default(),
        terminal: options.tty.then(interact::size),
        output_mode: output_mode.into(),
        ..spec::command(&options.argv)
    };
    let stdin = spec::read_stdin(options.job.stdin.as_deref(), io::stdin())?;
    let on_disconnect = if options.detach {
        OnDisconnect::Continue
    } else {
        OnDisconnect::Unspecified
    };
    let inputs = Input::open_all(&options.input)?;
    let mut spec = ExecutionSpec {
        inputs: inputs.iter().map(Input::inline).collect::<Result<_, _>>()?,
        on_disconnect: on_disconnect.into(),
        stdin_open: options.interactive,
        ..spec::job(&options.job, Work::Command(command), stdin)
    };
    if options.wants_all_time()
        && let Some(limits) = &mut spec.limits
    {
        limits.timeout = Some(ALL_TIME);
    }
    Ok(Begin::Execute(Box::new(ExecuteRequest {
        session_id: options.session.clone(),
        spec: Some(spec),
        ..ExecuteRequest::default()
    })))
}

/// The program's own code, as a shell would give it.
fn code_of_end(document: &ResultDocument) -> u8 {
    let code = match (document.exit_code, document.signal) {
        (Some(code), _) => Some(code),
        (None, Some(signal)) => signal.checked_add(128),
        (None, None) if document.status == Status::Success => Some(0),
        (None, None) => None,
    };
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(BRIG_FAILED)
}

/// Tells a program that is not there, or can't be run, from all else. The daemon names the field and ends with the error
/// of the system, as the standard library writes it.
fn code_of_refusal(failure: &Failure) -> u8 {
    let field = failure.field.as_deref().unwrap_or_default();
    if !field.ends_with("command.argv[0]") {
        return BRIG_FAILED;
    }
    match os_error(&failure.message) {
        Some(Errno::NOENT | Errno::NOTDIR) => NOT_FOUND,
        Some(Errno::ACCESS | Errno::NOEXEC | Errno::ISDIR) => NOT_EXECUTABLE,
        _ => BRIG_FAILED,
    }
}

/// Reads the number at the end of `... (os error 2)`.
fn os_error(message: &str) -> Option<Errno> {
    let (_, number) = message.strip_suffix(')')?.rsplit_once("(os error ")?;
    number.parse().ok().map(Errno::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use brig_proto::v1::{ExecutionResult, ExecutionStatus};

    use super::*;

    fn code(status: ExecutionStatus, exit_code: Option<i32>, signal: Option<i32>) -> u8 {
        code_of_end(&ResultDocument::from_proto(&ExecutionResult {
            status: status.into(),
            exit_code,
            signal,
            ..ExecutionResult::default()
        }))
    }

    #[test]
    fn the_program_has_its_own_code() {
        assert_eq!(code(ExecutionStatus::Success, Some(0), None), 0);
        assert_eq!(code(ExecutionStatus::Error, Some(42), None), 42);
        assert_eq!(code(ExecutionStatus::Error, Some(255), None), 255);
        assert_eq!(code(ExecutionStatus::Killed, None, Some(11)), 139);
        assert_eq!(code(ExecutionStatus::Timeout, None, Some(9)), 137);
    }

    #[test]
    fn an_end_that_is_not_known_is_no_code_of_the_program() {
        assert_eq!(code(ExecutionStatus::Lost, None, None), BRIG_FAILED);
        assert_eq!(code(ExecutionStatus::Failed, Some(700), None), BRIG_FAILED);
    }

    #[test]
    fn a_program_that_is_not_there_is_told_from_one_that_can_not_be_run() {
        let refused = |field, error: Errno| {
            let error = io::Error::from_raw_os_error(error.raw_os_error());
            code_of_refusal(&Failure::usage(field, format!("\"x\" can't be used: {error}")))
        };
        assert_eq!(refused("command.argv[0]", Errno::NOENT), NOT_FOUND);
        assert_eq!(refused("spec.command.argv[0]", Errno::ACCESS), NOT_EXECUTABLE);
        assert_eq!(refused("command.directory", Errno::NOENT), BRIG_FAILED);
        assert_eq!(refused("command.argv[0]", Errno::TOOBIG), BRIG_FAILED);
    }
}
