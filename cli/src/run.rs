//! `brig run`: one job from the command line to its result.

pub(crate) mod options;
mod request;
mod standalone;
mod work;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use brig_proto::v1::{ExecuteRequest, ExecutionSpec, Session};
use tonic::transport::Channel;

use self::options::RunOptions;
use self::standalone::PrivateDaemon;
use self::work::Work;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::follow::collect::Collector;
use crate::follow::inputs::Input;
use crate::follow::interrupts::Interrupts;
use crate::follow::{self, Begin, Call, Outcome, Patience};
use crate::output::amount;
use crate::output::screen::{self, Screen};
use crate::show::{self, Ending, Show};
use crate::{connect, session, spec};

/// Runs a job and shows what comes of it; refusals are shown here too, as the format has its own way.
pub(crate) fn run(options: &RunOptions, screen: &mut Screen) -> Exit {
    let exit = show::with(screen, options.output, Ending::Summary, |show| {
        match open_result(options) {
            Ok(file) => run_and_show(options, show, file),
            Err(failure) => refuse(&failure, show),
        }
    });
    screen.exit(exit)
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
    inputs: Arc<[Input]>,
    collector: Option<Collector>,
}

fn execute(options: &RunOptions, show: &mut dyn Show) -> Result<Outcome, Failure> {
    refuse_new_sandbox(options)?;
    if options.private.standalone {
        standalone::enter_scope()?;
    }
    let job = prepare(options)?;
    follow::block_on(call(options, job, show))
}

/// A session that exists has its sandbox already.
fn refuse_new_sandbox(options: &RunOptions) -> Result<(), Failure> {
    let Some(session) = &options.place.session else {
        return Ok(());
    };
    let refusal = |name: &str| {
        let message = format!("--{name} is for a new session, and session {session:?} exists; leave it out");
        (name.to_owned(), message)
    };
    let mut refused = options.sandbox.given().into_iter().map(refusal);
    let Some((first, message)) = refused.next() else {
        return Ok(());
    };
    let failure = Failure {
        others: refused.collect(),
        ..Failure::usage(&first, message)
    };
    Err(failure.hint(format!(
        "a session with it is made by: brig session create --{first} ..."
    )))
}

fn prepare(options: &RunOptions) -> Result<Job, Failure> {
    let work = Work::from_options(options, io::stdin())?;
    let stdin = spec::read_stdin(options.job.stdin.as_deref(), io::stdin())?;
    let inputs = Input::open_all(&options.files.input)?;
    let collector = options.files.out.as_deref().map(Collector::open).transpose();
    let collector = collector.map_err(|error| Failure::usage("out", error.to_string()))?;
    let spec = if options.place.is_kept() {
        request::in_session(options, work, stdin, &inputs)?
    } else {
        request::one_shot(options, work, stdin, &inputs)
    };
    Ok(Job {
        spec,
        inputs: inputs.into(),
        collector,
    })
}

async fn call(options: &RunOptions, job: Job, show: &mut dyn Show) -> Result<Outcome, Failure> {
    let interrupts = Interrupts::watch()?;
    if !options.private.standalone {
        let (socket, patience) = (connect::socket()?, Patience::from_environment()?);
        return call_daemon(options, &socket, job, &interrupts, show, patience).await;
    }
    let daemon = PrivateDaemon::start(&options.private.places, &interrupts).await?;
    // Nobody starts it again.
    let patience = Patience::none();
    let outcome = call_daemon(options, &daemon.socket(), job, &interrupts, show, patience).await;
    let (log, stopped) = daemon.stop().await;
    if let Err(failure) = stopped {
        show.note(&failure.message);
    }
    outcome.map_err(|failure| standalone::explain(failure, &log))
}

async fn call_daemon(
    options: &RunOptions,
    socket: &Path,
    job: Job,
    interrupts: &Interrupts,
    show: &mut dyn Show,
    patience: Patience,
) -> Result<Outcome, Failure> {
    let channel = follow::connect(socket, interrupts).await?;
    let mut call = Call::new(channel.clone(), interrupts, show, patience).collecting(job.collector);
    let spec = Box::new(job.spec);
    match &options.place.session {
        Some(session) => {
            let context = options.place.context.as_deref().unwrap_or_default();
            call.until_end(&in_session(session, context, spec)).await
        }
        None if options.place.keep => keep(options, channel, call, spec).await,
        None => {
            let inputs = job.inputs;
            call.until_end(&Begin::Run { spec, inputs }).await
        }
    }
}

fn in_session(session: &str, context: &str, spec: Box<ExecutionSpec>) -> Begin {
    Begin::Execute(Box::new(ExecuteRequest {
        session_id: session.to_owned(),
        context_id: context.to_owned(),
        spec: Some(*spec),
    }))
}

/// Runs the job in a session that is made for it and stays. If nothing was begun in it, it does not.
async fn keep(
    options: &RunOptions,
    channel: Channel,
    call: Call<'_>,
    spec: Box<ExecutionSpec>,
) -> Result<Outcome, Failure> {
    let created = session::create::ask(channel.clone(), request::kept_session(options)).await?;
    let session = created.session;
    let mut call = call.hinting(how_to_go_on(&session));
    let outcome = call.until_end(&in_session(&session.session_id, "", spec)).await;
    if !call.is_accepted() {
        // The refusal is what its caller has to know; a session that can't be closed ends when it is idle.
        session::close::ask(channel, &session.session_id).await.ok();
    }
    outcome
}

fn how_to_go_on(session: &Session) -> String {
    let id = &session.session_id;
    let idle = session
        .idle_timeout
        .and_then(|span| std::time::Duration::try_from(span).ok());
    let until = idle.map_or_else(String::new, |idle| {
        format!(" until it is idle for {}", amount::span(idle.as_millis()))
    });
    format!("session {id} is kept{until}; run in it: brig run --session {id} ...; end it: brig session close {id}")
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
