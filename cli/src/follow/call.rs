//! One execution, followed over as many connections as that takes.
//!
//! A connection that breaks is mended for a while. As long as the execution's id is not known, the same request is sent
//! again: the daemon knows it by its request_id, so that nothing runs twice. Afterwards the execution is attached to,
//! behind the last event that was seen, so that each byte is shown once.

mod trouble;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use brig_proto::result::ResultDocument;
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::executions_client::ExecutionsClient;
use brig_proto::v1::{
    ExecutionAccepted, ExecutionEvent, ExecutionResult, ExecutionState, ExecutionsAttachRequest, ExecutionsGetRequest,
};
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

use self::trouble::{NO_RESULT, Stop};
use super::collect::Collector;
use super::interrupts::{Interrupts, Target};
use super::patience::Patience;
use super::seen::Seen;
use super::upload::Upload;
use super::{Begin, Outcome};
use crate::failure::Failure;
use crate::show::Show;

/// An execution that is being followed.
pub(crate) struct Call<'a> {
    client: ExecutionsClient<Channel>,
    interrupts: &'a Interrupts,
    show: &'a mut dyn Show,
    collector: Option<Collector>,
    patience: Patience,
    /// What is told once the request is accepted.
    hint: Option<String>,
    /// Its id, once that is known.
    execution: Option<String>,
    /// Whether it was begun here, and is cancelled when its caller loses interest.
    ours: bool,
    state: ExecutionState,
    seen: Seen,
    upload: Option<Upload>,
    /// Whether the daemon has ever given its events.
    connected: bool,
    started: bool,
    abandoned: bool,
}

/// Takes an event out if it is the one that is waited for.
type Until<T> = fn(ExecutionEvent) -> ControlFlow<T, ExecutionEvent>;

impl<'a> Call<'a> {
    /// Prepares to follow; events are shown as they come.
    pub(crate) fn new(
        channel: Channel,
        interrupts: &'a Interrupts,
        show: &'a mut dyn Show,
        patience: Patience,
    ) -> Self {
        Self {
            client: ExecutionsClient::new(channel),
            interrupts,
            show,
            collector: None,
            patience,
            hint: None,
            execution: None,
            ours: true,
            state: ExecutionState::Unspecified,
            seen: Seen::default(),
            upload: None,
            connected: false,
            started: false,
            abandoned: false,
        }
    }

    /// Saves artifacts by this collector.
    pub(crate) fn collecting(mut self, collector: Option<Collector>) -> Self {
        self.collector = collector;
        self
    }

    /// Tells this once the request is accepted.
    pub(crate) fn hinting(mut self, hint: String) -> Self {
        self.hint = Some(hint);
        self
    }

    /// A client of the same daemon.
    pub(crate) fn client(&self) -> ExecutionsClient<Channel> {
        self.client.clone()
    }

    /// Whether the daemon has taken the request.
    pub(crate) fn is_accepted(&self) -> bool {
        self.execution.is_some()
    }

    /// Follows to the end. Errors: the refusal, and a connection that can't be mended.
    pub(crate) async fn until_end(&mut self, begin: &Begin) -> Result<Outcome, Failure> {
        let result = self.follow(begin, end).await?;
        Ok(Outcome {
            document: ResultDocument::from_proto(&result),
            saved: self.collector.take().map(Collector::finish).unwrap_or_default(),
        })
    }

    /// Follows until the program runs, and gives the execution's id.
    pub(crate) async fn until_start(&mut self, begin: &Begin) -> Result<String, Failure> {
        self.follow(begin, start).await?;
        Ok(self.execution.clone().unwrap_or_default())
    }

    async fn follow<T>(&mut self, begin: &Begin, until: Until<T>) -> Result<T, Failure> {
        if let Begin::Attach {
            execution_id,
            after_sequence,
        } = begin
        {
            self.execution = Some(execution_id.clone());
            self.seen = Seen::until(*after_sequence);
            self.ours = false;
        }
        loop {
            let place = self.seen.place();
            match self.over_one_connection(begin, until).await {
                Ok(found) => return Ok(found),
                Err(Stop::For(failure)) => return Err(failure),
                Err(Stop::Broken(why)) => self.mend(&why, place).await?,
            }
        }
    }

    async fn over_one_connection<T>(&mut self, begin: &Begin, until: Until<T>) -> Result<T, Stop> {
        let mut events = self.open(begin).await?;
        loop {
            let event = self.next(&mut events).await?;
            match until(event) {
                ControlFlow::Break(found) => return Ok(found),
                ControlFlow::Continue(event) => self.take(event).await?,
            }
        }
    }

