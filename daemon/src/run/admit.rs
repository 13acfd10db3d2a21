//! From a request to a job: everything is checked before anything runs, and every field that is wrong is named.

mod files;
mod limits;
mod work;

use std::sync::Arc;

use brig_jailer::ids::Id;
use brig_jailer::policy::{Clamped, Policy, Resolved};
use brig_jailer::template::Template;
use brig_proto::sizes;
use brig_proto::v1::execution_spec::Work as SpecWork;
use brig_proto::v1::{ExecutionSpec, NetworkMode, OnDisconnect, OutputMode, Reason, WantArtifacts};
use prost::bytes::Bytes;

use crate::artifacts::Stored;
use crate::names::RelativePath;
use crate::run::fields::Fields;
use crate::run::store::Store;
use crate::status::Problem;

use files::{check_expected, check_inputs};
use limits::{artifact_limits, check_limits};
use work::{check_interpreter, check_work};

/// The policy of requests that name none.
const DEFAULT_POLICY: &str = "data";

/// One execution, checked: nothing in it can be refused any more but by the host.
#[derive(Debug)]
pub struct Job {
    pub execution: Id,
    pub session: Id,
    pub request: Option<Id>,
    pub work: Work,
    pub inputs: Vec<Input>,
    pub expected: Vec<Expected>,
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes for stdin; `None` leaves it closed.
    pub stdin: Option<Vec<u8>>,
    pub merge_stderr: bool,
    pub want_inline: bool,
    pub on_disconnect: OnDisconnect,
    pub policy: Arc<Policy>,
    pub template: Arc<Template>,
    pub limits: Resolved,
    pub clamped: Vec<Clamped>,
    /// Limits of artifacts, which narrow those of the policy.
    pub artifacts: ArtifactLimits,
}

/// What is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    Code {
        source: String,
        filename: String,
        arguments: Vec<String>,
    },
    Command {
        argv: Vec<Vec<u8>>,
        directory: Option<Vec<u8>>,
    },
}

/// A file that is put in.
#[derive(Debug)]
pub struct Input {
    /// As the caller calls it.
    pub name: String,
    /// As it lies in the working directory.
    pub path: String,
    pub mode: u32,
    pub content: Content,
}

/// Where the bytes of an input are.
#[derive(Debug)]
pub enum Content {
    /// In the request.
    Given(Bytes),
    /// Still to come by the stream, with what was announced of them.
    Streamed { size: Option<u64>, sha256: Option<String> },
    /// In the spool, all of them.
    Stored(Stored),
}

/// A file that the work should make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    pub path: RelativePath,
    pub media_type: Option<String>,
    pub max_bytes: Option<u64>,
}

/// How much is collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArtifactLimits {
    pub bytes_each: u64,
    pub count: u64,
    pub depth: u64,
}

/// Checks a request whole and takes its parts.
pub fn admit(spec: &mut ExecutionSpec, store: &Store) -> Result<Job, Problem> {
    let mut fields = Fields::default();
    let ids = [
        ("request_id", &spec.request_id),
        ("execution_id", &spec.execution_id),
        ("session_id", &spec.session_id),
    ];
    let [request, execution, session] = ids.map(|(field, text)| fields.id(field, text));
    let policy = fields.keep(store.policy(or(&spec.policy, DEFAULT_POLICY)));
    let templates = store
        .templates()
        .map_err(|error| Problem::Configuration(error.to_string()))?;
    let template = policy
        .as_ref()
        .and_then(|policy| fields.keep(templates.find(or(&spec.template, &policy.template))));
    check_unbuilt(spec, &mut fields);
    check_labels(spec, &mut fields);
    let work = check_work(spec, policy.as_deref(), &mut fields);
    let expected = check_expected(spec, &mut fields);
    let limits = policy
        .as_ref()
        .and_then(|policy| check_limits(spec.limits.as_ref(), policy, &mut fields));
    let environment = check_environment(spec, policy.as_deref(), &mut fields);
    let inputs = check_inputs(
        spec,
        policy.as_deref(),
        limits.as_ref().map(|(limits, _)| limits),
        &mut fields,
    );
    fields.done()?;
    let missing = || Problem::Configuration("a checked request lost a part".to_owned());
    let (policy, template) = (policy.ok_or_else(missing)?, template.ok_or_else(missing)?);
    let ((limits, clamped), work) = (limits.ok_or_else(missing)?, work.ok_or_else(missing)?);
    check_interpreter(&work, &template)?;
    Ok(Job {
        execution: execution.unwrap_or_else(|| new_id('e')),
        session: session.unwrap_or_else(|| new_id('s')),
        request,
        work,
        inputs,
        expected,
        environment,
        stdin: (!spec.stdin.is_empty()).then(|| std::mem::take(&mut spec.stdin).to_vec()),
        merge_stderr: spec.merge_stderr,
        want_inline: spec.want_artifacts() == WantArtifacts::Inline,
        on_disconnect: match spec.on_disconnect() {
            OnDisconnect::Unspecified => OnDisconnect::Cancel,
            told => told,
        },
        artifacts: artifact_limits(spec.limits.as_ref(), &policy),
        policy,
        template,
        limits,
        clamped,
    })
}

