//! A daemon for the tests of the command: it gives scripted answers and remembers what it was asked.
//!
//! What a real daemon does is proved elsewhere; here it is the command that must cope with every answer.

use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::executions_server::{Executions, ExecutionsServer};
use brig_proto::v1::host_server::{Host, HostServer};
use brig_proto::v1::run_request::Part;
use brig_proto::v1::{
    ExecuteRequest, ExecutionAccepted, ExecutionEvent, ExecutionOutput, ExecutionResult, ExecutionSpec,
    ExecutionStarted, ExecutionStatus, ExecutionsApproveRequest, ExecutionsApproveResponse, ExecutionsAttachRequest,
    ExecutionsCancelRequest, ExecutionsCancelResponse, ExecutionsCloseInputRequest, ExecutionsCloseInputResponse,
    ExecutionsGetRequest, ExecutionsGetResponse, ExecutionsInputRequest, ExecutionsInputResponse,
    ExecutionsInterruptRequest, ExecutionsInterruptResponse, ExecutionsListRequest, ExecutionsListResponse,
    ExecutionsRejectRequest, ExecutionsRejectResponse, ExecutionsResizeRequest, ExecutionsResizeResponse,
    ExecutionsSignalRequest, ExecutionsSignalResponse, FileChunk, HostGetRequest, HostGetResponse, OutputStream,
    RunRequest,
};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming, async_trait};

/// A step of a script.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Send(Box<Event>),
    /// Breaks the call.
    Break,
    /// Waits until somebody cancels the execution.
    AwaitCancel,
}

/// What the daemon was asked.
#[derive(Debug, Default, Clone)]
pub(crate) struct Asked {
    pub(crate) spec: Option<ExecutionSpec>,
    pub(crate) chunks: Vec<FileChunk>,
    pub(crate) cancelled: usize,
}

/// A running daemon.
pub(crate) struct Daemon {
    directory: TempDir,
    asked: Arc<Mutex<Asked>>,
    runtime: tokio::runtime::Runtime,
}

#[derive(Clone)]
struct Scripted {
    answer: Result<Vec<Step>, Status>,
    host: HostGetResponse,
    asked: Arc<Mutex<Asked>>,
    cancel: Arc<Notify>,
}

impl Daemon {
    /// A daemon that plays a script behind `accepted` and `started`.
    pub(crate) fn playing(steps: Vec<Step>) -> Self {
        let accepted = ExecutionAccepted {
            execution_id: "e1".into(),
            session_id: "s1".into(),
            ..Default::default()
        };
        let started = ExecutionStarted {
            pid: 2,
            ..Default::default()
        };
        let begin = [step(Event::Accepted(accepted)), step(Event::Started(started))];
        Self::start(Ok(begin.into_iter().chain(steps).collect()), HostGetResponse::default())
    }

    /// A daemon that refuses.
    pub(crate) fn refusing(status: Status) -> Self {
        Self::start(Err(status), HostGetResponse::default())
    }

    /// A daemon on this host.
    pub(crate) fn on(host: HostGetResponse) -> Self {
        Self::start(Ok(Vec::new()), host)
    }

