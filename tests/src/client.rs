//! A client of a brigd, asked by tests that are not asynchronous.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use brig_proto::v1::artifacts_client::ArtifactsClient;
use brig_proto::v1::contexts_client::ContextsClient;
use brig_proto::v1::executions_client::ExecutionsClient;
use brig_proto::v1::files_client::FilesClient;
use brig_proto::v1::host_client::HostClient;
use brig_proto::v1::inputs_client::InputsClient;
use brig_proto::v1::ledger_client::LedgerClient;
use brig_proto::v1::sessions_client::SessionsClient;
use brig_proto::v1::{
    Context, ContextsCloseRequest, ContextsCreateRequest, ContextsListRequest, ContextsResetRequest, ExecuteRequest,
    Execution, ExecutionEvent, ExecutionSpec, ExecutionState, ExecutionsApproveRequest, ExecutionsAttachRequest,
    ExecutionsCancelRequest, ExecutionsGetRequest, ExecutionsInterruptRequest, ExecutionsRejectRequest, HostGetRequest,
    HostGetResponse, RunRequest, Session, SessionsCloseRequest, SessionsCreateRequest, SessionsGetRequest, run_request,
};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status, Streaming};

use crate::way::Finds;
use crate::{DEADLINE, Live, Outcome, Refused, way};

/// A connection to a brigd.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    channel: Channel,
    socket: PathBuf,
    /// Whether its brigd was told how programs are to come to be ([`way`]).
    has_way: bool,
    finds: Arc<Finds>,
}

