//! The service Executions: runs in sessions of their own, and in sessions that are kept.

use std::sync::Arc;
use std::time::Duration;

use brig_jailer::ids::Id;
use brig_proto::sizes::MESSAGE_MAX;
use brig_proto::v1;
use brig_proto::v1::execution_spec::Work as SpecWork;
use brig_proto::v1::executions_server::Executions;
use brig_proto::v1::{ExecutionEvent, ExecutionSpec, Reason, RunRequest, input_source, run_request};
use prost::Message;
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::error;

use crate::calls::{Turned, record_limits, record_origin, record_refusal, to_its_end, with_role};
use crate::config::Role;
use crate::host::Host;
use crate::ledger::{self, Accept, Body, Keep, Kind, LedgerError};
use crate::pages::{self, page};
use crate::principal::Principal;
use crate::run::admit::{Content, Job, Work, admit, admit_in_context, admit_within};
use crate::run::approval::Admission;
use crate::run::context::execution::Admission as ContextAdmission;
use crate::run::context::{self, Seat};
use crate::run::execution::{Caller, Execution, StopCause, work_bytes};
use crate::run::fields::Fields;
use crate::run::inputs::hex;
use crate::run::kept::{self, Session};
use crate::run::log::Follower;
use crate::run::past::{self, Known, Past};
use crate::run::queue::Place;
use crate::run::registry::{Entered, execution_taken, session_taken};
use crate::run::{collect, inputs, session};
use crate::server::principal;
use crate::status::{FieldProblem, Problem};

use place::{Admitted, take_place};

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

/// An execution that was begun, here or by the same request before, and its caller.
#[derive(Debug)]
struct Begun {
    execution: Arc<Execution>,
    caller: Caller,
}

/// What answers a request.
#[derive(Debug)]
enum Answer {
    Present(Begun),
    Past(Box<Past>),
}

impl Begun {
    fn new(execution: Arc<Execution>) -> Self {
        let caller = execution.called();
        Self { execution, caller }
    }
}

#[tonic::async_trait]
impl Executions for ExecutionsService {
    type RunStream = BoxStream<ExecutionEvent>;
    type ExecuteStream = BoxStream<ExecutionEvent>;
    type AttachStream = BoxStream<ExecutionEvent>;

