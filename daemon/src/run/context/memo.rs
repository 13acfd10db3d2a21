//! What is written down of a context, so that another brigd can go on with it.
//!
//! The jailer knows processes only, so that a context is remembered by its interpreter: what never changes lies at the
//! beginning of the journal of each ([`Outline`]), the rest is its memo. That holds for one that has ended too, until
//! the next one takes work: the jailer forgets it only then.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use brig_jailer::api::Request;
use brig_jailer::ids::Id;
use brig_proto::v1::ContextState;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::debug;

use super::{Context, Language, State};
use crate::jailer::Process;
use crate::run::kept::memo::{MemoError, decode, encode};

/// What begins the memo of a context's process, and that of no execution.
const MARK: u8 = 0xc0;

/// What never changes in a context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outline {
    request: Option<Id>,
    digest: [u8; 32],
    language: Language,
    directory: String,
    environment: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    create_time: SystemTime,
}

/// What an interpreter was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Doing {
    /// It did not take work yet.
    Starting,
    /// It waited for work.
    Nothing,
    /// It ran code: what that said is not kept, so that nobody can go on with it.
    Code,
}

/// What may change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextMemo {
    pub context: Id,
    pub doing: Doing,
    pub generation: u32,
    forked: bool,
    executions: u64,
    last_active: SystemTime,
    /// What became of the last interpreter, if no execution was told.
    pub lost: Option<String>,
    requests: Vec<Id>,
}

impl ContextMemo {
    /// Whether a memo is that of a context's process.
    pub fn is_one(memo: &[u8]) -> bool {
        memo.first() == Some(&MARK)
    }

    /// As it is written.
    pub fn encode(&self) -> Vec<u8> {
        [&[MARK][..], &encode(self)].concat()
    }

    /// Reads it.
    pub fn decode(memo: &[u8]) -> Result<Self, MemoError> {
        match memo.split_first() {
            Some((&MARK, memo)) => decode(memo),
            _ => Err(MemoError::Broken("it is not of a context")),
        }
    }
}

impl Outline {
    /// Reads it.
    pub fn decode(bytes: &[u8]) -> Result<Self, MemoError> {
        decode(bytes)
    }
}

impl Context {
    /// What never changes in it, as it is written.
    pub fn outline(&self) -> Vec<u8> {
        encode(&Outline {
            request: self.request.clone(),
            digest: self.digest,
            language: self.language,
            directory: self.directory.clone(),
            environment: self.environment.clone(),
            labels: self.labels.clone(),
            create_time: self.create_time,
        })
    }

    /// What another brigd needs to know beside.
    pub fn memo(&self) -> ContextMemo {
        let state = self.lock();
        ContextMemo {
            context: self.id.clone(),
            doing: if state.runs_code { Doing::Code } else { Doing::Nothing },
            generation: state.generation,
            forked: state.forked,
            executions: state.executions,
            last_active: state.last_active,
            lost: state.lost.clone(),
            requests: state.requests.iter().cloned().collect(),
        }
    }

    /// The same for an interpreter that is about to be started.
    pub fn memo_of_next(&self) -> ContextMemo {
        let memo = self.memo();
        ContextMemo {
            doing: Doing::Starting,
            generation: memo.generation + 1,
            ..memo
        }
    }

    /// Lets the jailer know what changed; returns when it will have it whatever happens.
    pub async fn remember(self: &Arc<Self>, process: &Process) {
        let context = Arc::clone(self);
        let execution = Some(process.id().clone());
        let late = move || Request::Memo {
            session: context.session.clone(),
            execution,
            memo: context.memo().encode(),
        };
        if let Err(error) = process.jailer().ask_late(late).await {
            debug!(%error, "memo not sent");
        }
    }

    /// Makes the context again that an earlier brigd made.
    pub fn restore(session: Id, outline: Outline, memo: ContextMemo) -> Self {
        let state = State {
            phase: ContextState::Idle,
            last_active: memo.last_active,
            executions: memo.executions,
            generation: memo.generation,
            forked: memo.forked,
            lost: memo.lost,
            requests: VecDeque::from(memo.requests),
            ..State::new()
        };
        Self {
            id: memo.context,
            session,
            request: outline.request,
            digest: outline.digest,
            language: outline.language,
            directory: outline.directory,
            environment: outline.environment,
            labels: outline.labels,
            create_time: outline.create_time,
            state: Mutex::new(state),
            changes: watch::Sender::new(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context {
        let environment = [("TZ".to_owned(), "UTC".to_owned())].into();
        let outline = Outline {
            request: Some(Id::parse("r1").unwrap()),
            digest: [7; 32],
            language: Language::Bash,
            directory: "/tmp".to_owned(),
            environment,
            labels: [("key".to_owned(), "value".to_owned())].into(),
            create_time: SystemTime::now(),
        };
        let memo = ContextMemo {
            context: Id::parse("c1").unwrap(),
            doing: Doing::Nothing,
            generation: 3,
            forked: true,
            executions: 5,
            last_active: SystemTime::now(),
            lost: Some("it ended".to_owned()),
            requests: vec![Id::parse("r2").unwrap()],
        };
        Context::restore(Id::parse("s1").unwrap(), outline, memo)
    }

    #[test]
    fn a_context_comes_back_as_it_was() {
        let context = context();
        let outline = Outline::decode(&context.outline()).unwrap();
        let memo = ContextMemo::decode(&context.memo().encode()).unwrap();
        let again = Context::restore(context.session.clone(), outline, memo);
        assert_eq!(
            (again.show(), again.memo(), again.outline()),
            (context.show(), context.memo(), context.outline())
        );
        assert_eq!(again.environment, context.environment);
        // A reset that was asked for before is known.
        assert_eq!(again.ask_reset(Id::parse("r2").as_ref().ok()).unwrap(), 0);
    }

    #[test]
    fn what_an_interpreter_does_is_in_its_memo() {
        let context = context();
        assert_eq!(context.begins().as_deref(), Some("it ended"));
        let memo = context.memo();
        assert_eq!((memo.doing, memo.executions, memo.lost), (Doing::Code, 6, None));
        context.waits(true);
        assert_eq!((context.memo().doing, context.memo().generation), (Doing::Nothing, 3));
        context.waits(false);
        assert_eq!((context.memo().executions, context.memo().generation), (0, 4));
        let next = context.memo_of_next();
        assert_eq!((next.doing, next.generation), (Doing::Starting, 5));
    }

    #[test]
    fn memos_of_executions_and_broken_ones_are_told_apart() {
        let execution = crate::run::kept::memo::ExecutionMemo::default().encode();
        let memo = context().memo().encode();
        assert!(ContextMemo::is_one(&memo) && !ContextMemo::is_one(&execution) && !ContextMemo::is_one(&[]));
        assert!(ContextMemo::decode(&execution).is_err());
        for length in 0..memo.len() {
            assert!(ContextMemo::decode(&memo[..length]).is_err(), "{length}");
        }
    }
}
