//! The connection to brig-jailer.
//!
//! One task owns the socket. Requests reach it by a bounded channel and leave in order; what the jailer says about a
//! session goes to the bounded channel of that session ([`Jail`]), what it says about an execution to the one of that
//! execution ([`Process`]), so that nobody waits for another. When the socket ends, every such channel ends: who reads
//! the end of its channel is lost, and so is the daemon's use.
//!
//! What outlived the last connection is told before anything else ([`Held`]).

mod connection;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use brig_jailer::api::{self, Event, HostReport, Input, Make, Request, SessionUsage, Spawn, VERSION};
use brig_jailer::ids::Id;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use connection::{Command, Connection, Late};

/// What the jailer may say about one session before somebody listens; it is asked for each but the last.
const SESSION_EVENTS: usize = 8;
/// What the jailer may say about one execution: that it runs, and how it ended.
const EXECUTION_EVENTS: usize = 4;
/// Requests that wait for the socket.
const REQUESTS: usize = 64;
/// How long the jailer may take for what it answers at once.
const ANSWER: Duration = Duration::from_secs(10);

/// Talks to brig-jailer; cheap to clone.
#[derive(Debug, Clone)]
pub struct Jailer {
    commands: mpsc::Sender<Command>,
    /// Cancelled when the jailer can't be reached any more.
    gone: CancellationToken,
    version: Arc<str>,
}

/// One session as the jailer knows it.
#[derive(Debug)]
pub struct Jail {
    id: Id,
    jailer: Jailer,
    events: mpsc::Receiver<Message>,
    /// Whether the jailer said that nothing is left.
    closed: bool,
}

/// One execution as the jailer knows it.
#[derive(Debug)]
pub struct Process {
    session: Id,
    execution: Id,
    jailer: Jailer,
    events: mpsc::Receiver<Message>,
}

/// A session that outlived the last connection, with its executions.
#[derive(Debug)]
pub struct Held {
    pub told: Box<api::Held>,
    pub jail: Jail,
    pub executions: Vec<HeldExecution>,
}

/// An execution of a session that outlived the last connection.
#[derive(Debug)]
pub struct HeldExecution {
    pub told: Box<api::HeldExecution>,
    pub fds: Vec<OwnedFd>,
    pub process: Process,
}

/// Something the jailer said, with the descriptors that came along.
#[derive(Debug)]
pub struct Message {
    pub event: Event,
    pub fds: Vec<OwnedFd>,
}

