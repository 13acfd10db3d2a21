//! One call of `Executions.Run`, from the request to `finished`.

use std::time::Duration;

use brig_proto::result::ResultDocument;
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::executions_client::ExecutionsClient;
use brig_proto::v1::{ExecutionEvent, ExecutionResult, ExecutionSpec};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::collect::{Collector, Saved};
use super::inputs::InputFile;
use super::interrupts::{Interrupts, Target};
use super::show::Show;
use super::upload::Upload;
use crate::exit::Exit;
use crate::failure::Failure;

/// How long a failed call waits for what the upload has to say about it.
const UPLOAD_WORD: Duration = Duration::from_secs(1);

/// What came of a call.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) document: ResultDocument,
    pub(crate) saved: Saved,
}

/// A call in progress.
pub(crate) struct Call<'a> {
    client: ExecutionsClient<Channel>,
    interrupts: &'a Interrupts,
    show: &'a mut dyn Show,
    collector: Option<Collector>,
    /// What can be cancelled, once the request is accepted.
    target: Option<Target>,
    started: bool,
    abandoned: bool,
}

impl<'a> Call<'a> {
    /// Prepares a call; events are shown as they come, artifacts go to the collector.
    pub(crate) fn new(
        channel: Channel,
        interrupts: &'a Interrupts,
        show: &'a mut dyn Show,
        collector: Option<Collector>,
    ) -> Self {
        let client = ExecutionsClient::new(channel);
        Self {
            client,
            interrupts,
            show,
            collector,
            target: None,
            started: false,
            abandoned: false,
        }
    }

    /// Runs it. Errors: the refusal, and a connection that breaks.
    pub(crate) async fn run(mut self, spec: ExecutionSpec, inputs: Vec<InputFile>) -> Result<Outcome, Failure> {
        let interrupts = self.interrupts;
        let (upload, requests) = Upload::start(spec, inputs);
        let answer = tokio::select! {
            answer = self.client.run(requests) => answer,
            () = interrupts.asked() => return Err(cancelled()),
        };
        let followed = match answer {
            Ok(events) => self.follow(events.into_inner()).await,
            Err(status) => Err(self.failure(&status)),
        };
        match followed {
            Ok(result) => Ok(Outcome {
                document: ResultDocument::from_proto(&result),
                saved: self.collector.map(Collector::finish).unwrap_or_default(),
            }),
            // The daemon sees only that a file ends too early; the upload knows why.
            Err(failure) => Err(tokio::time::timeout(UPLOAD_WORD, upload.failure())
                .await
                .ok()
                .flatten()
                .unwrap_or(failure)),
        }
    }

    async fn follow(&mut self, mut events: Streaming<ExecutionEvent>) -> Result<ExecutionResult, Failure> {
        let interrupts = self.interrupts;
        loop {
            let next = tokio::select! {
                next = events.message() => next,
                // Later an interrupt cancels the execution, whose end is then awaited here.
                () = interrupts.asked(), if self.target.is_none() => return Err(cancelled()),
            };
            match next {
                Ok(Some(ExecutionEvent {
                    event: Some(Event::Finished(result)),
                    ..
                })) => return Ok(result),
                Ok(Some(event)) => self.take(event).await,
                Ok(None) => return Err(lost("the daemon ended the call without a result")),
                Err(status) => return Err(self.failure(&status)),
            }
        }
    }

    async fn take(&mut self, event: ExecutionEvent) {
        match &event.event {
            Some(Event::Accepted(accepted)) if self.target.is_none() => {
                let target = Target {
                    client: self.client.clone(),
                    execution_id: accepted.execution_id.clone(),
                };
                self.interrupts.aim(target.clone());
                self.target = Some(target);
            }
            Some(Event::Started(_)) => self.started = true,
            Some(Event::Artifact(artifact)) => {
                if let Some(collector) = &mut self.collector {
                    collector.announce(artifact);
                }
            }
            Some(Event::ArtifactChunk(chunk)) => {
                if let Some(collector) = &mut self.collector {
                    collector.take(chunk);
                }
            }
            _ => {}
        }
        if !self.show.event(&event) && !self.abandoned {
            self.abandoned = true;
            self.abandon().await;
        }
    }

    /// Cancels an execution whose output nobody reads any more, as a program in a pipe would end.
    async fn abandon(&self) {
        if let Some(target) = &self.target {
            target.clone().cancel().await;
        }
    }

    /// Explains a status: a refusal, or, without a reason of the daemon, a broken connection.
    fn failure(&self, status: &Status) -> Failure {
        let failure = Failure::from_status(status);
        let transport = matches!(
            status.code(),
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
        );
        if failure.reason.is_none() && transport {
            let when = if self.started {
                "after the start of the job"
            } else {
                "before the job started"
            };
            return lost(format!(
                "the connection to the daemon broke {when}: {}",
                failure.message
            ));
        }
        failure
    }
}

fn lost(message: impl Into<String>) -> Failure {
    Failure::new(Exit::Failed, message)
}

pub(crate) fn cancelled() -> Failure {
    Failure::new(Exit::Cancelled, "cancelled before the job was accepted")
}
