//! The execution of the daemon: one log of events, given from any place on, and cut where the script says.

use std::collections::HashMap;
use std::pin::Pin;

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::executions_server::Executions;
use brig_proto::v1::run_request::Part;
use brig_proto::v1::{
    ExecuteRequest, Execution, ExecutionAccepted, ExecutionEvent, ExecutionState, ExecutionsApproveRequest,
    ExecutionsApproveResponse, ExecutionsAttachRequest, ExecutionsCancelRequest, ExecutionsCancelResponse,
    ExecutionsCloseInputRequest, ExecutionsCloseInputResponse, ExecutionsGetRequest, ExecutionsGetResponse,
    ExecutionsInputRequest, ExecutionsInputResponse, ExecutionsInterruptRequest, ExecutionsInterruptResponse,
    ExecutionsListRequest, ExecutionsListResponse, ExecutionsRejectRequest, ExecutionsRejectResponse,
    ExecutionsResizeRequest, ExecutionsResizeResponse, ExecutionsSignalRequest, ExecutionsSignalResponse, Reason,
    RunRequest,
};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, async_trait};
use tonic_types::{ErrorDetails, StatusExt};

use super::{Cut, Scripted, Step, started, unused};

type Events = Pin<Box<dyn Stream<Item = Result<ExecutionEvent, Status>> + Send>>;
type Sender = mpsc::Sender<Result<ExecutionEvent, Status>>;

impl Scripted {
    /// All steps with their sequences. What is not kept has that of the event that it comes with: bytes that of their
    /// artifact, a pause that of the next one.
    fn log(&self) -> Vec<(u64, Step)> {
        let mut sequence = 0;
        let steps = [started()].into_iter().chain(self.script.steps.clone());
        let numbered = steps.map(|step| match &step {
            Step::Send(event) if is_kept(event) => {
                sequence += 1;
                (sequence, step)
            }
            Step::Send(_) => (sequence, step),
            Step::AwaitCancel | Step::AwaitInput | Step::Hang => (sequence + 1, step),
        });
        numbered.collect()
    }

    /// Gives the events behind a sequence.
    fn events(&self, after: u64) -> Events {
        let streams = {
            let asked = self.asked();
            asked.specs.len() + asked.attached.len()
        };
        let cut = self.script.cuts.get(streams - 1).copied();
        let (sender, receiver) = mpsc::channel(1);
        let service = self.clone();
        tokio::spawn(async move { service.play(after, cut, &sender).await });
        Box::pin(ReceiverStream::new(receiver))
    }

    async fn play(&self, after: u64, cut: Option<Cut>, sender: &Sender) -> Option<()> {
        let steps: Vec<_> = self
            .log()
            .into_iter()
            .filter(|(sequence, _)| *sequence > after)
            .collect();
        let waits = steps.iter().any(|(_, step)| !matches!(step, Step::Send(_)));
        let state = if waits {
            ExecutionState::Running
        } else {
            ExecutionState::Finished
        };
        let accepted = Event::Accepted(ExecutionAccepted {
            execution_id: "e1".into(),
            session_id: "s1".into(),
            state: state.into(),
            queue_position: 0,
        });
        let mut sent = 0;
        for (sequence, step) in [(0, Step::Send(Box::new(accepted)))].into_iter().chain(steps) {
            self.cut_at(cut, sent, sender).await?;
            let event = match step {
                Step::Send(event) => *event,
                Step::AwaitCancel | Step::AwaitInput => {
                    self.cancelled.subscribe().wait_for(|cancelled| *cancelled).await.ok()?;
                    continue;
                }
                Step::Hang => std::future::pending().await,
            };
            let event = ExecutionEvent {
                sequence: if is_kept(&event) { sequence } else { 0 },
                time: None,
                event: Some(event),
            };
            sender.send(Ok(event)).await.ok()?;
            sent += 1;
        }
        Some(())
    }

    /// Cuts the stream if this is the place; nothing is what is left of it then.
    async fn cut_at(&self, cut: Option<Cut>, sent: usize, sender: &Sender) -> Option<()> {
        let status = match cut {
            Some(Cut::Broken(place)) if place == sent => Status::unavailable("gone"),
            Some(Cut::Draining(place)) if place == sent => reason(Reason::Draining, "the daemon is about to stop"),
            Some(Cut::Ended(place)) if place == sent => return None,
            Some(Cut::Closed(place)) if place == sent => {
                self.connections.hang_up(false);
                return None;
            }
            _ => return Some(()),
        };
        sender.send(Err(status)).await.ok();
        None
    }
}

/// Whether an event has a sequence of its own.
fn is_kept(event: &Event) -> bool {
    !matches!(event, Event::Accepted(_) | Event::ArtifactChunk(_))
}

/// A refusal with a reason.
pub(crate) fn reason(reason: Reason, message: &str) -> Status {
    let details = ErrorDetails::with_error_info(reason.name(), "brig", HashMap::new());
    Status::with_error_details(reason.code(), message, details)
}

