//! Contexts that outlived the last brigd: an interpreter that waited for work goes on with its state.
//!
//! What one said that ran code was read by the last brigd alone: it is ended and replaced, and the next execution is
//! told. What is left of earlier interpreters is put away.

use std::collections::BTreeMap;
use std::sync::Arc;

use brig_jailer::api::{self, End};
use brig_jailer::ids::Id;
use tracing::warn;

use super::Context;
use super::interpreter::how;
use super::memo::{ContextMemo, Doing, Outline};
use crate::jailer::{HeldExecution, Process};
use crate::run::execution::NotRestored;
use crate::run::journal::Kept;
use crate::run::kept::Session;
use crate::run::pump::Store;
use crate::run::watch::Pipes;

/// A context that was made again.
#[derive(Debug)]
pub struct Adopted {
    pub context: Arc<Context>,
    pub interpreter: Interpreter,
}

/// What there is of its interpreter.
#[derive(Debug)]
pub enum Interpreter {
    Waits(Box<Waiting>),
    Useless(Remains),
}

/// One that waits for work.
#[derive(Debug)]
pub struct Waiting {
    pub process: Process,
    pub pid: u32,
    pub pipes: Pipes,
    pub store: Store,
}

/// One that nobody can go on with.
#[derive(Debug)]
pub struct Remains {
    pub process: Process,
    /// Whether it is still to be ended.
    pub lives: bool,
    /// To be closed where nobody waits for it.
    pub pipes: Pipes,
}

/// What a jailer held of one interpreter.
struct Found {
    memo: ContextMemo,
    outline: Outline,
    pid: u32,
    end: Option<End>,
    process: Process,
    pipes: Pipes,
    kept: Kept,
}

/// Makes the contexts of a session again, and gives what belongs to none.
pub fn adopt(session: &Session, held: Vec<HeldExecution>) -> (Vec<Adopted>, Vec<Remains>) {
    let mut contexts: BTreeMap<Id, Vec<Found>> = BTreeMap::new();
    let mut rest = Vec::new();
    for held in held {
        match found(held) {
            Ok(found) => contexts.entry(found.memo.context.clone()).or_default().push(*found),
            Err(remains) => rest.extend(remains),
        }
    }
    let mut adopted = Vec::new();
    for mut all in contexts.into_values() {
        all.sort_by_key(|found| found.memo.generation);
        adopted.extend(all.pop().map(|last| again(session, last)));
        rest.extend(all.into_iter().map(Found::remains));
    }
    adopted.sort_by_key(|adopted| adopted.context.create_time);
    (adopted, rest)
}

fn found(held: HeldExecution) -> Result<Box<Found>, Option<Remains>> {
    let HeldExecution { told, fds, process } = held;
    let refused = |error: NotRestored| warn!(process = %told.execution, %error, "interpreter not adopted");
    let Some((pipes, kept)) = Pipes::new(told.streams, fds) else {
        refused(NotRestored::Descriptors);
        return Err(None);
    };
    match read(&told, &kept) {
        Ok((memo, outline)) => Ok(Box::new(Found {
            memo,
            outline,
            pid: told.pid,
            end: told.end,
            process,
            pipes,
            kept,
        })),
        Err(error) => {
            refused(error);
            let lives = told.end.is_none();
            Err(Some(Remains { process, lives, pipes }))
        }
    }
}

fn read(told: &api::HeldExecution, kept: &Kept) -> Result<(ContextMemo, Outline), NotRestored> {
    let memo = ContextMemo::decode(&told.memo)?;
    // Nobody was told that there is such an interpreter.
    if told.pid == 0 || memo.doing == Doing::Starting {
        return Err(NotRestored::NotStarted);
    }
    Ok((memo, Outline::decode(&kept.outline()?)?))
}

/// Makes one context again, of what is known of its last interpreter.
fn again(session: &Session, last: Found) -> Adopted {
    let Found {
        mut memo,
        outline,
        pid,
        end,
        process,
        pipes,
        kept,
    } = last;
    let store = match (memo.doing, end) {
        (_, Some(end)) => Err(format!("it ended ({})", how(Some(end)))),
        (Doing::Nothing, None) => Store::open(kept).map_err(|error| format!("brigd was restarted: {error}")),
        (Doing::Starting | Doing::Code, None) => Err("brigd was restarted while it ran code".to_owned()),
    };
    let interpreter = match store {
        Ok(store) => Interpreter::Waits(Box::new(Waiting {
            process,
            pid,
            pipes,
            store,
        })),
        Err(lost) => {
            warn!(context = %memo.context, lost, "interpreter not adopted");
            memo.lost.get_or_insert(lost);
            let lives = end.is_none();
            Interpreter::Useless(Remains { process, lives, pipes })
        }
    };
    let context = Arc::new(Context::restore(session.id.clone(), outline, memo));
    Adopted { context, interpreter }
}

impl Found {
    fn remains(self) -> Remains {
        Remains {
            process: self.process,
            lives: self.end.is_none(),
            pipes: self.pipes,
        }
    }
}
