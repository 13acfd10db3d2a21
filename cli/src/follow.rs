//! Following one execution, from the request to its end.

mod call;
pub(crate) mod collect;
pub(crate) mod inputs;
pub(crate) mod interrupts;
mod patience;
mod save;
mod seen;
mod upload;

use std::path::Path;
use std::sync::Arc;

use brig_proto::result::ResultDocument;
use brig_proto::v1::{ExecuteRequest, ExecutionSpec};
use tonic::transport::Channel;

pub(crate) use self::call::Call;
use self::collect::Saved;
use self::inputs::Input;
use self::interrupts::Interrupts;
pub(crate) use self::patience::Patience;
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::show::Show;

/// How an execution comes to be followed.
#[derive(Debug)]
pub(crate) enum Begin {
    /// A job in a session of its own.
    Run {
        spec: Box<ExecutionSpec>,
        inputs: Arc<[Input]>,
    },
    /// A job in a session that exists.
    Execute(Box<ExecuteRequest>),
    /// What runs or has run already. It is somebody else's: leaving it does not end it.
    Attach { execution_id: String, after_sequence: u64 },
}

/// What came of an execution.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) document: ResultDocument,
    pub(crate) saved: Saved,
}

/// Runs a command that follows something. Signals are awaited on another thread than the one that writes.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("threads: {error}")))?;
    let done = runtime.block_on(work);
    // An input that is a slow file may still be read; its end does not matter any more.
    runtime.shutdown_background();
    done
}

/// Follows something on the daemon that `BRIG_ENDPOINT` names.
pub(crate) fn on_daemon<T>(
    show: &mut dyn Show,
    work: impl AsyncFnOnce(&mut Call<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    block_on(async {
        let interrupts = Interrupts::watch()?;
        let (socket, patience) = (connect::socket()?, Patience::from_environment()?);
        let channel = connect(&socket, &interrupts).await?;
        work(&mut Call::new(channel, &interrupts, show, patience)).await
    })
}

/// Connects to a daemon, unless an interrupt comes first.
pub(crate) async fn connect(socket: &Path, interrupts: &Interrupts) -> Result<Channel, Failure> {
    tokio::select! {
        channel = connect::connect(socket) => channel,
        () = interrupts.asked() => Err(cancelled()),
    }
}

/// The end of a request that was interrupted before the daemon took it.
pub(crate) fn cancelled() -> Failure {
    Failure::new(Exit::Cancelled, "cancelled before the job was accepted")
}