/// Makes a name that no other execution or session has.
pub fn new_id(letter: char) -> Id {
    let text = format!("{letter}{}", uuid::Uuid::now_v7().simple());
    Id::parse(&text).expect("a letter and 32 hexadecimal digits are an id")
}

fn or<'a>(text: &'a str, default: &'a str) -> &'a str {
    if text.is_empty() { default } else { text }
}

/// Fields of the API that this version can't honour are refused, never passed over.
fn check_unbuilt(spec: &ExecutionSpec, fields: &mut Fields) {
    if spec.stdin_open {
        fields.wrong(
            "stdin_open",
            Reason::NotApplicable,
            "input while the code runs is not built yet; give it all in stdin",
        );
    }
    if !spec.packages.is_empty() {
        fields.wrong(
            "packages",
            Reason::PolicyForbids,
            "the policy has preinstalled packages only",
        );
    }
    if let Some(network) = &spec.network {
        if network.mode() == NetworkMode::Egress {
            fields.wrong("network.mode", Reason::PolicyForbids, "the policy allows no network");
        }
        if !network.hosts.is_empty() {
            fields.wrong("network.hosts", Reason::PolicyForbids, "the policy allows no network");
        }
    }
    if let Some(SpecWork::Command(command)) = &spec.work {
        if command.terminal.is_some() {
            fields.wrong("command.terminal", Reason::NotApplicable, "terminals are not built yet");
        }
        if command.output_mode() == OutputMode::Stream {
            fields.wrong(
                "command.output_mode",
                Reason::NotApplicable,
                "STREAM is not built yet; KEEP is accepted",
            );
        }
    }
    let limits = spec.limits.as_ref();
    if limits.is_some_and(|limits| limits.cpu_time.is_some()) {
        fields.wrong(
            "limits.cpu_time",
            Reason::NotApplicable,
            "limits of CPU time are not built yet; timeout is",
        );
    }
    if limits.is_some_and(|limits| limits.idle_time.is_some()) {
        fields.wrong(
            "limits.idle_time",
            Reason::NotApplicable,
            "limits of idle time are not built yet; timeout is",
        );
    }
}

fn check_labels(spec: &ExecutionSpec, fields: &mut Fields) {
    fields.at_most("labels", spec.labels.len(), sizes::LABELS_MAX);
    for (key, value) in &spec.labels {
        if key.is_empty() || key.len() > sizes::LABEL_KEY_MAX {
            fields.wrong(
                "labels",
                Reason::TooLarge,
                format!("the key {:?} has not 1 to 63 bytes", short(key)),
            );
        }
        if value.len() > sizes::LABEL_VALUE_MAX {
            fields.wrong(
                "labels",
                Reason::TooLarge,
                format!("the value of {key:?} has more than 256 bytes"),
            );
        }
    }
    if let Some(origin) = &spec.origin {
        for (field, value) in [
            ("origin.user", &origin.user),
            ("origin.conversation", &origin.conversation),
            ("origin.request", &origin.request),
        ] {
            if value.len() > sizes::ORIGIN_MAX {
                fields.wrong(field, Reason::TooLarge, "has more than 256 bytes");
            }
        }
    }
}

fn check_environment(spec: &ExecutionSpec, policy: Option<&Policy>, fields: &mut Fields) -> Vec<(Vec<u8>, Vec<u8>)> {
    fields.at_most("environment", spec.environment.len(), sizes::VARIABLES_MAX);
    if spec
        .environment
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum::<usize>()
        > sizes::ARGUMENT_BYTES_MAX
    {
        fields.wrong("environment", Reason::TooLarge, "has more than 128 KiB in all");
    }
    for (name, value) in &spec.environment {
        let field = format!("environment[{:?}]", short(name));
        if value.contains('\0') {
            fields.wrong(&field, Reason::InvalidValue, "contains a NUL character");
        }
        if let Some(policy) = policy.filter(|policy| !policy.environment.allows(name.as_bytes())) {
            let message = format!(
                "policy {} does not allow it; it allows {}",
                policy.name,
                allowed(policy)
            );
            fields.wrong(&field, Reason::PolicyForbids, message);
        }
    }
    spec.environment
        .iter()
        .map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes()))
        .collect()
}

fn allowed(policy: &Policy) -> String {
    let allow = &policy.environment.allow;
    if allow.is_empty() {
        "none".to_owned()
    } else {
        allow.join(", ")
    }
}

/// The beginning of a text that somebody sent, as a message shows it.
fn short(text: &str) -> &str {
    crate::output::cut_text(text, 80)
}