    async fn open(&mut self, begin: &Begin) -> Result<Streaming<ExecutionEvent>, Stop> {
        let (interrupts, leaves, deadline) = (self.interrupts, self.leaves(), self.patience.deadline());
        let answer = tokio::select! {
            answer = self.ask(begin) => answer,
            () = interrupts.asked(), if leaves => return Err(Stop::For(self.left())),
            () = passed(deadline) => return Err(Stop::Broken("the daemon does not answer".to_owned())),
        };
        match answer {
            Ok(events) => {
                self.connected = true;
                self.patience.opened(Instant::now());
                Ok(events.into_inner())
            }
            Err(status) => Err(self.stop(&status).await),
        }
    }

    async fn ask(&mut self, begin: &Begin) -> Result<Response<Streaming<ExecutionEvent>>, Status> {
        match (&self.execution, begin) {
            (Some(execution_id), _) | (None, Begin::Attach { execution_id, .. }) => {
                let request = ExecutionsAttachRequest {
                    execution_id: execution_id.clone(),
                    after_sequence: self.seen.place(),
                };
                self.client.attach(request).await
            }
            (None, Begin::Run { spec, inputs }) => {
                let (upload, requests) = Upload::start((**spec).clone(), Arc::clone(inputs));
                self.upload = Some(upload);
                self.client.run(requests).await
            }
            (None, Begin::Execute(request)) => self.client.execute((**request).clone()).await,
        }
    }

    async fn next(&mut self, events: &mut Streaming<ExecutionEvent>) -> Result<ExecutionEvent, Stop> {
        let (interrupts, leaves) = (self.interrupts, self.leaves());
        let next = tokio::select! {
            next = events.message() => next,
            // What is ours is cancelled by an interrupt, and its end is awaited here.
            () = interrupts.asked(), if leaves => return Err(Stop::For(self.left())),
        };
        match next {
            Ok(Some(event)) => Ok(event),
            Ok(None) if self.state == ExecutionState::Finished => self.fetch_end().await,
            Ok(None) => Err(Stop::Broken(NO_RESULT.to_owned())),
            Err(status) => Err(self.stop(&status).await),
        }
    }

    /// Asks for the end of an execution of which nothing is left to come: it was attached to behind its end.
    async fn fetch_end(&mut self) -> Result<ExecutionEvent, Stop> {
        let execution_id = self.execution.clone().unwrap_or_default();
        let answer = match self.client.get(ExecutionsGetRequest { execution_id }).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => return Err(self.stop(&status).await),
        };
        let execution = answer.execution.unwrap_or_default();
        match execution.result {
            Some(result) if self.seen.place() >= execution.last_sequence => Ok(ExecutionEvent {
                event: Some(Event::Finished(result)),
                ..ExecutionEvent::default()
            }),
            _ => Err(Stop::Broken(NO_RESULT.to_owned())),
        }
    }

    async fn take(&mut self, event: ExecutionEvent) -> Result<(), Stop> {
        let new = self.seen.take(&event, self.collector.is_some());
        match (&event.event, &mut self.collector) {
            (Some(Event::Accepted(accepted)), _) => self.accepted(accepted),
            (Some(Event::Started(_)), _) => self.started = true,
            (Some(Event::Artifact(artifact)), Some(collector)) => collector.announce(artifact),
            (Some(Event::ArtifactChunk(chunk)), Some(collector)) => {
                collector.take(chunk);
            }
            _ => {}
        }
        if new && !self.show.event(&event) && !self.abandoned {
            self.abandoned = true;
            return self.abandon().await;
        }
        Ok(())
    }

    fn accepted(&mut self, accepted: &ExecutionAccepted) {
        self.state = accepted.state();
        self.execution = Some(accepted.execution_id.clone());
        if let Some(hint) = self.hint.take() {
            self.show.tell(&hint);
        }
        if self.ours {
            // Behind each break again: a cancellation that was asked for may have been lost with the connection.
            self.interrupts.aim(self.target(&accepted.execution_id));
        }
    }

    fn target(&self, execution_id: &str) -> Target {
        Target {
            client: self.client.clone(),
            execution_id: execution_id.to_owned(),
        }
    }

    /// Nobody reads any more: cancels what is ours, as a program in a pipe would end, and leaves what is not.
    async fn abandon(&self) -> Result<(), Stop> {
        match &self.execution {
            Some(execution) if self.ours => {
                self.target(execution).cancel().await;
                Ok(())
            }
            _ => Err(Stop::For(self.left())),
        }
    }
}

fn end(event: ExecutionEvent) -> ControlFlow<ExecutionResult, ExecutionEvent> {
    match event.event {
        Some(Event::Finished(result)) => ControlFlow::Break(result),
        _ => ControlFlow::Continue(event),
    }
}

fn start(event: ExecutionEvent) -> ControlFlow<(), ExecutionEvent> {
    match event.event {
        Some(Event::Started(_) | Event::Finished(_)) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(event),
    }
}

/// Waits until a time; forever if there is none.
async fn passed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
