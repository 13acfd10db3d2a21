//! What is done about the ledger now and then: refusals that were counted are told, and what may not be kept any longer
//! is removed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tracing::error;

use crate::host::Host;

/// How often refusals that were counted are told.
const TELL: Duration = Duration::from_secs(60);
/// How often bodies are looked for whose retention has run out.
const SWEEP: Duration = Duration::from_secs(3600);

/// Does it until the daemon is about to stop. The first sweep comes a minute after the start.
pub async fn keep_house(host: Arc<Host>) {
    let start = Instant::now() + TELL;
    let (mut tell, mut sweep) = (interval_at(start, TELL), interval_at(start, SWEEP));
    for timer in [&mut tell, &mut sweep] {
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    loop {
        tokio::select! {
            () = host.draining.cancelled() => return,
            _ = tell.tick() => {
                if let Err(error) = host.ledger.tell_counted().await {
                    error!(%error, "ledger refusals not told");
                }
            }
            _ = sweep.tick() => {
                if let Err(error) = host.ledger.sweep().await {
                    error!(%error, "ledger not swept");
                }
            }
        }
    }
}