impl Client {
    /// Connects to the socket of a brigd that serves.
    pub fn new(socket: &Path) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let channel = runtime.block_on(endpoint(socket).connect()).unwrap();
        Self {
            runtime,
            channel,
            socket: socket.to_owned(),
            has_way: false,
            finds: Arc::default(),
        }
    }

    /// Says that its brigd keeps ready what `BRIG_WAY` needs.
    #[must_use]
    pub fn on_its_way(self) -> Self {
        Self { has_way: true, ..self }
    }

    /// The socket that it is connected to.
    pub fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// Another connection.
    pub fn connect(&self) -> Channel {
        self.wait(endpoint(&self.socket).connect()).unwrap()
    }

    /// A client of Executions that does not care for this crate's ways.
    pub fn client(&self) -> ExecutionsClient<Channel> {
        ExecutionsClient::new(self.channel.clone())
    }

    /// The same of Sessions.
    pub fn sessions(&self) -> SessionsClient<Channel> {
        SessionsClient::new(self.channel.clone())
    }

    /// The same of Files.
    pub fn files(&self) -> FilesClient<Channel> {
        FilesClient::new(self.channel.clone())
    }

    /// The same of Inputs.
    pub fn inputs(&self) -> InputsClient<Channel> {
        InputsClient::new(self.channel.clone())
    }

    /// The same of Artifacts.
    pub fn artifacts(&self) -> ArtifactsClient<Channel> {
        ArtifactsClient::new(self.channel.clone())
    }

    /// The same of Contexts.
    pub fn contexts(&self) -> ContextsClient<Channel> {
        ContextsClient::new(self.channel.clone())
    }

    /// The same of Ledger.
    pub fn ledger(&self) -> LedgerClient<Channel> {
        LedgerClient::new(self.channel.clone())
    }

    /// Waits for an answer.
    pub fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        let bounded = async { tokio::time::timeout(*DEADLINE, answer).await };
        self.runtime.block_on(bounded).expect("no answer came")
    }

    /// Has something go on meanwhile.
    pub fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(work)
    }

    /// Waits for an answer that may be a refusal.
    pub fn ask<T>(&self, answer: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Refused> {
        let answer = self.wait(answer).map_err(|status| Refused::new(&status))?;
        Ok(answer.into_inner())
    }

    /// Runs something to its end.
    pub fn run(&self, spec: ExecutionSpec) -> Outcome {
        self.begin(spec).finish()
    }

    /// Runs something that must succeed, and gives what it wrote to stdout.
    pub fn stdout(&self, spec: ExecutionSpec) -> String {
        self.run(spec).expect_success().stdout()
    }

    /// Starts something and lets it run.
    pub fn begin(&self, spec: ExecutionSpec) -> Live {
        self.send(vec![only(spec)])
            .unwrap_or_else(|refused| panic!("refused: {refused:?}"))
    }

    /// Asks for something that must be refused.
    pub fn refused(&self, spec: ExecutionSpec) -> Refused {
        match self.send(vec![only(spec)]) {
            Err(refused) => refused,
            Ok(live) => live.refusal().unwrap_or_else(|result| panic!("it ran: {result:?}")),
        }
    }

    /// Sends the messages of one call.
    pub fn send(&self, mut messages: Vec<RunRequest>) -> Result<Live, Refused> {
        let expected = self
            .has_way
            .then(|| way::prepare(self, &self.finds, &mut messages))
            .flatten();
        let live = self.follow(self.client().run(tokio_stream::iter(messages)))?;
        Ok(live.expecting(&self.finds, expected))
    }

    /// Runs something in a session that exists.
    pub fn execute(&self, session: &str, spec: ExecutionSpec) -> Result<Live, Refused> {
        let request = ExecuteRequest {
            session_id: session.to_owned(),
            context_id: String::new(),
            spec: Some(spec),
        };
        self.follow(self.client().execute(request))
    }

    /// Makes a context in a session.
    pub fn context(&self, request: ContextsCreateRequest) -> Result<Context, Refused> {
        Ok(self.ask(self.contexts().create(request))?.context.unwrap())
    }

    /// The contexts of a session, newest first.
    pub fn list_contexts(&self, session: &str) -> Vec<Context> {
        let request = ContextsListRequest {
            session_id: session.to_owned(),
            ..ContextsListRequest::default()
        };
        self.ask(self.contexts().list(request)).unwrap().contexts
    }

    /// Gives a context another interpreter.
    pub fn reset(&self, session: &str, context: &str) -> Result<Context, Refused> {
        let request = ContextsResetRequest {
            session_id: session.to_owned(),
            context_id: context.to_owned(),
            ..ContextsResetRequest::default()
        };
        Ok(self.ask(self.contexts().reset(request))?.context.unwrap())
    }

    /// Ends a context.
    pub fn close_context(&self, session: &str, context: &str) {
        let request = ContextsCloseRequest {
            session_id: session.to_owned(),
            context_id: context.to_owned(),
            ..ContextsCloseRequest::default()
        };
        self.ask(self.contexts().close(request)).unwrap();
    }

    /// Runs something in a context.
    pub fn execute_in(&self, session: &str, context: &str, spec: ExecutionSpec) -> Result<Live, Refused> {
        let request = ExecuteRequest {
            session_id: session.to_owned(),
            context_id: context.to_owned(),
            spec: Some(spec),
        };
        self.follow(self.client().execute(request))
    }

    /// Follows an execution from a sequence number on.
    pub fn attach(&self, execution: &str, after_sequence: u64) -> Result<Live, Refused> {
        let request = ExecutionsAttachRequest {
            execution_id: execution.to_owned(),
            after_sequence,
        };
        let live = self.follow(self.client().attach(request))?;
        Ok(live.after(after_sequence))
    }

    fn follow(
        &self,
        call: impl Future<Output = Result<Response<Streaming<ExecutionEvent>>, Status>>,
    ) -> Result<Live, Refused> {
        let stream = self.ask(call)?;
        Ok(Live::new(self.runtime.handle().clone(), stream))
    }

    /// An execution as it is now.
    pub fn execution(&self, id: &str) -> Execution {
        let request = ExecutionsGetRequest {
            execution_id: id.to_owned(),
        };
        self.ask(self.client().get(request)).unwrap().execution.unwrap()
    }

    /// Cancels an execution; where it was then.
    pub fn cancel(&self, execution: &str) -> ExecutionState {
        let request = ExecutionsCancelRequest {
            execution_id: execution.to_owned(),
            ..ExecutionsCancelRequest::default()
        };
        self.ask(self.client().cancel(request)).unwrap().state()
    }

    /// Interrupts an execution; where it was then.
    pub fn interrupt(&self, execution: &str) -> ExecutionState {
        let request = ExecutionsInterruptRequest {
            execution_id: execution.to_owned(),
            ..ExecutionsInterruptRequest::default()
        };
        self.ask(self.client().interrupt(request)).unwrap().state()
    }

    /// Approves an execution, whatever it runs.
    pub fn approve(&self, execution: &str) -> Result<Execution, Refused> {
        let request = ExecutionsApproveRequest {
            execution_id: execution.to_owned(),
            work_sha256: self.execution(execution).work_sha256,
            ..ExecutionsApproveRequest::default()
        };
        Ok(self.ask(self.client().approve(request))?.execution.unwrap())
    }

    /// Rejects an execution.
    pub fn reject(&self, execution: &str, comment: &str) -> Result<Execution, Refused> {
        let request = ExecutionsRejectRequest {
            execution_id: execution.to_owned(),
            comment: comment.to_owned(),
            ..ExecutionsRejectRequest::default()
        };
        Ok(self.ask(self.client().reject(request))?.execution.unwrap())
    }

    /// Makes a session that is kept.
    pub fn create(&self, request: SessionsCreateRequest) -> Session {
        self.try_create(request)
            .unwrap_or_else(|refused| panic!("refused: {refused:?}"))
    }

    /// Asks for a session.
    pub fn try_create(&self, request: SessionsCreateRequest) -> Result<Session, Refused> {
        Ok(self.ask(self.sessions().create(request))?.session.unwrap())
    }

    /// A session as it is now.
    pub fn session(&self, id: &str) -> Session {
        let request = SessionsGetRequest {
            session_id: id.to_owned(),
        };
        self.ask(self.sessions().get(request)).unwrap().session.unwrap()
    }

    /// Closes a session.
    pub fn close(&self, id: &str) -> Session {
        let request = SessionsCloseRequest {
            session_id: id.to_owned(),
            ..SessionsCloseRequest::default()
        };
        self.ask(self.sessions().close(request)).unwrap().session.unwrap()
    }

    /// What the host says about itself.
    pub fn host(&self) -> HostGetResponse {
        self.ask_host().unwrap()
    }

    pub(crate) fn ask_host(&self) -> Result<HostGetResponse, Refused> {
        self.ask(HostClient::new(self.channel.clone()).get(HostGetRequest::default()))
    }
}

fn endpoint(socket: &Path) -> Endpoint {
    Endpoint::try_from(format!("unix://{}", socket.display())).unwrap()
}

/// A call of one message.
pub fn only(spec: ExecutionSpec) -> RunRequest {
    RunRequest {
        part: Some(run_request::Part::Spec(spec)),
    }
}
