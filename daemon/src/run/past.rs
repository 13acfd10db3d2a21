//! Executions that only the ledger still knows. What is left of one is told to whoever repeats its request, or attaches
//! to it: how it ended, and of what it wrote as much as the result had.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use brig_jailer::ids::Id;
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{
    Cause, CauseKind, EffectiveLimits, ExecutionAccepted, ExecutionEvent, ExecutionResult, ExecutionState,
    ExecutionStatus, Notice, NoticeKind, OutputSummary, SessionSummary, StreamSummary, Usage,
};
use prost::Message;

use crate::config::Role;
use crate::host::Host;
use crate::ledger::{Accept, Finish, Made, REMEMBERED};
use crate::principal::Principal;
use crate::run::execution::{Execution, cpus, span};
use crate::run::inputs::hex;
use crate::run::registry::reused;
use crate::status::Problem;

/// What a notice says before the end of an execution that is past.
const GONE: &str = "the events of this execution are not kept any more, nor its rich results and the bytes of its \
                    artifacts; its end and what its result showed of the output are";

/// What a request made before.
#[derive(Debug)]
pub enum Known {
    Present(Arc<Execution>),
    Past(Box<Past>),
}

/// An execution that has ended and is forgotten, but for the ledger.
#[derive(Debug)]
pub struct Past {
    accept: Accept,
    finish: Finish,
}

/// The execution that a request made before. A request that made something else, or had another payload, is an error.
pub async fn repeated(
    host: &Host,
    principal: &Principal,
    request: &str,
    sha256: [u8; 32],
) -> Result<Option<Known>, Problem> {
    let Ok(request) = Id::parse(request) else {
        return Ok(None);
    };
    let Some(requested) = host.ledger.requested(&principal.tenant, &request).await? else {
        return Ok(None);
    };
    let id = match requested.made {
        Made::Execution(id) if requested.sha256 == hex(&sha256) => id,
        _ => return Err(reused(&request)),
    };
    match host.registry.get(principal, "request_id", id.as_str()) {
        Ok(execution) => Ok(Some(Known::Present(execution))),
        Err(_) => Ok(find(host, principal, id.as_str())
            .await?
            .map(|past| Known::Past(Box::new(past)))),
    }
}

/// The session that a request made before, whose end is all that is known of it.
pub async fn repeated_session(
    host: &Host,
    principal: &Principal,
    request: &str,
    sha256: [u8; 32],
) -> Result<Option<Id>, Problem> {
    let Ok(request) = Id::parse(request) else {
        return Ok(None);
    };
    let Some(requested) = host.ledger.requested(&principal.tenant, &request).await? else {
        return Ok(None);
    };
    match requested.made {
        Made::Session(id) if requested.sha256 == hex(&sha256) => Ok(Some(id)),
        _ => Err(reused(&request)),
    }
}

/// An execution that is forgotten, and that this principal may see.
pub async fn find(host: &Host, principal: &Principal, id: &str) -> Result<Option<Past>, Problem> {
    let Ok(id) = Id::parse(id) else { return Ok(None) };
    let Some(record) = host.ledger.get(&id).await? else {
        return Ok(None);
    };
    let may_see = record.accept.tenant == principal.tenant || principal.may(Role::Operator);
    let finish = record.finish.filter(|finish| {
        let age = finish.time.elapsed().unwrap_or_default();
        may_see && age < REMEMBERED
    });
    Ok(finish.map(|finish| Past {
        accept: record.accept,
        finish,
    }))
}

impl Past {
    /// Its id.
    pub fn id(&self) -> &Id {
        &self.accept.execution
    }

