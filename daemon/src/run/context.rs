//! Contexts: interpreters in a kept session whose state stays from one execution to the next.
//!
//! A [`Context`] is what everybody shares of one. Its process belongs to one task ([`life`]), which starts it, replaces
//! it, and lends it to one execution at a time ([`Lease`]); the others wait in its queue, each with a [`Turn`]. Whoever
//! has the process watches it: an execution to its `done` or its end ([`execution`]), the task in between.

pub mod admit;
pub mod adopt;
pub mod execution;
pub mod interpreter;
pub mod life;
pub mod memo;
mod set;
mod turn;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use brig_jailer::ids::Id;
use brig_proto::v1;
use brig_proto::v1::{ContextState, ExecutionState, Reason, StartKind};
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};
use tonic::Status;

use crate::run::execution::{Execution, StopCause};
use crate::status::Problem;

pub use set::Contexts;
use turn::Wanted;
pub use turn::{Expected, Interpreter, Lease, Turn};

/// The most executions of one context that wait.
pub const WAITING_MAX: usize = 32;
/// The most requests to reset a context that are remembered.
const RESETS_MAX: usize = 16;

/// The language of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Language {
    Python,
    Bash,
}

/// A context, as long as somebody may ask for it.
#[derive(Debug)]
pub struct Context {
    pub id: Id,
    pub session: Id,
    pub request: Option<Id>,
    /// Hash of the request: the same request_id must come with the same one.
    pub digest: [u8; 32],
    pub language: Language,
    /// Where its interpreters start, absolute.
    pub directory: String,
    /// Variables beside the session's.
    pub environment: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
    pub create_time: SystemTime,
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    phase: ContextState,
    last_active: SystemTime,
    /// Executions that have begun since its interpreter started.
    executions: u64,
    /// Whether the interpreter runs code, or was asked to.
    runs_code: bool,
    /// Whether a zygote has forked its interpreter.
    forked: bool,
    generation: u32,
    /// What became of the last interpreter, until an execution is told.
    lost: Option<String>,
    waiting: VecDeque<Wanted>,
    /// Executions that wait for approval first.
    expected: Vec<Arc<Execution>>,
    /// The execution that has the process.
    running: Option<Arc<Execution>>,
    is_closing: bool,
    /// How often somebody asked for a new interpreter, by which requests, and how often that was done.
    resets: u64,
    requests: VecDeque<Id>,
    resets_done: u64,
    /// Why the last interpreter that was asked for could not be started.
    refusal: Option<Status>,
}

/// The context that an execution runs in.
#[derive(Debug)]
pub struct Seat {
    pub context: Id,
    state_kept: AtomicBool,
}

impl Language {
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Bash => "bash",
        }
    }
}

impl Seat {
    pub fn new(context: &Context) -> Self {
        Self {
            context: context.id.clone(),
            state_kept: AtomicBool::new(false),
        }
    }

    /// Says that the interpreter lives on with its state.
    pub fn keep_state(&self) {
        self.state_kept.store(true, Ordering::SeqCst);
    }

    /// Whether what the execution left in the interpreter is there for the next one.
    pub fn is_state_kept(&self) -> bool {
        self.state_kept.load(Ordering::SeqCst)
    }
}

impl Context {
    /// Takes a place in its queue; whether nobody is before.
    pub fn queue(self: &Arc<Self>, execution: &Arc<Execution>) -> Result<(Turn, bool), Problem> {
        self.take_place(execution, WAITING_MAX)
    }

    /// Notes an execution that takes its place when it is approved.
    pub fn expect(self: &Arc<Self>, execution: &Arc<Execution>) -> Result<Expected, Problem> {
        let mut state = self.lock();
        if state.is_closing || state.phase == ContextState::Closed {
            return Err(self.closed_problem());
        }
        state.expected.push(Arc::clone(execution));
        Ok(Expected {
            context: Arc::clone(self),
            execution: Arc::clone(execution),
        })
    }

    fn take_place(self: &Arc<Self>, execution: &Arc<Execution>, most: usize) -> Result<(Turn, bool), Problem> {
        let (granted, turn) = oneshot::channel();
        let is_free = {
            let mut state = self.lock();
            if state.is_closing || state.phase == ContextState::Closed {
                return Err(self.closed_problem());
            }
            if state.waiting.len() >= most {
                return Err(Problem::ContextBusy(self.id.to_string(), state.waiting.len()));
            }
            let is_free = state.running.is_none() && state.waiting.is_empty();
            state.waiting.push_back(Wanted {
                execution: Arc::clone(execution),
                granted,
            });
            if !is_free {
                state.tell_places();
            }
            is_free
        };
        self.changes.send_replace(());
        let turn = Turn {
            context: Arc::clone(self),
            log: Arc::clone(&execution.log),
            granted: turn,
        };
        Ok((turn, is_free))
    }

    /// Has it end; its executions are cancelled.
    pub fn close(&self) {
        self.cancel_all(|state| state.is_closing = true);
    }

