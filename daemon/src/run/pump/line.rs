//! The thread of a context: its process lives through many executions, whose logs follow one another.
//!
//! What comes between the `run` of an execution and its `done` is its own; at `done` what lies in the pipes belongs to
//! it, and nothing more. What threads of the guest write and show between two executions is kept, within bounds, for
//! the next one, which is told so.
//!
//! A process outlives brigd between two executions: what came meanwhile lies in its [`Store`]. The files of an
//! execution's output are brigd's own.

mod frames;
mod mover;
mod store;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use brig_jailer::policy::Policy;
use tokio::sync::mpsc;

use super::thread::{Finish, Handle};
use crate::kernel::{Broken, DoneClaim};
use crate::run::log::Log;

pub(super) use mover::Mover;
pub use store::Store;

/// What a context can have said before it is heard: that it is ready, that an execution is done, that its frames ended.
const TOLD: usize = 8;

/// A context's thread, for whoever has the context. Dropping it tells the thread to end.
#[derive(Debug)]
pub struct Line {
    handle: Handle,
    desk: Arc<Desk>,
    told: mpsc::Receiver<Told>,
}

/// What a context said, beside what the logs have. Claims, but for the last two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    Ready,
    Refused(String),
    /// The execution is at its end, and its log is sealed.
    Done(DoneClaim),
    /// Its frames can't be followed any more.
    Broken(Broken),
    /// It has closed its pipe, which it also does when it ends.
    Closed,
}

/// An execution of a context.
#[derive(Debug)]
pub struct Part {
    pub id: String,
    pub log: Arc<Log>,
    pub policy: Arc<Policy>,
    /// The frame that it begins with.
    pub request: Vec<u8>,
}

/// What the thread is to do.
#[derive(Debug)]
enum Order {
    Send(Vec<u8>),
    Begin(Part),
}

#[derive(Debug, Default)]
pub(super) struct Desk(Mutex<VecDeque<Order>>);

impl Line {
    pub(super) fn new(handle: Handle, desk: Arc<Desk>, told: mpsc::Receiver<Told>) -> Self {
        Self { handle, desk, told }
    }

    /// Sends a frame.
    pub fn send(&self, frame: Vec<u8>) {
        self.order(Order::Send(frame));
    }

    /// Begins an execution. The last one is done.
    pub fn begin(&self, part: Part) {
        self.order(Order::Begin(part));
    }

    /// What the context says next; nothing once the thread has ended.
    pub async fn told(&mut self) -> Option<Told> {
        self.told.recv().await
    }

    /// Tells the thread to end at the end of the pipes, or at `end` at the latest, and waits for that.
    pub async fn finish(self, end: Instant) -> Finish {
        self.handle.finish(end).await
    }

    fn order(&self, order: Order) {
        self.desk
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(order);
        self.handle.wake();
    }
}