    async fn run(&self, request: Request<Streaming<RunRequest>>) -> Result<Response<Self::RunStream>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let mut stream = request.into_inner();
        let spec = first_message(&mut stream).await?;
        let mut turned = turned(&spec);
        let started = self.start(spec, &mut stream, &principal, &mut turned).await;
        self.answer(started, &principal, turned).await
    }

    async fn execute(&self, request: Request<v1::ExecuteRequest>) -> Result<Response<Self::ExecuteStream>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let mut turned = turned(asked.spec.as_ref().unwrap_or(&ExecutionSpec::default()));
        let sha256 = Sha256::digest(asked.encode_to_vec()).into();
        turned.sha256 = Some(sha256);
        let started = self.start_within(asked, sha256, &principal).await;
        self.answer(started, &principal, turned).await
    }

    async fn attach(
        &self,
        request: Request<v1::ExecutionsAttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let execution = match self.0.registry.get(&principal, "execution_id", &asked.execution_id) {
            Ok(execution) => execution,
            Err(problem) => {
                let past = past::find(&self.0, &principal, &asked.execution_id).await?;
                let past = past.ok_or(problem)?;
                return Ok(Response::new(send_past(&past, asked.after_sequence)));
            }
        };
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
        let id = request.into_inner().execution_id;
        let execution = match self.0.registry.get(&principal, "execution_id", &id) {
            Ok(execution) => execution,
            Err(problem) => {
                past::find(&self.0, &principal, &id).await?.ok_or(problem)?;
                let state = v1::ExecutionState::Finished.into();
                return Ok(Response::new(v1::ExecutionsCancelResponse { state }));
            }
        };
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
        let (id, signal) = checked_signal(&asked)?;
        let (tenant, call) = (&principal.tenant, "Executions.Signal");
        let Some(turn) = self.0.repeats.begin(tenant, id, call, &asked).await? else {
            return Ok(Response::new(v1::ExecutionsSignalResponse {}));
        };
        let execution = self.0.registry.get(&principal, "execution_id", &asked.execution_id)?;
        if execution.seat.is_some() {
            let message = "runs in a context, which lives on; Interrupt and Cancel are for it";
            return Err(wrong_field("execution_id", Reason::NotApplicable, message).into());
        }
        running(&execution)?;
        let service = self.clone();
        to_its_end(async move {
            execution.signal(asked.signal);
            execution.remember(&service.0.jailer).await;
            service.send_signal(&execution, signal, asked.group).await?;
            turn.done();
            Ok(())
        })
        .await?;
        Ok(Response::new(v1::ExecutionsSignalResponse {}))
    }

    async fn interrupt(
        &self,
        request: Request<v1::ExecutionsInterruptRequest>,
    ) -> Result<Response<v1::ExecutionsInterruptResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let mut fields = Fields::default();
        let id = fields.id("request_id", &asked.request_id);
        fields.done()?;
        let (tenant, call) = (&principal.tenant, "Executions.Interrupt");
        let Some(turn) = self.0.repeats.begin(tenant, id, call, &asked).await? else {
            let state = v1::ExecutionState::Running.into();
            return Ok(Response::new(v1::ExecutionsInterruptResponse { state }));
        };
        let execution = self.0.registry.get(&principal, "execution_id", &asked.execution_id)?;
        if matches!(execution.spec.work, Some(SpecWork::Command(_))) {
            let message = "is a command, which Signal and Cancel are for; Interrupt is for code";
            return Err(wrong_field("execution_id", Reason::NotApplicable, message).into());
        }
        let state = running(&execution)?;
        let service = self.clone();
        to_its_end(async move {
            if execution.interrupt() {
                execution.remember(&service.0.jailer).await;
                tokio::spawn(Arc::clone(&execution).end_interrupted());
            }
            // In a context, whoever watches it tells the interpreter, by the name of the execution.
            if execution.seat.is_none() {
                service.send_signal(&execution, SIGINT, false).await?;
            }
            turn.done();
            Ok(())
        })
        .await?;
        Ok(Response::new(v1::ExecutionsInterruptResponse { state: state.into() }))
    }

    async fn input(
        &self,
        request: Request<Streaming<v1::ExecutionsInputRequest>>,
    ) -> Result<Response<v1::ExecutionsInputResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        input::input(&self.0, &principal, request.into_inner()).await
    }

    async fn close_input(
        &self,
        request: Request<v1::ExecutionsCloseInputRequest>,
    ) -> Result<Response<v1::ExecutionsCloseInputResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        Ok(Response::new(input::close(&self.0, &principal, &request.into_inner())?))
    }

    async fn resize(
        &self,
        request: Request<v1::ExecutionsResizeRequest>,
    ) -> Result<Response<v1::ExecutionsResizeResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let answer = input::resize(&self.0, &principal, &request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    async fn approve(
        &self,
        request: Request<v1::ExecutionsApproveRequest>,
    ) -> Result<Response<v1::ExecutionsApproveResponse>, Status> {
        let principal = with_role(&request, Role::Reviewer)?;
        let execution = review::approve(&self.0, &principal, request.into_inner()).await?;
        Ok(Response::new(v1::ExecutionsApproveResponse {
            execution: Some(execution.show(true)),
        }))
    }

    async fn reject(
        &self,
        request: Request<v1::ExecutionsRejectRequest>,
    ) -> Result<Response<v1::ExecutionsRejectResponse>, Status> {
        let principal = with_role(&request, Role::Reviewer)?;
        let execution = review::reject(&self.0, &principal, request.into_inner()).await?;
        Ok(Response::new(v1::ExecutionsRejectResponse {
            execution: Some(execution.show(true)),
        }))
    }
}

