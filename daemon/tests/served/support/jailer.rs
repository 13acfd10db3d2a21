//! The stand-in for brig-jailer: programs without jails, and as much of the contract as brigd can see.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use brig_jailer::api::{
    self, Cause, CloseReason, End, Enforced, Event, Exit, Input, Make, Refusal, Request, SessionUsage, Spawn, Streams,
    Usage, VERSION, Work,
};
use brig_jailer::ids::Id;
use brig_jailer::step::{Step, StepError, SysError};
use brig_jailer::wire;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::helper::Helper;

/// The kernel of the stand-in: prints how much came before the end of the request, then shows a result.
const KERNEL: &str = r#"
exec 3<&0 4>&2 0</dev/null 2>&1
cat <&3 | wc -c
printf '\065\000\000\000{"ev":"result","main":true,"data":{"text/plain":"x"}}' >&4
printf '\015\000\000\000{"ev":"done"}' >&4
"#;
/// One that never reads its request.
const DEAF_KERNEL: &str = "exec sleep 60";
/// One that says something and then waits.
const WAITING_KERNEL: &str = "exec 2>&1; echo waiting; exec sleep 60";

/// What the stand-in does unlike a jailer that works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Works,
    RefusesToMake,
    NeverAnswersMake,
    DiesAtSpawn,
    DiesAfterSpawn,
    KernelNeverReads,
    KernelWaits,
    /// Says only 300 ms later that a program was started.
    TellsSpawnLate,
    /// Closes the session in the place of starting a program.
    ClosesAtSpawn,
    /// Its first file helper of each session ends at the first request; the others work.
    FirstHelperDies,
    /// All of its file helpers do.
    HelpersDie,
}

/// A jailer without jails.
#[derive(Debug)]
pub(crate) struct StandIn {
    behaviour: Behaviour,
    state: Mutex<State>,
    /// Jails that exist.
    pub(crate) jails: AtomicUsize,
    pub(crate) files: Arc<Helper>,
}

#[derive(Debug, Default)]
struct State {
    client: Option<Arc<OwnedFd>>,
    sessions: HashMap<Id, Session>,
}

/// A session, until it is forgotten.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) make: Make,
    made: Instant,
    pub(crate) programs: HashMap<Id, Program>,
    pub(crate) closing: Option<CloseReason>,
    pub(crate) closed: bool,
}

/// A program, until it is forgotten.
#[derive(Debug)]
pub(crate) struct Program {
    group: Pid,
    cause: Option<Cause>,
    pub(crate) end: Option<End>,
    pub(crate) memo: Vec<u8>,
    /// The wall time that it is said to have left.
    pub(crate) left_ms: Option<u64>,
    /// Whether brigd was not told that it runs.
    pub(crate) untold: bool,
    streams: Streams,
    started: Instant,
    stdin: Option<OwnedFd>,
    request: Option<OwnedFd>,
    /// The far ends of what it writes, then the memory files.
    kept: Vec<OwnedFd>,
}

impl StandIn {
    /// Starts it; the socket is for brigd.
    pub(crate) fn start(behaviour: Behaviour) -> (Arc<Self>, OwnedFd) {
        let jailer = Arc::new(Self {
            behaviour,
            state: Mutex::default(),
            jails: AtomicUsize::new(0),
            files: Arc::default(),
        });
        let socket = jailer.connect();
        (jailer, socket)
    }

    /// Makes a connection for another brigd.
    pub(crate) fn connect(self: &Arc<Self>) -> OwnedFd {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (jailer, ours) = (Arc::clone(self), Arc::new(ours));
        std::thread::spawn(move || {
            jailer.serve(&ours);
            jailer.client_gone(&ours);
        });
        theirs
    }

    /// Looks at a session.
    pub(crate) fn with_session<T>(&self, id: &str, look: impl FnOnce(Option<&mut Session>) -> T) -> T {
        look(self.lock().sessions.get_mut(&Id::parse(id).unwrap()))
    }

