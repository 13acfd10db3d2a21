//! The service Executions, as far as one-shot runs need it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use brig_jailer::ids::Id;
use brig_proto::sizes::{MESSAGE_MAX, PAGE_DEFAULT, PAGE_MAX};
use brig_proto::v1;
use brig_proto::v1::executions_server::Executions;
use brig_proto::v1::{ExecutionEvent, ExecutionSpec, Reason, RunRequest, run_request};
use prost::Message;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::error;

use crate::config::Role;
use crate::host::Host;
use crate::ledger::{self, Accept, Body, Kind, LedgerError, Refused};
use crate::principal::Principal;
use crate::run::admit::{Content, Job, Work, admit};
use crate::run::execution::{Caller, Execution, StopCause, work_bytes};
use crate::run::log::Follower;
use crate::run::queue::Place;
use crate::run::registry::Entered;
use crate::run::{inputs, session};
use crate::server::principal;
use crate::status::{FieldProblem, Problem};
use crate::unbuilt::unbuilt;

/// Events on their way to one client; behind them it follows the log at its own pace.
const EVENTS: usize = 4;
/// A page of a list ends before it has more, so that it fits a message.
const PAGE_BYTES: usize = 3 * MESSAGE_MAX;
/// How long a client may take for the first message of Run.
const PATIENCE: Duration = Duration::from_secs(60);

/// Serves Executions.
#[derive(Debug, Clone)]
pub struct ExecutionsService(pub Arc<Host>);

#[tonic::async_trait]
impl Executions for ExecutionsService {
    type RunStream = BoxStream<ExecutionEvent>;
    type ExecuteStream = BoxStream<ExecutionEvent>;
    type AttachStream = BoxStream<ExecutionEvent>;

    async fn run(&self, request: Request<Streaming<RunRequest>>) -> Result<Response<Self::RunStream>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let mut stream = request.into_inner();
        let spec = first_message(&mut stream).await?;
        let origin = spec.origin.clone().unwrap_or_default();
        let (request, policy) = (spec.request_id.clone(), spec.policy.clone());
        match self.start(spec, &mut stream, &principal).await {
            Ok((execution, inline)) => {
                let caller = execution.called();
                let mut response = Response::new(send(execution.log.follow(0, inline), Some(caller)));
                if let Ok(id) = execution.id.as_str().parse() {
                    response.metadata_mut().insert("brig-execution-id", id);
                }
                Ok(response)
            }
            Err(problem) => {
                self.record_refusal(&problem, &principal, request, origin, policy).await;
                Err(problem.into())
            }
        }
    }

    async fn attach(
        &self,
        request: Request<v1::ExecutionsAttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let execution = self.0.registry.get(&principal, "execution_id", &asked.execution_id)?;
        let inline = execution.spec.want_artifacts() == v1::WantArtifacts::Inline;
        Ok(Response::new(send(
            execution.log.follow(asked.after_sequence, inline),
            None,
        )))
    }

    async fn get(
        &self,
        request: Request<v1::ExecutionsGetRequest>,
    ) -> Result<Response<v1::ExecutionsGetResponse>, Status> {
        let principal = principal(&request);
        let execution = self
            .0
            .registry
            .get(&principal, "execution_id", &request.into_inner().execution_id)?;
        Ok(Response::new(v1::ExecutionsGetResponse {
            execution: Some(execution.show(true)),
        }))
    }

    async fn list(
        &self,
        request: Request<v1::ExecutionsListRequest>,
    ) -> Result<Response<v1::ExecutionsListResponse>, Status> {
        let principal = principal(&request);
        let asked = request.into_inner();
        Ok(Response::new(list(self.0.registry.list(&principal), &asked)?))
    }

    async fn cancel(
        &self,
        request: Request<v1::ExecutionsCancelRequest>,
    ) -> Result<Response<v1::ExecutionsCancelResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let execution = self
            .0
            .registry
            .get(&principal, "execution_id", &request.into_inner().execution_id)?;
        let state = execution.log.progress().state.into();
        execution.stop.tell(StopCause::Cancel);
        Ok(Response::new(v1::ExecutionsCancelResponse { state }))
    }

    unbuilt! {
        execute(v1::ExecuteRequest) -> Self::ExecuteStream, "Executions.Execute";
        input(Streaming<v1::ExecutionsInputRequest>) -> v1::ExecutionsInputResponse, "Executions.Input";
        close_input(v1::ExecutionsCloseInputRequest) -> v1::ExecutionsCloseInputResponse, "Executions.CloseInput";
        signal(v1::ExecutionsSignalRequest) -> v1::ExecutionsSignalResponse, "Executions.Signal";
        resize(v1::ExecutionsResizeRequest) -> v1::ExecutionsResizeResponse, "Executions.Resize";
        interrupt(v1::ExecutionsInterruptRequest) -> v1::ExecutionsInterruptResponse, "Executions.Interrupt";
        approve(v1::ExecutionsApproveRequest) -> v1::ExecutionsApproveResponse, "Executions.Approve";
        reject(v1::ExecutionsRejectRequest) -> v1::ExecutionsRejectResponse, "Executions.Reject";
    }
}

