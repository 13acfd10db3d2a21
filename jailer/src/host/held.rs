//! What outlives a connection: held sessions, the ends that are not recorded yet, and what `brigd` wants to know of both.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::pipe::PipeFlags;

use super::Grace;
use super::events::Timer;
use super::serve::Jailer;
use super::session::{Phase, Session};
use crate::api::{Cause, CloseReason, End, Event, HeldExecution, Input, MEMO_MAX, SESSION_MEMO_MAX, Streams};
use crate::faults::{Point, point};
use crate::ids::Id;
use crate::step::SysError;

/// The most sessions that are over and not recorded; of more, the jailer forgets at random.
const DEPARTED_MAX: usize = 1024;

/// A held session that is over.
#[derive(Debug)]
pub(super) struct Departed {
    session: Session,
    reason: CloseReason,
}

/// How long held sessions wait for a client, and for how many clients they have waited.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    grace: Option<Grace>,
    planned: bool,
    clients: u64,
}

impl Waiting {
    pub(super) fn new(grace: Grace) -> Self {
        Self {
            grace: Some(grace),
            ..Self::default()
        }
    }

    pub(super) fn arrived(&mut self) {
        self.clients += 1;
        self.planned = false;
    }

    /// The number of the client that is there or was the last.
    pub(super) fn clients(&self) -> u64 {
        self.clients
    }

    pub(super) fn planned(&mut self) {
        self.planned = true;
    }

    fn time(&self) -> Option<Duration> {
        let grace = self.grace?;
        Some(if self.planned { grace.handover } else { grace.crash })
    }
}

/// Copies of what came with `Spawned`.
#[derive(Debug, Default)]
pub(super) struct Kept {
    terminal: Option<OwnedFd>,
    stdin: Option<OwnedFd>,
    request: Option<OwnedFd>,
    /// In the order of [`Streams`]: stdout, stderr, frames.
    outputs: Vec<OwnedFd>,
    files: Vec<OwnedFd>,
}

impl Kept {
    /// Copies the descriptors of a started program and of its memory files.
    pub(super) fn copy(streams: Streams, pipes: &[OwnedFd], files: &[OwnedFd]) -> std::io::Result<Self> {
        let mut pipes = pipes.iter().map(OwnedFd::try_clone);
        let mut take = |present: bool| if present { pipes.next().transpose() } else { Ok(None) };
        let (terminal, stdin) = (take(streams.terminal)?, take(streams.stdin)?);
        let (stdout, stderr) = (take(streams.stdout)?, take(streams.stderr)?);
        let (request, frames) = (take(streams.request)?, take(streams.frames)?);
        Ok(Self {
            terminal,
            stdin,
            request,
            outputs: [stdout, stderr, frames].into_iter().flatten().collect(),
            files: files.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>()?,
        })
    }

    /// Everything again, for the next client, and which streams are there.
    fn again(&self, streams: Streams) -> std::io::Result<(Streams, Vec<OwnedFd>)> {
        let both = usize::from(streams.stdout) + usize::from(streams.stderr);
        let (outputs, frames) = self.outputs.split_at(both.min(self.outputs.len()));
        let fds = self
            .terminal
            .iter()
            .chain(&self.stdin)
            .chain(outputs)
            .chain(&self.request)
            .chain(frames)
            .chain(&self.files);
        let streams = Streams {
            stdin: self.stdin.is_some(),
            request: self.request.is_some(),
            ..streams
        };
        Ok((streams, fds.map(OwnedFd::try_clone).collect::<Result<_, _>>()?))
    }
}

