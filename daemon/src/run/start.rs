//! The start of an execution: the jail is made where there is none, files go in, the program is started.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use brig_jailer::api::{Dock, Enforced, Event, Make, Refusal, Spawn, Start, Work as SpawnWork};
use brig_jailer::faults::{Point, point};
use brig_jailer::files::wire::{Put, Time};
use brig_jailer::step::Step;
use brig_proto::v1::{Reason, StartKind};
use rustix::io::Errno;
use tracing::{debug, warn};

use crate::files::{Files, FilesError, Source};
use crate::host::Host;
use crate::inputs::Opened;
use crate::jailer::{Jail, Jailer, JailerError, Message, Process};
use crate::run::admit::{Content, Job, Work};
use crate::run::collect::walk;
use crate::run::inputs;
use crate::run::journal::Kept;
use crate::run::kept::Session;
use crate::run::kept::helper::Lease;
use crate::run::life::{Flight, Home};
use crate::run::pool::Ahead;
use crate::run::watch::Pipes;
use crate::status::{FieldProblem, Problem};

/// A program that runs, or waits to be told what to run, and where it does.
#[derive(Debug)]
pub struct Started {
    pub workspace: Workspace,
    pub enforced: Enforced,
    /// When the program began, as files have it: none where a snapshot counts.
    pub since: Option<Time>,
    pub program: Program,
    pub start: StartKind,
}

/// What came with a program.
#[derive(Debug)]
pub struct Program {
    pub pid: u32,
    pub pipes: Pipes,
    /// The files of what is kept.
    pub kept: Kept,
}

/// The files of the session.
#[derive(Debug)]
pub enum Workspace {
    Own(Files),
    Kept(Arc<Session>),
}

/// The file helper, for one conversation.
#[derive(Debug)]
pub enum Helper<'w> {
    Own(&'w mut Files),
    Lent(Lease),
}

impl Workspace {
    /// Waits for the file helper. The caller bounds that.
    pub async fn helper(&mut self) -> Result<Helper<'_>, FilesError> {
        match self {
            Self::Own(files) => Ok(Helper::Own(files)),
            Self::Kept(session) => session.helper.lease().await.map(Helper::Lent),
        }
    }
}

impl Deref for Helper<'_> {
    type Target = Files;

    fn deref(&self) -> &Files {
        match self {
            Self::Own(files) => files,
            Self::Lent(lease) => lease,
        }
    }
}

impl DerefMut for Helper<'_> {
    fn deref_mut(&mut self) -> &mut Files {
        match self {
            Self::Own(files) => files,
            Self::Lent(lease) => lease,
        }
    }
}

/// Makes the session where there is none, puts the inputs in, and starts the program.
///
/// A jail that was made stays where [`Home`] says, and a program that was asked for in `slot`, whatever happens, also
/// when this call is dropped half way: they must be ended. A command may run from the moment that its order is in
/// `flight`; code waits for its request.
pub async fn start(
    host: &Host,
    job: &Job,
    memo: Vec<u8>,
    home: Home<'_>,
    slot: &mut Option<Process>,
    flight: &Flight<'_>,
) -> Result<Started, Problem> {
    // Before there is a jail: a record may have gone while the execution waited.
    let records = inputs::open(job, host).await?;
    let Settled {
        mut workspace,
        enforced,
        waiting,
        mut how,
        is_known,
    } = match home {
        Home::Own { jail, ahead } => settle(host, job, jail, ahead, slot).await?,
        Home::Kept(session) => {
            session.runs().await?;
            Settled::new(Workspace::Kept(Arc::clone(session)), session.enforced(), Start::Exec)
        }
    };
    let since = if is_known {
        None
    } else {
        prepare(job, &records, &mut workspace).await?
    };
    drop(records);
    point(Point::DaemonInputsPut);
    if let (Some(program), Some(process)) = (waiting, slot.as_ref()) {
        point(Point::DaemonTaken);
        process.lap(Some(job.limits.timeout_ms)).await;
        return Ok(Started {
            workspace,
            enforced,
            since,
            program,
            start: StartKind::Pool,
        });
    }
    let spawned = loop {
        if matches!(job.work, Work::Command { .. }) {
            flight.begins().await;
        }
        let process = slot.insert(host.jailer.spawn(order(job, memo.clone(), how)).await?);
        point(Point::DaemonSpawnSent);
        match (started(job, process).await, &workspace) {
            // Somebody paused it meanwhile, and nothing was started.
            (Err(Problem::Jail(Refusal::Paused)), Workspace::Kept(session)) => {
                *slot = None;
                flight.failed();
                session.runs().await?;
            }
            // Nothing was started by the zygote, and the session is as good as any.
            (Err(Problem::Jail(refusal)), _) if how == Start::Fork => {
                *slot = None;
                flight.failed();
                how = Start::Exec;
                host.pool.zygote_failed();
                warn!(%refusal, "not forked; the program is started");
            }
            (spawned, _) => break spawned,
        }
    };
    let program = spawned.map_err(|problem| match &workspace {
        Workspace::Kept(session) if !session.is_up() || has_died(&host.jailer, &problem) => session.closed_problem(),
        Workspace::Own(_) if has_died(&host.jailer, &problem) => Problem::JailDied("starting the program"),
        _ => problem,
    })?;
    debug!(pid = program.pid, "program started");
    point(Point::DaemonSpawned);
    Ok(Started {
        workspace,
        enforced,
        since,
        program,
        start: if how == Start::Fork {
            StartKind::Forked
        } else {
            StartKind::Cold
        },
    })
}

