//! The file helper of a kept session: one task owns it and lends it to one conversation at a time.
//!
//! A helper that died, or fell out of step with its protocol, is replaced. If the next one does too before a
//! conversation with it was good, the session is not well, and ends.

use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::Weak;
use std::time::Duration;

use brig_jailer::api::Request;
use brig_proto::v1::SessionCloseReason;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::{EXECUTIONS_MAX, Session};
use crate::files::{Files, FilesError};
use crate::jailer::Jailer;

/// How long the jailer may take for another helper.
const REPLACE: Duration = Duration::from_secs(10);
/// Bad conversations in a row after which a session ends.
const FAILURES_MAX: u32 = 2;

/// Asks for the helper of a session.
#[derive(Debug)]
pub struct Helper {
    /// As many as may use the session can wait.
    wanted: mpsc::Sender<oneshot::Sender<Lease>>,
    sockets: mpsc::Sender<OwnedFd>,
    over: CancellationToken,
}

/// The other ends of a [`Helper`], for its task.
#[derive(Debug)]
pub struct Inbox {
    wanted: mpsc::Receiver<oneshot::Sender<Lease>>,
    sockets: mpsc::Receiver<OwnedFd>,
    over: CancellationToken,
}

/// The helper, until this is dropped.
#[derive(Debug)]
pub struct Lease {
    files: Files,
    back: Option<oneshot::Sender<Files>>,
}

impl Helper {
    /// Makes the two ends.
    pub fn new() -> (Self, Inbox) {
        let (wanted, requests) = mpsc::channel(EXECUTIONS_MAX);
        let (sockets, arrived) = mpsc::channel(1);
        let over = CancellationToken::new();
        let inbox = Inbox {
            wanted: requests,
            sockets: arrived,
            over: over.clone(),
        };
        (Self { wanted, sockets, over }, inbox)
    }

    /// Says that the session is over: nobody gets the helper any more.
    pub fn end(&self) {
        self.over.cancel();
    }

    /// Waits for the helper. The caller bounds that.
    pub async fn lease(&self) -> Result<Lease, FilesError> {
        let (sender, lease) = oneshot::channel();
        self.wanted.send(sender).await.map_err(|_over| FilesError::Gone)?;
        lease.await.map_err(|_over| FilesError::Gone)
    }

    /// Takes the socket of a helper that the jailer started.
    pub fn arrived(&self, socket: OwnedFd) {
        // One is asked for at a time. Another one is closed, which ends that helper.
        let _ = self.sockets.try_send(socket);
    }
}

impl Deref for Lease {
    type Target = Files;

    fn deref(&self) -> &Files {
        &self.files
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Files {
        &mut self.files
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let files = std::mem::replace(&mut self.files, Files::none());
        // The session may be over.
        self.back.take().map(|back| back.send(files));
    }
}

/// Lends the helper out until the session is over. Without one, another is asked for when it is needed.
pub async fn serve(session: Weak<Session>, jailer: Jailer, mut files: Files, mut inbox: Inbox) {
    let mut failures = 0;
    loop {
        let wanted = tokio::select! {
            () = inbox.over.cancelled() => None,
            wanted = inbox.wanted.recv() => wanted,
        };
        let Some(wanted) = wanted else { return };
        if wanted.is_closed() {
            continue;
        }
        if !files.is_usable() {
            let Some(found) = next(&session, &jailer, &mut inbox, failures).await else {
                if let Some(session) = session.upgrade() {
                    error!(session = %session.id, "file helper lost");
                    session.end(SessionCloseReason::Died);
                }
                return;
            };
            files = found;
        }
        let (back, returned) = oneshot::channel();
        let lease = Lease {
            files,
            back: Some(back),
        };
        // Who does not want it any more gives it back by dropping it.
        let _ = wanted.send(lease);
        files = returned.await.unwrap_or_else(|_dropped| Files::none());
        failures = match (files.is_usable(), files.has_failed()) {
            (true, _) => 0,
            (false, true) => failures + 1,
            (false, false) => failures,
        };
    }
}

/// A new helper; `None` where there can't be one.
async fn next(session: &Weak<Session>, jailer: &Jailer, inbox: &mut Inbox, failures: u32) -> Option<Files> {
    if failures >= FAILURES_MAX {
        return None;
    }
    let id = session.upgrade()?.id.clone();
    warn!(session = %id, failures, "file helper replaced");
    jailer.ask(Request::Files { session: id }).await.ok()?;
    let socket = tokio::time::timeout(REPLACE, inbox.sockets.recv()).await.ok()??;
    Files::new(socket).ok()
}
