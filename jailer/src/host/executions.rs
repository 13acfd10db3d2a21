//! Programs in sessions, as the jailer sees them: started, ended, killed, accounted for.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;

use super::clock::Clock;
use super::events::{Source, Timer, Token};
use super::held::{self, Ended, Kept, Told};
use super::serve::Jailer;
use super::session::{Phase, Remains, Session};
use crate::api::{
    Cause, CloseReason, End, Event, Exit, MEMO_MAX, Refusal, Spawn, Start, Streams, UNFORGOTTEN_MAX, Work,
};
use crate::cgroup::Leaf;
use crate::faults::{Point, point};
use crate::ids::Id;
use crate::plan::{HOME, Program, ToInit};
use crate::policy::check_timeout;
use crate::step::{At, Step, StepError, SysError};

/// How long pid 1 may take to tell the end of a program that was killed.
const OVERDUE: Duration = Duration::from_secs(2);
/// The driver of a template's interpreter, see rootfs/kernel/README.md.
const KERNEL: &str = "/usr/lib/brig/kernel.py";
/// What a terminal is taken for: terminals of today know at least this one's sequences.
const TERM: &[u8] = b"xterm";

#[derive(Debug)]
pub(super) struct Execution {
    pub(super) leaf: Leaf,
    token: Token,
    pub(super) told: Told,
    /// Memory files for the client, until it has them.
    files: Vec<OwnedFd>,
    pub(super) clock: Clock,
    pub(super) cause: Option<Cause>,
    exit: Option<Exit>,
    /// How it is started.
    pub(super) start: Start,
}

impl Jailer {
    /// Starts a program in a session.
    pub(super) fn spawn(&mut self, request: Spawn) {
        let (session, execution) = (request.session.clone(), request.execution.clone());
        if let Err(refusal) = self.try_spawn(request) {
            self.refuse(session, Some(execution), refusal);
        }
    }

    fn try_spawn(&mut self, request: Spawn) -> Result<(), Refusal> {
        let Some(session) = self
            .sessions
            .get(&request.session)
            .filter(|session| session.phase == Phase::Up)
        else {
            return Err(invalid(
                "session_id",
                format!("{} is not a session that is up", request.session),
            ));
        };
        if session.executions.contains_key(&request.execution) || session.ended.contains_key(&request.execution) {
            return Err(invalid("execution_id", format!("{} exists already", request.execution)));
        }
        if session.executions.len() + session.ended.len() >= UNFORGOTTEN_MAX {
            return Err(Refusal::Busy(format!(
                "{UNFORGOTTEN_MAX} executions of the session run or are not recorded, which is the most"
            )));
        }
        if request.memo.len() > MEMO_MAX {
            return Err(invalid("memo", format!("is larger than {MEMO_MAX} bytes")));
        }
        if request.cpu_time_ms == Some(0) {
            return Err(invalid(
                "cpu_time_ms",
                "0 is no limit; leave it out for none".to_owned(),
            ));
        }
        for (name, _) in &request.environment {
            if !session.policy.rules.environment.allows(name) {
                let name = String::from_utf8_lossy(name).into_owned();
                return Err(invalid(
                    "environment",
                    format!("{name:?} is not allowed by policy {}", session.policy.name),
                ));
            }
        }
        check_timeout(&session.policy, request.timeout_ms)?;
        if session.paused.is_some() {
            return Err(Refusal::Paused);
        }
        let is_plain = matches!(request.work, Work::Kernel | Work::Context)
            && request.environment.is_empty()
            && !(request.stdin || request.merge_stderr || request.terminal.is_some());
        self.check_start(&request.session, request.start, is_plain)?;
        let streams = streams(&request)?;
        let (argv, directory) = command(session, request.work)?;
        let program = Program {
            execution: request.execution.clone(),
            argv,
            environment: environment(session, request.environment, streams.terminal),
            directory: directory.unwrap_or_else(|| HOME.as_bytes().to_vec()),
            stdin: request.stdin,
            merge_stderr: request.merge_stderr,
            terminal: request.terminal.map(|terminal| (terminal.columns, terminal.rows)),
            kernel: streams.request,
            zygote: None,
        };
        let wall = Duration::from_millis(request.timeout_ms);
        let clock = Clock::new(Some(wall), request.cpu_time_ms.map(Duration::from_millis));
        let told = Told {
            memo: request.memo,
            streams,
            pid: 0,
            started: Instant::now(),
            kept: Kept::default(),
        };
        self.start(&request.session, program, told, clock, request.start)
            .map_err(Refusal::Step)
    }

