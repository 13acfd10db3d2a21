//! Why a command did not do what it was asked, in a form for people and for programs.

use std::error::Error as _;

use brig_proto::reason::code_name;
use brig_proto::refusal::RefusalDocument;
use brig_proto::v1::Reason;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::exit::Exit;
use crate::output::escape;
use crate::output::style::Style;

/// A refusal of the daemon, or something that went wrong on the way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) code: Code,
    /// For programs, as the daemon gave it.
    pub(crate) reason: Option<Reason>,
    /// The field of the request that was wrong, if one was.
    pub(crate) field: Option<String>,
    pub(crate) message: String,
    /// Other fields that were wrong, and why.
    pub(crate) others: Vec<(String, String)>,
    /// What to do about it; one line each.
    pub(crate) hints: Vec<String>,
}

impl Failure {
    /// An argument of the command line that is wrong.
    pub(crate) fn usage(field: &str, message: impl Into<String>) -> Self {
        Self {
            exit: Exit::Usage,
            code: Code::InvalidArgument,
            reason: None,
            field: Some(field.to_owned()),
            message: message.into(),
            others: Vec::new(),
            hints: Vec::new(),
        }
    }

    /// Anything else that went wrong here.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        let code = match exit {
            Exit::Usage => Code::InvalidArgument,
            Exit::NoDaemon => Code::Unavailable,
            Exit::NotPermitted => Code::PermissionDenied,
            Exit::Configuration => Code::FailedPrecondition,
            Exit::Cancelled => Code::Cancelled,
            _ => Code::Internal,
        };
        Self {
            exit,
            code,
            reason: None,
            field: None,
            message: message.into(),
            others: Vec::new(),
            hints: Vec::new(),
        }
    }

    /// Adds a hint.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Reads a status of the daemon with its details.
    pub(crate) fn from_status(status: &Status) -> Self {
        let details = status.get_error_details();
        let reason = details.error_info().map(|info| Reason::from_name(&info.reason));
        let mut failure = Self {
            exit: Exit::of_reason(reason, status.code()),
            code: status.code(),
            reason,
            field: None,
            message: message(status),
            others: Vec::new(),
            hints: Vec::new(),
        };
        failure.add_fields(&details);
        failure
            .hints
            .extend(failure.reason.and_then(certain_hint).map(str::to_owned));
        failure.add_hints(&details);
        failure
    }

    fn add_fields(&mut self, details: &tonic_types::ErrorDetails) {
        let Some(request) = details.bad_request() else { return };
        let mut violations = request.field_violations.iter();
        let Some(first) = violations.next() else { return };
        self.field = Some(first.field.clone());
        self.message.clone_from(&first.description);
        self.others = violations
            .map(|other| (other.field.clone(), other.description.clone()))
            .collect();
    }

    fn add_hints(&mut self, details: &tonic_types::ErrorDetails) {
        if let Some(hint) = details.error_info().and_then(|info| info.metadata.get("hint")) {
            self.hints.push(hint.clone());
        }
        if let Some(precondition) = details.precondition_failure() {
            self.hints.extend(
                precondition
                    .violations
                    .iter()
                    .map(|violation| violation.description.clone()),
            );
        }
        if let Some(quota) = details.quota_failure() {
            self.hints
                .extend(quota.violations.iter().map(|violation| violation.description.clone()));
        }
        if let Some(delay) = details.retry_info().and_then(|retry| retry.retry_delay) {
            self.hints.push(format!(
                "try again in {}",
                crate::output::amount::span(delay.as_millis())
            ));
        }
        // A daemon may say the same in two details.
        let message = self.message.clone();
        let mut seen = Vec::new();
        self.hints.retain(|hint| {
            let new = !hint.is_empty() && *hint != message && !seen.contains(hint);
            seen.push(hint.clone());
            new
        });
    }

    /// Makes the document that stands in the place of a result.
    pub(crate) fn document(&self) -> RefusalDocument {
        let others = self
            .others
            .iter()
            .map(|(field, message)| format!("; {field}: {message}"));
        let message = std::iter::once(self.message.clone()).chain(others).collect();
        RefusalDocument::new(self.code, self.reason, self.field.clone(), message)
    }

    /// Makes the object that stands in the last line where there is one object per line.
    pub(crate) fn event(&self) -> serde_json::Value {
        serde_json::json!({"event": "refused", "status": null, "refused": self.document().refused})
    }

    /// Renders it for people: `error: field: message`, then `hint:` lines.
    ///
    /// A message may quote what a guest or a stranger wrote, so it is escaped.
    pub(crate) fn render(&self, style: Style) -> String {
        let label = style.red("error:");
        let mut text = format!("{label} {}", located(self.field.as_deref(), &self.message));
        for (field, message) in &self.others {
            text.push_str(&format!("{label} {}", located(Some(field), message)));
        }
        for hint in &self.hints {
            text.push_str(&format!("{} {}\n", style.yellow("hint:"), escape::lines(hint)));
        }
        text
    }
}