impl ExecutionsService {
    /// Takes a request whole, and makes an execution of it or finds the one that it made before.
    async fn start(
        &self,
        mut spec: ExecutionSpec,
        stream: &mut Streaming<RunRequest>,
        principal: &Arc<Principal>,
        turned: &mut Turned,
    ) -> Result<Begun, Problem> {
        let host = &self.0;
        // What the caller sent, before parts of it are taken out.
        let sent: [u8; 32] = Sha256::digest(spec.encode_to_vec()).into();
        if !spec.inputs.iter().any(is_streamed) {
            turned.sha256 = Some(sent);
        }
        if host.draining.is_cancelled() {
            return Err(Problem::Draining);
        }
        host.pumps.check()?;
        let mut job = admit(&mut spec, &host.store)?;
        inputs::resolve(&mut job, host, principal).await?;
        inputs::take(&mut job, &host.spool, stream).await?;
        let sha256 = *turned.sha256.get_or_insert_with(|| digest(&sent, &job));
        // Who is to wait, or was served before, needs none.
        if host.queue.has_room() && !host.registry.knows(principal, job.request.as_ref()) {
            host.pool.serve(&mut job, principal);
        }
        let execution = Execution::new(&job, spec, sha256, Arc::clone(principal), None);
        self.enter(Arc::new(execution), job).await
    }

    /// The same for a session that exists.
    async fn start_within(
        &self,
        asked: v1::ExecuteRequest,
        sha256: [u8; 32],
        principal: &Arc<Principal>,
    ) -> Result<Begun, Problem> {
        let host = &self.0;
        if host.draining.is_cancelled() {
            return Err(Problem::Draining);
        }
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
        inputs::resolve(&mut job, host, principal).await?;
        inputs::take(&mut job, &host.spool, &mut tokio_stream::empty()).await?;
        let mut execution = Execution::new(&job, spec, sha256, Arc::clone(principal), Some(session));
        execution.seat = context.as_deref().map(Seat::new);
        self.enter(Arc::new(execution), job).await
    }

    /// Accepts an execution, or finds the one that its request made before. A caller that goes away meanwhile leaves
    /// no half of it: it is accepted, and then has no caller.
    async fn enter(&self, execution: Arc<Execution>, job: Job) -> Result<Begun, Problem> {
        let service = self.clone();
        to_its_end(async move {
            loop {
                match service.0.registry.enter(&execution)? {
                    Entered::Known(known) if known.is_admitted().await => return Ok(Begun::new(known)),
                    // It was refused: this one may be luckier.
                    Entered::Known(_) => {}
                    Entered::New => break,
                }
            }
            let begun = Begun::new(Arc::clone(&execution));
            let accepted = service.accept(&execution, job).await;
            if accepted.is_err() {
                service.0.registry.withdraw(&execution);
            }
            execution.admit(accepted.is_ok());
            accepted.map(|()| begun)
        })
        .await
    }

    /// Takes a place, records the execution, and hands it to its task.
    async fn accept(&self, execution: &Arc<Execution>, job: Job) -> Result<(), Problem> {
        let host = Arc::clone(&self.0);
        let used = execution.kept.as_ref().map(Session::enter).transpose()?;
        let admission = take_place(&host, execution, &job)?;
        let record = accept_record(execution, &job);
        let execution = Arc::clone(execution);
        let recorded = async {
            let recorded = host.ledger.accept(record).await;
            recorded.map_err(|error| match error {
                LedgerError::Exists(id) if id == execution.id => execution_taken(&id),
                LedgerError::Exists(id) => session_taken(&id),
                error => Problem::Ledger(error),
            })
        };
        match (used, admission) {
            (None, Admitted::Alone(admission)) => {
                let mut job = job;
                // Nobody waits for both, one after the other: what has waited is made ready meanwhile. No code is in it yet.
                if matches!(admission, Admission::Direct(Place::Now(_))) && job.inputs.is_empty() {
                    let walk = collect::walk(&job);
                    job.ahead = job.ahead.map(|ahead| ahead.begin(walk));
                }
                if let Err(problem) = recorded.await {
                    // Before another one has its place.
                    if let Some(ahead) = job.ahead.take() {
                        ahead.close().await;
                    }
                    return Err(problem);
                }
                let task = session::run(Arc::clone(&host), execution, job, admission);
                host.tasks.spawn(task);
            }
            (Some(used), Admitted::Alone(admission)) => {
                recorded.await?;
                let task = kept::execution::run(Arc::clone(&host), execution, job, admission, used);
                host.spawn_kept(task);
            }
            (Some(used), Admitted::InContext(admission)) => {
                let (begin, told) = oneshot::channel();
                // Nobody decides about what is not recorded, and no file of it goes in.
                let is_ready_ahead = matches!(admission, ContextAdmission::Direct(..)) && job.inputs.is_empty();
                let (host, execution) = (Arc::clone(&host), Arc::clone(&execution));
                let task = context::execution::run(Arc::clone(&host), execution, job, admission, used, told);
                let task = if is_ready_ahead {
                    host.spawn_kept(task);
                    None
                } else {
                    Some(task)
                };
                recorded.await?;
                // A task that is gone needs no word.
                let _ = begin.send(());
                if let Some(task) = task {
                    host.spawn_kept(task);
                }
            }
            (None, Admitted::InContext(_)) => {
                return Err(Problem::Configuration("an execution lost its session".to_owned()));
            }
        }
        Ok(())
    }

