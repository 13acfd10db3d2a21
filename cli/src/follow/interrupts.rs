//! Ctrl-C: the first one cancels the job and waits for its end, the second one leaves at once.
//!
//! The signals are awaited by a task of their own, on another thread than the one that writes: a reader of our stdout
//! that has stopped reading must not make the command deaf.

use std::time::Duration;

use brig_proto::v1::ExecutionsCancelRequest;
use brig_proto::v1::executions_client::ExecutionsClient;
use rustix::process::{Pid, Signal as SignalNumber};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tonic::transport::Channel;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::interact::raw;

/// How long a cancellation may take to be taken note of.
const CANCEL: Duration = Duration::from_secs(5);

/// What an interrupt has to end.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) client: ExecutionsClient<Channel>,
    pub(crate) execution_id: String,
}

impl Target {
    /// Asks the daemon to cancel the execution. If the daemon does not answer, the end of the call will tell.
    pub(crate) async fn cancel(mut self) {
        let request = ExecutionsCancelRequest {
            execution_id: self.execution_id,
            ..ExecutionsCancelRequest::default()
        };
        tokio::time::timeout(CANCEL, self.client.cancel(request)).await.ok();
    }
}

/// The interrupts of a call.
#[derive(Debug)]
pub(crate) struct Interrupts {
    target: watch::Sender<Option<Target>>,
    daemon: watch::Sender<Option<Pid>>,
    asked: watch::Receiver<bool>,
}

impl Interrupts {
    /// Starts to wait for SIGINT and SIGTERM.
    pub(crate) fn watch() -> Result<Self, Failure> {
        let wait_for = |kind| signal(kind).map_err(|error| Failure::new(Exit::Failed, format!("signals: {error}")));
        let signals = (wait_for(SignalKind::interrupt())?, wait_for(SignalKind::terminate())?);
        let (target, targets) = watch::channel(None);
        let (daemon, daemons) = watch::channel(None);
        let (ask, asked) = watch::channel(false);
        tokio::spawn(wait(signals, ask, targets, daemons));
        Ok(Self { target, daemon, asked })
    }

    /// Says what the first interrupt has to cancel, also one that came already: each time that this is said.
    pub(crate) fn aim(&self, target: Target) {
        self.target.send_replace(Some(target));
    }

    /// Says which private daemon the second interrupt has to stop before it leaves.
    pub(crate) fn stop_too(&self, daemon: Option<Pid>) {
        self.daemon.send_replace(daemon);
    }

    /// Waits for the first interrupt.
    pub(crate) async fn asked(&self) {
        if self.asked.clone().wait_for(|asked| *asked).await.is_err() {
            // The task that waits for signals is gone only when the runtime ends.
            std::future::pending::<()>().await;
        }
    }
}

async fn wait(
    mut signals: (Signal, Signal),
    ask: watch::Sender<bool>,
    mut targets: watch::Receiver<Option<Target>>,
    daemons: watch::Receiver<Option<Pid>>,
) {
    next(&mut signals).await;
    ask.send_replace(true);
    let cancel = async {
        loop {
            let target = targets.borrow_and_update().clone();
            if let Some(target) = target {
                target.cancel().await;
            }
            if targets.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        () = next(&mut signals) => {}
        () = cancel => {}
    }
    leave(*daemons.borrow());
}

async fn next((interrupt, terminate): &mut (Signal, Signal)) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

#[expect(
    clippy::exit,
    reason = "the second Ctrl-C leaves at once, whatever the other threads wait for"
)]
fn leave(daemon: Option<Pid>) -> ! {
    raw::restore();
    if let Some(daemon) = daemon {
        // If it is gone already there is nothing to stop.
        rustix::process::kill_process(daemon, SignalNumber::TERM).ok();
    }
    std::process::exit(Exit::Cancelled as i32)
}
