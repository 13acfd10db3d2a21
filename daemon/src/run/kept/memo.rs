//! What is written down of a kept session and of what runs in it, so that another brigd can go on with both.
//!
//! Of a session everything is in its memo, which brig-jailer holds: also the rules of its policy, whose file may be
//! another one by then. Of an execution the [`Outline`] is what never changes, with the request as it came; it is too
//! large for a memo and lies at the beginning of the journal. Its memo has the rest, a few bytes.
//!
//! Each begins with the version of its format. A brigd that does not know it can't go on with the session.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use brig_jailer::api::{self, SESSION_MEMO_MAX};
use brig_jailer::files::wire::Time;
use brig_jailer::ids::Id;
use brig_jailer::policy::{Clamped, Policy, Resolved, Rules};
use brig_proto::sizes::{LABEL_KEY_MAX, LABEL_VALUE_MAX, LABELS_MAX};
use brig_proto::v1;
use brig_proto::v1::{ExecutionSpec, Reason, SessionCloseReason, SessionState, StartKind};
use prost::Message;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use super::files::FileCalls;
use super::helper::{self, Helper};
use super::{Session, Settings, State};
use crate::principal::Principal;
use crate::run::admit::{ArtifactLimits, Image, Times};
use crate::run::approval::Decision;
use crate::run::clock::Clock;
use crate::run::context::Contexts;
use crate::run::execution::StopCause;
use crate::status::{FieldProblem, Problem};

/// The version of all that is written here.
const VERSION: u8 = 4;
/// What labels may take up at most: a session can get others later.
const LABELS_ROOM: usize = LABELS_MAX * (LABEL_KEY_MAX + LABEL_VALUE_MAX + 4);

/// Why something that was written down can't be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoError {
    #[error("it is of version {0}, this brigd knows version {VERSION}")]
    Version(u8),
    #[error("it is broken: {0}")]
    Broken(&'static str),
}

/// A kept session.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct SessionMemo {
    request: Option<Id>,
    digest: [u8; 32],
    principal: Principal,
    user: String,
    /// As protobuf.
    origin: Vec<u8>,
    policy: String,
    policy_hash: String,
    /// As JSON: their form is made for files that say what they are.
    rules: String,
    template: Image,
    limits: Resolved,
    times: Times,
    artifacts: ArtifactLimits,
    /// Each as protobuf.
    clamped: Vec<Vec<u8>>,
    environment: BTreeMap<String, String>,
    create_time: SystemTime,
    end_time: SystemTime,
    settings: Settings,
    /// Why it is being closed, if it is.
    reason: i32,
    last_active: SystemTime,
    resumed: Option<SystemTime>,
    has_state: bool,
    /// How the first interpreter came to be.
    start: i32,
}

/// What may change in an execution before its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionMemo {
    pub stop: Option<StopCause>,
    pub interrupted: bool,
    /// Signals that callers sent, a bit each.
    pub signals: u64,
}

/// What is known of an execution once it has started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outline {
    pub request: Option<Id>,
    pub digest: [u8; 32],
    pub principal: Principal,
    /// As protobuf, and each of the inputs too.
    pub spec: Vec<u8>,
    pub inputs: Vec<Vec<u8>>,
    pub stdin_given: Option<(u64, String)>,
    /// Until when it could be approved, and what was decided, where it had to be.
    pub approval: Option<(SystemTime, Decision)>,
    pub work_sha256: String,
    pub create_time: SystemTime,
    pub ends_without_callers: bool,
    pub limits: Resolved,
    pub times: Times,
    pub clamped: Vec<Clamped>,
    pub artifacts: ArtifactLimits,
    /// When the program began, as files have it.
    pub since: Option<Time>,
    pub queued: Duration,
    pub startup: Duration,
}

impl ExecutionMemo {
    /// As it is written.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads it.
    pub fn decode(bytes: &[u8]) -> Result<Self, MemoError> {
        decode(bytes)
    }
}