/// Puts the field before a message, on a line or more of their own.
fn located(field: Option<&str>, message: &str) -> String {
    let field = field
        .map(|field| format!("{}: ", escape::line(field)))
        .unwrap_or_default();
    format!("{field}{}\n", escape::lines(message.trim_end()))
}

/// What to do about a reason, where that is certain.
fn certain_hint(reason: Reason) -> Option<&'static str> {
    match reason {
        Reason::HostCannotEnforce => Some("brig doctor shows what is missing and how to mend it"),
        Reason::JailerGone => Some("see why it stopped: systemctl status brig-jailer"),
        _ => None,
    }
}

/// The message of a status, with the cause where the transport hides it in the source.
fn message(status: &Status) -> String {
    let mut text = if status.message().is_empty() {
        code_name(status.code()).to_owned()
    } else {
        status.message().to_owned()
    };
    let mut source = status.source().and_then(std::error::Error::source);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Duration;

    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn details_of_a_status_become_field_message_and_hints() {
        let mut details = ErrorDetails::new();
        details
            .set_error_info(
                "UNKNOWN_POLICY",
                "brig",
                HashMap::from([("hint".to_owned(), "use data".to_owned())]),
            )
            .add_bad_request_violation("policy", "\"dota\" is not a policy; there are: data, strict")
            .add_bad_request_violation("template", "\"x\" is not a template")
            .set_retry_info(Some(Duration::from_millis(1500)));
        let status = Status::with_error_details(Code::InvalidArgument, "invalid argument", details);
        assert_eq!(
            Failure::from_status(&status),
            Failure {
                exit: Exit::Usage,
                code: Code::InvalidArgument,
                reason: Some(Reason::UnknownPolicy),
                field: Some("policy".to_owned()),
                message: "\"dota\" is not a policy; there are: data, strict".to_owned(),
                others: vec![("template".to_owned(), "\"x\" is not a template".to_owned())],
                hints: vec!["use data".to_owned(), "try again in 1.5 s".to_owned()],
            }
        );
    }

    #[test]
    fn every_wrong_field_has_its_line() {
        let others = vec![("limits.pids".to_owned(), "0 is not a limit".to_owned())];
        let failure = Failure {
            others,
            ..Failure::usage("policy", "\"x\" does not exist")
        };
        assert_eq!(
            failure.render(Style::PLAIN),
            "error: policy: \"x\" does not exist\nerror: limits.pids: 0 is not a limit\n"
        );
        assert_eq!(
            failure.document().refused.message,
            "\"x\" does not exist; limits.pids: 0 is not a limit"
        );
    }

    #[test]
    fn a_status_without_details_keeps_its_message() {
        let failure = Failure::from_status(&Status::internal("the jailer is gone"));
        assert_eq!(
            (failure.exit, failure.message.as_str()),
            (Exit::Failed, "the jailer is gone")
        );
        assert_eq!(failure.render(Style::PLAIN), "error: the jailer is gone\n");
    }

    #[test]
    fn a_hint_is_given_once() {
        let mut details = ErrorDetails::new();
        details.add_precondition_failure_violation("HOST", "cgroup", "mount cgroup2");
        details.add_precondition_failure_violation("HOST", "memory", "mount cgroup2");
        let status = Status::with_error_details(Code::FailedPrecondition, "this host cannot limit memory", details);
        assert_eq!(
            Failure::from_status(&status).render(Style::PLAIN),
            "error: this host cannot limit memory\nhint: mount cgroup2\n"
        );
    }

    #[test]
    fn a_message_cannot_command_the_terminal() {
        let failure = Failure::usage("input\u{1b}[2J", "no \u{1b}]0;x\u{7}");
        assert_eq!(
            failure.render(Style::PLAIN),
            "error: input\\x1b[2J: no \\x1b]0;x\\x07\n"
        );
    }
}
