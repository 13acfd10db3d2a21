//! Programs in sessions, as the jailer sees them: started, ended, killed, accounted for.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::EventFlags;

use super::events::{Source, Timer, Token};
use super::serve::Jailer;
use super::session::{Phase, Remains};
use crate::api::{Cause, CloseReason, End, Event, Exit, Refusal, Spawn, Streams, Work};
use crate::cgroup::Leaf;
use crate::ids::Id;
use crate::plan::{HOME, Program, ToInit};
use crate::policy::check_timeout;
use crate::step::{At, Step, StepError};

/// How long pid 1 may take to tell the end of a program that was killed.
const OVERDUE: Duration = Duration::from_secs(2);
/// The driver of a template's interpreter, see rootfs/kernel/README.md.
const KERNEL: &str = "/usr/lib/brig/kernel.py";

#[derive(Debug)]
pub(super) struct Execution {
    leaf: Leaf,
    token: Token,
    streams: Streams,
    timeout: Duration,
    pub(super) cause: Option<Cause>,
    exit: Option<Exit>,
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
        let invalid = |field: &str, message: String| Refusal::Invalid {
            field: field.to_owned(),
            message,
        };
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
        if session.executions.contains_key(&request.execution) {
            return Err(invalid("execution_id", format!("{} runs already", request.execution)));
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
        let kernel = request.work == Work::Kernel;
        let (argv, directory) = match request.work {
            Work::Command { argv, directory } if !argv.is_empty() => (argv, directory),
            Work::Command { .. } => return Err(invalid("argv", "is empty".to_owned())),
            Work::Kernel => match &session.template.interpreter {
                Some(interpreter) => {
                    let argv = [interpreter.as_str(), "-I", "-u", KERNEL];
                    (argv.iter().map(|part| part.as_bytes().to_vec()).collect(), None)
                }
                None => {
                    return Err(invalid(
                        "template",
                        format!("{} has no interpreter", session.template.id),
                    ));
                }
            },
        };
        let streams = Streams {
            stdin: request.stdin,
            stdout: true,
            stderr: !request.merge_stderr,
            kernel,
        };
        let program = Program {
            execution: request.execution.clone(),
            argv,
            environment: request.environment,
            directory: directory.unwrap_or_else(|| HOME.as_bytes().to_vec()),
            stdin: request.stdin,
            merge_stderr: request.merge_stderr,
            kernel,
        };
        let timeout = Duration::from_millis(request.timeout_ms);
        self.start(&request.session, program, streams, timeout)
            .map_err(Refusal::Step)
    }

    fn start(&mut self, id: &Id, program: Program, streams: Streams, timeout: Duration) -> Result<(), StepError> {
        let Some(session) = self.sessions.get_mut(id) else {
            return Ok(());
        };
        let name = program.execution.clone();
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
        let ordered = session.order(&ToInit::Spawn(Box::new(program)), &descriptors);
        let execution = Execution {
            leaf,
            token,
            streams,
            timeout,
            cause: None,
            exit: None,
        };
        if let Err(error) = ordered.at(Step::Exec) {
            self.discard(execution);
            return Err(error);
        }
        session.executions.insert(name, execution);
        Ok(())
    }

    pub(super) fn spawned(&mut self, id: &Id, name: &Id, pid: u32, fds: Vec<OwnedFd>) {
        let Some(execution) = self.execution(id, name) else {
            return;
        };
        let (streams, timeout) = (execution.streams, execution.timeout);
        self.events.after(timeout, Timer::Deadline(id.clone(), name.clone()));
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

    pub(super) fn signal(&mut self, id: &Id, execution: Id, signal: i32) {
        if let Some(session) = self.sessions.get(id)
            && let Err(error) = session.order(&ToInit::Signal { execution, signal }, &[])
        {
            tracing::warn!(session = %id, %error, "signal not delivered");
        }
    }

    fn end_execution(&mut self, id: &Id, name: &Id) {
        let execution = self
            .sessions
            .get_mut(id)
            .and_then(|session| session.executions.remove(name));
        let Some(execution) = execution else { return };
        let oom_kills = execution.leaf.oom_kills();
        let exit = execution.exit.unwrap_or(Exit::Unknown);
        // Only the main process's own end makes it the execution's; a child that is killed is for its parent to cope with.
        let by_memory = oom_kills > 0 && exit == Exit::Signal(libc::SIGKILL);
        let end = End {
            exit,
            cause: execution.cause.or(by_memory.then_some(Cause::Memory)),
            usage: execution.leaf.usage(),
            oom_kills,
            pids_refused: execution.leaf.pids_refused(),
        };
        self.discard(execution);
        tracing::info!(session = %id, execution = %name, exit = ?end.exit, cause = ?end.cause, "execution ended");
        self.tell(
            Event::Ended {
                session: id.clone(),
                execution: name.clone(),
                end,
            },
            Vec::new(),
        );
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
    fn discard(&mut self, execution: Execution) {
        self.events.forget(execution.leaf.events(), execution.token);
        self.bury(Remains::Leaf(execution.leaf));
    }

    fn execution(&mut self, id: &Id, name: &Id) -> Option<&mut Execution> {
        self.sessions.get_mut(id)?.executions.get_mut(name)
    }
}
