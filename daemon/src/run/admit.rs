//! From a request to a job: everything is checked before anything runs, and every field that is wrong is named.

mod files;
mod limits;
mod work;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use brig_jailer::api::Terminal;
use brig_jailer::ids::Id;
use brig_jailer::policy::{Clamped, Policy, Resolved};
use brig_proto::sizes;
use brig_proto::v1::execution_spec::Work as SpecWork;
use brig_proto::v1::{
    ExecutionSpec, NetworkMode, NetworkSpec, OnDisconnect, Origin, Reason, WantArtifacts, input_source,
};
use prost::bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::artifacts::Stored;
use crate::inputs::Record;
use crate::names::RelativePath;
use crate::run::context::Language;
use crate::run::fields::Fields;
use crate::run::kept::Session;
use crate::run::pool::Ahead;
use crate::run::store::Store;
use crate::status::Problem;

pub(super) use files::check_expected;
use files::check_inputs;
use limits::check_limits_within;
pub(super) use limits::{artifact_limits, check_kept_limits, check_limits, check_times};
pub use work::check_size;
use work::{check_interpreter, check_terminal, check_work};

/// The policy of requests that name none.
const DEFAULT_POLICY: &str = "data";

/// One execution, checked: nothing in it can be refused any more but by the host.
#[derive(Debug)]
pub struct Job {
    pub execution: Id,
    pub session: Id,
    /// Whether the caller has chosen the first, and the second.
    pub named: [bool; 2],
    pub request: Option<Id>,
    pub work: Work,
    pub inputs: Vec<Input>,
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes for stdin; `None` leaves it closed.
    pub stdin: Option<Vec<u8>>,
    /// Whether more of it comes later.
    pub stdin_open: bool,
    pub terminal: Option<Terminal>,
    pub merge_stderr: bool,
    pub on_disconnect: OnDisconnect,
    pub template: Image,
    pub conditions: Conditions,
    /// A session that has waited for it, whose names it has.
    pub ahead: Option<Ahead>,
    /// The session of a zygote that can fork its program.
    pub dock: Option<Id>,
}

/// What an execution runs under, and what is made of what it leaves: all that is needed once it has started.
#[derive(Debug)]
pub struct Conditions {
    pub policy: Arc<Policy>,
    pub limits: Resolved,
    pub times: Times,
    pub clamped: Vec<Clamped>,
    /// Limits of artifacts, which narrow those of the policy.
    pub artifacts: ArtifactLimits,
    pub expected: Vec<Expected>,
    pub want_inline: bool,
}

impl Deref for Job {
    type Target = Conditions;

    fn deref(&self) -> &Conditions {
        &self.conditions
    }
}

/// A template, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// `name@hash`.
    pub id: String,
    /// Whether it has an interpreter for code.
    pub runs_code: bool,
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
    /// In a record that has to be found.
    Named(Id),
    /// In a record. It is opened when the execution is admitted.
    Record(Box<Record>),
}

/// A file that the work should make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    pub path: RelativePath,
    pub media_type: Option<String>,
    pub max_bytes: Option<u64>,
}

/// Limits of time that a policy says nothing about, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// CPU time of all processes of the execution together.
    pub cpu_ms: Option<u64>,
    /// Wall time without output.
    pub idle_ms: Option<u64>,
}

/// How much is collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactLimits {
    pub bytes_each: u64,
    pub count: u64,
    pub depth: u64,
}

/// What a request stands on: its own choice, or the session that it is for.
struct Ground {
    policy: Option<Arc<Policy>>,
    template: Option<Image>,
    session: Option<Id>,
    limits: Option<(Resolved, Vec<Clamped>)>,
    times: Times,
    artifacts: Option<ArtifactLimits>,
    /// Variables that all executions of the session get.
    environment: BTreeMap<String, String>,
    /// The language of code.
    language: Language,
    on_disconnect: OnDisconnect,
}

/// Checks a request for a session of its own whole and takes its parts.
pub fn admit(spec: &mut ExecutionSpec, store: &Store) -> Result<Job, Problem> {
    let mut fields = Fields::default();
    let ids = check_ids(spec, &mut fields);
    let session = fields.id("session_id", &spec.session_id);
    let (policy, template) = find(&spec.policy, &spec.template, store, &mut fields)?;
    check_widening(spec.network.as_ref(), &spec.packages, &mut fields);
    let limits = policy
        .as_ref()
        .and_then(|policy| check_limits(spec.limits.as_ref(), policy, &mut fields));
    let artifacts = policy.as_deref().map(ArtifactLimits::of);
    let ground = Ground {
        policy,
        template,
        session,
        limits,
        times: Times::default(),
        artifacts,
        environment: BTreeMap::new(),
        language: Language::Python,
        on_disconnect: OnDisconnect::Cancel,
    };
    admit_on(ground, ids, spec, fields)
}

