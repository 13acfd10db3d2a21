//! The task that owns the socket.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use brig_jailer::api::{Event, HostReport, Make, Request, SessionUsage, Spawn, VERSION};
use brig_jailer::ids::Id;
use brig_jailer::wire;
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::{Held, HeldExecution, Jailer, JailerError, Message};

/// What the task is asked to do.
#[derive(Debug)]
pub(super) enum Command {
    Make(Box<Make>, mpsc::Sender<Message>),
    Spawn(Box<Spawn>, mpsc::Sender<Message>),
    Send(Request),
    Host(oneshot::Sender<HostReport>),
    Ping(oneshot::Sender<()>),
    Usage(Id, oneshot::Sender<Option<SessionUsage>>),
    Reload(oneshot::Sender<Option<String>>),
    /// Told once it is on the socket.
    Late(Late, oneshot::Sender<()>),
}

/// A request that is put together when its turn comes.
pub(super) struct Late(pub(super) Box<dyn FnOnce() -> Request + Send>);

impl std::fmt::Debug for Late {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Late")
    }
}

/// What the task owns.
#[derive(Debug)]
pub(super) struct Connection {
    socket: UnixDatagram,
    /// Packets not yet on the socket; grows by one command at a time, and only while empty.
    outbox: VecDeque<Vec<u8>>,
    /// Told once the outbox is empty.
    sent: Option<oneshot::Sender<()>>,
    routes: HashMap<Id, Route>,
    hosts: VecDeque<oneshot::Sender<HostReport>>,
    pings: VecDeque<oneshot::Sender<()>>,
    usages: VecDeque<oneshot::Sender<Option<SessionUsage>>>,
    reloads: VecDeque<oneshot::Sender<Option<String>>>,
}

/// Where the messages about one session go.
#[derive(Debug)]
struct Route {
    session: mpsc::Sender<Message>,
    executions: HashMap<Id, mpsc::Sender<Message>>,
}

impl Route {
    fn new(session: mpsc::Sender<Message>) -> Self {
        Self {
            session,
            executions: HashMap::new(),
        }
    }
}

