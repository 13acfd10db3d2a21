//! Entries in the form of the API.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use brig_proto::v1;
use brig_proto::v1::Reason;

use super::filter;
use crate::artifacts::Review;
use crate::ledger::{Accept, Content, Erased, Found, Origin, Verdict, hex};
use crate::run::recorded;

/// An entry.
pub(super) fn entry(found: Found) -> v1::LedgerEntry {
    let mut entry = v1::LedgerEntry {
        sequence: unsigned(found.number),
        time: Some((UNIX_EPOCH + Duration::from_millis(unsigned(found.time_ms))).into()),
        kind: filter::kind(&found.kind).into(),
        tenant: found.tenant,
        session_id: found.session.unwrap_or_default(),
        execution_id: found.execution.unwrap_or_default(),
        previous_hash: hex(&found.previous),
        hash: hex(&found.hash),
        ..v1::LedgerEntry::default()
    };
    match found.content {
        Content::Accept(accept) => accepted(&mut entry, &accept, true),
        Content::Finish(finish, accept) => {
            if let Some(accept) = &accept {
                accepted(&mut entry, accept, false);
            }
            entry.result = accept.map(|accept| recorded::result(&accept, &finish));
            entry.message = finish.message.unwrap_or_default();
        }
        Content::Refused(refused) => {
            name(&mut entry, refused.user, refused.origin);
            entry.request_id = refused.request.unwrap_or_default();
            entry.policy = refused.policy;
            entry.reason = Reason::from_name(&refused.reason.to_uppercase()).into();
            entry.count = refused.count;
            entry.message = match refused.field.as_str() {
                field if field.is_empty() || refused.message.starts_with(field) => refused.message,
                field => format!("{field}: {}", refused.message),
            };
        }
        Content::Opened(opened) => {
            name(&mut entry, opened.user, opened.origin);
            entry.request_id = opened.request.unwrap_or_default();
            entry.policy = recorded::policy(&opened.policy, &opened.policy_hash);
            entry.template = opened.template;
            entry.labels = opened.labels;
        }
        Content::Closed(closed) => entry.message = closed.reason,
        Content::Erased(erased) => {
            entry.message = erasure(&erased);
            entry.request_id = erased.request.unwrap_or_default();
            name(&mut entry, erased.user, Origin::default());
        }
        Content::Reviewed(reviewed, asked) => {
            let review = Review::from_name(&reviewed.review).map(Review::shown);
            entry.review = review.unwrap_or_default().into();
            entry.message = reviewed.message;
            entry.request_id = reviewed.request.unwrap_or_default();
            entry.work_sha256 = reviewed.work_sha256;
            name(&mut entry, reviewed.user, asked);
        }
        Content::ArtifactReviewed(reviewed) => {
            name(&mut entry, reviewed.user, reviewed.origin);
            entry.artifact_id = String::from(reviewed.artifact);
            entry.request_id = reviewed.request.unwrap_or_default();
            let review = Review::from_name(&reviewed.review).map(Review::shown);
            entry.review = review.unwrap_or_default().into();
            entry.message = reviewed.message;
        }
        Content::Downloaded(downloaded) => {
            name(&mut entry, downloaded.user, downloaded.origin);
            entry.artifact_id = String::from(downloaded.artifact);
            entry.message = format!("by {} until {}", downloaded.way, day(downloaded.expire_time));
        }
        Content::Other => {}
    }
    entry
}

/// What a verification found.
pub(super) fn verdict(verdict: &Verdict) -> v1::LedgerVerifyResponse {
    let head = verdict.head;
    let message = match &verdict.broken {
        Some((_, message)) => message.clone(),
        None => format!("{} entries are there and unchanged", verdict.entries),
    };
    v1::LedgerVerifyResponse {
        intact: verdict.broken.is_none(),
        entries: verdict.entries,
        head_hash: hex(&head.hash),
        broken_sequence: verdict.broken.as_ref().map(|(number, _)| unsigned(*number)),
        message,
    }
}

fn accepted(entry: &mut v1::LedgerEntry, accept: &Accept, with_work: bool) {
    name(entry, accept.user.clone(), accept.origin.clone());
    entry.request_id = accept.request.clone().unwrap_or_default();
    entry.policy = recorded::policy(&accept.policy, &accept.policy_hash);
    entry.template.clone_from(&accept.template);
    entry.labels.clone_from(&accept.labels);
    entry.work_sha256.clone_from(&accept.work.body.sha256);
    entry.inputs = accept.inputs.iter().map(recorded::input).collect();
    if with_work {
        let content = &accept.work.body.content;
        // Arguments end with NUL, which no text has.
        let lines = content.iter().map(|byte| if *byte == 0 { b'\n' } else { *byte });
        entry.work = lines.collect::<Vec<u8>>().into();
    }
}

fn name(entry: &mut v1::LedgerEntry, user: String, origin: Origin) {
    entry.user = user;
    entry.origin = (origin != Origin::default()).then_some(v1::Origin {
        user: origin.user,
        conversation: origin.conversation,
        request: origin.request,
    });
}

/// What was erased, without saying whose.
fn erasure(erased: &Erased) -> String {
    let of = [
        erased.one_user.then(|| "of one user".to_owned()),
        erased.execution.as_ref().map(|id| format!("of execution {id}")),
        erased.to_time.map(|time| format!("before {}", day(time))),
    ];
    let of: Vec<String> = of.into_iter().flatten().collect();
    format!("{} entries {}: {}", erased.entries, of.join(", "), erased.message)
}

fn day(time: SystemTime) -> String {
    prost_types::Timestamp::from(time).to_string()
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}