#[async_trait]
impl Executions for Scripted {
    type RunStream = Events;
    type ExecuteStream = Events;
    type AttachStream = Events;

    async fn run(&self, request: Request<Streaming<RunRequest>>) -> Result<Response<Events>, Status> {
        let mut parts = request.into_inner();
        while let Some(RunRequest { part }) = parts.message().await? {
            let mut asked = self.asked();
            match part {
                Some(Part::Spec(spec)) => asked.specs.push(spec),
                Some(Part::FileChunk(chunk)) => asked.chunks.push(chunk),
                None => {}
            }
        }
        self.script.refusal.clone().map_or(Ok(()), Err)?;
        Ok(Response::new(self.events(0)))
    }

    async fn execute(&self, request: Request<ExecuteRequest>) -> Result<Response<Events>, Status> {
        let request = request.into_inner();
        {
            let mut asked = self.asked();
            asked.sessions.push(request.session_id);
            asked.specs.push(request.spec.unwrap());
        }
        self.script.refusal.clone().map_or(Ok(()), Err)?;
        Ok(Response::new(self.events(0)))
    }

    async fn attach(&self, request: Request<ExecutionsAttachRequest>) -> Result<Response<Events>, Status> {
        let request = request.into_inner();
        self.asked()
            .attached
            .push((request.execution_id, request.after_sequence));
        self.script.no_attach.clone().map_or(Ok(()), Err)?;
        Ok(Response::new(self.events(request.after_sequence)))
    }

    async fn cancel(
        &self,
        request: Request<ExecutionsCancelRequest>,
    ) -> Result<Response<ExecutionsCancelResponse>, Status> {
        self.note(|asked| asked.cancelled.push(request.into_inner().execution_id))?;
        self.cancelled.send_replace(true);
        let state = ExecutionState::Running.into();
        Ok(Response::new(ExecutionsCancelResponse { state }))
    }

    async fn interrupt(
        &self,
        request: Request<ExecutionsInterruptRequest>,
    ) -> Result<Response<ExecutionsInterruptResponse>, Status> {
        self.note(|asked| asked.interrupted.push(request.into_inner().execution_id))?;
        let state = ExecutionState::Finished.into();
        Ok(Response::new(ExecutionsInterruptResponse { state }))
    }

    async fn signal(
        &self,
        request: Request<ExecutionsSignalRequest>,
    ) -> Result<Response<ExecutionsSignalResponse>, Status> {
        self.note(|asked| asked.signals.push(request.into_inner()))?;
        Ok(Response::new(ExecutionsSignalResponse {}))
    }

    async fn get(&self, _: Request<ExecutionsGetRequest>) -> Result<Response<ExecutionsGetResponse>, Status> {
        self.note(|_| ())?;
        let end = self.log().into_iter().find_map(|(sequence, step)| match step {
            Step::Send(event) => match *event {
                Event::Finished(result) => Some((sequence, result)),
                _ => None,
            },
            _ => None,
        });
        let (last_sequence, result) = end.unzip();
        let execution = Execution {
            execution_id: "e1".into(),
            last_sequence: last_sequence.unwrap_or_default(),
            result,
            ..Execution::default()
        };
        Ok(Response::new(ExecutionsGetResponse {
            execution: Some(execution),
        }))
    }

    async fn list(&self, _: Request<ExecutionsListRequest>) -> Result<Response<ExecutionsListResponse>, Status> {
        self.note(|_| ())?;
        let execution = Execution {
            execution_id: "e1".into(),
            state: ExecutionState::Running.into(),
            ..Execution::default()
        };
        Ok(Response::new(ExecutionsListResponse {
            executions: vec![execution],
            ..ExecutionsListResponse::default()
        }))
    }

    async fn input(
        &self,
        request: Request<Streaming<ExecutionsInputRequest>>,
    ) -> Result<Response<ExecutionsInputResponse>, Status> {
        let mut pieces = request.into_inner();
        let mut total_bytes = 0;
        while let Some(piece) = pieces.message().await? {
            let mut asked = self.asked();
            asked.offsets.push(piece.offset);
            if asked.offsets.len() <= self.script.lost_inputs {
                return Err(Status::unavailable("the connection broke"));
            }
            let known = piece
                .offset
                .map_or(asked.input.len(), |offset| usize::try_from(offset).unwrap());
            asked.input.truncate(known);
            asked.input.extend_from_slice(&piece.data);
            total_bytes = asked.input.len() as u64;
        }
        Ok(Response::new(ExecutionsInputResponse { total_bytes }))
    }

    async fn close_input(
        &self,
        request: Request<ExecutionsCloseInputRequest>,
    ) -> Result<Response<ExecutionsCloseInputResponse>, Status> {
        self.note(|asked| asked.closed_inputs.push(request.into_inner().execution_id))?;
        self.cancelled.send_replace(true);
        Ok(Response::new(ExecutionsCloseInputResponse {}))
    }

    async fn resize(&self, _: Request<ExecutionsResizeRequest>) -> Result<Response<ExecutionsResizeResponse>, Status> {
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
