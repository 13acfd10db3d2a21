//! The connection to brig-jailer.
//!
//! One task owns the socket. Requests reach it by a bounded channel and leave in order; what the jailer says about a
//! session goes to the bounded channel of that session, so that no session waits for another. When the socket ends,
//! every such channel ends: a session that reads the end of its channel is lost, and so is the daemon's use.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use brig_jailer::api::{Event, HostReport, Make, Request, VERSION};
use brig_jailer::ids::Id;
use brig_jailer::wire;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

/// What the jailer may say about one session before somebody listens. A one-shot session has at most four messages.
const EVENTS_PER_SESSION: usize = 16;
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

#[derive(Debug)]
enum Command {
    Make {
        make: Box<Make>,
        events: mpsc::Sender<Message>,
    },
    Send(Request),
    Host(oneshot::Sender<HostReport>),
    Reload(oneshot::Sender<Option<String>>),
}

/// Connects to the socket of a jailer that runs as a service.
pub fn dial(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

impl Jailer {
    /// Agrees on the version and starts the task that owns the socket.
    pub async fn start(socket: OwnedFd) -> Result<Self, JailerError> {
        // tokio has no type for SOCK_SEQPACKET; this one only waits for readiness, the calls are those of `wire`.
        let socket = std::os::unix::net::UnixDatagram::from(socket);
        socket.set_nonblocking(true)?;
        let socket = UnixDatagram::from_std(socket)?;
        let version = tokio::time::timeout(ANSWER, greet(&socket))
            .await
            .map_err(|_elapsed| JailerError::Silent)??;
        let (commands, inbox) = mpsc::channel(REQUESTS);
        let gone = CancellationToken::new();
        let connection = Connection {
            socket,
            outbox: VecDeque::new(),
            routes: HashMap::new(),
            hosts: VecDeque::new(),
            reloads: VecDeque::new(),
        };
        tokio::spawn(connection.run(inbox, gone.clone()));
        Ok(Self {
            commands,
            gone,
            version: version.into(),
        })
    }

    /// Asks for a session; `Made` or `Refused` arrives as its first event.
    pub async fn make(&self, make: Make) -> Result<Jail, JailerError> {
        let (sender, events) = mpsc::channel(EVENTS_PER_SESSION);
        let id = make.session.clone();
        self.command(Command::Make {
            make: Box::new(make),
            events: sender,
        })
        .await?;
        Ok(Jail {
            id,
            jailer: self.clone(),
            events,
            closed: false,
        })
    }

    /// Asks what the host can enforce.
    pub async fn host(&self) -> Result<HostReport, JailerError> {
        let (answer, report) = oneshot::channel();
        self.command(Command::Host(answer)).await?;
        let report = tokio::time::timeout(ANSWER, report)
            .await
            .map_err(|_elapsed| JailerError::Silent)?;
        report.map_err(|_closed| JailerError::Gone)
    }

    /// Has the jailer read its configuration again; gives why it did not take it, if it did not.
    pub async fn reload(&self) -> Result<Option<String>, JailerError> {
        let (answer, refusal) = oneshot::channel();
        self.command(Command::Reload(answer)).await?;
        let refusal = tokio::time::timeout(ANSWER, refusal)
            .await
            .map_err(|_elapsed| JailerError::Silent)?;
        refusal.map_err(|_closed| JailerError::Gone)
    }

    /// The version of brig-jailer, for people.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Ends when the jailer is gone.
    pub async fn gone(&self) {
        self.gone.cancelled().await;
    }

    async fn command(&self, command: Command) -> Result<(), JailerError> {
        self.commands.send(command).await.map_err(|_closed| JailerError::Gone)
    }
}

impl Jail {
    /// The name of the session.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Sends a request about this session.
    pub async fn ask(&self, request: Request) -> Result<(), JailerError> {
        self.jailer.command(Command::Send(request)).await
    }

    /// What the jailer says next about this session; `None` when the jailer is gone or has said its last.
    pub async fn next(&mut self) -> Option<Message> {
        let message = self.events.recv().await;
        self.closed |= matches!(
            &message,
            Some(Message {
                event: Event::Closed { .. },
                ..
            })
        );
        message
    }

    /// Ends the jail and waits until nothing of it is left. False if that was not confirmed within `deadline`.
    pub async fn close(mut self, deadline: Duration) -> bool {
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

/// What the task owns.
#[derive(Debug)]
struct Connection {
    socket: UnixDatagram,
    /// Packets not yet on the socket; grows by one command at a time, and only while empty.
    outbox: VecDeque<Vec<u8>>,
    routes: HashMap<Id, mpsc::Sender<Message>>,
    hosts: VecDeque<oneshot::Sender<HostReport>>,
    reloads: VecDeque<oneshot::Sender<Option<String>>>,
}

impl Connection {
    async fn run(mut self, mut inbox: mpsc::Receiver<Command>, gone: CancellationToken) {
        if let Err(error) = self.serve(&mut inbox).await {
            error!(%error, "jailer lost");
        }
        // Everybody who waits reads an end: dropping the routes does it.
        gone.cancel();
    }

    async fn serve(&mut self, inbox: &mut mpsc::Receiver<Command>) -> io::Result<()> {
        loop {
            tokio::select! {
                command = inbox.recv(), if self.outbox.is_empty() => match command {
                    Some(command) => self.accept(command)?,
                    None => return Ok(()),
                },
                sent = send(&self.socket, self.outbox.front().map(Vec::as_slice)), if !self.outbox.is_empty() => {
                    sent?;
                    self.outbox.pop_front();
                }
                received = receive(&self.socket) => match received? {
                    Some(message) => self.route(message),
                    None => return Err(io::ErrorKind::UnexpectedEof.into()),
                },
            }
        }
    }

    fn accept(&mut self, command: Command) -> io::Result<()> {
        let request = match command {
            Command::Send(request) => request,
            Command::Host(answer) => {
                self.hosts.push_back(answer);
                Request::Host
            }
            Command::Reload(answer) => {
                self.reloads.push_back(answer);
                Request::Reload
            }
            Command::Make { make, events } => {
                self.routes.insert(make.session.clone(), events);
                Request::Make(*make)
            }
        };
        self.outbox.extend(wire::packets(&request)?);
        Ok(())
    }

    fn route(&mut self, message: Message) {
        let (session, last) = match &message.event {
            Event::Host(report) => {
                let answer = self.hosts.pop_front();
                // Who asked may have stopped waiting; then nobody misses the answer.
                answer.map(|answer| answer.send(report.as_ref().clone()));
                return;
            }
            Event::Reloaded { error } => {
                let answer = self.reloads.pop_front();
                answer.map(|answer| answer.send(error.clone()));
                return;
            }
            Event::Hello { .. } => return warn!("jailer greeted twice"),
            Event::Held(_) | Event::HeldExecution(_) | Event::AllHeld | Event::Files { .. } => {
                return debug!("jailer event unclaimed");
            }
            Event::Made { session, .. }
            | Event::Spawned { session, .. }
            | Event::Lapped { session, .. }
            | Event::Paused { session, .. }
            | Event::Ended { session, .. } => (session.clone(), false),
            Event::Refused { session, execution, .. } => (session.clone(), execution.is_none()),
            Event::Closed { session, .. } => (session.clone(), true),
        };
        let Some(route) = self.routes.get(&session) else {
            return debug!(%session, "jailer event unclaimed");
        };
        let delivered = route.try_send(message);
        if last || delivered.is_err() {
            // A full channel is a session that stopped listening: it reads the end of its channel and gives up.
            self.routes.remove(&session);
        }
    }
}

/// Agrees on the protocol; gives the version of the jailer.
async fn greet(socket: &UnixDatagram) -> Result<String, JailerError> {
    for packet in wire::packets(&Request::Hello { version: VERSION })? {
        send(socket, Some(&packet)).await?;
    }
    match receive(socket).await? {
        Some(Message {
            event: Event::Hello {
                version: VERSION,
                jailer_version,
            },
            ..
        }) => Ok(jailer_version),
        Some(Message {
            event: Event::Hello { version, .. },
            ..
        }) => Err(JailerError::Version { theirs: version }),
        Some(_) | None => Err(JailerError::Gone),
    }
}

/// Sends one packet once the socket takes it; a cancelled call has sent nothing.
async fn send(socket: &UnixDatagram, packet: Option<&[u8]>) -> io::Result<()> {
    let Some(packet) = packet else { return Ok(()) };
    socket
        .async_io(Interest::WRITABLE, || {
            again(|| wire::send_bytes(socket.as_fd(), packet))
        })
        .await
}

/// Receives one message; a cancelled call has received nothing.
async fn receive(socket: &UnixDatagram) -> io::Result<Option<Message>> {
    let received = socket
        .async_io(Interest::READABLE, || again(|| wire::receive::<Event>(socket.as_fd())))
        .await?;
    Ok(received.map(|(event, fds)| Message { event, fds }))
}

/// Calls again where a signal came in between.
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