    fn start(
        &mut self,
        id: &Id,
        mut program: Program,
        told: Told,
        clock: Clock,
        start: Start,
    ) -> Result<(), StepError> {
        let mut socket = None;
        if start == Start::Zygote {
            let (zygote, theirs) = self.hatch(id, &program.execution)?;
            program.directory = b"/".to_vec();
            (program.zygote, socket) = (Some(zygote), Some(theirs));
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return Ok(());
        };
        let name = program.execution.clone();
        let files = held::memory_files(told.streams).at(Step::Streams)?;
        point(Point::JailerBeforeLeaf);
        let leaf = session.groups.leaf(name.as_str()).at(Step::Cgroups)?;
        let source = Source::Leaf(id.clone(), name.clone());
        let token = self
            .events
            .watch(leaf.events(), source, EventFlags::PRI)
            .at(Step::Cgroups)?;
        let descriptors = leaf.join_descriptors();
        #[cfg(feature = "faults")]
        let descriptors = if super::faults::wrong_leaf() {
            vec![std::os::fd::AsFd::as_fd(&self.events)]
        } else {
            descriptors
        };
        let program = Box::new(program);
        let ordered = match (start, &socket) {
            (Start::Fork, _) => session.order(&ToInit::Lend(program), &[]),
            (_, Some(socket)) => {
                let with_socket: Vec<_> = descriptors.into_iter().chain([socket.as_fd()]).collect();
                session.order(&ToInit::Spawn(program), &with_socket)
            }
            (_, None) => session.order(&ToInit::Spawn(program), &descriptors),
        };
        point(Point::JailerSpawnOrdered);
        let execution = Execution {
            leaf,
            token,
            told,
            files,
            clock,
            cause: None,
            exit: None,
            start,
        };
        if let Err(error) = ordered.at(Step::Exec) {
            self.discard(execution);
            return Err(error);
        }
        session.executions.insert(name, execution);
        Ok(())
    }

    pub(super) fn spawned(&mut self, id: &Id, name: &Id, pid: u32, mut fds: Vec<OwnedFd>) {
        let is_zygote = self
            .execution(id, name)
            .is_some_and(|execution| execution.start == Start::Zygote);
        if is_zygote && let Err(error) = self.hatched(id, &mut fds) {
            tracing::error!(session = %id, %error, "nothing can be made below the session of a zygote");
            return self.close(id, CloseReason::Died);
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let now = session.now();
        let Some(execution) = session.executions.get_mut(name) else {
            return;
        };
        let streams = execution.told.streams;
        execution.told.pid = pid;
        execution.told.started = now;
        if session.held {
            match Kept::copy(streams, &fds, &execution.files) {
                Ok(kept) => execution.told.kept = kept,
                Err(error) => {
                    tracing::error!(session = %id, execution = %name, %error, "descriptors can't be held");
                    return self.close(id, CloseReason::Died);
                }
            }
        }
        fds.append(&mut execution.files);
        point(Point::JailerSpawned);
        self.start_clock(id, name);
        self.tell(
            Event::Spawned {
                session: id.clone(),
                execution: name.clone(),
                pid,
                streams,
            },
            fds,
        );
    }

    pub(super) fn spawn_failed(&mut self, id: &Id, name: &Id, error: StepError) {
        let execution = self
            .sessions
            .get_mut(id)
            .and_then(|session| session.executions.remove(name));
        if let Some(execution) = execution {
            if execution.start == Start::Fork
                && let Err(error) = execution.leaf.kill()
            {
                tracing::error!(session = %id, execution = %name, %error, "a fork that failed could not be killed");
            }
            self.discard(execution);
            self.refuse(id.clone(), Some(name.clone()), Refusal::Step(error));
        }
    }

    /// The main process ended: whatever it has left behind ends with it.
    pub(super) fn exited(&mut self, id: &Id, name: &Id, status: i32) {
        let Some(execution) = self.execution(id, name) else {
            return;
        };
        execution.exit = Some(if status < 0 {
            Exit::Signal(-status)
        } else {
            Exit::Code(status)
        });
        point(Point::JailerExited);
        if let Err(error) = execution.leaf.kill() {
            tracing::error!(session = %id, execution = %name, %error, "execution could not be killed");
        }
        self.look_at_leaf(id, name);
    }

    /// Tells the end once the main process is reaped and no other is alive.
    pub(super) fn look_at_leaf(&mut self, id: &Id, name: &Id) {
        let Some(execution) = self.execution(id, name) else {
            return;
        };
        let empty = !execution.leaf.populated();
        if empty && execution.exit.is_some() {
            self.end_execution(id, name);
        }
    }

    /// Kills an execution, for a cause that counts only if there is none yet.
    pub(super) fn kill(&mut self, id: &Id, name: &Id, cause: Cause) {
        let Some(execution) = self.execution(id, name) else {
            return;
        };
        if execution.exit.is_none() {
            execution.cause.get_or_insert(cause);
        }
        if let Err(error) = execution.leaf.kill() {
            tracing::error!(session = %id, execution = %name, %error, "execution could not be killed");
        }
        self.events.after(OVERDUE, Timer::Overdue(id.clone(), name.clone()));
    }

    /// A killed program whose end pid 1 did not tell: the jail is not well.
    pub(super) fn overdue(&mut self, id: &Id, name: &Id) {
        if self.execution(id, name).is_some() {
            tracing::error!(session = %id, execution = %name, "brig-init did not tell the end of a killed program");
            self.close(id, CloseReason::Died);
        }
    }

    pub(super) fn signal(&mut self, id: &Id, execution: Id, signal: i32, group: bool) {
        if let Some(session) = self.sessions.get(id)
            && let Err(error) = session.order(
                &ToInit::Signal {
                    execution,
                    signal,
                    group,
                },
                &[],
            )
        {
            tracing::warn!(session = %id, %error, "signal not delivered");
        }
    }

    fn end_execution(&mut self, id: &Id, name: &Id) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Some(execution) = session.executions.remove(name) else {
            return;
        };
        let (end, now) = (execution.end(), session.now());
        let told = self.discard(execution);
        if let Some(session) = self.sessions.get_mut(id).filter(|session| session.held) {
            let ran = now.saturating_duration_since(told.started);
            session.ended.insert(name.clone(), Ended { told, ran, end });
        }
        tracing::info!(session = %id, execution = %name, exit = ?end.exit, cause = ?end.cause, "execution ended");
        point(Point::JailerBeforeEnded);
        let ended = Event::Ended {
            session: id.clone(),
            execution: name.clone(),
            end,
        };
        self.tell_about(id, ended);
    }