    /// Gives the events of what was started or had been started before, or records why nothing was.
    async fn answer(
        &self,
        started: Result<Begun, Problem>,
        principal: &Principal,
        turned: Turned,
    ) -> Result<Response<BoxStream<ExecutionEvent>>, Status> {
        let (id, events) = match self.or_before(started, principal, &turned).await {
            Ok(Answer::Present(begun)) => {
                let execution = &begun.execution;
                let inline = execution.spec.want_artifacts() == v1::WantArtifacts::Inline;
                let events = send(execution.log.follow(0, inline), Some(begun.caller));
                (execution.id.clone(), events)
            }
            Ok(Answer::Past(past)) => (past.id().clone(), send_past(&past, 0)),
            Err(problem) => {
                record_refusal(&self.0.ledger, &problem, principal, turned).await;
                return Err(problem.into());
            }
        };
        let mut response = Response::new(events);
        if let Ok(id) = id.as_str().parse() {
            response.metadata_mut().insert("brig-execution-id", id);
        }
        Ok(response)
    }

    /// What was refused may have been done before, and for that very reason be refused now.
    async fn or_before(
        &self,
        started: Result<Begun, Problem>,
        principal: &Principal,
        turned: &Turned,
    ) -> Result<Answer, Problem> {
        let problem = match started {
            Ok(begun) => return Ok(Answer::Present(begun)),
            Err(problem) => problem,
        };
        let Some(sha256) = turned.sha256 else {
            return Err(problem);
        };
        match past::repeated(&self.0, principal, &turned.request, sha256).await {
            Ok(Some(Known::Present(execution))) => Ok(Answer::Present(Begun::new(execution))),
            Ok(Some(Known::Past(past))) => Ok(Answer::Past(past)),
            Ok(None) => Err(problem),
            // What was wrong before that is still true.
            Err(Problem::Ledger(error)) => {
                error!(%error, "ledger not asked for the request");
                Err(problem)
            }
            Err(reused) => Err(reused),
        }
    }

    async fn send_signal(&self, execution: &Execution, signal: i32, group: bool) -> Result<(), Problem> {
        let request = brig_jailer::api::Request::Signal {
            session: execution.session.clone(),
            execution: execution.id.clone(),
            signal,
            group,
        };
        Ok(self.0.jailer.ask(request).await?)
    }
}

fn turned(spec: &ExecutionSpec) -> Turned {
    Turned {
        request: spec.request_id.clone(),
        origin: spec.origin.clone().unwrap_or_default(),
        policy: spec.policy.clone(),
        sha256: None,
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

fn checked_signal(asked: &v1::ExecutionsSignalRequest) -> Result<(Option<Id>, i32), Problem> {
    let mut fields = Fields::default();
    let id = fields.id("request_id", &asked.request_id);
    if !(1..=64).contains(&asked.signal) {
        let message = format!("{} is no signal: 1 to 64 are", asked.signal);
        fields.wrong("signal", Reason::InvalidValue, message);
    }
    fields.done()?;
    Ok((id, i32::try_from(asked.signal).unwrap_or_default()))
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

/// Gives what is left of an execution.
fn send_past(past: &Past, after_sequence: u64) -> BoxStream<ExecutionEvent> {
    let events = past.events(after_sequence).into_iter().map(Ok);
    Box::pin(tokio_stream::iter(events))
}

/// What makes a request the same as another: all that was sent, inputs that came by the stream included.
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

fn is_streamed(input: &v1::InputSource) -> bool {
    matches!(input.source, Some(input_source::Source::Streamed(_)))
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
        request_sha256: Some(hex(&execution.digest)),
        session: execution.session.clone(),
        kept: execution.kept.is_some(),
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

mod input;
mod place;
mod review;
#[cfg(test)]
mod tests;
