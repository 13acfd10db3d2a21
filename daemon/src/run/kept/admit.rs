//! From a request to a session that can be made: everything is checked first, and every field that is wrong is named.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use brig_jailer::ids::Id;
use brig_jailer::policy::Clamped;
use brig_proto::v1::{OnTimeout, Reason, SessionsCreateRequest, SessionsUpdateRequest};
use tokio::sync::watch;

use super::files::FileCalls;
use super::helper::{self, Helper};
use super::{Session, Settings};
use crate::principal::Principal;
use crate::run::admit::{
    ArtifactLimits, artifact_limits, check_environment, check_kept_limits, check_labels, check_times, check_widening,
    find, new_id,
};
use crate::run::clock::Clock;
use crate::run::context::Contexts;
use crate::run::fields::{Fields, millis};
use crate::run::report;
use crate::run::store::Store;
use crate::status::Problem;

/// Checks a request whole and makes a session of it, and the inbox of its file helper.
pub fn admit(
    asked: SessionsCreateRequest,
    digest: [u8; 32],
    store: &Store,
    principal: &Arc<Principal>,
) -> Result<(Session, helper::Inbox), Problem> {
    let mut fields = Fields::default();
    let ids = [("request_id", &asked.request_id), ("session_id", &asked.session_id)];
    let [request, id] = ids.map(|(field, text)| fields.id(field, text));
    let (policy, template) = find(&asked.policy, &asked.template, store, &mut fields)?;
    check_widening(asked.network.as_ref(), &asked.packages, &mut fields);
    check_labels(&asked.labels, asked.origin.as_ref(), &mut fields);
    check_environment(&asked.environment, policy.as_deref(), &mut fields);
    let pause_on_timeout = check_on_timeout(asked.on_timeout, &mut fields);
    let times = check_times(&asked.limits.unwrap_or_default(), &mut fields);
    let limits = policy
        .as_ref()
        .and_then(|policy| check_kept_limits(&asked, policy, &mut fields));
    let expire_ms = fields.keep_some(millis("expire_after", asked.expire_after.as_ref()));
    if expire_ms == Some(0) {
        let message = "0 is no time to live; leave it out for max_age";
        fields.wrong("expire_after", Reason::InvalidValue, message);
    }
    fields.done()?;
    let missing = || Problem::Configuration("a checked request lost a part".to_owned());
    let (policy, template) = (policy.ok_or_else(missing)?, template.ok_or_else(missing)?);
    let (limits, mut clamped) = limits.ok_or_else(missing)?;
    let create_time = SystemTime::now();
    let life_ms = expire_ms.unwrap_or(limits.max_age_ms).min(limits.max_age_ms);
    clamped.extend(expire_ms.filter(|asked| *asked > life_ms).map(|asked| Clamped {
        field: "expire_after_ms".into(),
        asked,
        given: life_ms,
    }));
    let settings = Settings {
        expire_time: create_time + Duration::from_millis(life_ms),
        expire_after_ms: life_ms,
        idle_timeout_ms: limits.idle_ms,
        pause_on_timeout,
        labels: asked.labels,
    };
    let origin = asked.origin.unwrap_or_default();
    let (helper, inbox) = Helper::new();
    let session = Session {
        id: id.unwrap_or_else(|| new_id('s')),
        request,
        digest,
        user: principal.asking(&origin.user),
        principal: Arc::clone(principal),
        origin,
        artifacts: artifact_limits(&asked.limits.unwrap_or_default(), ArtifactLimits::of(&policy)),
        policy,
        template,
        times,
        clamped: clamped.iter().map(report::clamped).collect(),
        environment: asked.environment,
        create_time,
        end_time: create_time + Duration::from_millis(limits.max_age_ms),
        clock: Clock::default(),
        limits,
        helper,
        files: FileCalls::default(),
        contexts: Contexts::default(),
        state: Mutex::new(settings.state()),
        changes: watch::Sender::new(()),
        watchers: OnceLock::new(),
    };
    session.check_memo()?;
    Ok((session, inbox))
}

/// Checks a change whole; gives the id of the request, and the settings that it leads to.
pub fn admit_update(asked: &SessionsUpdateRequest, session: &Session) -> Result<(Option<Id>, Settings), Problem> {
    let mut fields = Fields::default();
    let id = fields.id("request_id", &asked.request_id);
    let mut settings = session.settings();
    let mask = asked.update_mask.as_ref().map_or(&[][..], |mask| mask.paths.as_slice());
    if mask.is_empty() {
        fields.wrong("update_mask", Reason::MissingValue, "names no field");
    }
    for path in mask {
        match path.as_str() {
            "expire_time" => update_expire_time(asked, session, &mut settings, &mut fields),
            "idle_timeout" => update_idle_timeout(asked, session, &mut settings, &mut fields),
            "labels" => {
                check_labels(&asked.labels, None, &mut fields);
                settings.labels.clone_from(&asked.labels);
            }
            "on_timeout" => settings.pause_on_timeout = check_on_timeout(asked.on_timeout, &mut fields),
            "network" => check_widening(asked.network.as_ref(), &[], &mut fields),
            other => {
                let shown = crate::output::cut_text(other, 80);
                let message = format!(
                    "{shown:?} can't be changed; expire_time, idle_timeout, labels, on_timeout and network can"
                );
                fields.wrong("update_mask", Reason::InvalidValue, message);
            }
        }
    }
    fields.done()?;
    Ok((id, settings))
}

fn update_expire_time(asked: &SessionsUpdateRequest, session: &Session, settings: &mut Settings, fields: &mut Fields) {
    let time = asked.expire_time.and_then(|time| SystemTime::try_from(time).ok());
    match time {
        Some(time) if time > SystemTime::now() => settings.expire_time = time.min(session.end_time),
        Some(_) => fields.wrong(
            "expire_time",
            Reason::InvalidValue,
            "is over already; Close ends a session",
        ),
        None => fields.wrong(
            "expire_time",
            Reason::MissingValue,
            "must be a time, since update_mask names it",
        ),
    }
}

fn update_idle_timeout(asked: &SessionsUpdateRequest, session: &Session, settings: &mut Settings, fields: &mut Fields) {
    let most = session.policy.limits.session.idle.max.millis();
    match fields.keep_some(millis("idle_timeout", asked.idle_timeout.as_ref())) {
        Some(0) => fields.wrong(
            "idle_timeout",
            Reason::InvalidValue,
            "0 is no time; Close ends a session",
        ),
        Some(idle) => settings.idle_timeout_ms = idle.min(most),
        None => fields.wrong(
            "idle_timeout",
            Reason::MissingValue,
            "must be a span, since update_mask names it",
        ),
    }
}

/// Whether a session is to be paused when its time is over.
fn check_on_timeout(asked: i32, fields: &mut Fields) -> bool {
    match OnTimeout::try_from(asked) {
        Ok(asked) => asked == OnTimeout::Pause,
        Err(_) => {
            let message = format!("{asked} is not known; CLOSE and PAUSE are accepted");
            fields.wrong("on_timeout", Reason::InvalidValue, message);
            false
        }
    }
}
