//! The service Executions: runs in sessions of their own, and in sessions that are kept.

use std::sync::Arc;
use std::time::Duration;

use brig_proto::sizes::MESSAGE_MAX;
use brig_proto::v1;
use brig_proto::v1::execution_spec::Work as SpecWork;
use brig_proto::v1::executions_server::Executions;
use brig_proto::v1::{ExecutionEvent, ExecutionSpec, Reason, RunRequest, run_request};
use prost::Message;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use crate::calls::{Turned, record_limits, record_origin, record_refusal, with_role};
use crate::config::Role;
use crate::host::Host;
use crate::ledger::{self, Accept, Body, Keep, Kind, LedgerError};
use crate::pages::{self, page};
use crate::principal::Principal;
use crate::run::admit::{Content, Job, Work, admit, admit_in_context, admit_within};
use crate::run::context::{self, Seat, Turn};
use crate::run::execution::{Caller, Execution, StopCause, work_bytes};
use crate::run::fields::Fields;
use crate::run::kept::{self, Session};
use crate::run::log::Follower;
use crate::run::queue::Place;
use crate::run::registry::{Entered, execution_taken};
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
const SIGINT: i32 = 2;

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
        let turned = turned(&spec);
        let started = self.start(spec, &mut stream, &principal).await;
        self.answer(started, &principal, turned).await
    }

    async fn execute(&self, request: Request<v1::ExecuteRequest>) -> Result<Response<Self::ExecuteStream>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let turned = turned(asked.spec.as_ref().unwrap_or(&ExecutionSpec::default()));
        let started = self.start_within(asked, &principal).await;
        self.answer(started, &principal, turned).await
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
        Ok(Response::new(list(&self.0.registry.list(&principal), &asked)?))
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
        execution.remember(&self.0.jailer).await;
        Ok(Response::new(v1::ExecutionsCancelResponse { state }))
    }

    async fn signal(
        &self,
        request: Request<v1::ExecutionsSignalRequest>,
    ) -> Result<Response<v1::ExecutionsSignalResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let execution = self.0.registry.get(&principal, "execution_id", &asked.execution_id)?;
        let signal = checked_signal(&asked)?;
        if execution.seat.is_some() {
            let message = "runs in a context, which lives on; Interrupt and Cancel are for it";
            return Err(wrong_field("execution_id", Reason::NotApplicable, message).into());
        }
        running(&execution)?;
        execution.signal(asked.signal);
        execution.remember(&self.0.jailer).await;
        self.send_signal(&execution, signal).await?;
        Ok(Response::new(v1::ExecutionsSignalResponse {}))
    }

    async fn interrupt(
        &self,
        request: Request<v1::ExecutionsInterruptRequest>,
    ) -> Result<Response<v1::ExecutionsInterruptResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let execution = self.0.registry.get(&principal, "execution_id", &asked.execution_id)?;
        if matches!(execution.spec.work, Some(SpecWork::Command(_))) {
            let message = "is a command, which Signal and Cancel are for; Interrupt is for code";
            return Err(wrong_field("execution_id", Reason::NotApplicable, message).into());
        }
        let state = running(&execution)?;
        if execution.interrupt() {
            execution.remember(&self.0.jailer).await;
            tokio::spawn(Arc::clone(&execution).end_interrupted());
        }
        // In a context, whoever watches it tells the interpreter, by the name of the execution.
        if execution.seat.is_none() {
            self.send_signal(&execution, SIGINT).await?;
        }
        Ok(Response::new(v1::ExecutionsInterruptResponse { state: state.into() }))
    }

    unbuilt! {
        input(Streaming<v1::ExecutionsInputRequest>) -> v1::ExecutionsInputResponse, "Executions.Input";
        close_input(v1::ExecutionsCloseInputRequest) -> v1::ExecutionsCloseInputResponse, "Executions.CloseInput";
        resize(v1::ExecutionsResizeRequest) -> v1::ExecutionsResizeResponse, "Executions.Resize";
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
        let execution = Execution::new(&job, spec, digest, Arc::clone(principal), None);
        self.enter(Arc::new(execution), job).await
    }

    /// The same for a session that exists.
    async fn start_within(
        &self,
        asked: v1::ExecuteRequest,
        principal: &Arc<Principal>,
    ) -> Result<(Arc<Execution>, bool), Problem> {
        let host = &self.0;
        if host.draining.is_cancelled() {
            return Err(Problem::Draining);
        }
        let sent = Sha256::digest(asked.encode_to_vec());
        let session = host.registry.session(principal, &asked.session_id)?;
        let context = match asked.context_id.as_str() {
            "" => None,
            id => Some(session.contexts.get(id)?),
        };
        let mut spec = asked
            .spec
            .ok_or_else(|| wrong_field("spec", Reason::MissingValue, "says what is to be run"))?;
        let mut job = match &context {
            None => admit_within(&mut spec, &session)?,
            Some(context) => admit_in_context(&mut spec, &session, context.language)?,
        };
        inputs::take(&mut job, &host.spool, &mut tokio_stream::empty()).await?;
        let digest = digest(&sent, &job);
        let mut execution = Execution::new(&job, spec, digest, Arc::clone(principal), Some(session));
        execution.seat = context.as_deref().map(Seat::new);
        self.enter(Arc::new(execution), job).await
    }

    async fn enter(&self, execution: Arc<Execution>, job: Job) -> Result<(Arc<Execution>, bool), Problem> {
        let inline = job.want_inline;
        match self.0.registry.enter(&execution)? {
            Entered::Known(known) => Ok((known, inline)),
            Entered::New => {
                self.accept(&execution, job)
                    .await
                    .inspect_err(|_| self.0.registry.withdraw(&execution))?;
                Ok((execution, inline))
            }
        }
    }

    /// Takes a place, records the execution, and hands it to its task.
    async fn accept(&self, execution: &Arc<Execution>, job: Job) -> Result<(), Problem> {
        let host = Arc::clone(&self.0);
        let used = execution.kept.as_ref().map(Session::enter).transpose()?;
        let turn = take_turn(execution)?;
        let place: Option<Place> = match turn {
            // It takes its place when it is its turn.
            Some((_, false)) => None,
            _ => Some(host.queue.enter(&execution.log)?),
        };
        host.ledger
            .accept(accept_record(execution, &job))
            .await
            .map_err(|error| match error {
                LedgerError::Exists(id) => execution_taken(&id),
                error => Problem::Ledger(error),
            })?;
        let execution = Arc::clone(execution);
        match (used, turn, place) {
            (None, _, Some(place)) => {
                host.tasks.clone().spawn(session::run(host, execution, job, place));
            }
            (Some(used), None, Some(place)) => {
                let task = kept::execution::run(Arc::clone(&host), execution, job, place, used);
                host.spawn_kept(task);
            }
            (Some(used), Some((turn, _)), place) => {
                let task = context::execution::run(Arc::clone(&host), execution, job, turn, place, used);
                host.spawn_kept(task);
            }
            (_, _, None) => return Err(Problem::Configuration("an execution lost its place".to_owned())),
        }
        Ok(())
    }

    /// Gives the events of what was started, or records why nothing was.
    async fn answer(
        &self,
        started: Result<(Arc<Execution>, bool), Problem>,
        principal: &Principal,
        turned: Turned,
    ) -> Result<Response<BoxStream<ExecutionEvent>>, Status> {
        match started {
            Ok((execution, inline)) => {
                let caller = execution.called();
                let mut response = Response::new(send(execution.log.follow(0, inline), Some(caller)));
                if let Ok(id) = execution.id.as_str().parse() {
                    response.metadata_mut().insert("brig-execution-id", id);
                }
                Ok(response)
            }
            Err(problem) => {
                record_refusal(&self.0.ledger, &problem, principal, turned).await;
                Err(problem.into())
            }
        }
    }

    async fn send_signal(&self, execution: &Execution, signal: i32) -> Result<(), Problem> {
        let request = brig_jailer::api::Request::Signal {
            session: execution.session.clone(),
            execution: execution.id.clone(),
            signal,
            group: false,
        };
        Ok(self.0.jailer.ask(request).await?)
    }
}