impl ExecutionsService {
    /// Takes a request whole, and makes an execution of it or finds the one that it made before.
    async fn start(
        &self,
        mut spec: ExecutionSpec,
        stream: &mut Streaming<RunRequest>,
        principal: &Arc<Principal>,
    ) -> Result<(Arc<Execution>, bool), Problem> {
        let host = &self.0;
        if host.draining.is_cancelled() {
            return Err(Problem::Draining);
        }
        host.pumps.check()?;
        // What the caller sent, before parts of it are taken out.
        let sent = Sha256::digest(spec.encode_to_vec());
        let mut job = admit(&mut spec, &host.store)?;
        inputs::take(&mut job, &host.spool, stream).await?;
        let digest = digest(&sent, &job);
        let inline = job.want_inline;
        let execution = Arc::new(Execution::new(&job, spec, digest, Arc::clone(principal)));
        match host.registry.enter(&execution)? {
            Entered::Known(known) => Ok((known, inline)),
            Entered::New => {
                self.accept(&execution, job)
                    .await
                    .inspect_err(|_| host.registry.withdraw(&execution))?;
                Ok((execution, inline))
            }
        }
    }

    /// Takes a place, records the execution, and hands it to its task.
    async fn accept(&self, execution: &Arc<Execution>, job: Job) -> Result<(), Problem> {
        let host = Arc::clone(&self.0);
        let place: Place = host.queue.enter(&execution.log)?;
        host.ledger
            .accept(accept_record(execution, &job))
            .await
            .map_err(|error| match error {
                LedgerError::Exists(id) => taken(&id),
                error => Problem::Ledger(error),
            })?;
        let tasks = host.tasks.clone();
        tasks.spawn(session::run(host, Arc::clone(execution), job, place));
        Ok(())
    }

    async fn record_refusal(
        &self,
        problem: &Problem,
        principal: &Principal,
        request: String,
        origin: v1::Origin,
        policy: String,
    ) {
        let refused = Refused {
            request: (!request.is_empty()).then_some(request),
            tenant: principal.tenant.clone(),
            user: principal.user.clone(),
            origin: record_origin(origin),
            policy,
            reason: problem.reason().name().to_lowercase(),
            field: problem.field().to_owned(),
            message: problem.to_string(),
            time: SystemTime::now(),
        };
        // The caller is refused either way; a ledger that can't be written refuses whatever could run.
        if let Err(error) = self.0.ledger.refused(refused).await {
            error!(%error, "ledger refusal failed");
        }
    }
}

/// Takes the principal of a call, which must have a role.
fn with_role<T>(request: &Request<T>, role: Role) -> Result<Arc<Principal>, Problem> {
    let principal = principal(request);
    if principal.may(role) {
        Ok(principal)
    } else {
        Err(Problem::Role(role))
    }
}

async fn first_message(stream: &mut Streaming<RunRequest>) -> Result<ExecutionSpec, Status> {
    let first = tokio::time::timeout(PATIENCE, stream.next()).await;
    let first = first
        .map_err(|_elapsed| Problem::Stream("no message came for 60 s".to_owned()))?
        .transpose()?;
    match first.and_then(|first| first.part) {
        Some(run_request::Part::Spec(spec)) => Ok(spec),
        _ => Err(Problem::Stream("spec: must be the first message".to_owned()).into()),
    }
}

/// Follows a log for one client, until its end or until the client goes.
fn send(mut follower: Follower, caller: Option<Caller>) -> BoxStream<ExecutionEvent> {
    let (sender, receiver) = mpsc::channel(EVENTS);
    tokio::spawn(async move {
        // Held for as long as somebody listens.
        let _caller = caller;
        loop {
            let event = tokio::select! {
                event = follower.next() => event,
                () = sender.closed() => None,
            };
            let Some(event) = event else { return };
            let last = event.is_err();
            if sender.send(event).await.is_err() || last {
                return;
            }
        }
    });
    Box::pin(ReceiverStream::new(receiver))
}