/// Where a program is started.
struct Settled {
    workspace: Workspace,
    enforced: Enforced,
    /// The program that has waited in it.
    waiting: Option<Program>,
    how: Start,
    /// Whether it is known which files are there, and none goes in.
    is_known: bool,
}

impl Settled {
    fn new(workspace: Workspace, enforced: Enforced, how: Start) -> Self {
        Self {
            workspace,
            enforced,
            waiting: None,
            how,
            is_known: false,
        }
    }
}

/// Takes the session that has waited, with its program, or makes one: one that a zygote can fork the program into, if there
/// is a zygote. One that has ended while it waited leaves its names to the one that is made.
async fn settle(
    host: &Host,
    job: &Job,
    jail: &mut Option<Jail>,
    ahead: Option<Ahead>,
    slot: &mut Option<Process>,
) -> Result<Settled, Problem> {
    let ready = match ahead {
        Some(ahead) => ahead.ready().await,
        None => None,
    };
    if let Some(mut ready) = ready {
        let walked = ready.walked.take();
        if let Some(waiting) = ready.into_waiting() {
            let waiting = *waiting;
            *jail = Some(waiting.jail);
            let (process, program) = waiting.program.unzip();
            *slot = process;
            let is_known = walked.transpose().map_err(not_walked)?.is_some();
            let how = if waiting.dock.is_some() && waiting.dock == job.dock {
                Start::Fork
            } else {
                Start::Exec
            };
            return Ok(Settled {
                waiting: program,
                is_known,
                ..Settled::new(Workspace::Own(waiting.files), waiting.enforced, how)
            });
        }
    }
    if let Some(dock) = &job.dock {
        match make(&host.jailer, one_shot(job, Dock::Of(dock.clone())), jail).await {
            Ok((enforced, files)) => return Ok(Settled::new(Workspace::Own(files), enforced, Start::Fork)),
            Err(problem) if is_of_the_dock(&problem) => {
                host.pool.zygote_failed();
                warn!(%problem, "no session below that of a zygote; it is made beside it");
            }
            Err(problem) => return Err(problem),
        }
    }
    let (enforced, files) = make(&host.jailer, one_shot(job, Dock::None), jail).await?;
    Ok(Settled::new(Workspace::Own(files), enforced, Start::Exec))
}

/// Whether a session could not be made for a reason that is not there outside of the dock: the zygote is gone, or its
/// session is about to be.
pub(in crate::run) fn is_of_the_dock(problem: &Problem) -> bool {
    match problem {
        Problem::Jail(Refusal::Invalid { field, .. }) => field == "dock",
        Problem::Jail(Refusal::Step(_)) | Problem::JailDied(_) => true,
        _ => false,
    }
}

/// Whether the jail of an execution is gone although the jailer is there, which says so, or says nothing more.
fn has_died(jailer: &Jailer, problem: &Problem) -> bool {
    match problem {
        Problem::JailDied(_) => true,
        Problem::Jailer(JailerError::Gone) => !jailer.is_gone(),
        _ => false,
    }
}

fn one_shot(job: &Job, dock: Dock) -> Make {
    Make {
        session: job.session.clone(),
        policy: job.policy.name.clone(),
        policy_hash: job.policy.hash.clone(),
        template: job.template.id.clone(),
        quantities: job.limits.quantities(),
        held: false,
        waiting: false,
        dock,
        memo: Vec::new(),
    }
}