/// Takes a place in the queue of an execution's context, if it is for one; whether the context is free.
fn take_turn(execution: &Arc<Execution>) -> Result<Option<(Turn, bool)>, Problem> {
    match (&execution.kept, &execution.seat) {
        (Some(session), Some(seat)) => {
            let context = session.contexts.get(seat.context.as_str())?;
            context.queue(execution).map(Some)
        }
        _ => Ok(None),
    }
}

fn turned(spec: &ExecutionSpec) -> Turned {
    Turned {
        request: spec.request_id.clone(),
        origin: spec.origin.clone().unwrap_or_default(),
        policy: spec.policy.clone(),
    }
}

/// An execution that can be told something; gives its state.
fn running(execution: &Execution) -> Result<v1::ExecutionState, Problem> {
    let progress = execution.log.progress();
    let why = match progress.state {
        v1::ExecutionState::Running if progress.pid.is_some() => return Ok(progress.state),
        v1::ExecutionState::Finished => "has ended",
        _ => "has not started",
    };
    Err(Problem::NotRunning(execution.id.to_string(), why))
}

fn checked_signal(asked: &v1::ExecutionsSignalRequest) -> Result<i32, Problem> {
    let mut fields = Fields::default();
    fields.id("request_id", &asked.request_id);
    if !(1..=64).contains(&asked.signal) {
        let message = format!("{} is no signal: 1 to 64 are", asked.signal);
        fields.wrong("signal", Reason::InvalidValue, message);
    }
    fields.done()?;
    Ok(i32::try_from(asked.signal).unwrap_or_default())
}

fn wrong_field(field: &str, reason: Reason, message: &str) -> Problem {
    Problem::Fields(vec![FieldProblem {
        field: field.to_owned(),
        message: message.to_owned(),
        reason,
    }])
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
        limits: record_limits(&job.limits),
        keep: Keep::from(&job.policy.retention),
        time: execution.create_time,
    }
}

/// One page of those that match everything that is set.
fn list(
    executions: &[Arc<Execution>],
    asked: &v1::ExecutionsListRequest,
) -> Result<v1::ExecutionsListResponse, Problem> {
    let which = pages::Asked {
        size: asked.page_size,
        token: &asked.page_token,
        bytes: PAGE_BYTES,
    };
    let page = page(
        executions,
        which,
        |execution| execution.id.as_str(),
        |execution| matches(execution, asked),
        |execution| execution.show(false),
    )?;
    Ok(v1::ExecutionsListResponse {
        executions: page.shown,
        next_page_token: page.next,
    })
}

fn matches(execution: &Execution, asked: &v1::ExecutionsListRequest) -> bool {
    let none = v1::Origin::default();
    let (wanted, has) = (
        asked.origin.as_ref().unwrap_or(&none),
        execution.spec.origin.as_ref().unwrap_or(&none),
    );
    let fits = |wanted: &str, has: &str| wanted.is_empty() || wanted == has;
    fits(&asked.session_id, execution.session.as_str())
        && fits(
            &asked.context_id,
            execution.seat.as_ref().map_or("", |seat| seat.context.as_str()),
        )
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