/// Why the jailer did not do something.
#[derive(Debug, thiserror::Error)]
pub enum JailerError {
    /// The connection ended.
    #[error("brig-jailer is gone")]
    Gone,
    /// It did not answer in time.
    #[error("brig-jailer did not answer within {} s", ANSWER.as_secs())]
    Silent,
    /// It speaks another version of the protocol.
    #[error("brig-jailer speaks version {theirs} of the protocol, brigd {VERSION}: install both from one release")]
    Version { theirs: u32 },
    /// It can't be reached at all.
    #[error("{0}")]
    Unreachable(#[from] io::Error),
}

/// Connects to the socket of a jailer that runs as a service.
pub fn dial(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

impl Jailer {
    /// Agrees on the version, hears what is held, and starts the task that owns the socket.
    pub async fn start(socket: OwnedFd) -> Result<(Self, Vec<Held>), JailerError> {
        let mut connection = Connection::new(socket)?;
        let (commands, inbox) = mpsc::channel(REQUESTS);
        let gone = CancellationToken::new();
        let greeting = async {
            let version = connection.greet().await?;
            let jailer = Self {
                commands,
                gone: gone.clone(),
                version: version.into(),
            };
            let held = connection.hear_held(&jailer).await?;
            Ok((jailer, held))
        };
        let started = tokio::time::timeout(ANSWER, greeting)
            .await
            .unwrap_or(Err(JailerError::Silent))?;
        tokio::spawn(connection.run(inbox, gone));
        Ok(started)
    }

    /// Asks for a session; `Made` or `Refused` arrives as its first event.
    pub async fn make(&self, make: Make) -> Result<Jail, JailerError> {
        let (sender, jail) = self.jail(make.session.clone());
        self.command(Command::Make(Box::new(make), sender)).await?;
        Ok(jail)
    }

    /// Asks for a program in a session; `Spawned` or `Refused` arrives as its first event.
    pub async fn spawn(&self, spawn: Spawn) -> Result<Process, JailerError> {
        let (sender, process) = self.process(spawn.session.clone(), spawn.execution.clone());
        self.command(Command::Spawn(Box::new(spawn), sender)).await?;
        Ok(process)
    }

    /// Sends a request that has no answer, or one that comes by the events of a session or an execution.
    pub async fn ask(&self, request: Request) -> Result<(), JailerError> {
        self.command(Command::Send(request)).await
    }

    /// Sends a request that is put together when its turn comes, so that of several the last one says the latest. Returns
    /// when it is on its way.
    pub async fn ask_late(&self, request: impl FnOnce() -> Request + Send + 'static) -> Result<(), JailerError> {
        self.answered(|sent| Command::Late(Late(Box::new(request)), sent)).await
    }

    /// Asks what the host can enforce.
    pub async fn host(&self) -> Result<HostReport, JailerError> {
        self.answered(Command::Host).await
    }

    /// Asks for a sign of life.
    pub async fn ping(&self) -> Result<(), JailerError> {
        self.answered(Command::Ping).await
    }

    /// Asks what a session uses; none where there is no such session any more.
    pub async fn usage(&self, session: Id) -> Result<Option<SessionUsage>, JailerError> {
        self.answered(|answer| Command::Usage(session, answer)).await
    }

    /// Has policies read again; gives the first error, and then everything is as it was.
    pub async fn reload(&self) -> Result<Option<String>, JailerError> {
        self.answered(Command::Reload).await
    }

    /// Says that this brigd is about to end on purpose, and waits until that is on its way.
    pub async fn hand_over(&self) -> Result<(), JailerError> {
        self.ask_late(|| Request::Handover).await
    }

    /// The version of brig-jailer, for people.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Ends when the jailer is gone.
    pub async fn gone(&self) {
        self.gone.cancelled().await;
    }

    /// Whether the jailer is gone.
    pub fn is_gone(&self) -> bool {
        self.gone.is_cancelled()
    }

    async fn answered<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, JailerError> {
        let (sender, answer) = oneshot::channel();
        self.command(command(sender)).await?;
        let answer = tokio::time::timeout(ANSWER, answer)
            .await
            .map_err(|_elapsed| JailerError::Silent)?;
        answer.map_err(|_closed| JailerError::Gone)
    }

    async fn command(&self, command: Command) -> Result<(), JailerError> {
        self.commands.send(command).await.map_err(|_closed| JailerError::Gone)
    }

    fn jail(&self, id: Id) -> (mpsc::Sender<Message>, Jail) {
        let (sender, events) = mpsc::channel(SESSION_EVENTS);
        let jailer = self.clone();
        let jail = Jail {
            id,
            jailer,
            events,
            closed: false,
        };
        (sender, jail)
    }

    fn process(&self, session: Id, execution: Id) -> (mpsc::Sender<Message>, Process) {
        let (sender, events) = mpsc::channel(EXECUTION_EVENTS);
        let process = Process {
            session,
            execution,
            jailer: self.clone(),
            events,
        };
        (sender, process)
    }
}

impl Jail {
    /// The name of the session.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The jailer that made it.
    pub fn jailer(&self) -> &Jailer {
        &self.jailer
    }

    /// Sends a request about this session.
    pub async fn ask(&self, request: Request) -> Result<(), JailerError> {
        self.jailer.ask(request).await
    }

    /// What the jailer says next about this session; `None` when the jailer is gone or has said its last.
    pub async fn next(&mut self) -> Option<Message> {
        let message = self.events.recv().await;
        self.note(message.as_ref());
        message
    }

    fn note(&mut self, message: Option<&Message>) {
        self.closed |= message.is_some_and(|message| matches!(message.event, Event::Closed { .. }));
    }

    /// What the jailer has said about this session already.
    pub fn said(&mut self) -> Option<Message> {
        let message = self.events.try_recv().ok();
        self.note(message.as_ref());
        message
    }

    /// Whether the jailer said that nothing of the session is left.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Ends the jail and waits until nothing of it is left. False if that was not confirmed within `deadline`.
    pub async fn close(&mut self, deadline: Duration) -> bool {
        let closing = async {
            // Harmless where the jail closed by itself meanwhile.
            let asked = self
                .ask(Request::Close {
                    session: self.id.clone(),
                })
                .await;
            while !self.closed && asked.is_ok() && self.next().await.is_some() {}
        };
        // Whether the time ran out is seen from what was said.
        let _ = tokio::time::timeout(deadline, closing).await;
        self.closed
    }
}

impl Process {
    /// The jailer that it runs by.
    pub fn jailer(&self) -> &Jailer {
        &self.jailer
    }

    /// The name of the execution.
    pub fn id(&self) -> &Id {
        &self.execution
    }

    /// What the jailer says next about this execution; `None` when it has said its last, or the session or the jailer
    /// is gone.
    pub async fn next(&mut self) -> Option<Message> {
        self.events.recv().await
    }

    /// What the jailer has said about this execution already.
    pub fn said(&mut self) -> Option<Message> {
        self.events.try_recv().ok()
    }

    /// Kills all of its processes; `Ended` follows.
    pub async fn kill(&self) {
        self.tell(|session, execution| Request::Kill { session, execution })
            .await;
    }

    /// Sends a signal to its main process.
    pub async fn signal(&self, signal: i32) {
        self.tell(|session, execution| Request::Signal {
            session,
            execution,
            signal,
            group: false,
        })
        .await;
    }

    /// Begins another part of its life: with a wall time if it has something to run, else `Lapped` follows.
    pub async fn lap(&self, timeout_ms: Option<u64>) {
        self.tell(|session, execution| Request::Lap {
            session,
            execution,
            timeout_ms,
        })
        .await;
    }

    /// Lets the jailer close its copy of a way into the program.
    pub async fn close_input(&self, input: Input) {
        self.tell(|session, execution| Request::CloseInput {
            session,
            execution,
            input,
        })
        .await;
    }

    /// Lets the jailer forget it: its end is recorded. Returns when that is on its way: whoever is told next that it is no more
    /// shall not find it again after a crash of this daemon.
    pub async fn forget(&self) {
        let (session, execution) = (self.session.clone(), Some(self.execution.clone()));
        // A jailer that is gone has forgotten everything.
        if let Err(error) = self.jailer.ask_late(|| Request::Forget { session, execution }).await {
            debug!(%error, "request not sent");
        }
    }

    async fn tell(&self, request: impl FnOnce(Id, Id) -> Request) {
        let request = request(self.session.clone(), self.execution.clone());
        // A jailer that is gone shows in the events.
        if let Err(error) = self.jailer.ask(request).await {
            debug!(%error, "request not sent");
        }
    }
}
