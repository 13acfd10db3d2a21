//! A daemon for the tests of the command: it gives scripted answers and remembers what it was asked.
//!
//! What a real daemon does is proved elsewhere; here it is the command that must cope with every answer.

mod connections;
mod executions;
mod sessions;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, MutexGuard};

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::executions_server::ExecutionsServer;
use brig_proto::v1::host_server::{Host, HostServer};
use brig_proto::v1::sessions_server::SessionsServer;
use brig_proto::v1::{
    Artifact, ArtifactChunk, ExecutionOutput, ExecutionResult, ExecutionSpec, ExecutionStarted, ExecutionStatus,
    ExecutionsSignalRequest, FileChunk, HostGetRequest, HostGetResponse, OutputStream, ReviewState, Session,
    SessionsCreateRequest, SessionsListRequest, SessionsUpdateRequest, SessionsWatchRequest,
};
use tempfile::TempDir;
use tokio::sync::watch;
use tonic::{Request, Response, Status, async_trait};

use self::connections::Connections;
pub(crate) use self::executions::reason;

/// What a daemon does.
#[derive(Debug, Clone, Default)]
pub(crate) struct Script {
    /// What happens to the execution, in order, behind `accepted` and `started`.
    pub(crate) steps: Vec<Step>,
    /// How streams of events are cut: the first entry is for the first stream, and so on.
    pub(crate) cuts: Vec<Cut>,
    /// Refuses Run and Execute.
    pub(crate) refusal: Option<Status>,
    /// Refuses Attach.
    pub(crate) no_attach: Option<Status>,
    /// Refuses what is asked of sessions, and of executions beside their events.
    pub(crate) no_call: Option<Status>,
    /// All sessions there are, in the order of List.
    pub(crate) sessions: Vec<Session>,
    pub(crate) host: HostGetResponse,
    /// So many pieces of input get lost with their connections.
    pub(crate) lost_inputs: usize,
}

/// A step of an execution.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Send(Box<Event>),
    /// Waits until somebody cancels the execution.
    AwaitCancel,
    /// Waits until somebody closes its standard input.
    AwaitInput,
    /// Waits for ever.
    Hang,
}

/// Where a stream of events is cut, in messages, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cut {
    /// It ends with UNAVAILABLE.
    Broken(usize),
    /// Its connection is closed.
    Closed(usize),
    /// It ends without a status.
    Ended(usize),
    /// It ends because the daemon is about to stop.
    Draining(usize),
}

/// What the daemon was asked.
#[derive(Debug, Default, Clone)]
pub(crate) struct Asked {
    /// The session of each Execute.
    pub(crate) sessions: Vec<String>,
    /// The spec of each Run and Execute.
    pub(crate) specs: Vec<ExecutionSpec>,
    pub(crate) chunks: Vec<FileChunk>,
    /// Execution and sequence of each Attach.
    pub(crate) attached: Vec<(String, u64)>,
    pub(crate) cancelled: Vec<String>,
    pub(crate) interrupted: Vec<String>,
    pub(crate) signals: Vec<ExecutionsSignalRequest>,
    pub(crate) created: Vec<SessionsCreateRequest>,
    pub(crate) listed: Vec<SessionsListRequest>,
    pub(crate) updated: Vec<SessionsUpdateRequest>,
    pub(crate) closed: Vec<String>,
    /// What was asked of which session, and by which request.
    pub(crate) paused: Vec<(bool, String, String)>,
    pub(crate) watched: Vec<SessionsWatchRequest>,
    /// The offset of each piece of input.
    pub(crate) offsets: Vec<Option<u64>>,
    /// What was given, each byte once.
    pub(crate) input: Vec<u8>,
    pub(crate) closed_inputs: Vec<String>,
}

impl Asked {
    /// The spec of the only request.
    pub(crate) fn spec(&self) -> &ExecutionSpec {
        assert_eq!(self.specs.len(), 1);
        &self.specs[0]
    }
}

/// A running daemon.
pub(crate) struct Daemon {
    directory: TempDir,
    service: Scripted,
    connections: Connections,
    runtime: tokio::runtime::Runtime,
}

#[derive(Clone)]
struct Scripted {
    script: Arc<Script>,
    asked: Arc<Mutex<Asked>>,
    cancelled: watch::Sender<bool>,
    connections: Connections,
}

impl Daemon {
    /// A daemon whose execution goes like this.
    pub(crate) fn playing(steps: Vec<Step>) -> Self {
        Self::start(Script {
            steps,
            ..Script::default()
        })
    }

    /// A daemon that refuses to run anything.
    pub(crate) fn refusing(status: Status) -> Self {
        Self::start(Script {
            refusal: Some(status),
            ..Script::default()
        })
    }

    /// A daemon on this host.
    pub(crate) fn on(host: HostGetResponse) -> Self {
        Self::start(Script {
            host,
            ..Script::default()
        })
    }

