//! Whose turn it is in a context: executions wait for the interpreter, and have it one after another.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::Context;
use super::interpreter::Live;
use crate::jailer::Process;
use crate::run::execution::Execution;
use crate::run::log::Log;
use crate::status::Problem;

/// What waits for the process.
#[derive(Debug)]
pub(super) struct Wanted {
    pub execution: Arc<Execution>,
    pub granted: oneshot::Sender<Result<Lease, Problem>>,
}

/// A place in the queue of a context.
#[derive(Debug)]
pub struct Turn {
    pub(super) context: Arc<Context>,
    pub(super) log: Arc<Log>,
    pub(super) granted: oneshot::Receiver<Result<Lease, Problem>>,
}

/// A place behind all turns: of an execution that waits for approval, and is cancelled with the others of the context.
#[derive(Debug)]
pub struct Expected {
    pub(super) context: Arc<Context>,
    pub(super) execution: Arc<Execution>,
}

/// The process of a context, until this is dropped.
#[derive(Debug)]
pub struct Lease {
    pub context: Arc<Context>,
    pub interpreter: Interpreter,
    /// Of an execution that is about to begin: what it has to be told of the last interpreter.
    pub(super) begins: Option<Option<String>>,
    pub(super) back: Option<oneshot::Sender<Interpreter>>,
}

/// The interpreter of a context.
#[derive(Debug, Default)]
pub enum Interpreter {
    /// There is none, and nobody remembers the last one.
    #[default]
    None,
    Lives(Box<Live>),
    /// It has ended; the jailer remembers it, and by it the context.
    Ended(Process),
}

impl Interpreter {
    /// Takes the one that lives.
    pub fn take_live(&mut self) -> Option<Box<Live>> {
        match std::mem::take(self) {
            Self::Lives(live) => Some(live),
            other => {
                *self = other;
                None
            }
        }
    }

    /// The process by which the jailer remembers the context.
    pub fn process(&self) -> Option<&Process> {
        match self {
            Self::None => None,
            Self::Lives(live) => Some(&live.process),
            Self::Ended(process) => Some(process),
        }
    }
}

impl Turn {
    /// Waits for the process. Dropping the turn gives the place up.
    pub async fn wait(&mut self) -> Result<Lease, Problem> {
        match (&mut self.granted).await {
            Ok(granted) => granted,
            Err(_over) => Err(self.context.closed_problem()),
        }
    }
}

impl Expected {
    /// Takes a place among the turns; whether nobody is before. It was accepted before: it is not refused for want of room.
    pub fn queue(self) -> Result<(Turn, bool), Problem> {
        self.context.take_place(&self.execution, usize::MAX)
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        let mut state = self.context.lock();
        state.expected.retain(|other| !Arc::ptr_eq(other, &self.execution));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.context.lock();
        let before = state.waiting.len();
        state
            .waiting
            .retain(|wanted| !Arc::ptr_eq(&wanted.execution.log, &self.log));
        if state.waiting.len() < before {
            state.tell_places();
        }
    }
}

impl Lease {
    /// Says that an execution is about to begin, so that another brigd would know that it can't go on with the
    /// interpreter.
    pub async fn get_ready(&mut self) {
        self.begins = Some(self.context.begins());
        if let Some(process) = self.interpreter.process() {
            self.context.remember(process).await;
        }
    }

    /// Says that it begins; gives what it has to be told of the last interpreter.
    pub fn begin(&mut self) -> Option<String> {
        self.begins.take().flatten()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(lost) = self.begins.take() {
            self.context.begins_not(lost);
        }
        let interpreter = std::mem::take(&mut self.interpreter);
        if let Some(back) = self.back.take() {
            // The context may be over.
            drop(back.send(interpreter));
        }
    }
}
