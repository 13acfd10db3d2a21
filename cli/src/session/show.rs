//! A session for people.

use brig_proto::v1::Session;

use super::document::SessionDocument;
use crate::output::style::Style;
use crate::output::{amount, escape};

/// Writes what a session is, a line for each fact that there is.
pub(super) fn render(session: &Session, style: Style) -> String {
    let session = SessionDocument::from_proto(session);
    let mut text = format!("{}\n", style.bold(&escape::line(&session.session_id)));
    for (subject, said) in facts(&session) {
        if !said.is_empty() {
            text.push_str(&format!("  {subject:<12} {}\n", escape::line(&said)));
        }
    }
    text
}

fn facts(session: &SessionDocument) -> Vec<(&'static str, String)> {
    let time = |time: &Option<String>| time.clone().unwrap_or_default();
    vec![
        ("state", state(session)),
        ("policy", session.policy.clone()),
        ("template", session.template.clone()),
        ("limits", limits(session)),
        ("uses", usage(session)),
        ("user", session.user.clone()),
        ("labels", labels(session)),
        ("created", time(&session.create_time)),
        ("last active", time(&session.last_active_time)),
        ("expires", expires(session)),
        ("closed", time(&session.close_time)),
    ]
}

/// `running`, or `closed (idle)`, and what kind of session it is.
pub(super) fn state(session: &SessionDocument) -> String {
    let reason = session.close_reason.as_ref().map(|reason| format!(" ({reason})"));
    let kind = if session.one_shot { ", one-shot" } else { "" };
    format!("{}{}{kind}", session.state, reason.unwrap_or_default())
}

/// `a=b, c=d`.
pub(super) fn labels(session: &SessionDocument) -> String {
    let labels = session.labels.iter().map(|(key, value)| format!("{key}={value}"));
    labels.collect::<Vec<_>>().join(", ")
}

fn limits(session: &SessionDocument) -> String {
    let limits = &session.limits;
    if limits.memory_bytes == 0 {
        return String::new();
    }
    format!(
        "{} of memory, {} of files, {} CPUs, {} processes",
        amount::size(limits.memory_bytes),
        amount::size(limits.disk_bytes),
        limits.cpus,
        limits.pids
    )
}

fn usage(session: &SessionDocument) -> String {
    let Some(usage) = &session.usage else {
        return String::new();
    };
    format!(
        "{} of memory, {} in {} files, {} processes, {} of CPU time, {} executions, {} contexts",
        amount::size(usage.memory_bytes),
        amount::size(usage.disk_bytes),
        usage.inodes,
        usage.processes,
        amount::span(usage.cpu_ms.into()),
        usage.executions,
        usage.contexts
    )
}

fn expires(session: &SessionDocument) -> String {
    let Some(time) = &session.expire_time else {
        return String::new();
    };
    let idle = session.idle_timeout_ms;
    let idle = idle.map(|idle| format!(", or when idle for {}", amount::span(idle.into())));
    // One that is closed then needs no words.
    let paused = if session.on_timeout == "pause" {
        "; is paused then"
    } else {
        ""
    };
    format!("{time}{}{paused}", idle.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use brig_proto::v1::{EffectiveLimits, OnTimeout, SessionCloseReason, SessionState, SessionUsage};

    use super::*;

    fn session() -> Session {
        Session {
            session_id: "sales".into(),
            state: SessionState::Running.into(),
            policy: "data@0123".into(),
            limits: Some(EffectiveLimits {
                memory_bytes: 512 << 20,
                disk_bytes: 1 << 30,
                cpus: 0.5,
                pids: 128,
                ..EffectiveLimits::default()
            }),
            idle_timeout: Some(prost_types::Duration { seconds: 600, nanos: 0 }),
            expire_time: Some(prost_types::Timestamp { seconds: 0, nanos: 0 }),
            labels: [("a".to_owned(), "b\u{1b}[2J".to_owned())].into(),
            ..Session::default()
        }
    }

    #[test]
    fn what_is_known_has_its_line_and_nothing_commands_the_terminal() {
        assert_eq!(
            render(&session(), Style::PLAIN),
            "sales\n  state        running\n  policy       data@0123\n  \
             limits       512 M of memory, 1 G of files, 0.5 CPUs, 128 processes\n  \
             labels       a=b\\x1b[2J\n  expires      1970-01-01T00:00:00Z, or when idle for 10 min\n"
        );
    }

    #[test]
    fn a_closed_one_says_why() {
        let closed = Session {
            session_id: "s1".into(),
            state: SessionState::Closed.into(),
            close_reason: SessionCloseReason::Idle.into(),
            ..Session::default()
        };
        assert_eq!(render(&closed, Style::PLAIN), "s1\n  state        closed (idle)\n");
    }

    #[test]
    fn one_that_is_paused_at_the_end_of_its_time_says_so() {
        let session = Session {
            on_timeout: OnTimeout::Pause.into(),
            ..session()
        };
        let shown = render(&session, Style::PLAIN);
        assert!(
            shown.ends_with(", or when idle for 10 min; is paused then\n"),
            "{shown}"
        );
    }

    #[test]
    fn what_it_uses_is_shown_while_it_lives() {
        let usage = SessionUsage {
            memory_bytes: 3 << 20,
            processes: 2,
            executions: 1,
            ..SessionUsage::default()
        };
        let used = Session {
            usage: Some(usage),
            ..session()
        };
        let shown = render(&used, Style::PLAIN);
        let line = "  uses         3 M of memory, 0 B in 0 files, 2 processes, 0 ms of CPU time, 1 executions, 0 \
                    contexts\n";
        assert!(shown.contains(line), "{shown}");
    }
}