/// What makes a request the same as another: all that was sent, inputs included.
fn digest(sent: &[u8], job: &Job) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(sent);
    for input in &job.inputs {
        if let Content::Stored(stored) = &input.content {
            hash.update(stored.sha256());
        }
    }
    hash.finalize().into()
}

fn taken(id: &Id) -> Problem {
    Problem::Exists {
        kind: "execution",
        name: id.to_string(),
        why: "was used before; leave the id out or choose another one",
        reason: Reason::IdTaken,
    }
}

fn accept_record(execution: &Execution, job: &Job) -> Accept {
    let kind = match job.work {
        Work::Code { .. } => Kind::Code,
        Work::Command { .. } => Kind::Command,
    };
    let input = |file: &v1::InputFile| ledger::Input {
        name: file.name.clone(),
        path: file.path.clone(),
        size_bytes: file.size_bytes,
        sha256: file.sha256.clone(),
    };
    Accept {
        execution: execution.id.clone(),
        request: execution.request.as_ref().map(ToString::to_string),
        session: execution.session.clone(),
        tenant: execution.principal.tenant.clone(),
        user: execution.principal.user.clone(),
        origin: record_origin(execution.spec.origin.clone().unwrap_or_default()),
        labels: execution.spec.labels.clone(),
        policy: job.policy.name.clone(),
        policy_hash: job.policy.hash.clone(),
        template: job.template.id.clone(),
        work: ledger::Work {
            kind,
            body: Body::new(work_bytes(&job.work)),
        },
        inputs: execution.inputs.iter().map(input).collect(),
        limits: ledger::Limits {
            timeout_ms: job.limits.timeout_ms,
            memory_bytes: job.limits.memory_bytes,
            cpu_millis: job.limits.cpu_millis,
            pids: job.limits.pids,
            disk_bytes: job.limits.disk_bytes,
            output_bytes: job.limits.output_bytes,
        },
        time: execution.create_time,
    }
}

fn record_origin(origin: v1::Origin) -> ledger::Origin {
    ledger::Origin {
        user: origin.user,
        conversation: origin.conversation,
        request: origin.request,
    }
}

/// One page of those that match everything that is set. The token is the last id of the page before.
fn list(
    executions: Vec<Arc<Execution>>,
    asked: &v1::ExecutionsListRequest,
) -> Result<v1::ExecutionsListResponse, Problem> {
    let size = if asked.page_size == 0 {
        PAGE_DEFAULT
    } else {
        asked.page_size.min(PAGE_MAX)
    };
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let from = match asked.page_token.as_str() {
        "" => 0,
        token => {
            1 + executions
                .iter()
                .position(|execution| execution.id.as_str() == token)
                .ok_or_else(bad_token)?
        }
    };
    let found = executions
        .iter()
        .skip(from)
        .filter(|execution| matches(execution, asked));
    let mut page = v1::ExecutionsListResponse::default();
    let mut bytes = 0;
    for shown in found.map(|execution| execution.show(false)) {
        bytes += shown.encoded_len();
        if let Some(last) = page.executions.last()
            && (page.executions.len() == size || bytes > PAGE_BYTES)
        {
            page.next_page_token.clone_from(&last.execution_id);
            break;
        }
        page.executions.push(shown);
    }
    Ok(page)
}

fn bad_token() -> Problem {
    Problem::Fields(vec![FieldProblem {
        field: "page_token".to_owned(),
        message: "is of no page, or its page is too old; begin again without it".to_owned(),
        reason: Reason::InvalidValue,
    }])
}

fn matches(execution: &Execution, asked: &v1::ExecutionsListRequest) -> bool {
    let none = v1::Origin::default();
    let (wanted, has) = (
        asked.origin.as_ref().unwrap_or(&none),
        execution.spec.origin.as_ref().unwrap_or(&none),
    );
    let fits = |wanted: &str, has: &str| wanted.is_empty() || wanted == has;
    fits(&asked.session_id, execution.session.as_str())
        && asked.context_id.is_empty()
        && (asked.states.is_empty() || asked.states.contains(&execution.log.progress().state.into()))
        && asked
            .labels
            .iter()
            .all(|(key, value)| execution.spec.labels.get(key) == Some(value))
        && fits(&wanted.user, &has.user)
        && fits(&wanted.conversation, &has.conversation)
        && fits(&wanted.request, &has.request)
}

#[cfg(test)]
mod tests;