    /// A daemon that does all of this.
    pub(crate) fn start(script: Script) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), script)
    }

    fn start_in(directory: TempDir, script: Script) -> Self {
        let connections = Connections::default();
        let service = Scripted {
            script: Arc::new(script),
            asked: Arc::default(),
            cancelled: watch::Sender::new(false),
            connections: connections.clone(),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let incoming = runtime.block_on(async { connections.listen(&directory.path().join("brigd.sock")) });
        let router = tonic::transport::Server::builder()
            .add_service(ExecutionsServer::new(service.clone()).max_decoding_message_size(4 << 20))
            .add_service(SessionsServer::new(service.clone()))
            .add_service(HostServer::new(service.clone()));
        runtime.spawn(router.serve_with_incoming(incoming));
        Self {
            directory,
            service,
            connections,
            runtime,
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("brigd.sock")
    }

    pub(crate) fn asked(&self) -> Asked {
        self.service.asked().clone()
    }

    /// The command, connected to this daemon, in an environment without surprises.
    pub(crate) fn brig(&self, arguments: &[&str]) -> Command {
        let mut command = brig(arguments);
        command.env("BRIG_ENDPOINT", format!("unix://{}", self.socket().display()));
        command
    }

    /// Runs the command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.brig(arguments).output().unwrap()
    }

    /// Closes all connections, and those that come as long as it is asked for.
    pub(crate) fn hang_up(&self, refuse: bool) {
        self.connections.hang_up(refuse);
    }

    /// How many connections were refused.
    pub(crate) fn refused_connections(&self) -> usize {
        self.connections.refused()
    }

    /// Stops serving, with everything that runs. The socket stays where it is.
    pub(crate) fn stop(self) -> TempDir {
        self.runtime.shutdown_background();
        self.directory
    }

    /// The next daemon on the same socket.
    pub(crate) fn start_again(directory: TempDir, script: Script) -> Self {
        std::fs::remove_file(directory.path().join("brigd.sock")).unwrap();
        Self::start_in(directory, script)
    }
}

impl Scripted {
    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap()
    }

    /// Notes what was asked, unless such calls are refused.
    fn note(&self, note: impl FnOnce(&mut Asked)) -> Result<(), Status> {
        note(&mut self.asked());
        self.script.no_call.clone().map_or(Ok(()), Err)
    }
}

/// The command in an environment without surprises.
pub(crate) fn brig(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brig"));
    for name in [
        "BRIG_ENDPOINT",
        "BRIG_RECONNECT",
        "BRIG_POLICIES",
        "BRIG_IMAGES",
        "BRIG_KERNEL",
        "BRIG_PROGRAMS",
        "NO_COLOR",
    ] {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

/// Sends an event.
pub(crate) fn step(event: Event) -> Step {
    Step::Send(Box::new(event))
}

/// Says that the program runs.
pub(crate) fn started() -> Step {
    step(Event::Started(ExecutionStarted {
        pid: 2,
        ..Default::default()
    }))
}

/// Output of the job.
pub(crate) fn wrote(stream: OutputStream, data: &'static [u8]) -> Step {
    step(Event::Output(ExecutionOutput {
        stream: stream.into(),
        data: data.into(),
        offset: 0,
    }))
}

/// The end of the job.
pub(crate) fn finished(status: ExecutionStatus) -> Step {
    step(Event::Finished(ended(status)))
}

/// The end of a program.
pub(crate) fn exited(status: ExecutionStatus, exit_code: Option<i32>, signal: Option<i32>) -> Step {
    step(Event::Finished(ExecutionResult {
        exit_code,
        signal,
        ..ended(status)
    }))
}

/// A result with this status.
pub(crate) fn ended(status: ExecutionStatus) -> ExecutionResult {
    ExecutionResult {
        status: status.into(),
        execution_id: "e1".into(),
        ..Default::default()
    }
}

/// SHA-256 of `hello`, which is what every artifact is.
const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

/// A file that the job left behind.
pub(crate) fn artifact(id: &str, path: &str, review: ReviewState) -> Artifact {
    Artifact {
        artifact_id: id.into(),
        path: path.into(),
        size_bytes: 5,
        sha256: HELLO.into(),
        review: review.into(),
        ..Default::default()
    }
}

/// Bytes of such a file.
pub(crate) fn chunk(id: &str, offset: u64, data: &'static [u8], last: bool) -> Step {
    step(Event::ArtifactChunk(ArtifactChunk {
        artifact_id: id.into(),
        offset,
        data: data.into(),
        last,
    }))
}

#[async_trait]
impl Host for Scripted {
    async fn get(&self, _: Request<HostGetRequest>) -> Result<Response<HostGetResponse>, Status> {
        Ok(Response::new(self.script.host.clone()))
    }
}

fn unused() -> Status {
    Status::unimplemented("the tests do not need it")
}
