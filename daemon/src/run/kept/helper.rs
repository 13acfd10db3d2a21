//! The file helper of a kept session: one task owns it and lends it to one conversation at a time.
//!
//! A helper that died, or fell out of step with its protocol, is replaced. If the next one does too before a
//! conversation with it was good, the session is not well, and ends.
//!
//! Calls of clients on files have conversations of their own with the helper. They begin at a door that is never lent
//! out, so that none waits for what an execution does with its files.

use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::Weak;
use std::time::Duration;

use brig_jailer::api::Request;
use brig_jailer::files::wire::Place;
use brig_proto::v1::SessionCloseReason;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::{EXECUTIONS_MAX, Session};
use crate::files::{Channel, Files, FilesError};
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
    callers: mpsc::Sender<Caller>,
    sockets: mpsc::Sender<OwnedFd>,
    over: CancellationToken,
}

/// The other ends of a [`Helper`], for its task.
#[derive(Debug)]
pub struct Inbox {
    wanted: mpsc::Receiver<oneshot::Sender<Lease>>,
    callers: mpsc::Receiver<Caller>,
    sockets: mpsc::Receiver<OwnedFd>,
    over: CancellationToken,
}

/// Somebody who wants a conversation of their own.
#[derive(Debug)]
struct Caller {
    place: Place,
    answer: oneshot::Sender<Result<Channel, FilesError>>,
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
        let (callers, calls) = mpsc::channel(EXECUTIONS_MAX);
        let (sockets, arrived) = mpsc::channel(1);
        let over = CancellationToken::new();
        let inbox = Inbox {
            wanted: requests,
            callers: calls,
            sockets: arrived,
            over: over.clone(),
        };
        let helper = Self {
            wanted,
            callers,
            sockets,
            over,
        };
        (helper, inbox)
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

    /// Begins a conversation about a directory. The caller bounds the wait.
    pub async fn open(&self, place: Place) -> Result<Channel, FilesError> {
        let (answer, channel) = oneshot::channel();
        let caller = Caller { place, answer };
        self.callers.send(caller).await.map_err(|_over| FilesError::Gone)?;
        channel.await.map_err(|_over| FilesError::Gone)?
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
pub async fn serve(session: Weak<Session>, jailer: Jailer, files: Files, mut inbox: Inbox) {
    let over = inbox.over.clone();
    let mut desk = Desk {
        session: session.clone(),
        jailer,
        files: Some(files),
        door: None,
        failures: 0,
    };
    let serving = async {
        let mut lent: Option<oneshot::Receiver<Files>> = None;
        loop {
            // While the helper is lent out, its door is enough for callers, if it is open.
            let may_open = lent.is_none() || desk.door.is_some();
            tokio::select! {
                back = returned(&mut lent) => {
                    lent = None;
                    desk.take_back(back);
                }
                wanted = inbox.wanted.recv(), if lent.is_none() => {
                    lent = desk.lend(wanted?, &mut inbox.sockets).await?;
                }
                caller = inbox.callers.recv(), if may_open => {
                    desk.open(caller?, &mut inbox.sockets).await?;
                }
            }
        }
    };
    let lost: Option<()> = tokio::select! {
        () = over.cancelled() => return,
        lost = serving => lost,
    };
    let living = session.upgrade().filter(|session| session.is_up());
    if let (None, Some(session)) = (lost, living) {
        error!(session = %session.id, "file helper lost");
        session.end(SessionCloseReason::Died);
    }
}

async fn returned(lent: &mut Option<oneshot::Receiver<Files>>) -> Files {
    match lent {
        Some(lent) => lent.await.unwrap_or_else(|_dropped| Files::none()),
        None => std::future::pending().await,
    }
}

/// Where the helper is when nobody has it.
#[derive(Debug)]
struct Desk {
    session: Weak<Session>,
    jailer: Jailer,
    /// `None` while it is lent out.
    files: Option<Files>,
    door: Option<Files>,
    failures: u32,
}

impl Desk {
    /// `None` if the session is not well.
    async fn lend(
        &mut self,
        wanted: oneshot::Sender<Lease>,
        sockets: &mut mpsc::Receiver<OwnedFd>,
    ) -> Option<Option<oneshot::Receiver<Files>>> {
        if wanted.is_closed() {
            return Some(None);
        }
        self.look_after(sockets).await?;
        let (back, returned) = oneshot::channel();
        let lease = Lease {
            files: self.files.take()?,
            back: Some(back),
        };
        // Who does not want it any more gives it back by dropping it.
        let _ = wanted.send(lease);
        Some(Some(returned))
    }

    fn take_back(&mut self, files: Files) {
        self.failures = match (files.is_usable(), files.has_failed()) {
            (true, _) => 0,
            (false, true) => self.failures + 1,
            (false, false) => self.failures,
        };
        self.files = Some(files);
    }

    /// Begins a conversation at the door. A door that is broken was that of a helper that is gone.
    async fn open(&mut self, caller: Caller, sockets: &mut mpsc::Receiver<OwnedFd>) -> Option<()> {
        if caller.answer.is_closed() {
            return Some(());
        }
        let opened = self.open_door(caller.place, sockets).await?;
        // Who does not want it any more ends it by dropping it.
        let _ = caller.answer.send(opened);
        Some(())
    }

    async fn open_door(
        &mut self,
        place: Place,
        sockets: &mut mpsc::Receiver<OwnedFd>,
    ) -> Option<Result<Channel, FilesError>> {
        for _ in 0..FAILURES_MAX {
            if self.door.is_none() {
                if self.files.is_none() {
                    return Some(Err(FilesError::Gone));
                }
                self.look_after(sockets).await?;
                let files = self.files.as_mut()?;
                match files.open(Place::Home).await {
                    Ok(channel) => self.door = Some(channel.into_files()),
                    Err(FilesError::Refused(failure)) => return Some(Err(FilesError::Refused(failure))),
                    Err(_) => {
                        self.failures += 1;
                        continue;
                    }
                }
            }
            let door = self.door.as_mut()?;
            match door.open(place).await {
                Err(FilesError::Gone | FilesError::Silent | FilesError::Protocol(_)) => self.door = None,
                opened => {
                    self.failures = 0;
                    return Some(opened);
                }
            }
        }
        Some(Err(FilesError::Gone))
    }

    /// Sees to it that there is a helper that can be asked.
    async fn look_after(&mut self, sockets: &mut mpsc::Receiver<OwnedFd>) -> Option<()> {
        if !self.files.as_ref().is_some_and(Files::is_usable) {
            self.door = None;
            self.files = Some(next(&self.session, &self.jailer, sockets, self.failures).await?);
        }
        Some(())
    }
}

/// A new helper; `None` where there can't be one.
async fn next(
    session: &Weak<Session>,
    jailer: &Jailer,
    sockets: &mut mpsc::Receiver<OwnedFd>,
    failures: u32,
) -> Option<Files> {
    if failures >= FAILURES_MAX {
        return None;
    }
    let session = session.upgrade()?;
    let id = session.id.clone();
    warn!(session = %id, failures, "file helper replaced");
    jailer.ask(Request::Files { session: id }).await.ok()?;
    let socket = tokio::select! {
        socket = tokio::time::timeout(REPLACE, sockets.recv()) => socket.ok()??,
        // None comes any more.
        _reason = session.told_to_end() => return None,
    };
    Files::new(socket).ok()
}