impl Outline {
    /// As it is written.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads it.
    pub fn decode(bytes: &[u8]) -> Result<Self, MemoError> {
        decode(bytes)
    }

    /// The request, and the files that came with it.
    pub fn asked(&self) -> Result<(ExecutionSpec, Vec<v1::InputFile>), MemoError> {
        let spec = ExecutionSpec::decode(self.spec.as_slice()).map_err(|_bad| MemoError::Broken("request"))?;
        Ok((spec, decode_all(&self.inputs, "inputs")?))
    }
}

impl Session {
    /// What another brigd needs to go on with it, as it is now.
    pub fn memo(&self) -> Vec<u8> {
        let state = self.lock();
        let memo = SessionMemo {
            request: self.request.clone(),
            digest: self.digest,
            principal: self.principal.as_ref().clone(),
            user: self.user.clone(),
            origin: self.origin.encode_to_vec(),
            policy: self.policy.name.clone(),
            policy_hash: self.policy.hash.clone(),
            rules: serde_json::to_string(&self.policy.rules).unwrap_or_default(),
            template: self.template.clone(),
            limits: self.limits,
            times: self.times,
            artifacts: self.artifacts,
            clamped: self.clamped.iter().map(Message::encode_to_vec).collect(),
            environment: self.environment.clone(),
            create_time: self.create_time,
            end_time: self.end_time,
            settings: state.settings.clone(),
            reason: state.reason.into(),
            last_active: state.last_active,
            resumed: state.resumed,
            has_state: state.has_state,
            start: state.start.into(),
        };
        encode(&memo)
    }

    /// Refuses what could not be written down, whatever labels it gets.
    pub(super) fn check_memo(&self) -> Result<(), Problem> {
        let size = self.memo().len() + LABELS_ROOM;
        if size <= SESSION_MEMO_MAX {
            return Ok(());
        }
        let variables: usize = self
            .environment
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        let field = if size - variables > SESSION_MEMO_MAX {
            "policy"
        } else {
            "environment"
        };
        Err(Problem::Fields(vec![FieldProblem {
            field: field.to_owned(),
            message: format!(
                "the variables and the rules of policy {} have {size} bytes together with what else is kept for a \
                 restart, at most {SESSION_MEMO_MAX} are accepted",
                self.policy.name
            ),
            reason: Reason::TooLarge,
        }]))
    }

    /// Makes the session again that a jailer holds, and the inbox of its file helper.
    pub fn restore(told: &api::Held) -> Result<(Self, helper::Inbox), MemoError> {
        let memo: SessionMemo = decode(&told.memo)?;
        let is_same = memo.policy == told.policy
            && memo.policy_hash == told.policy_hash
            && memo.template.id == told.template
            && memo.limits.quantities() == told.quantities;
        if !is_same {
            return Err(MemoError::Broken("it is of another session"));
        }
        let rules: Rules = serde_json::from_str(&memo.rules).map_err(|_bad| MemoError::Broken("rules"))?;
        let reason = SessionCloseReason::try_from(memo.reason).map_err(|_bad| MemoError::Broken("reason"))?;
        let is_ending = reason != SessionCloseReason::Unspecified;
        let now = Instant::now();
        let clock = Clock::default();
        if told.paused {
            clock.stop();
        }
        let state = State {
            phase: if is_ending {
                SessionState::Closing
            } else if told.paused {
                SessionState::Paused
            } else {
                SessionState::Running
            },
            pausing: told.paused,
            revision: 0,
            edits: 0,
            reason,
            close_time: None,
            settings: memo.settings,
            refusal: None,
            enforced: Some(told.enforced.clone()),
            users: 0,
            file_calls: 0,
            last_active: memo.last_active,
            idle_since: now
                .checked_sub(memo.last_active.elapsed().unwrap_or_default())
                .unwrap_or(now),
            resumed: memo.resumed,
            has_state: memo.has_state,
            start: StartKind::try_from(memo.start).unwrap_or_default(),
        };
        let (helper, inbox) = Helper::new();
        let session = Self {
            id: told.session.clone(),
            request: memo.request,
            digest: memo.digest,
            principal: Arc::new(memo.principal),
            user: memo.user,
            origin: v1::Origin::decode(memo.origin.as_slice()).map_err(|_bad| MemoError::Broken("origin"))?,
            policy: Arc::new(Policy {
                name: memo.policy,
                hash: memo.policy_hash,
                rules,
            }),
            template: memo.template,
            limits: memo.limits,
            times: memo.times,
            artifacts: memo.artifacts,
            clamped: decode_all(&memo.clamped, "clamped")?,
            environment: memo.environment,
            create_time: memo.create_time,
            end_time: memo.end_time,
            clock,
            helper,
            // What was handed out before the restart has to be handed out again.
            files: FileCalls::default(),
            contexts: Contexts::default(),
            state: Mutex::new(state),
            changes: watch::Sender::new(()),
            watchers: OnceLock::new(),
        };
        Ok((session, inbox))
    }
}

