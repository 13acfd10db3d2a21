//! A session as a JSON document. Every key is always present.

use std::collections::BTreeMap;

use brig_proto::result::{Clamped, Enforced, Limits, ResultDocument, Start};
use brig_proto::v1::{
    ExecutionResult, NetworkMode, OnTimeout, Session, SessionCloseReason, SessionState, SessionUsage,
};
use serde::Serialize;

/// A session.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SessionDocument {
    pub(super) session_id: String,
    pub(super) state: String,
    pub(super) close_reason: Option<String>,
    /// Whether it ends with the execution that it was made for.
    pub(super) one_shot: bool,
    pub(super) has_state: bool,
    pub(super) create_time: Option<String>,
    pub(super) last_active_time: Option<String>,
    pub(super) expire_time: Option<String>,
    pub(super) end_time: Option<String>,
    pub(super) close_time: Option<String>,
    pub(super) idle_timeout_ms: Option<u64>,
    pub(super) on_timeout: String,
    pub(super) start: Option<Start>,
    pub(super) policy: String,
    pub(super) template: String,
    pub(super) limits: Limits,
    pub(super) clamped: Vec<Clamped>,
    pub(super) network: Network,
    pub(super) tenant: String,
    pub(super) user: String,
    pub(super) labels: BTreeMap<String, String>,
    /// Null unless it lives and was asked for alone.
    pub(super) usage: Option<Usage>,
    pub(super) enforced: Enforced,
}

/// What the network of a session is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Network {
    mode: String,
    hosts: Vec<String>,
}

/// What a session uses at this moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Usage {
    pub(super) cpu_ms: u64,
    pub(super) memory_bytes: u64,
    pub(super) processes: u64,
    pub(super) disk_bytes: u64,
    pub(super) inodes: u64,
    pub(super) contexts: u32,
    pub(super) executions: u32,
}

impl SessionDocument {
    /// Writes a session as a document.
    pub(super) fn from_proto(session: &Session) -> Self {
        let ResultDocument {
            limits,
            clamped,
            enforced,
            ..
        } = shared(session);
        Self {
            session_id: session.session_id.clone(),
            state: state(session.state()),
            close_reason: close_reason(session.close_reason()),
            one_shot: session.one_shot,
            has_state: session.has_state,
            create_time: session.create_time.map(|time| time.to_string()),
            last_active_time: session.last_active_time.map(|time| time.to_string()),
            expire_time: session.expire_time.map(|time| time.to_string()),
            end_time: session.end_time.map(|time| time.to_string()),
            close_time: session.close_time.map(|time| time.to_string()),
            idle_timeout_ms: session.idle_timeout.map(millis),
            on_timeout: on_timeout(session.on_timeout()),
            start: Some(Start::from(session.start)).filter(|_| session.start != 0),
            policy: session.policy.clone(),
            template: session.template.clone(),
            limits,
            clamped,
            network: network(session),
            tenant: session.tenant.clone(),
            user: session.user.clone(),
            labels: session.labels.clone(),
            usage: session.usage.as_ref().map(usage),
            enforced,
        }
    }
}

/// The parts that results have in the same form.
fn shared(session: &Session) -> ResultDocument {
    ResultDocument::from_proto(&ExecutionResult {
        limits: session.limits,
        clamped: session.clamped.clone(),
        enforced: session.enforced.clone(),
        ..ExecutionResult::default()
    })
}

/// The name of a state in documents: `running`.
pub(super) fn state(state: SessionState) -> String {
    word(state.as_str_name(), "SESSION_STATE_")
}

fn close_reason(reason: SessionCloseReason) -> Option<String> {
    let word = word(reason.as_str_name(), "SESSION_CLOSE_REASON_");
    (reason != SessionCloseReason::Unspecified).then_some(word)
}

fn on_timeout(what: OnTimeout) -> String {
    // UNSPECIFIED means CLOSE.
    let what = if what == OnTimeout::Pause {
        what
    } else {
        OnTimeout::Close
    };
    word(what.as_str_name(), "ON_TIMEOUT_")
}

fn network(session: &Session) -> Network {
    let network = session.network.clone().unwrap_or_default();
    let mode = match network.mode() {
        NetworkMode::Unspecified => String::new(),
        mode => word(mode.as_str_name(), "NETWORK_MODE_"),
    };
    Network {
        mode,
        hosts: network.hosts,
    }
}

fn usage(usage: &SessionUsage) -> Usage {
    Usage {
        cpu_ms: usage.cpu_time.map(millis).unwrap_or_default(),
        memory_bytes: usage.memory_bytes,
        processes: usage.processes,
        disk_bytes: usage.disk_bytes,
        inodes: usage.inodes,
        contexts: usage.contexts,
        executions: usage.executions,
    }
}

fn millis(span: prost_types::Duration) -> u64 {
    let span = std::time::Duration::try_from(span).unwrap_or_default();
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase()
}