    /// What is told to whoever knows the events up to a sequence.
    pub fn events(&self, after_sequence: u64) -> Vec<ExecutionEvent> {
        let accepted = ExecutionAccepted {
            execution_id: self.accept.execution.to_string(),
            session_id: self.accept.session.to_string(),
            state: ExecutionState::Finished.into(),
            queue_position: 0,
        };
        let gone = Notice {
            kind: NoticeKind::EventsGone.into(),
            message: GONE.to_owned(),
        };
        let (now, result) = (SystemTime::now(), self.result());
        let at = |sequence, time: SystemTime, event| ExecutionEvent {
            sequence,
            time: Some(time.into()),
            event: Some(event),
        };
        let kept = std::iter::once((now, Event::Notice(gone)))
            .chain(
                result
                    .artifacts
                    .clone()
                    .into_iter()
                    .map(|told| (now, Event::Artifact(told))),
            )
            .chain([(self.finish.time, Event::Finished(result))]);
        let kept = (1..)
            .zip(kept)
            .map(|(place, (time, event))| at(after_sequence.saturating_add(place), time, event));
        std::iter::once(at(0, now, Event::Accepted(accepted)))
            .chain(kept)
            .collect()
    }

    /// The result as it was told, without what is not kept.
    fn result(&self) -> ExecutionResult {
        let told = ExecutionResult::decode(self.finish.told.as_slice());
        ExecutionResult {
            stdout: self.finish.stdout.content.clone().into(),
            stderr: self.finish.stderr.content.clone().into(),
            ..told
                .ok()
                .filter(|told| !told.execution_id.is_empty())
                .unwrap_or_else(|| self.recorded())
        }
    }

    /// The result as far as the entries have it: where nobody was there to tell one.
    fn recorded(&self) -> ExecutionResult {
        let (accept, finish) = (&self.accept, &self.finish);
        let millis = |millis| Some(span(Duration::from_millis(millis)));
        let summary = |bytes, dropped, shown: usize| {
            Some(StreamSummary {
                written_bytes: bytes,
                dropped_bytes: dropped,
                truncated: bytes > shown as u64,
            })
        };
        let ran = finish
            .start_time
            .and_then(|start| finish.time.duration_since(start).ok());
        ExecutionResult {
            status: status(&finish.status).into(),
            duration: Some(span(ran.unwrap_or_default())),
            execution_id: accept.execution.to_string(),
            request_id: accept.request.clone().unwrap_or_default(),
            exit_code: finish.exit_code,
            signal: finish.signal,
            cause: finish.cause.as_deref().map(|kind| Cause {
                kind: cause(kind).into(),
                message: finish.message.clone().unwrap_or_default(),
                ..Cause::default()
            }),
            output: Some(OutputSummary {
                stdout: summary(finish.stdout_bytes, finish.stdout_dropped, finish.stdout.content.len()),
                stderr: summary(finish.stderr_bytes, finish.stderr_dropped, finish.stderr.content.len()),
            }),
            limits: Some(EffectiveLimits {
                timeout: millis(accept.limits.timeout_ms),
                memory_bytes: accept.limits.memory_bytes,
                cpus: cpus(accept.limits.cpu_millis),
                pids: accept.limits.pids,
                disk_bytes: accept.limits.disk_bytes,
                output_bytes: accept.limits.output_bytes,
            }),
            limits_hit: finish.limits_hit.iter().map(|kind| cause(kind).into()).collect(),
            usage: Some(Usage {
                cpu_time: Some(span(Duration::from_micros(finish.usage.cpu_us))),
                memory_peak_bytes: (finish.usage.memory_peak_bytes > 0).then_some(finish.usage.memory_peak_bytes),
                processes_peak: (finish.usage.processes_peak > 0).then_some(finish.usage.processes_peak),
                disk_bytes: finish.usage.disk_bytes,
            }),
            create_time: Some(accept.time.into()),
            end_time: Some(finish.time.into()),
            session: Some(SessionSummary {
                session_id: accept.session.to_string(),
                ..SessionSummary::default()
            }),
            policy: format!("{}@{}", accept.policy, accept.policy_hash.get(..12).unwrap_or_default()),
            template: accept.template.clone(),
            tenant: accept.tenant.clone(),
            user: accept.user.clone(),
            labels: accept.labels.clone(),
            ..ExecutionResult::default()
        }
    }
}

fn status(word: &str) -> ExecutionStatus {
    let name = format!("EXECUTION_STATUS_{}", word.to_uppercase());
    ExecutionStatus::from_str_name(&name).unwrap_or_default()
}

fn cause(word: &str) -> CauseKind {
    let name = format!("CAUSE_KIND_{}", word.to_uppercase());
    CauseKind::from_str_name(&name).unwrap_or_default()
}