    /// Has its interpreter replaced; its executions are cancelled. Gives what [`Self::reset`] waits for.
    pub fn ask_reset(&self, request: Option<&Id>) -> Result<u64, Problem> {
        {
            let state = self.lock();
            if state.is_closing {
                return Err(self.closed_problem());
            }
            if request.is_some_and(|request| state.requests.contains(request)) {
                return Ok(state.resets);
            }
        }
        let mut number = 0;
        self.cancel_all(|state| {
            state.resets += 1;
            number = state.resets;
            if let Some(request) = request {
                state.requests.push_back(request.clone());
                if state.requests.len() > RESETS_MAX {
                    state.requests.pop_front();
                }
            }
        });
        Ok(number)
    }

    /// Waits until so many resets are done.
    pub async fn reset(&self, number: u64) -> Result<(), Status> {
        self.until(|state| {
            if state.resets_done >= number {
                Some(state.refusal.clone().map_or(Ok(()), Err))
            } else if state.phase == ContextState::Closed {
                Some(Err(self.closed_problem().into()))
            } else {
                None
            }
        })
        .await
    }

    /// Waits until it takes work.
    pub async fn ready(&self) -> Result<(), Status> {
        self.until(|state| match state.phase {
            ContextState::Unspecified | ContextState::Starting => None,
            ContextState::Idle | ContextState::Busy => Some(Ok(())),
            ContextState::Closed => Some(Err(state
                .refusal
                .clone()
                .unwrap_or_else(|| self.closed_problem().into()))),
        })
        .await
    }

    /// Waits until nothing of it is left.
    pub async fn gone(&self) {
        self.until(|state| (state.phase == ContextState::Closed).then_some(()))
            .await;
    }

    /// Whether it ends or has ended.
    pub fn is_over(&self) -> bool {
        let state = self.lock();
        state.is_closing || state.phase == ContextState::Closed
    }

    /// Shows it as it is now.
    pub fn show(&self) -> v1::Context {
        let state = self.lock();
        v1::Context {
            session_id: self.session.to_string(),
            context_id: self.id.to_string(),
            language: self.language.name().to_owned(),
            directory: self.directory.clone(),
            state: state.phase.into(),
            create_time: Some(self.create_time.into()),
            last_active_time: Some(state.last_active.into()),
            execution_count: state.executions,
            queue_length: u32::try_from(state.waiting.len()).unwrap_or(u32::MAX),
            generation: state.generation,
            labels: self.labels.clone(),
        }
    }

    /// How its interpreter came to be.
    pub fn start(&self) -> StartKind {
        if self.lock().forked {
            StartKind::Forked
        } else {
            StartKind::Cold
        }
    }

    /// What a call on it is told when it is over.
    fn closed_problem(&self) -> Problem {
        Problem::NotFound {
            kind: "context",
            name: self.id.to_string(),
            why: "context_id: it was closed".to_owned(),
            reason: Reason::ContextNotFound,
        }
    }

    /// Says that an execution is about to begin, and gives what it has to be told of the last interpreter.
    pub fn begins(&self) -> Option<String> {
        let mut lost = None;
        self.change(|state| {
            state.executions += 1;
            state.runs_code = true;
            lost = state.lost.take();
        });
        lost
    }

    /// Says that what was about to begin does not: the next one is told what it would have been told.
    pub fn begins_not(&self, lost: Option<String>) {
        self.change(|state| {
            state.executions = state.executions.saturating_sub(1);
            state.runs_code = false;
            state.lost = state.lost.take().or(lost);
        });
    }

    /// Says that the interpreter waits for work again, with its state or without.
    pub fn waits(&self, state_kept: bool) {
        self.change(|state| {
            state.runs_code = false;
            if !state_kept {
                state.generation += 1;
                state.executions = 0;
            }
        });
    }

    fn cancel_all(&self, change: impl FnOnce(&mut State)) {
        let executions: Vec<_> = {
            let mut state = self.lock();
            change(&mut state);
            let waiting = state.waiting.iter().map(|wanted| &wanted.execution);
            waiting.chain(&state.expected).chain(&state.running).cloned().collect()
        };
        for execution in executions {
            execution.stop.tell(StopCause::Cancel);
        }
        self.changes.send_replace(());
    }

    async fn until<T>(&self, holds: impl Fn(&State) -> Option<T>) -> T {
        let mut changes = self.changes.subscribe();
        loop {
            changes.mark_unchanged();
            if let Some(found) = holds(&self.lock()) {
                return found;
            }
            // The sender lives as long as the context, which the caller holds.
            let _ = changes.changed().await;
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changes.send_replace(());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new() -> Self {
        Self {
            phase: ContextState::Starting,
            last_active: SystemTime::now(),
            executions: 0,
            runs_code: false,
            forked: false,
            generation: 0,
            lost: None,
            waiting: VecDeque::new(),
            expected: Vec::new(),
            running: None,
            is_closing: false,
            resets: 0,
            requests: VecDeque::new(),
            resets_done: 0,
            refusal: None,
        }
    }

    /// Tells those that wait their places, the first of which is 1.
    fn tell_places(&self) {
        for (place, wanted) in (1..).zip(&self.waiting) {
            wanted.execution.log.place(ExecutionState::Queued, place);
        }
    }
}