/// Makes a jail; it stays in `slot` whatever happens.
pub async fn make(jailer: &Jailer, make: Make, slot: &mut Option<Jail>) -> Result<(Enforced, Files), Problem> {
    let jail = slot.insert(jailer.make(make).await?);
    point(Point::DaemonMakeSent);
    let (enforced, mut fds) = match answer(jail.next().await)? {
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
    point(Point::DaemonMade);
    let socket = fds
        .pop()
        .ok_or_else(|| unexpected("files-helper", "the file helper's socket did not come"))?;
    let files = Files::new(socket).map_err(|error| unexpected("files-helper", &error.to_string()))?;
    Ok((enforced, files))
}

/// Puts the inputs in, and remembers what is there: by a snapshot, or by the time.
pub(in crate::run) async fn prepare(
    job: &Job,
    records: &[Option<Opened>],
    workspace: &mut Workspace,
) -> Result<Option<Time>, Problem> {
    let is_kept = matches!(workspace, Workspace::Kept(_));
    let mut helper = workspace
        .helper()
        .await
        .map_err(|error| unexpected("files-helper", &error.to_string()))?;
    for (index, (input, record)) in job.inputs.iter().zip(records).enumerate() {
        let source = match (&input.content, record) {
            (Content::Stored(stored), _) => Source::Spool(stored),
            (_, Some(record)) => Source::Record(record),
            _ => continue,
        };
        let put = Put {
            path: input.path.clone().into_bytes(),
            size: source.size(),
            mode: input.mode,
            mtime: None,
            make_parents: true,
            overwrite: is_kept,
        };
        let result = helper.put(put, source).await;
        let sum = result.map_err(|error| not_put(index, &error, is_kept))?;
        if sum.sha256 != source.sha256() {
            let message = format!("inputs[{index}]: what arrived is not what was stored");
            return Err(unexpected("inputs", &message));
        }
    }
    if is_kept {
        helper.now().await.map(Some).map_err(not_walked)
    } else {
        helper.snapshot(walk(job)).await.map(|_cut| None).map_err(not_walked)
    }
}

fn not_walked(error: FilesError) -> Problem {
    unexpected("snapshot", &error.to_string())
}

/// In a session that was used before, the place of an input may be full or taken.
fn not_put(index: usize, error: &FilesError, is_kept: bool) -> Problem {
    let field = format!("inputs[{index}]");
    match error {
        FilesError::Refused(failure) if is_kept => match Errno::from_raw_os_error(failure.errno) {
            Errno::NOSPC | Errno::DQUOT => Problem::DiskFull(field),
            _ => Problem::Fields(vec![FieldProblem {
                field,
                message: format!("can't be put where its name says: {failure}"),
                reason: Reason::InvalidPath,
            }]),
        },
        _ => unexpected("inputs", &format!("{field}: {error}")),
    }
}

fn order(job: &Job, memo: Vec<u8>, start: Start) -> Spawn {
    Spawn {
        session: job.session.clone(),
        execution: job.execution.clone(),
        work: match &job.work {
            Work::Code { .. } => SpawnWork::Kernel,
            Work::Command { argv, directory } => SpawnWork::Command {
                argv: argv.clone(),
                directory: directory.clone(),
            },
        },
        start,
        environment: job.environment.clone(),
        stdin: (job.stdin.is_some() || job.stdin_open) && job.terminal.is_none(),
        // A terminal has one way out.
        merge_stderr: job.merge_stderr && job.terminal.is_none(),
        timeout_ms: job.limits.timeout_ms,
        terminal: job.terminal,
        cpu_time_ms: job.times.cpu_ms,
        memo,
    }
}

async fn started(job: &Job, process: &mut Process) -> Result<Program, Problem> {
    let mistake = |problem| callers_mistake(job, &problem).unwrap_or(problem);
    running(process).await.map_err(mistake)
}

/// Waits until a program runs that was asked for.
pub(in crate::run) async fn running(process: &mut Process) -> Result<Program, Problem> {
    match answer(process.next().await)? {
        Message {
            event: Event::Spawned { pid, streams, .. },
            fds,
        } => {
            let (pipes, kept) = Pipes::new(streams, fds)
                .ok_or_else(|| unexpected("streams", "other descriptors came than were told"))?;
            Ok(Program { pid, pipes, kept })
        }
        message => Err(refusal(message, "starting the program")),
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

fn answer(message: Option<Message>) -> Result<Message, Problem> {
    message.ok_or(Problem::Jailer(JailerError::Gone))
}

fn refusal(message: Message, doing: &'static str) -> Problem {
    match message.event {
        Event::Refused { refusal, .. } => Problem::Jail(refusal),
        Event::Closed { .. } | Event::Ended { .. } => Problem::JailDied(doing),
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
