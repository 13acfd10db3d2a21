//! Entries in order, for as long as a client reads.
//!
//! Each stream is at a number and reads the next batch when the client has taken the last one, so that nothing is held
//! for a slow client but that batch, and nothing has to be dropped.

use std::sync::Arc;
use std::time::Duration;

use brig_proto::ledger::EntryDocument;
use brig_proto::sizes::FILE_CHUNK_MAX;
use brig_proto::v1::{LedgerExportResponse, LedgerFollowResponse};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::codegen::BoxStream;

use super::show;
use crate::host::Host;
use crate::ledger::{Batch, Filter, Most, Start};
use crate::slots::Slot;
use crate::status::Problem;

/// Who follows reads again this long after something new came, so that what comes close together is read at once.
const PAUSE: Duration = Duration::from_millis(20);
/// Messages on their way to a client.
const MESSAGES: usize = 2;
/// What is read at one time.
const BATCH: Most = Most {
    entries: 256,
    bytes: 1024 * 1024,
};

/// Where a stream is.
struct Reading {
    host: Arc<Host>,
    filter: Filter,
    after: i64,
}

impl Reading {
    async fn next(&mut self) -> Result<Batch, Status> {
        // Whatever is written from here on may be missed by this read, and comes with the next.
        let newest = self.host.ledger.head().borrow().number;
        let start = Start::After(self.after);
        let batch = self.host.ledger.batch(self.filter.clone(), start, BATCH).await;
        let batch = batch.map_err(Problem::from)?;
        self.after = match batch.entries.last() {
            Some(last) if batch.more => last.number,
            // What the filter leaves out need not be looked at again.
            last => newest.max(last.map_or(self.after, |last| last.number)),
        };
        Ok(batch)
    }

    /// Waits for entries that are newer; false if the daemon is about to stop.
    async fn wait(&self) -> bool {
        let mut head = self.host.ledger.head();
        let newer = async {
            let newer = head.wait_for(|head| head.number > self.after).await.is_ok();
            tokio::time::sleep(PAUSE).await;
            newer
        };
        tokio::select! {
            newer = newer => newer,
            () = self.host.draining.cancelled() => false,
        }
    }
}

/// Gives entries in order, then as they come, until the client goes or the daemon stops.
pub(super) fn follow(host: &Arc<Host>, filter: Filter, after: i64, slot: Slot) -> BoxStream<LedgerFollowResponse> {
    let mut reading = Reading {
        host: Arc::clone(host),
        filter,
        after,
    };
    stream(slot, move |sender| async move {
        loop {
            let batch = reading.next().await?;
            let more = batch.more;
            for entry in batch.entries {
                let entry = Some(show::entry(entry));
                if sender.send(Ok(LedgerFollowResponse { entry })).await.is_err() {
                    return Ok(());
                }
            }
            if !more && !reading.wait().await {
                return Err(Problem::Draining.into());
            }
        }
    })
}

/// Gives the entries that there are as JSON Lines.
pub(super) fn export(host: &Arc<Host>, filter: Filter, after: i64, slot: Slot) -> BoxStream<LedgerExportResponse> {
    let mut reading = Reading {
        host: Arc::clone(host),
        filter,
        after,
    };
    stream(slot, move |sender| async move {
        let mut lines = Vec::new();
        loop {
            let batch = reading.next().await?;
            for entry in batch.entries {
                let line = EntryDocument::from_proto(&show::entry(entry)).line();
                lines.extend_from_slice(line.as_bytes());
                while lines.len() >= FILE_CHUNK_MAX {
                    let rest = lines.split_off(FILE_CHUNK_MAX);
                    let data = std::mem::replace(&mut lines, rest).into();
                    if sender.send(Ok(LedgerExportResponse { data })).await.is_err() {
                        return Ok(());
                    }
                }
            }
            if !batch.more {
                break;
            }
        }
        if !lines.is_empty() {
            let data = lines.into();
            // A client that is gone needs no end.
            let _ = sender.send(Ok(LedgerExportResponse { data })).await;
        }
        Ok(())
    })
}

/// Runs what fills a stream until it is done or the client is gone. Its place is free again afterwards.
fn stream<T: Send + 'static, F: Future<Output = Result<(), Status>> + Send + 'static>(
    slot: Slot,
    fill: impl FnOnce(mpsc::Sender<Result<T, Status>>) -> F + Send + 'static,
) -> BoxStream<T> {
    let (sender, receiver) = mpsc::channel(MESSAGES);
    tokio::spawn(async move {
        let _slot = slot;
        let ended = tokio::select! {
            ended = fill(sender.clone()) => ended,
            () = sender.closed() => return,
        };
        if let Err(status) = ended {
            // A client that is gone needs no reason.
            let _ = sender.send(Err(status)).await;
        }
    });
    Box::pin(ReceiverStream::new(receiver))
}