pub(in crate::run) fn encode(what: &impl Serialize) -> Vec<u8> {
    // Nothing of it can't be written: it has no maps of unknown size and no types of their own.
    postcard::to_extend(what, vec![VERSION]).unwrap_or_default()
}

pub(in crate::run) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MemoError> {
    match bytes.split_first() {
        None => Err(MemoError::Broken("it is empty")),
        Some((&VERSION, body)) => match postcard::take_from_bytes(body) {
            Ok((what, [])) => Ok(what),
            Ok(_) => Err(MemoError::Broken("it goes on after its end")),
            Err(_) => Err(MemoError::Broken("it ends too early, or says something else")),
        },
        Some((version, _)) => Err(MemoError::Version(*version)),
    }
}

fn decode_all<T: Message + Default>(all: &[Vec<u8>], what: &'static str) -> Result<Vec<T>, MemoError> {
    let decoded = all.iter().map(|bytes| T::decode(bytes.as_slice()));
    decoded
        .collect::<Result<_, _>>()
        .map_err(|_bad| MemoError::Broken(what))
}

#[cfg(test)]
pub(super) mod tests {
    use brig_jailer::policy::RequestedLimits;

    use super::*;
    use crate::run::testing::principal;

    pub(in crate::run::kept) fn policy(name: &str) -> Policy {
        let path = format!("{}/../policies/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        Policy::parse(name, &std::fs::read_to_string(path).unwrap()).unwrap()
    }

    pub(in crate::run::kept) fn session(policy: Policy, environment: BTreeMap<String, String>) -> Session {
        let (limits, _) = policy.resolve(&RequestedLimits::default()).unwrap();
        let now = SystemTime::now();
        let settings = Settings {
            expire_time: now + Duration::from_secs(60),
            expire_after_ms: 60_000,
            idle_timeout_ms: 1000,
            pause_on_timeout: true,
            labels: [("key".to_owned(), "value".to_owned())].into(),
        };
        Session {
            id: Id::parse("s1").unwrap(),
            request: Some(Id::parse("r1").unwrap()),
            digest: [7; 32],
            principal: principal(),
            user: "somebody".to_owned(),
            origin: v1::Origin::default(),
            artifacts: ArtifactLimits::of(&policy),
            policy: Arc::new(policy),
            template: Image {
                id: "base@000000000000".to_owned(),
                runs_code: true,
            },
            limits,
            times: Times::default(),
            clamped: vec![v1::ClampedLimit {
                limit: "cpus".to_owned(),
                requested: 8.5,
                applied: 2.0,
            }],
            environment,
            create_time: now,
            end_time: now + Duration::from_secs(60),
            clock: Clock::default(),
            helper: Helper::new().0,
            files: FileCalls::default(),
            contexts: Contexts::default(),
            state: Mutex::new(settings.state()),
            changes: watch::Sender::new(()),
            watchers: OnceLock::new(),
        }
    }

    fn told(session: &Session) -> api::Held {
        api::Held {
            session: session.id.clone(),
            memo: session.memo(),
            policy: session.policy.name.clone(),
            policy_hash: session.policy.hash.clone(),
            template: session.template.id.clone(),
            quantities: session.limits.quantities(),
            enforced: api::Enforced::default(),
            age_ms: 0,
            paused: false,
        }
    }

    fn restored(told: &api::Held) -> Result<Session, MemoError> {
        Session::restore(told).map(|(session, _)| session)
    }

    #[tokio::test]
    async fn a_session_of_each_policy_comes_back_as_it_was() {
        for name in ["data", "strict"] {
            let environment = [("TZ".to_owned(), "UTC".to_owned())].into();
            let session = session(policy(name), environment);
            session.made(api::Enforced::default());
            session.used(Some(StartKind::Cold));
            let again = restored(&told(&session)).unwrap();
            assert_eq!((&again.policy, again.show()), (&session.policy, session.show()));
            assert_eq!(again.memo(), session.memo());
            session.pause();
            session.paused(true);
            let paused = api::Held {
                paused: true,
                ..told(&session)
            };
            let again = restored(&paused).unwrap();
            assert_eq!((again.show(), again.is_pausing()), (session.show(), true));
            let mark = again.clock.mark();
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert_eq!(again.clock.since(mark), Duration::ZERO);
            session.end(SessionCloseReason::Idle);
            let again = restored(&told(&session)).unwrap();
            assert_eq!(
                (again.phase(), again.reason()),
                (SessionState::Closing, SessionCloseReason::Idle)
            );
        }
    }

    #[tokio::test]
    async fn what_is_of_another_session_or_another_version_is_refused() {
        let session = session(policy("data"), BTreeMap::new());
        let good = told(&session);
        let with = |change: fn(&mut api::Held)| {
            let mut told = good.clone();
            change(&mut told);
            restored(&told).unwrap_err().to_string()
        };
        let other = "it is broken: it is of another session";
        assert_eq!(with(|told| told.policy_hash.push('0')), other);
        assert_eq!(with(|told| told.template.clear()), other);
        assert_eq!(with(|told| told.quantities.pids += 1), other);
        assert_eq!(
            with(|told| told.memo[0] = 9),
            "it is of version 9, this brigd knows version 4"
        );
        assert_eq!(with(|told| told.memo.clear()), "it is broken: it is empty");
        assert_eq!(with(|told| told.memo.push(0)), "it is broken: it goes on after its end");
        // Whatever is cut off, it is none.
        for length in 0..good.memo.len() {
            let memo = good.memo[..length].to_vec();
            assert!(restored(&api::Held { memo, ..good.clone() }).is_err(), "{length}");
        }
    }

    #[tokio::test]
    async fn what_could_not_be_kept_is_refused_by_field() {
        let field = |policy: Policy, value: usize| {
            let environment = [("TZ".to_owned(), "x".repeat(value))].into();
            let checked = session(policy, environment).check_memo();
            checked.err().map(|problem| problem.field().to_owned())
        };
        let large = |names: usize| {
            let names: Vec<String> = (0..names).map(|name| format!("\"N{name:06}\"")).collect();
            let text = format!(
                "template = \"t\"\n[syscalls]\ngroups = [\"base\"]\n[environment]\nallow = [{}]",
                names.join(",")
            );
            Policy::parse("large", &text).unwrap()
        };
        // As large as the API lets the variables be.
        assert_eq!(field(policy("data"), 128 * 1024), None);
        assert_eq!(field(large(15_000), 128 * 1024), Some("environment".to_owned()));
        assert_eq!(field(large(15_000), 0), None);
        assert_eq!(field(large(30_000), 0), Some("policy".to_owned()));
    }
}