/// Makes the memory files of an execution: one for each stream, and the journal; and the pipes of a terminal.
pub(super) fn memory_files(streams: Streams) -> Result<Vec<OwnedFd>, SysError> {
    let (plain, sealable) = (MemfdFlags::CLOEXEC, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let named = [
        ("brig-stdin", streams.input, sealable),
        ("brig-stdout", streams.stdout || streams.terminal, plain),
        ("brig-stderr", streams.stderr, plain),
        ("brig-frames", streams.frames, plain),
        ("brig-journal", true, plain),
    ];
    let mut files = Vec::new();
    for (name, _, flags) in named.into_iter().filter(|(_, present, _)| *present) {
        let made = rustix::fs::memfd_create(name, flags);
        files.push(made.map_err(|error| SysError::new(format!("memfd_create({name:?})"), error.raw_os_error()))?);
    }
    for _ in 0..if streams.terminal { 2 } else { 0 } {
        let made = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
        let (read, write) = made.map_err(|error| SysError::new("pipe2()", error.raw_os_error()))?;
        files.extend([read, write]);
    }
    Ok(files)
}

impl Jailer {
    /// Tells a new client all that was held for it.
    pub(super) fn tell_held(&mut self) {
        point(Point::JailerClientBack);
        let up = |session: &&Session| session.held && session.phase != Phase::Starting;
        let mut told: Vec<(Event, Vec<OwnedFd>)> = Vec::new();
        for session in self.sessions.values().filter(up) {
            session.tell_all(&mut told);
        }
        for (id, departed) in &self.departed {
            departed.session.tell_all(&mut told);
            let closed = Event::Closed {
                session: id.clone(),
                reason: departed.reason,
            };
            told.push((closed, Vec::new()));
        }
        told.push((Event::AllHeld, Vec::new()));
        if let Some(client) = &mut self.client
            && client.send_all(&self.events, told).is_err()
        {
            self.client_gone();
        }
    }

    /// Tells how a session or something in it ended, if the client knows of it.
    pub(super) fn tell_about(&mut self, id: &Id, event: Event) {
        let knows = |session: &Session| session.held || session.client == self.grace.clients;
        if self.sessions.get(id).is_some_and(knows) {
            self.tell(event, Vec::new());
        }
    }

    /// Nobody is there who could want the sessions, but for those that the next client wants.
    pub(super) fn client_gone(&mut self) {
        let Some(client) = self.client.take() else { return };
        client.disconnect(&mut self.events);
        point(Point::JailerClientGone);
        let Some(time) = self.grace.time() else {
            self.departed.clear();
            return self.close_all();
        };
        let mut unwanted = Vec::new();
        for (id, session) in &mut self.sessions {
            if session.held && session.phase != Phase::Starting {
                session.end_what_nobody_knows();
                session.forget_helper();
            } else {
                unwanted.push(id.clone());
            }
        }
        for id in unwanted {
            self.close(&id, CloseReason::Asked);
        }
        tracing::info!(held = self.sessions.len(), seconds = time.as_secs(), "client gone");
        self.events.after(time, Timer::Grace(self.grace.clients));
    }

    /// The time of grace is over, unless a client came meanwhile.
    pub(super) fn grace_over(&mut self, clients: u64) {
        if self.client.is_some() || clients != self.grace.clients {
            return;
        }
        self.departed.clear();
        let ids: Vec<Id> = self.sessions.keys().cloned().collect();
        for id in ids {
            tracing::warn!(session = %id, "no client came back for it");
            self.close(&id, CloseReason::Abandoned);
        }
    }

    /// Keeps a session that is over, and what it has to tell, until that is recorded.
    pub(super) fn depart(&mut self, id: Id, session: Session, reason: CloseReason) {
        let wanted = session.held && session.was_told && reason != CloseReason::Abandoned;
        if !wanted || (self.client.is_none() && self.grace.grace.is_none()) {
            return;
        }
        if self.departed.len() >= DEPARTED_MAX
            && let Some(other) = self.departed.keys().next().cloned()
        {
            self.departed.remove(&other);
        }
        self.departed.insert(id, Departed { session, reason });
    }

    pub(super) fn forget(&mut self, id: &Id, execution: Option<&Id>) {
        match execution {
            None => drop(self.departed.remove(id)),
            Some(name) => {
                let departed = self.departed.get_mut(id).map(|departed| &mut departed.session);
                if let Some(session) = self.sessions.get_mut(id).or(departed) {
                    session.ended.remove(name);
                }
            }
        }
    }

    /// Replaces a memo. What is too large is a fault of the client that it finds out when it comes back.
    pub(super) fn note(&mut self, id: &Id, execution: Option<&Id>, memo: Vec<u8>) {
        let most = if execution.is_some() {
            MEMO_MAX
        } else {
            SESSION_MEMO_MAX
        };
        let Some(session) = self.sessions.get_mut(id).filter(|_| memo.len() <= most) else {
            // Its session is gone, for one.
            return tracing::debug!(session = %id, bytes = memo.len(), "memo not kept");
        };
        match execution {
            None => session.memo = memo,
            Some(name) => {
                if let Some(running) = session.executions.get_mut(name) {
                    running.told.memo = memo;
                } else if let Some(ended) = session.ended.get_mut(name) {
                    ended.told.memo = memo;
                }
            }
        }
    }

    pub(super) fn close_input(&mut self, id: &Id, name: &Id, input: Input) {
        let execution = self
            .sessions
            .get_mut(id)
            .and_then(|session| session.executions.get_mut(name));
        if let Some(execution) = execution {
            let kept = &mut execution.told.kept;
            drop(match input {
                Input::Stdin => kept.stdin.take(),
                Input::Request => kept.request.take(),
            });
        }
    }
}

/// What is told about an execution to the next client.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) memo: Vec<u8>,
    pub(super) streams: Streams,
    /// 0 until the program runs.
    pub(super) pid: u32,
    pub(super) started: Instant,
    pub(super) kept: Kept,
}

/// An execution that is over, of a held session.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) told: Told,
    /// How long it ran.
    pub(super) ran: Duration,
    pub(super) end: End,
}

impl Session {
    fn tell_all(&self, told: &mut Vec<(Event, Vec<OwnedFd>)>) {
        told.push((Event::Held(Box::new(self.description())), Vec::new()));
        let running = self.executions.iter().map(|(name, execution)| {
            (
                name,
                &execution.told,
                None,
                self.time_left(execution),
                self.now().saturating_duration_since(execution.told.started),
            )
        });
        let ended = self
            .ended
            .iter()
            .map(|(name, ended)| (name, &ended.told, Some(ended.end), None, ended.ran));
        for (name, execution, end, left, age) in running.chain(ended) {
            match execution.kept.again(execution.streams) {
                Ok((streams, fds)) => {
                    let held = HeldExecution {
                        session: self.id.clone(),
                        execution: name.clone(),
                        memo: execution.memo.clone(),
                        pid: execution.pid,
                        streams,
                        age_ms: millis(age),
                        left_ms: left.map(millis),
                        end,
                    };
                    told.push((Event::HeldExecution(Box::new(held)), fds));
                }
                // Without it, the client takes the execution for lost.
                Err(error) => tracing::error!(session = %self.id, execution = %name, %error, "execution not told"),
            }
        }
    }

    /// A program whose start the client did not hear of is not wanted: nobody reads what it writes.
    fn end_what_nobody_knows(&mut self) {
        for (name, execution) in self
            .executions
            .iter_mut()
            .filter(|(_, execution)| execution.told.pid == 0)
        {
            execution.cause.get_or_insert(Cause::Internal);
            if let Err(error) = execution.kill() {
                tracing::error!(session = %self.id, execution = %name, %error, "execution could not be killed");
            }
        }
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
