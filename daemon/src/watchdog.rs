//! Looks whether the parts of the daemon still answer.
//!
//! A sign of life goes to the service manager only when each part that could hang has answered in time. One that does
//! not ends in a restart, which sessions that are kept survive.

use std::sync::Arc;
use std::time::Duration;

use brig_jailer::ids::Id;
use brig_jailer::service::notify::NotifyState;
use tracing::{error, info};

use crate::host::Host;
use crate::jailer::JailerError;
use crate::report::Reporter;

/// Looks within the time after which the manager gives the daemon up.
const LOOKS: u32 = 3;

/// Looks again and again; ends with the task.
pub async fn watch(host: Arc<Host>, reporter: Arc<Reporter>, limit: Duration) {
    let pause = limit / LOOKS;
    // No execution has this name: ids that brigd makes are longer, and one that a client gave would do no harm.
    let nobody = Id::parse("watchdog").expect("these are letters");
    loop {
        let silent = silent(&host, &nobody, pause).await;
        if silent.is_empty() {
            reporter.tell(&[NotifyState::Watchdog]);
            if reporter.note_silence(None) {
                info!("all parts answer again");
            }
        } else {
            let parts = silent.join(", ");
            error!(%parts, limit_ms = pause.as_millis(), "part of the daemon does not answer");
            reporter.note_silence(Some(format!("does not answer: {parts}")));
        }
        tokio::time::sleep(pause).await;
    }
}

/// Asks each part for something cheap, all at one time; names those that did not answer within `limit`.
async fn silent(host: &Host, nobody: &Id, limit: Duration) -> Vec<&'static str> {
    // An answer that says what is wrong is an answer. A jailer that is gone ends the daemon without the watchdog.
    let runtime = async { drop(tokio::spawn(async {}).await) };
    let threads = async { drop(tokio::task::spawn_blocking(|| ()).await) };
    let ledger = async { drop(host.ledger.get(nobody).await) };
    let jailer = async {
        if matches!(host.jailer.ping().await, Err(JailerError::Silent)) {
            std::future::pending::<()>().await;
        }
    };
    let answers = tokio::join!(
        tokio::time::timeout(limit, runtime),
        tokio::time::timeout(limit, threads),
        tokio::time::timeout(limit, ledger),
        tokio::time::timeout(limit, jailer),
    );
    [
        ("runtime", answers.0),
        ("blocking threads", answers.1),
        ("ledger", answers.2),
        ("brig-jailer", answers.3),
    ]
    .into_iter()
    .filter_map(|(part, answer)| answer.is_err().then_some(part))
    .collect()
}
