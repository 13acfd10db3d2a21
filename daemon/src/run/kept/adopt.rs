//! What outlived the last brigd.

use std::sync::Arc;

use crate::host::Host;
use crate::jailer::Held;
use crate::ledger::{Adopted, LedgerError};

/// Takes over what outlived the last brigd, and marks all else that it left running as lost.
pub async fn adopt(host: &Arc<Host>, held: Vec<Held>) -> Result<(), LedgerError> {
    for mut held in held {
        held.jail.close(crate::run::session::CLOSE).await;
    }
    host.ledger.settle(Adopted::default()).await
}
