//! Executions: from a request to its result.
//!
//! [`admit`] checks a request whole and makes a [`admit::Job`] of it; [`inputs`] takes its files into the spool. An
//! [`execution::Execution`] is entered in the [`registry`] and the [`queue`] and recorded (where the policy asks for it, it
//! waits for its [`approval`] before the queue), and from then on belongs to one task, [`life::live`], which [`start`]s
//! jail and program, [`watch`]es it (a thread, the [`pump`], moves what it reads and writes, and [`listen`]s to the Python
//! kernel), [`collect`]s what it left and has it [`scan`]ned, decides how it ended ([`finish`])
//! and puts the result together ([`report`]). Clients never touch that task: they follow the [`log`], and hear of what is
//! forgotten from the ledger ([`past`]).
//!
//! The jail is made for the execution, or waited for one ([`pool`]), and is closed behind it ([`session`]); or it is that of
//! a session that is [`kept`]. In such a one, code can run in an interpreter that stays, a [`context`].

pub mod admit;
pub mod approval;
pub mod clock;
pub mod collect;
pub mod context;
pub mod execution;
pub mod fields;
pub mod finish;
pub mod gate;
pub mod inputs;
pub mod journal;
pub mod kept;
pub mod life;
pub mod listen;
pub mod log;
pub mod past;
pub mod pool;
pub mod pump;
pub mod queue;
pub mod recorded;
pub mod registry;
pub mod report;
pub mod scan;
pub mod session;
pub mod start;
pub mod stdin;
pub mod store;
pub mod terminal;
pub mod waker;
pub mod watch;

#[cfg(test)]
pub(crate) mod testing;
