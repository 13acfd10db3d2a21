//! What a call does when its connection is of no use any more, and how it says so.

use std::time::{Duration, Instant};

use brig_proto::v1::Reason;
use tonic::{Code, Status};

use super::Call;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::follow::cancelled;
use crate::output::amount;

/// How long a failed call waits for what the upload has to say about it.
const UPLOAD_WORD: Duration = Duration::from_secs(1);

pub(super) const NO_RESULT: &str = "the daemon ended the call without a result";

/// Why a connection is of no use any more.
pub(super) enum Stop {
    /// It broke; another one may help.
    Broken(String),
    /// Nothing more is to come.
    For(Failure),
}

impl Call<'_> {
    /// Waits before the next try; `place` is where the last one began. Errors: patience has come to its end.
    pub(super) async fn mend(&mut self, why: &str, place: u64) -> Result<(), Failure> {
        let before = self.patience.deadline();
        let progress = self.seen.place() > place;
        let Some(pause) = self.patience.pause(Instant::now(), progress) else {
            return Err(self.gave_up(why));
        };
        if self.patience.deadline() != before {
            let most = amount::span(self.patience.most().as_millis());
            self.show.note(&format!(
                "the connection to the daemon broke: {why}; trying again for {most}"
            ));
        }
        let leaves = self.leaves();
        tokio::select! {
            () = tokio::time::sleep(pause) => Ok(()),
            () = self.interrupts.asked(), if leaves => Err(self.left()),
        }
    }

    /// Whether an interrupt means to leave: there is nothing to cancel, or it is not ours.
    pub(super) fn leaves(&self) -> bool {
        self.execution.is_none() || !self.ours
    }

    /// Tells a refusal from a connection that broke.
    pub(super) async fn stop(&mut self, status: &Status) -> Stop {
        // The daemon sees only that a file ends too early; the upload knows why.
        if let Some(upload) = self.upload.take()
            && let Ok(Some(failure)) = tokio::time::timeout(UPLOAD_WORD, upload.failure()).await
        {
            return Stop::For(failure);
        }
        let failure = Failure::from_status(status);
        let was_there = self.execution.is_some() && self.connected;
        match failure.reason {
            None if is_transport(failure.code) => Stop::Broken(failure.message),
            Some(Reason::Draining) if was_there => Stop::Broken(failure.message),
            _ if was_there && failure.code == Code::NotFound => Stop::For(self.gone()),
            _ => Stop::For(failure),
        }
    }

    fn gone(&self) -> Failure {
        let execution = self.execution.as_deref().unwrap_or_default();
        lost(format!(
            "execution {execution} is gone: the daemon does not know it any more, and how it ended is not known"
        ))
    }

    fn gave_up(&self, why: &str) -> Failure {
        let when = if self.started {
            "after the start of the job"
        } else {
            "before the job started"
        };
        let most = self.patience.most();
        if most.is_zero() {
            return lost(format!("the connection to the daemon broke {when}: {why}"));
        }
        let most = amount::span(most.as_millis());
        let failure = lost(format!(
            "the connection to the daemon broke {when}, and could not be mended within {most}: {why}"
        ));
        self.hint_to_attach(failure)
    }

    pub(super) fn left(&self) -> Failure {
        if self.execution.is_none() {
            return cancelled();
        }
        self.hint_to_attach(Failure::new(Exit::Cancelled, "left it before its end"))
    }

    fn hint_to_attach(&self, failure: Failure) -> Failure {
        match &self.execution {
            Some(id) => failure.hint(format!(
                "it may go on; follow it: brig execution attach {id} --after {}",
                self.seen.place()
            )),
            None => failure,
        }
    }
}

/// Whether a status that has no reason of the daemon's is the transport's.
fn is_transport(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
    )
}

fn lost(message: impl Into<String>) -> Failure {
    Failure::new(Exit::Failed, message)
}