/// Checks a request for a session that exists.
pub fn admit_within(spec: &mut ExecutionSpec, session: &Session) -> Result<Job, Problem> {
    let mut fields = Fields::default();
    let ids = check_ids(spec, &mut fields);
    check_run_only(spec, &mut fields);
    let limits = check_limits_within(&spec.limits.unwrap_or_default(), session, &mut fields);
    let is_command = matches!(spec.work, Some(SpecWork::Command(_)));
    let ground = Ground {
        policy: Some(Arc::clone(&session.policy)),
        template: Some(session.template.clone()),
        session: Some(session.id.clone()),
        limits,
        times: session.times,
        artifacts: Some(session.artifacts),
        environment: session.environment.clone(),
        language: Language::Python,
        on_disconnect: if is_command {
            OnDisconnect::Continue
        } else {
            OnDisconnect::Cancel
        },
    };
    admit_on(ground, ids, spec, fields)
}

/// Checks a request for a context that exists.
pub fn admit_in_context(spec: &mut ExecutionSpec, session: &Session, language: Language) -> Result<Job, Problem> {
    let mut fields = Fields::default();
    let ids = check_ids(spec, &mut fields);
    check_run_only(spec, &mut fields);
    check_for_context(spec, &mut fields);
    let limits = check_limits_within(&spec.limits.unwrap_or_default(), session, &mut fields);
    let ground = Ground {
        policy: Some(Arc::clone(&session.policy)),
        template: Some(session.template.clone()),
        session: Some(session.id.clone()),
        limits,
        times: session.times,
        artifacts: Some(session.artifacts),
        // Its process has the session's and its own.
        environment: BTreeMap::new(),
        language,
        on_disconnect: OnDisconnect::Cancel,
    };
    admit_on(ground, ids, spec, fields)
}

/// Fields that belong to the start of a process, which a context's has behind it.
fn check_for_context(spec: &ExecutionSpec, fields: &mut Fields) {
    let code = match &spec.work {
        Some(SpecWork::Code(code)) => code.clone(),
        Some(SpecWork::Command(_)) => {
            let message = "is for code; leave it out to run a command beside it";
            return fields.wrong("context_id", Reason::NotApplicable, message);
        }
        None => return,
    };
    let cpu_time = spec.limits.as_ref().is_some_and(|limits| limits.cpu_time.is_some());
    for (field, given) in [
        ("stdin", !spec.stdin.is_empty()),
        ("merge_stderr", spec.merge_stderr),
        ("limits.cpu_time", cpu_time),
        ("code.filename", !code.filename.is_empty()),
        ("code.arguments", !code.arguments.is_empty()),
    ] {
        if given {
            let message = "is not for executions in a context, whose interpreter runs already";
            fields.wrong(field, Reason::NotApplicable, message);
        }
    }
}

/// Finds policy and template of a request that chooses them.
pub(super) fn find(
    policy: &str,
    template: &str,
    store: &Store,
    fields: &mut Fields,
) -> Result<(Option<Arc<Policy>>, Option<Image>), Problem> {
    let policy = fields.keep(store.policy(or(policy, DEFAULT_POLICY)));
    let templates = store
        .templates()
        .map_err(|error| Problem::Configuration(error.to_string()))?;
    let template = policy
        .as_ref()
        .and_then(|policy| fields.keep(templates.find(or(template, &policy.template))));
    let image = template.map(|template| Image {
        id: template.id.clone(),
        runs_code: template.interpreter.is_some(),
    });
    Ok((policy, image))
}

fn check_ids(spec: &ExecutionSpec, fields: &mut Fields) -> [Option<Id>; 2] {
    let ids = [("request_id", &spec.request_id), ("execution_id", &spec.execution_id)];
    ids.map(|(field, text)| fields.id(field, text))
}

