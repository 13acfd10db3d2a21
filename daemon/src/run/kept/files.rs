//! What the calls on the files of a session have in common: how many there may be, and which requests were answered.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brig_jailer::ids::Id;
use brig_proto::v1::FileInfo;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::status::Problem;

/// The most calls on the files of a session at one time, without those that watch. With those, and the door, the helper
/// has as many conversations as it may have.
pub const CALLS_MAX: usize = 10;
/// The most calls that watch.
pub const WATCHES_MAX: usize = 4;
/// The most requests of a session whose answers are remembered, the newest ones.
const ANSWERS_MAX: usize = 256;

/// What was answered to a request that changed something.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    pub file: Option<FileInfo>,
    pub removed: u64,
}

/// The calls on the files of one session.
#[derive(Debug)]
pub struct FileCalls {
    calls: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<Remembered>,
}

#[derive(Debug)]
struct Remembered {
    request: Id,
    /// Hash of the request: the same request_id must come with the same one.
    digest: [u8; 32],
    partial: u64,
    state: Progress,
}

#[derive(Debug)]
enum Progress {
    Running(CancellationToken, watch::Receiver<()>),
    BrokenOff,
    Done(Answer),
}

/// How a request with an id begins.
#[derive(Debug)]
pub enum Begun {
    /// It is to be done; the number names what has arrived of it, if anything has.
    New(Turn, u64),
    /// It was done before.
    Done(Answer),
    /// It is being done. Whoever asks again has given up the first call.
    Running(CancellationToken, watch::Receiver<()>),
}

/// A request with an id that is being done; dropped before its end it counts as broken off.
#[derive(Debug)]
pub struct Turn {
    session: Arc<super::Session>,
    request: Id,
    /// Cancelled when the same request comes again.
    pub replaced: CancellationToken,
    _over: watch::Sender<()>,
}

impl Default for FileCalls {
    fn default() -> Self {
        Self {
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            watches: Arc::new(Semaphore::new(WATCHES_MAX)),
            state: Mutex::default(),
        }
    }
}

impl FileCalls {
    /// Takes a place for a call.
    pub fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.calls).try_acquire_owned().ok()
    }

    /// Takes a place for a call that watches.
    pub fn watch(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.watches).try_acquire_owned().ok()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins a request that has an id, unless it was done before.
pub fn begin(session: &Arc<super::Session>, request: &Id, digest: [u8; 32], number: u64) -> Result<Begun, Problem> {
    let mut state = session.files.lock();
    let (over, ended) = watch::channel(());
    let replaced = CancellationToken::new();
    let running = Progress::Running(replaced.clone(), ended);
    let known = state.requests.iter_mut().find(|known| known.request == *request);
    let partial = match known {
        Some(known) if known.digest != digest => return Err(crate::run::registry::reused(request)),
        Some(known) => match &known.state {
            Progress::Done(answer) => return Ok(Begun::Done(answer.clone())),
            Progress::Running(replaced, ended) => return Ok(Begun::Running(replaced.clone(), ended.clone())),
            Progress::BrokenOff => {
                known.state = running;
                known.partial
            }
        },
        None => {
            if state.requests.len() >= ANSWERS_MAX {
                let oldest = state
                    .requests
                    .iter()
                    .position(|known| !matches!(known.state, Progress::Running(..)));
                oldest.map(|oldest| state.requests.remove(oldest));
            }
            state.requests.push_back(Remembered {
                request: request.clone(),
                digest,
                partial: number,
                state: running,
            });
            number
        }
    };
    let turn = Turn {
        session: Arc::clone(session),
        request: request.clone(),
        replaced,
        _over: over,
    };
    Ok(Begun::New(turn, partial))
}

impl Turn {
    /// Remembers the answer.
    pub fn done(self, answer: &Answer) {
        self.set(Progress::Done(answer.clone()));
    }

    fn set(&self, progress: Progress) {
        let mut state = self.session.files.lock();
        let known = state.requests.iter_mut().find(|known| known.request == self.request);
        if let Some(known) = known
            && matches!(known.state, Progress::Running(..))
        {
            known.state = progress;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.set(Progress::BrokenOff);
    }
}
