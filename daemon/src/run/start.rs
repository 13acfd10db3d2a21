//! The start of a one-shot session: the jail is made, files go in, the program is started.

use brig_jailer::api::{Enforced, Event, Make, Refusal, Request, Spawn, Work as SpawnWork};
use brig_jailer::files::wire::Put;
use brig_jailer::step::Step;
use brig_proto::v1::Reason;
use rustix::io::Errno;
use tracing::debug;

use crate::files::Files;
use crate::host::Host;
use crate::jailer::{Jail, JailerError, Message};
use crate::run::admit::{Content, Job, Work};
use crate::run::collect::walk;
use crate::run::journal::Kept;
use crate::run::watch::Pipes;
use crate::status::{FieldProblem, Problem};

/// A program that runs.
#[derive(Debug)]
pub struct Started {
    pub files: Files,
    pub enforced: Enforced,
    pub pid: u32,
    pub pipes: Pipes,
    /// The files of what is kept.
    pub kept: Kept,
}

/// Makes the session, puts the inputs in, and starts the program.
///
/// A jail that was made stays in `slot` whatever happens, also when this call is dropped half way: it must be closed.
pub async fn start(host: &Host, job: &Job, slot: &mut Option<Jail>) -> Result<Started, Problem> {
    let make = Make {
        session: job.session.clone(),
        policy: job.policy.name.clone(),
        policy_hash: job.policy.hash.clone(),
        template: job.template.id.clone(),
        quantities: job.limits.quantities(),
        held: false,
        memo: Vec::new(),
    };
    let jail = slot.insert(host.jailer.make(make).await?);
    let (enforced, mut fds) = match answer(jail).await? {
        Message {
            event: Event::Made { enforced, .. },
            fds,
        } => (enforced, fds),
        message => {
            // A refused jail is none: there is nothing to close.
            let refused = refusal(message, "making the session");
            *slot = None;
            return Err(refused);
        }
    };
    debug!("jail made");
    let socket = fds
        .pop()
        .ok_or_else(|| unexpected("files-helper", "the file helper's socket did not come"))?;
    let mut files = Files::new(socket).map_err(|error| unexpected("files-helper", &error.to_string()))?;
    put_inputs(job, &mut files).await?;
    let (pid, pipes, kept) = spawn(job, jail).await?;
    debug!(pid, "program started");
    Ok(Started {
        files,
        enforced,
        pid,
        pipes,
        kept,
    })
}

async fn put_inputs(job: &Job, files: &mut Files) -> Result<(), Problem> {
    for (index, input) in job.inputs.iter().enumerate() {
        let Content::Stored(stored) = &input.content else {
            continue;
        };
        let put = Put {
            path: input.path.clone().into_bytes(),
            size: stored.size(),
            mode: input.mode,
            mtime: None,
            make_parents: true,
            overwrite: false,
        };
        files
            .put(put, stored)
            .await
            .map_err(|error| unexpected("inputs", &format!("inputs[{index}]: {error}")))?;
    }
    files
        .snapshot(walk(job))
        .await
        .map_err(|error| unexpected("snapshot", &error.to_string()))?;
    Ok(())
}

async fn spawn(job: &Job, jail: &mut Jail) -> Result<(u32, Pipes, Kept), Problem> {
    let request = Spawn {
        session: job.session.clone(),
        execution: job.execution.clone(),
        work: match &job.work {
            Work::Code { .. } => SpawnWork::Kernel,
            Work::Command { argv, directory } => SpawnWork::Command {
                argv: argv.clone(),
                directory: directory.clone(),
            },
        },
        environment: job.environment.clone(),
        stdin: job.stdin.is_some(),
        merge_stderr: job.merge_stderr,
        timeout_ms: job.limits.timeout_ms,
        terminal: None,
        cpu_time_ms: None,
        memo: Vec::new(),
    };
    jail.ask(Request::Spawn(request)).await?;
    match answer(jail).await? {
        Message {
            event: Event::Spawned { pid, streams, .. },
            fds,
        } => {
            let (pipes, kept) = Pipes::new(streams, fds)
                .ok_or_else(|| unexpected("streams", "other descriptors came than were told"))?;
            Ok((pid, pipes, kept))
        }
        message => {
            let problem = refusal(message, "starting the program");
            Err(callers_mistake(job, &problem).unwrap_or(problem))
        }
    }
}

/// A command that is not there, or can't be run, is a field of the request that is wrong.
fn callers_mistake(job: &Job, problem: &Problem) -> Option<Problem> {
    let (Work::Command { argv, directory }, Problem::Jail(Refusal::Step(error))) = (&job.work, problem) else {
        return None;
    };
    let (field, value) = match (error.step, Errno::from_raw_os_error(error.source.errno)) {
        (Step::Exec, Errno::NOENT | Errno::ACCESS | Errno::NOEXEC | Errno::NOTDIR | Errno::ISDIR) => {
            ("command.argv[0]", argv.first()?)
        }
        (Step::Directory, Errno::NOENT | Errno::ACCESS | Errno::NOTDIR) => ("command.directory", directory.as_ref()?),
        _ => return None,
    };
    let (value, template) = (String::from_utf8_lossy(value), &job.template.id);
    let reason = std::io::Error::from_raw_os_error(error.source.errno);
    Some(Problem::Fields(vec![FieldProblem {
        field: field.to_owned(),
        message: format!("{value:?} can't be used in template {template}: {reason}"),
        reason: Reason::InvalidValue,
    }]))
}

async fn answer(jail: &mut Jail) -> Result<Message, Problem> {
    jail.next().await.ok_or(Problem::Jailer(JailerError::Gone))
}

fn refusal(message: Message, doing: &'static str) -> Problem {
    match message.event {
        Event::Refused { refusal, .. } => Problem::Jail(refusal),
        Event::Closed { .. } => Problem::Step {
            step: "clone",
            message: format!("the jail died while {doing}"),
        },
        _ => Problem::Step {
            step: "clone",
            message: format!("brig-jailer answered something else while {doing}"),
        },
    }
}

fn unexpected(step: &'static str, message: &str) -> Problem {
    Problem::Step {
        step,
        message: message.to_owned(),
    }
}