impl Connection {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        // tokio has no type for SOCK_SEQPACKET; this one only waits for readiness, the calls are those of `wire`.
        let socket = std::os::unix::net::UnixDatagram::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: UnixDatagram::from_std(socket)?,
            outbox: VecDeque::new(),
            sent: None,
            routes: HashMap::new(),
            hosts: VecDeque::new(),
            pings: VecDeque::new(),
            usages: VecDeque::new(),
            reloads: VecDeque::new(),
        })
    }

    /// Agrees on the protocol; gives the version of the jailer.
    pub(super) async fn greet(&mut self) -> Result<String, JailerError> {
        for packet in wire::packets(&Request::Hello { version: VERSION })? {
            send(&self.socket, Some(&packet)).await?;
        }
        match receive(&self.socket).await?.map(|message| message.event) {
            Some(Event::Hello {
                version: VERSION,
                jailer_version,
            }) => Ok(jailer_version),
            Some(Event::Hello { version, .. }) => Err(JailerError::Version { theirs: version }),
            Some(_) | None => Err(JailerError::Gone),
        }
    }

    /// Takes what outlived the last connection. What happens to it meanwhile waits in its channels.
    pub(super) async fn hear_held(&mut self, jailer: &Jailer) -> Result<Vec<Held>, JailerError> {
        let mut held: Vec<Held> = Vec::new();
        loop {
            let message = receive(&self.socket).await?.ok_or(JailerError::Gone)?;
            match message.event {
                Event::AllHeld => return Ok(held),
                Event::Held(told) => {
                    let (sender, jail) = jailer.jail(told.session.clone());
                    self.routes.insert(told.session.clone(), Route::new(sender));
                    let executions = Vec::new();
                    held.push(Held { told, jail, executions });
                }
                Event::HeldExecution(told) => {
                    let (session, execution) = (told.session.clone(), told.execution.clone());
                    let (sender, process) = jailer.process(session.clone(), execution.clone());
                    let held = held.iter_mut().find(|held| held.told.session == session);
                    let (Some(held), Some(route)) = (held, self.routes.get_mut(&session)) else {
                        warn!(%session, %execution, "jailer told an execution of an unknown session");
                        continue;
                    };
                    if told.end.is_none() {
                        route.executions.insert(execution, sender);
                    }
                    let fds = message.fds;
                    held.executions.push(HeldExecution { told, fds, process });
                }
                _ => self.route(message),
            }
        }
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Command>, gone: CancellationToken) {
        if let Err(error) = self.serve(&mut inbox).await {
            error!(%error, "jailer lost");
        }
        // Everybody who waits reads an end: dropping the routes does it.
        gone.cancel();
    }

    async fn serve(&mut self, inbox: &mut mpsc::Receiver<Command>) -> io::Result<()> {
        loop {
            if self.outbox.is_empty() {
                // Who asked may have stopped waiting.
                self.sent.take().map(|sent| sent.send(()));
            }
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
            Command::Ping(answer) => {
                self.pings.push_back(answer);
                Request::Ping
            }
            Command::Usage(session, answer) => {
                self.usages.push_back(answer);
                Request::Usage { session }
            }
            Command::Reload(answer) => {
                self.reloads.push_back(answer);
                Request::Reload
            }
            Command::Late(request, sent) => {
                self.sent = Some(sent);
                (request.0)()
            }
            Command::Make(make, events) => {
                self.routes.insert(make.session.clone(), Route::new(events));
                Request::Make(*make)
            }
            Command::Spawn(spawn, events) => {
                // Without the session its channel ends at once.
                let Some(route) = self.routes.get_mut(&spawn.session) else {
                    return Ok(());
                };
                route.executions.insert(spawn.execution.clone(), events);
                Request::Spawn(*spawn)
            }
        };
        self.outbox.extend(wire::packets(&request)?);
        Ok(())
    }

    fn route(&mut self, message: Message) {
        let (session, execution, last) = match &message.event {
            // Who asked may have stopped waiting; then nobody misses the answer.
            Event::Host(report) => {
                let answer = self.hosts.pop_front();
                answer.map(|answer| answer.send(report.as_ref().clone()));
                return;
            }
            Event::Pong => {
                let answer = self.pings.pop_front();
                answer.map(|answer| answer.send(()));
                return;
            }
            Event::Usage { usage, .. } => {
                let answer = self.usages.pop_front();
                answer.map(|answer| answer.send(*usage));
                return;
            }
            Event::Reloaded { error } => {
                let answer = self.reloads.pop_front();
                answer.map(|answer| answer.send(error.clone()));
                return;
            }
            Event::Hello { .. } | Event::Held(_) | Event::HeldExecution(_) | Event::AllHeld => {
                return warn!("jailer greeted twice");
            }
            Event::Made { session, .. }
            | Event::Files { session }
            | Event::Paused { session, .. }
            | Event::Taken { session } => (session, None, false),
            Event::Spawned { session, execution, .. } | Event::Lapped { session, execution, .. } => {
                (session, Some(execution), false)
            }
            Event::Ended { session, execution, .. } => (session, Some(execution), true),
            Event::Refused { session, execution, .. } => (session, execution.as_ref(), true),
            Event::Closed { session, .. } => (session, None, true),
        };
        let (session, execution) = (session.clone(), execution.cloned());
        let Some(route) = self.routes.get_mut(&session) else {
            return debug!(%session, "jailer event unclaimed");
        };
        let sender = match &execution {
            None => Some(&route.session),
            Some(execution) => route.executions.get(execution),
        };
        let Some(sender) = sender else {
            return debug!(%session, ?execution, "jailer event unclaimed");
        };
        // A full channel is somebody who stopped listening: they read the end of their channel and give up.
        let over = sender.try_send(message).is_err() || last;
        match execution {
            Some(execution) if over => drop(route.executions.remove(&execution)),
            None if over => drop(self.routes.remove(&session)),
            _ => {}
        }
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