    /// The session is over: what pid 1 can't tell any more is told without it.
    pub(super) fn end_all_executions(&mut self, id: &Id) {
        let names: Vec<Id> = self
            .sessions
            .get(id)
            .map(|session| session.executions.keys().cloned().collect())
            .unwrap_or_default();
        for name in names {
            self.end_execution(id, &name);
        }
    }

    /// Stops watching a leaf and removes its group, now or when its last process has left it.
    fn discard(&mut self, execution: Execution) -> Told {
        self.events.forget(execution.leaf.events(), execution.token);
        self.bury(Remains::Leaf(execution.leaf));
        execution.told
    }

    pub(super) fn execution(&mut self, id: &Id, name: &Id) -> Option<&mut Execution> {
        self.sessions.get_mut(id)?.executions.get_mut(name)
    }
}

/// Which descriptors a program has with the caller.
fn streams(request: &Spawn) -> Result<Streams, Refusal> {
    let kernel = matches!(request.work, Work::Kernel | Work::Context);
    let terminal = request.terminal.is_some();
    if terminal && (kernel || request.stdin || request.merge_stderr) {
        let message = "is for commands, and takes the place of stdin and of both outputs";
        return Err(invalid("terminal", message.to_owned()));
    }
    Ok(Streams {
        terminal,
        stdin: request.stdin,
        input: request.stdin || terminal,
        stdout: !terminal,
        stderr: !terminal && !request.merge_stderr,
        request: kernel,
        frames: kernel,
    })
}

/// The variables of a program beside the template's. One with a terminal is told which kind that is.
fn environment(session: &Session, asked: Vec<(Vec<u8>, Vec<u8>)>, has_terminal: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let in_template = session.template.environment.iter().any(|(name, _)| name == "TERM");
    let is_told = in_template || asked.iter().any(|(name, _)| name == b"TERM");
    let term = (has_terminal && !is_told).then(|| (b"TERM".to_vec(), TERM.to_vec()));
    asked.into_iter().chain(term).collect()
}

type Command = (Vec<Vec<u8>>, Option<Vec<u8>>);

/// The arguments of a program and its working directory.
fn command(session: &Session, work: Work) -> Result<Command, Refusal> {
    match work {
        Work::Command { argv, .. } if argv.is_empty() => return Err(invalid("argv", "is empty".to_owned())),
        Work::Command { argv, directory } => return Ok((argv, directory)),
        // The first request says which of the two the driver is.
        Work::Kernel | Work::Context => {}
    }
    let Some(interpreter) = &session.template.interpreter else {
        let message = format!("{} has no interpreter", session.template.id);
        return Err(invalid("template", message));
    };
    let argv = [interpreter.as_str(), "-I", "-u", KERNEL];
    Ok((argv.iter().map(|part| part.as_bytes().to_vec()).collect(), None))
}

fn invalid(field: &str, message: String) -> Refusal {
    Refusal::Invalid {
        field: field.to_owned(),
        message,
    }
}

impl Execution {
    /// Kills all its processes.
    pub(super) fn kill(&self) -> Result<(), SysError> {
        self.leaf.kill()
    }

    /// Whether it runs, as far as is known.
    pub(super) fn lives(&self) -> bool {
        self.told.pid != 0 && self.exit.is_none()
    }

    fn end(&self) -> End {
        let oom_kills = self.leaf.oom_kills();
        let exit = self.exit.unwrap_or(Exit::Unknown);
        // Every kill is a SIGKILL: a main process that ended otherwise had ended by itself when the kill came.
        let killed = matches!(exit, Exit::Signal(libc::SIGKILL) | Exit::Unknown);
        // Only the main process's own end makes it the execution's; a child that is killed is for its parent to cope with.
        let by_memory = oom_kills > 0 && exit == Exit::Signal(libc::SIGKILL);
        End {
            exit,
            cause: self.cause.filter(|_| killed).or(by_memory.then_some(Cause::Memory)),
            usage: self.leaf.usage(),
            oom_kills,
            pids_refused: self.leaf.pids_refused(),
        }
    }
}