    /// Ends all programs.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        let programs = state
            .sessions
            .values_mut()
            .flat_map(|session| session.programs.values_mut());
        programs.for_each(|program| program.kill(Cause::Internal));
    }

    fn serve(self: &Arc<Self>, socket: &Arc<OwnedFd>) {
        let mut receiver = wire::Receiver::default();
        while let Ok(Some(request)) = receiver.receive::<Request>(socket.as_fd()) {
            match request {
                Request::Hello { .. } => self.greet(socket),
                Request::Make(make) => self.make(make),
                Request::Spawn(_) if self.behaviour == Behaviour::DiesAtSpawn => {
                    return rustix::net::shutdown(socket, rustix::net::Shutdown::Both).unwrap();
                }
                Request::Spawn(spawn) if self.behaviour == Behaviour::ClosesAtSpawn => {
                    self.close(&spawn.session, CloseReason::Died);
                }
                Request::Spawn(spawn) => {
                    self.spawn(spawn);
                    if self.behaviour == Behaviour::DiesAfterSpawn {
                        return rustix::net::shutdown(socket, rustix::net::Shutdown::Both).unwrap();
                    }
                }
                Request::Kill { session, execution } => self.kill(&session, &execution, Cause::Asked),
                Request::Signal {
                    session,
                    execution,
                    signal,
                    ..
                } => self.with_program(&session, &execution, |program| {
                    let _ = killpg(program.group, Signal::try_from(signal).unwrap());
                }),
                Request::CloseInput {
                    session,
                    execution,
                    input,
                } => self.with_program(&session, &execution, |program| match input {
                    Input::Stdin => program.stdin = None,
                    Input::Request => program.request = None,
                }),
                Request::Close { session } => self.close(&session, CloseReason::Asked),
                Request::Files { session } => self.replace_helper(session),
                Request::Memo {
                    session,
                    execution,
                    memo,
                } => self.note(&session, execution.as_ref(), memo),
                Request::Forget { session, execution } => self.forget(&session, execution.as_ref()),
                Request::Handover | Request::Reload | Request::Lap { .. } => {}
                Request::Pause { session, paused } => self.tell(&Event::Paused { session, paused }, &[]),
                Request::Ping => self.tell(&Event::Pong, &[]),
                Request::Usage { session } => {
                    let usage = Some(SessionUsage::default());
                    self.tell(&Event::Usage { session, usage }, &[]);
                }
                Request::Take { session, .. } => self.tell(&Event::Taken { session }, &[]),
                Request::Host => self.tell(&Event::Host(Box::default()), &[]),
            }
        }
    }

    fn greet(&self, socket: &Arc<OwnedFd>) {
        let hello = Event::Hello {
            version: VERSION,
            jailer_version: "stand-in".to_owned(),
        };
        // Whatever ends meanwhile is told behind it.
        let mut state = self.lock();
        send(socket.as_fd(), &hello, &[]);
        for (id, session) in &state.sessions {
            session.tell(id, socket.as_fd());
        }
        send(socket.as_fd(), &Event::AllHeld, &[]);
        state.client = Some(Arc::clone(socket));
    }

    /// Whether all that brigd has asked for is done, and it is gone.
    pub(crate) fn is_alone(&self) -> bool {
        self.lock().client.is_none()
    }

    fn client_gone(self: &Arc<Self>, socket: &Arc<OwnedFd>) {
        let mut state = self.lock();
        if state.client.as_ref().is_some_and(|client| Arc::ptr_eq(client, socket)) {
            state.client = None;
        }
        let unwanted: Vec<Id> = state
            .sessions
            .iter()
            .filter(|(_, session)| !session.make.held)
            .map(|(id, _)| id.clone())
            .collect();
        drop(state);
        unwanted.iter().for_each(|id| self.close(id, CloseReason::Asked));
    }

    fn tell(&self, event: &Event, fds: &[BorrowedFd<'_>]) {
        let client = self.lock().client.clone();
        if let Some(client) = client {
            send(client.as_fd(), event, fds);
        }
    }

    fn make(self: &Arc<Self>, make: Make) {
        let session = make.session.clone();
        match self.behaviour {
            Behaviour::NeverAnswersMake => {}
            Behaviour::RefusesToMake => {
                let source = SysError::new("mount(\"/proc\")", 1);
                let refusal = Refusal::Step(StepError {
                    step: Step::Mounts,
                    source,
                });
                let refused = Event::Refused {
                    session,
                    execution: None,
                    refusal,
                };
                self.tell(&refused, &[]);
            }
            _ => {
                self.jails.fetch_add(1, Ordering::SeqCst);
                let made = Session {
                    make,
                    made: Instant::now(),
                    programs: HashMap::new(),
                    closing: None,
                    closed: false,
                };
                self.lock().sessions.insert(session.clone(), made);
                let dies = matches!(self.behaviour, Behaviour::FirstHelperDies | Behaviour::HelpersDie);
                let helper = self.helper(dies);
                let enforced = enforced();
                self.tell(&Event::Made { session, enforced }, &[helper.as_fd()]);
            }
        }
    }

    fn replace_helper(&self, session: Id) {
        let helper = self.helper(self.behaviour == Behaviour::HelpersDie);
        self.tell(&Event::Files { session }, &[helper.as_fd()]);
    }

    fn helper(&self, dies: bool) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let files = Arc::clone(&self.files);
        std::thread::spawn(move || files.serve(ours, dies));
        theirs
    }

    fn spawn(self: &Arc<Self>, spawn: Spawn) {
        let is_kernel = spawn.work == Work::Kernel;
        let mut child = self.child(&spawn);
        if self.behaviour == Behaviour::TellsSpawnLate {
            std::thread::sleep(Duration::from_millis(300));
        }
        let pid = child.id();
        let streams = Streams {
            terminal: false,
            stdin: spawn.stdin,
            input: spawn.stdin,
            stdout: true,
            stderr: !is_kernel,
            request: is_kernel,
            frames: is_kernel,
        };
        // The request of a kernel goes in by its stdin and the frames come out by its stderr.
        let (first, second) = (child.stdin.take().map(OwnedFd::from), child.stdout.take().unwrap());
        let third = OwnedFd::from(child.stderr.take().unwrap());
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let count = 3 + usize::from(spawn.stdin);
        let files = (0..count).map(|_| rustix::fs::memfd_create("kept", flags).unwrap());
        let (stdin, request) = if is_kernel { (None, first) } else { (first, None) };
        let program = Program {
            group: Pid::from_raw(i32::try_from(pid).unwrap()),
            cause: None,
            end: None,
            memo: spawn.memo,
            left_ms: None,
            untold: false,
            streams,
            started: Instant::now(),
            stdin,
            request,
            kept: [OwnedFd::from(second), third].into_iter().chain(files).collect(),
        };
        let (session, execution) = (spawn.session, spawn.execution);
        let told = Event::Spawned {
            session: session.clone(),
            execution: execution.clone(),
            pid,
            streams,
        };
        let mut state = self.lock();
        let client = state.client.clone();
        if let Some(client) = client {
            send(client.as_fd(), &told, &program.descriptors());
        }
        let of = state.sessions.get_mut(&session).unwrap();
        let mut program = program;
        if !of.make.held {
            (program.stdin, program.request, program.kept) = (None, None, Vec::new());
        }
        of.programs.insert(execution.clone(), program);
        drop(state);
        let jailer = Arc::clone(self);
        std::thread::spawn(move || jailer.reap(&session, &execution, child));
    }

    /// A program in a process group of its own.
    fn child(&self, spawn: &Spawn) -> Child {
        let kernel = match self.behaviour {
            Behaviour::KernelNeverReads => DEAF_KERNEL,
            Behaviour::KernelWaits => WAITING_KERNEL,
            _ => KERNEL,
        };
        let argv = match &spawn.work {
            Work::Command { argv, .. } => argv.clone(),
            Work::Kernel | Work::Context => ["/bin/sh", "-c", kernel].map(Vec::from).to_vec(),
        };
        let mut argv = argv.into_iter().map(std::ffi::OsString::from_vec);
        let mut command = Command::new(argv.next().unwrap());
        let stdin = if spawn.stdin || spawn.work == Work::Kernel {
            Stdio::piped()
        } else {
            Stdio::null()
        };
        command
            .args(argv)
            .process_group(0)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    fn reap(&self, session: &Id, execution: &Id, mut child: Child) {
        let status = child.wait().unwrap();
        let exit = status
            .code()
            .map_or_else(|| Exit::Signal(status.signal().unwrap()), Exit::Code);
        let mut state = self.lock();
        let client = state.client.clone();
        let Some(of) = state.sessions.get_mut(session) else {
            return;
        };
        let Some(program) = of.programs.get_mut(execution) else {
            return;
        };
        let end = End {
            exit,
            cause: program.cause.filter(|_| exit == Exit::Signal(9)),
            usage: Usage::default(),
            oom_kills: 0,
            pids_refused: 0,
        };
        program.end = Some(end);
        let ended = Event::Ended {
            session: session.clone(),
            execution: execution.clone(),
            end,
        };
        if !of.make.held {
            of.programs.remove(execution);
        }
        if let Some(client) = client {
            send(client.as_fd(), &ended, &[]);
        }
        self.finish_close(&mut state, session);
    }

    pub(crate) fn kill(&self, session: &Id, execution: &Id, cause: Cause) {
        self.with_program(session, execution, |program| program.kill(cause));
    }

    /// Ends a session and all of its programs.
    pub(crate) fn close(&self, session: &Id, reason: CloseReason) {
        let cause = match reason {
            CloseReason::SessionAge => Cause::SessionAge,
            CloseReason::Died => Cause::Internal,
            CloseReason::Asked | CloseReason::Abandoned => Cause::Asked,
        };
        let mut state = self.lock();
        if let Some(of) = state.sessions.get_mut(session) {
            of.closing.get_or_insert(reason);
            of.programs.values_mut().for_each(|program| program.kill(cause));
        }
        self.finish_close(&mut state, session);
    }

    fn finish_close(&self, state: &mut State, session: &Id) {
        let client = state.client.clone();
        let Some(of) = state.sessions.get_mut(session) else {
            return;
        };
        let Some(reason) = of.closing else { return };
        let runs = |program: &Program| program.end.is_none();
        if of.closed || of.programs.values().any(runs) {
            return;
        }
        of.closed = true;
        if !of.make.held {
            state.sessions.remove(session);
        }
        self.jails.fetch_sub(1, Ordering::SeqCst);
        let closed = Event::Closed {
            session: session.clone(),
            reason,
        };
        if let Some(client) = client {
            send(client.as_fd(), &closed, &[]);
        }
    }

    fn note(&self, session: &Id, execution: Option<&Id>, memo: Vec<u8>) {
        match execution {
            Some(execution) => self.with_program(session, execution, |program| program.memo = memo),
            None => {
                if let Some(of) = self.lock().sessions.get_mut(session) {
                    of.make.memo = memo;
                }
            }
        }
    }

    fn forget(&self, session: &Id, execution: Option<&Id>) {
        let mut state = self.lock();
        match execution {
            Some(execution) => {
                if let Some(of) = state.sessions.get_mut(session) {
                    of.programs.remove(execution);
                }
            }
            None => drop(state.sessions.remove(session)),
        }
    }

    fn with_program(&self, session: &Id, execution: &Id, act: impl FnOnce(&mut Program)) {
        let mut state = self.lock();
        let of = state.sessions.get_mut(session);
        if let Some(program) = of.and_then(|of| of.programs.get_mut(execution)) {
            act(program);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Session {
    /// Tells a new client of it.
    fn tell(&self, id: &Id, client: BorrowedFd<'_>) {
        let held = api::Held {
            session: id.clone(),
            memo: self.make.memo.clone(),
            policy: self.make.policy.clone(),
            policy_hash: self.make.policy_hash.clone(),
            template: self.make.template.clone(),
            quantities: self.make.quantities,
            enforced: enforced(),
            age_ms: u64::try_from(self.made.elapsed().as_millis()).unwrap(),
            paused: false,
        };
        send(client, &Event::Held(Box::new(held)), &[]);
        for (execution, program) in &self.programs {
            let held = api::HeldExecution {
                session: id.clone(),
                execution: execution.clone(),
                memo: program.memo.clone(),
                pid: u32::try_from(program.group.as_raw()).unwrap(),
                streams: Streams {
                    stdin: program.stdin.is_some(),
                    request: program.request.is_some(),
                    ..program.streams
                },
                age_ms: u64::try_from(program.started.elapsed().as_millis()).unwrap(),
                left_ms: program.left_ms,
                end: program.end,
            };
            if program.untold {
                let untold = api::HeldExecution { pid: 0, ..held };
                send(client, &Event::HeldExecution(Box::new(untold)), &[]);
            } else {
                send(client, &Event::HeldExecution(Box::new(held)), &program.descriptors());
            }
        }
        if self.closed {
            let closed = Event::Closed {
                session: id.clone(),
                reason: self.closing.unwrap(),
            };
            send(client, &closed, &[]);
        }
    }
}

impl Program {
    fn kill(&mut self, cause: Cause) {
        if self.end.is_none() {
            self.cause.get_or_insert(cause);
            let _ = killpg(self.group, Signal::SIGKILL);
        }
    }

    /// In the order of [`Streams`].
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let (outputs, files) = self.kept.split_at(2);
        let is_kernel = self.streams.frames;
        let (before, after) = if is_kernel {
            (&outputs[..1], &outputs[1..])
        } else {
            (outputs, &[][..])
        };
        let all = self
            .stdin
            .iter()
            .chain(before)
            .chain(&self.request)
            .chain(after)
            .chain(files);
        all.map(AsFd::as_fd).collect()
    }
}

fn enforced() -> Enforced {
    Enforced {
        capabilities: "none".to_owned(),
        ..Enforced::default()
    }
}

fn send(socket: BorrowedFd<'_>, event: &Event, fds: &[BorrowedFd<'_>]) {
    // brigd may be gone already.
    let _ = wire::send(socket, event, fds);
}