fn admit_on(
    ground: Ground,
    [request, execution]: [Option<Id>; 2],
    spec: &mut ExecutionSpec,
    mut fields: Fields,
) -> Result<Job, Problem> {
    let policy = ground.policy;
    let terminal = check_terminal(spec, &mut fields);
    check_labels(&spec.labels, spec.origin.as_ref(), &mut fields);
    let work = check_work(spec, policy.as_deref(), ground.language, &mut fields);
    let expected = check_expected(spec, &mut fields);
    let asked = spec.limits.unwrap_or_default();
    let times = check_times(&asked, &mut fields);
    check_environment(&spec.environment, policy.as_deref(), &mut fields);
    let limits = ground.limits;
    let inputs = check_inputs(
        spec,
        policy.as_deref(),
        limits.as_ref().map(|(limits, _)| limits),
        &mut fields,
    );
    fields.done()?;
    let missing = || Problem::Configuration("a checked request lost a part".to_owned());
    let (policy, template) = (policy.ok_or_else(missing)?, ground.template.ok_or_else(missing)?);
    let ((limits, clamped), work) = (limits.ok_or_else(missing)?, work.ok_or_else(missing)?);
    check_interpreter(&work, &template)?;
    let mut environment = ground.environment;
    environment.extend(spec.environment.clone());
    let bytes = |(name, value): (String, String)| (name.into_bytes(), value.into_bytes());
    Ok(Job {
        named: [execution.is_some(), ground.session.is_some()],
        execution: execution.unwrap_or_else(|| new_id('e')),
        session: ground.session.unwrap_or_else(|| new_id('s')),
        request,
        work,
        inputs,
        environment: environment.into_iter().map(bytes).collect(),
        stdin: (!spec.stdin.is_empty()).then(|| std::mem::take(&mut spec.stdin).to_vec()),
        stdin_open: spec.stdin_open,
        terminal,
        merge_stderr: spec.merge_stderr,
        on_disconnect: match spec.on_disconnect() {
            OnDisconnect::Unspecified => ground.on_disconnect,
            told => told,
        },
        template,
        conditions: Conditions {
            artifacts: artifact_limits(&asked, ground.artifacts.unwrap_or_else(|| ArtifactLimits::of(&policy))),
            policy,
            limits,
            times: Times {
                cpu_ms: times.cpu_ms.or(ground.times.cpu_ms),
                idle_ms: times.idle_ms.or(ground.times.idle_ms),
            },
            clamped,
            expected,
            want_inline: wants_inline(spec),
        },
        ahead: None,
        dock: None,
    })
}

/// Whether the caller wants the bytes of artifacts with the events.
pub(super) fn wants_inline(spec: &ExecutionSpec) -> bool {
    spec.want_artifacts() == WantArtifacts::Inline
}

/// Makes a name that no other execution or session has.
pub fn new_id(letter: char) -> Id {
    let text = format!("{letter}{}", uuid::Uuid::now_v7().simple());
    Id::parse(&text).expect("a letter and 32 hexadecimal digits are an id")
}

fn or<'a>(text: &'a str, default: &'a str) -> &'a str {
    if text.is_empty() { default } else { text }
}

/// What would widen the rights that the policy gives is refused.
pub(super) fn check_widening(network: Option<&NetworkSpec>, packages: &[String], fields: &mut Fields) {
    if !packages.is_empty() {
        fields.wrong(
            "packages",
            Reason::PolicyForbids,
            "the policy has preinstalled packages only",
        );
    }
    if let Some(network) = network {
        if network.mode() == NetworkMode::Egress {
            fields.wrong("network.mode", Reason::PolicyForbids, "the policy allows no network");
        }
        if !network.hosts.is_empty() {
            fields.wrong("network.hosts", Reason::PolicyForbids, "the policy allows no network");
        }
    }
}

/// Fields that choose a session, which has been chosen.
fn check_run_only(spec: &ExecutionSpec, fields: &mut Fields) {
    for (field, given) in [
        ("policy", !spec.policy.is_empty()),
        ("template", !spec.template.is_empty()),
        ("session_id", !spec.session_id.is_empty()),
        ("network", spec.network.is_some()),
        ("packages", !spec.packages.is_empty()),
    ] {
        if given {
            fields.wrong(
                field,
                Reason::NotApplicable,
                "is for Run only: the session was made with its own",
            );
        }
    }
    for (index, input) in spec.inputs.iter().enumerate() {
        if matches!(input.source, Some(input_source::Source::Streamed(_))) {
            let field = format!("inputs[{index}].streamed");
            fields.wrong(&field, Reason::NotApplicable, "is for Run only; give data or input_id");
        }
    }
}

pub(crate) fn check_labels(labels: &BTreeMap<String, String>, origin: Option<&Origin>, fields: &mut Fields) {
    fields.at_most("labels", labels.len(), sizes::LABELS_MAX);
    for (key, value) in labels {
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
    if let Some(origin) = origin {
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

pub(super) fn check_environment(environment: &BTreeMap<String, String>, policy: Option<&Policy>, fields: &mut Fields) {
    fields.at_most("environment", environment.len(), sizes::VARIABLES_MAX);
    let bytes: usize = environment.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > sizes::ARGUMENT_BYTES_MAX {
        fields.wrong("environment", Reason::TooLarge, "has more than 128 KiB in all");
    }
    for (name, value) in environment {
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