    fn start(answer: Result<Vec<Step>, Status>, host: HostGetResponse) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let asked = Arc::new(Mutex::new(Asked::default()));
        let service = Scripted {
            answer,
            host,
            asked: Arc::clone(&asked),
            cancel: Arc::default(),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(async { UnixListener::bind(directory.path().join("brigd.sock")).unwrap() });
        let router = tonic::transport::Server::builder()
            .add_service(ExecutionsServer::new(service.clone()).max_decoding_message_size(4 << 20))
            .add_service(HostServer::new(service));
        runtime.spawn(router.serve_with_incoming(UnixListenerStream::new(listener)));
        Self {
            directory,
            asked,
            runtime,
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("brigd.sock")
    }

    pub(crate) fn asked(&self) -> Asked {
        self.asked.lock().unwrap().clone()
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

    /// Stops serving, with everything that runs.
    pub(crate) fn stop(self) {
        self.runtime.shutdown_background();
    }
}

/// The command in an environment without surprises.
pub(crate) fn brig(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brig"));
    for name in [
        "BRIG_ENDPOINT",
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

/// A result with this status.
pub(crate) fn ended(status: ExecutionStatus) -> ExecutionResult {
    ExecutionResult {
        status: status.into(),
        execution_id: "e1".into(),
        ..Default::default()
    }
}

type Events = Pin<Box<dyn Stream<Item = Result<ExecutionEvent, Status>> + Send>>;

#[async_trait]
impl Executions for Scripted {
    type RunStream = Events;
    type ExecuteStream = Events;
    type AttachStream = Events;

    async fn run(&self, request: Request<Streaming<RunRequest>>) -> Result<Response<Events>, Status> {
        let mut parts = request.into_inner();
        while let Some(RunRequest { part }) = parts.message().await? {
            let mut asked = self.asked.lock().unwrap();
            match part {
                Some(Part::Spec(spec)) => asked.spec = Some(spec),
                Some(Part::FileChunk(chunk)) => asked.chunks.push(chunk),
                None => {}
            }
        }
        let steps = self.answer.clone()?;
        let cancel = Arc::clone(&self.cancel);
        let events = tokio_stream::iter(steps).then(move |step| play(step, Arc::clone(&cancel)));
        Ok(Response::new(Box::pin(events.filter_map(Result::transpose))))
    }

    async fn cancel(&self, _: Request<ExecutionsCancelRequest>) -> Result<Response<ExecutionsCancelResponse>, Status> {
        self.asked.lock().unwrap().cancelled += 1;
        self.cancel.notify_one();
        Ok(Response::new(ExecutionsCancelResponse::default()))
    }

    async fn execute(&self, _: Request<ExecuteRequest>) -> Result<Response<Events>, Status> {
        Err(unused())
    }

    async fn input(
        &self,
        _: Request<Streaming<ExecutionsInputRequest>>,
    ) -> Result<Response<ExecutionsInputResponse>, Status> {
        Err(unused())
    }

    async fn close_input(
        &self,
        _: Request<ExecutionsCloseInputRequest>,
    ) -> Result<Response<ExecutionsCloseInputResponse>, Status> {
        Err(unused())
    }

    async fn signal(&self, _: Request<ExecutionsSignalRequest>) -> Result<Response<ExecutionsSignalResponse>, Status> {
        Err(unused())
    }

    async fn resize(&self, _: Request<ExecutionsResizeRequest>) -> Result<Response<ExecutionsResizeResponse>, Status> {
        Err(unused())
    }

    async fn interrupt(
        &self,
        _: Request<ExecutionsInterruptRequest>,
    ) -> Result<Response<ExecutionsInterruptResponse>, Status> {
        Err(unused())
    }

    async fn attach(&self, _: Request<ExecutionsAttachRequest>) -> Result<Response<Events>, Status> {
        Err(unused())
    }

    async fn get(&self, _: Request<ExecutionsGetRequest>) -> Result<Response<ExecutionsGetResponse>, Status> {
        Err(unused())
    }

    async fn list(&self, _: Request<ExecutionsListRequest>) -> Result<Response<ExecutionsListResponse>, Status> {
        Err(unused())
    }

    async fn approve(
        &self,
        _: Request<ExecutionsApproveRequest>,
    ) -> Result<Response<ExecutionsApproveResponse>, Status> {
        Err(unused())
    }

    async fn reject(&self, _: Request<ExecutionsRejectRequest>) -> Result<Response<ExecutionsRejectResponse>, Status> {
        Err(unused())
    }
}

#[async_trait]
impl Host for Scripted {
    async fn get(&self, _: Request<HostGetRequest>) -> Result<Response<HostGetResponse>, Status> {
        Ok(Response::new(self.host.clone()))
    }
}

async fn play(step: Step, cancel: Arc<Notify>) -> Result<Option<ExecutionEvent>, Status> {
    match step {
        Step::Send(event) => Ok(Some(ExecutionEvent {
            sequence: 1,
            time: None,
            event: Some(*event),
        })),
        Step::Break => Err(Status::unavailable("gone")),
        Step::AwaitCancel => {
            cancel.notified().await;
            Ok(None)
        }
    }
}

fn unused() -> Status {
    Status::unimplemented("the tests do not need it")
}
