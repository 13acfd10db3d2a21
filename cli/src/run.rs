//! `brig run`: one job from the command line to its result.

mod call;
pub(crate) mod collect;
mod inputs;
mod interrupts;
mod json;
pub(crate) mod options;
mod save;
mod show;
mod spec;
mod standalone;
mod text;
mod upload;
mod work;

use std::fs::File;
use std::io::{self, Write};

use brig_proto::v1::ExecutionSpec;

use self::call::{Call, Outcome};
use self::collect::Collector;
use self::inputs::InputFile;
use self::interrupts::Interrupts;
use self::json::{JsonDocument, JsonLines};
use self::options::{Format, RunOptions};
use self::show::Show;
use self::standalone::PrivateDaemon;
use self::text::Text;
use self::work::Work;
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::screen::{self, Screen};

/// Runs a job and shows what comes of it; refusals are shown here too, as the format has its own way.
pub(crate) fn run(options: &RunOptions, screen: &mut Screen) -> Exit {
    let mut show: Box<dyn Show + '_> = match options.output.format() {
        Format::Text => Box::new(Text::new(screen, options.output)),
        Format::Json => Box::new(JsonDocument::new(screen, options.output)),
        Format::Jsonl => Box::new(JsonLines::new(screen, options.output)),
    };
    let exit = match open_result(options) {
        Ok(file) => run_and_show(options, show.as_mut(), file),
        Err(failure) => refuse(&failure, show.as_mut()),
    };
    drop(show);
    // A result that nobody could be given is no success.
    if exit == Exit::Success && screen.out.failed() {
        Exit::Failed
    } else {
        exit
    }
}

/// Opens the file of `--result` before anything runs, so that a wrong path costs no run.
fn open_result(options: &RunOptions) -> Result<Option<File>, Failure> {
    let Some(path) = &options.files.result else {
        return Ok(None);
    };
    let refuse = |error| Failure::usage("result", format!("{}: {error}", path.display()));
    File::create(path).map(Some).map_err(refuse)
}

fn run_and_show(options: &RunOptions, show: &mut dyn Show, file: Option<File>) -> Exit {
    let (exit, document) = match execute(options, show) {
        Ok(outcome) => {
            show.finished(&outcome);
            let exit = exit_of(&outcome, options.files.require_outputs);
            (exit, screen::document(&outcome.document))
        }
        Err(failure) => (refuse(&failure, show), screen::document(&failure.document())),
    };
    match file.map(|mut file| file.write_all(document.as_bytes())) {
        Some(Err(error)) => {
            show.note(&format!("the result was not written: {error}"));
            Exit::Failed
        }
        _ => exit,
    }
}

fn refuse(failure: &Failure, show: &mut dyn Show) -> Exit {
    show.refused(failure);
    failure.exit
}

/// What a job needs before a daemon is asked.
struct Job {
    spec: ExecutionSpec,
    inputs: Vec<InputFile>,
    collector: Option<Collector>,
}

fn execute(options: &RunOptions, show: &mut dyn Show) -> Result<Outcome, Failure> {
    if options.private.standalone {
        standalone::enter_scope()?;
    }
    let job = prepare(options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("threads: {error}")))?;
    let outcome = runtime.block_on(call(options, job, show));
    // An input that is a slow file may still be read; its end does not matter any more.
    runtime.shutdown_background();
    outcome
}

fn prepare(options: &RunOptions) -> Result<Job, Failure> {
    let work = Work::from_options(options, io::stdin())?;
    let stdin = spec::read_stdin(options.files.stdin.as_deref(), io::stdin())?;
    let inputs = options
        .files
        .input
        .iter()
        .map(|argument| InputFile::open(argument))
        .collect::<Result<Vec<_>, _>>()?;
    let collector = options.files.out.as_deref().map(Collector::open).transpose();
    let collector = collector.map_err(|error| Failure::usage("out", error.to_string()))?;
    Ok(Job {
        spec: spec::build(options, work, stdin, &inputs),
        inputs,
        collector,
    })
}

async fn call(options: &RunOptions, job: Job, show: &mut dyn Show) -> Result<Outcome, Failure> {
    let interrupts = Interrupts::watch().map_err(|error| Failure::new(Exit::Failed, format!("signals: {error}")))?;
    if !options.private.standalone {
        return call_daemon(&connect::socket()?, job, &interrupts, show).await;
    }
    let daemon = PrivateDaemon::start(&options.private.places, &interrupts).await?;
    let outcome = call_daemon(&daemon.socket(), job, &interrupts, show).await;
    let (log, stopped) = daemon.stop().await;
    if let Err(failure) = stopped {
        show.note(&failure.message);
    }
    outcome.map_err(|failure| standalone::explain(failure, &log))
}

async fn call_daemon(
    socket: &std::path::Path,
    job: Job,
    interrupts: &Interrupts,
    show: &mut dyn Show,
) -> Result<Outcome, Failure> {
    let channel = tokio::select! {
        channel = connect::connect(socket) => channel?,
        () = interrupts.asked() => return Err(call::cancelled()),
    };
    Call::new(channel, interrupts, show, job.collector)
        .run(job.spec, job.inputs)
        .await
}

/// What the end of a job means for the exit code.
fn exit_of(outcome: &Outcome, require_outputs: bool) -> Exit {
    let document = &outcome.document;
    match Exit::of_status(document.status) {
        Exit::Success if outcome.saved.values().any(Result::is_err) => Exit::Failed,
        Exit::Success if require_outputs && !document.missing_outputs.is_empty() => Exit::MissingOutputs,
        exit => exit,
    }
}
