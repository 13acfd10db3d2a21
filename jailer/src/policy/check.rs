//! Reading one policy: its shape, and what can't be right in it.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::environment::pattern_problem;
use super::problem::{Document, Problem};
use super::trust::{LoadError, Trust, read_text};
use super::{
    Bounded, Class, Execution, Handling, IoLimits, Limits, NetworkMode, PackagesMode, Policy, Retention, Rules, Scanner,
};
use crate::seccomp::Groups;
use crate::units::{ByteSize, Span};

/// What is said of a zero.
pub(super) const ZERO: &str = "0 is not a limit; leave the key out for the default";
/// The most code that a message carries.
const CODE_MAX: ByteSize = ByteSize::from_mib(1);
/// The most of one stream that the final message carries beside the rest, in 1 MiB for all.
const RESULT_OUTPUT_MAX: ByteSize = ByteSize::from_bytes(256 * 1024);

/// The most parts that the command of a scanner has, and the longest of them in bytes.
const ARGUMENTS_MAX: usize = 64;
const ARGUMENT_MAX: usize = 1024;

/// What a good policy says, in short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub policy: Policy,
    /// Instructions of its compiled syscall filter.
    pub filter_instructions: usize,
    pub filter_hash: String,
}

impl Policy {
    /// Reads and checks the text of a policy.
    pub fn parse(name: &str, text: &str) -> Result<Self, Vec<Problem>> {
        Self::parse_file(&PathBuf::from(format!("{name}.toml")), name, text)
    }

    /// Reads and checks a text; problems name this file.
    pub(super) fn parse_file(file: &Path, name: &str, text: &str) -> Result<Self, Vec<Problem>> {
        let (rules, document): (Rules, _) = Document::parse(file, text).map_err(|problem| vec![problem])?;
        let mut checks = Checks {
            document,
            problems: Vec::new(),
        };
        if !is_name(name) {
            checks.refuse("", format!("{name:?} can't name a policy: {NAME_RULE}"));
        }
        checks.rules(&rules);
        if !checks.problems.is_empty() {
            return Err(checks.problems);
        }
        Ok(Self {
            name: name.to_owned(),
            hash: hex(&Sha256::digest(text.as_bytes())),
            rules,
        })
    }
}

/// Checks a policy file as `brigd` and the jailer would, with the syscall groups beside it.
pub fn check_file(path: &Path) -> Result<Summary, Vec<Problem>> {
    let whole = |message: String| {
        vec![Problem {
            file: path.to_owned(),
            line: None,
            key: String::new(),
            message,
        }]
    };
    let text = read_text(path, Trust::Any).map_err(|error| match error {
        LoadError::Io { source, .. } => whole(source.to_string()),
        error => whole(error.to_string()),
    })?;
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let policy = Policy::parse_file(path, name, &text)?;
    let document = Document::parse::<Rules>(path, &text)
        .map_err(|problem| vec![problem])?
        .1;
    let beside = path.parent().unwrap_or(Path::new("")).join("syscalls");
    let shipped = PathBuf::from("/usr/share/brig/policies/syscalls");
    let groups = Groups::load(&[shipped, beside], Trust::Any).map_err(|error| whole(error.to_string()))?;
    let filter = groups.compile(&policy.name, &policy.syscalls.groups);
    let filter = filter.map_err(|error| vec![document.problem("syscalls.groups", error.to_string())])?;
    Ok(Summary {
        policy,
        filter_instructions: filter.instructions(),
        filter_hash: filter.hash,
    })
}

const NAME_RULE: &str = "1 to 40 characters, a lower-case letter first, then lower-case letters, digits and dashes";

/// Tells whether a text can name a policy, a template or a group.
pub(crate) fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    (1..=40).contains(&bytes.len())
        && bytes[0].is_ascii_lowercase()
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-')
}

/// Writes bytes as hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Checks<'t> {
    document: Document<'t>,
    problems: Vec<Problem>,
}

impl Checks<'_> {
    fn refuse(&mut self, key: &str, message: impl Into<String>) {
        self.problems.push(self.document.problem(key, message));
    }

    fn rules(&mut self, rules: &Rules) {
        if !is_name(&rules.template) {
            self.refuse(
                "template",
                format!("{:?} can't name a template: {NAME_RULE}", rules.template),
            );
        }
        self.limits(&rules.limits);
        for (index, pattern) in rules.environment.allow.iter().enumerate() {
            if let Some(message) = pattern_problem(pattern) {
                self.refuse(&format!("environment.allow[{index}]"), message);
            }
        }
        if rules.syscalls.groups.is_empty() {
            self.refuse(
                "syscalls.groups",
                "without a group no program starts; name at least \"base\"",
            );
        }
        self.not_built(rules);
        self.artifacts(rules);
        self.not_zero("execution.review_timeout", rules.execution.review_timeout);
        self.at_most(
            "execution.review_timeout",
            rules.execution.review_timeout,
            Execution::REVIEW_TIMEOUT_MAX,
            "the longest that a decision is waited for",
        );
        self.retention(&rules.retention);
    }

    /// Refuses by name what would have no effect yet.
    fn not_built(&mut self, rules: &Rules) {
        let mut refuse = |key, value: &str, accepted: &str| {
            self.refuse(
                key,
                format!("\"{value}\" is not supported by this version; accepted: \"{accepted}\""),
            );
        };
        if rules.network.mode == NetworkMode::Egress {
            refuse("network.mode", "egress", "none");
        }
        match rules.packages.mode {
            PackagesMode::Preinstalled => {}
            PackagesMode::AllowList => refuse("packages.mode", "allow_list", "preinstalled"),
            PackagesMode::Index => refuse("packages.mode", "index", "preinstalled"),
        }
    }

    fn limits(&mut self, limits: &Limits) {
        self.bounds("limits.timeout", limits.timeout);
        self.bounds("limits.memory", limits.memory);
        self.bounds("limits.cpus", limits.cpus);
        self.bounds("limits.disk", limits.disk);
        self.bounds("limits.inodes", limits.inodes);
        self.bounds("limits.pids", limits.pids);
        self.bounds("limits.open_files", limits.open_files);
        self.bounds("limits.output_bytes", limits.output_bytes);
        self.bounds("limits.session.idle", limits.session.idle);
        self.bounds("limits.session.max_age", limits.session.max_age);
        if let Some(io) = limits.io {
            self.io(io);
        }
        self.not_zero("limits.start_timeout", limits.start_timeout);
        self.not_zero("limits.upload_bytes", limits.upload_bytes);
        self.not_zero("limits.artifact_bytes", limits.artifact_bytes);
        self.not_zero("limits.artifacts", limits.artifacts);
        self.not_zero("limits.artifact_depth", limits.artifact_depth);
        self.at_most(
            "limits.code_bytes",
            limits.code_bytes,
            CODE_MAX,
            "what one message carries",
        );
        let whose = "what the final message carries";
        self.at_most(
            "limits.result_output_bytes",
            limits.result_output_bytes,
            RESULT_OUTPUT_MAX,
            whose,
        );
    }

    fn io(&mut self, io: IoLimits) {
        if io == IoLimits::default() {
            self.refuse(
                "limits.io",
                "limits nothing; accepted: read, write (bytes per second), read_ops, write_ops",
            );
        }
        let IoLimits {
            read,
            write,
            read_ops,
            write_ops,
        } = io;
        for (key, value) in [("read", read), ("write", write)] {
            self.not_zero(&format!("limits.io.{key}"), value.unwrap_or(ByteSize::from_bytes(1)));
        }
        for (key, value) in [("read_ops", read_ops), ("write_ops", write_ops)] {
            self.not_zero(&format!("limits.io.{key}"), value.unwrap_or(1));
        }
    }

    fn bounds<T: Copy + Default + PartialOrd + fmt::Display>(&mut self, key: &str, bounds: Bounded<T>) {
        self.not_zero(&format!("{key}.default"), bounds.default);
        self.at_most(
            &format!("{key}.default"),
            bounds.default,
            bounds.max,
            "the maximum beside it",
        );
    }

    fn not_zero<T: Copy + Default + PartialOrd>(&mut self, key: &str, value: T) {
        if value == T::default() {
            self.refuse(key, ZERO);
        }
    }

    fn at_most<T: Copy + Default + PartialOrd + fmt::Display>(&mut self, key: &str, value: T, max: T, whose: &str) {
        if value > max {
            self.refuse(key, format!("{value} is above {max}, {whose}"));
        }
    }

    fn artifacts(&mut self, rules: &Rules) {
        let mut seen = BTreeMap::new();
        for class in Class::ALL {
            let rule = rules.artifacts.rule(class);
            let key = format!("artifacts.{}", class.name());
            for (index, extension) in rule.extensions.iter().enumerate() {
                let key = format!("{key}.extensions[{index}]");
                if !is_extension(extension) {
                    self.refuse(
                        &key,
                        format!("{extension:?} is not an ending: a dot, then lower-case letters and digits"),
                    );
                }
                if let Some(other) = seen.insert(extension.clone(), class) {
                    self.refuse(&key, format!("{extension:?} is also an ending of {}", other.name()));
                }
            }
            if let Some(max) = rule.max_bytes {
                let whose = "limits.artifact_bytes";
                self.not_zero(&format!("{key}.max_bytes"), max);
                self.at_most(&format!("{key}.max_bytes"), max, rules.limits.artifact_bytes, whose);
            }
            if let Some(max) = rule.preview_max_bytes {
                self.not_zero(&format!("{key}.preview_max_bytes"), max);
                if rule.handling != Handling::Preview {
                    let message = format!("has no effect with handling = \"{}\"", rule.handling.name());
                    self.refuse(&format!("{key}.preview_max_bytes"), message);
                }
            }
        }
        if let Some(scanner) = &rules.artifacts.scanner {
            self.scanner(scanner);
        }
    }

    fn scanner(&mut self, scanner: &Scanner) {
        if !is_name(&scanner.policy) {
            let message = format!("{:?} can't name a policy: {NAME_RULE}", scanner.policy);
            self.refuse("artifacts.scanner.policy", message);
        }
        match scanner.command.first() {
            Some(program) if program.starts_with('/') => {}
            Some(program) => {
                let message = format!("{program:?} is no program by its path; accepted: \"/usr/bin/...\"");
                self.refuse("artifacts.scanner.command[0]", message);
            }
            None => self.refuse(
                "artifacts.scanner.command",
                "is empty; accepted: a program by its path, and arguments",
            ),
        }
        for (index, part) in scanner.command.iter().enumerate() {
            if part.contains('\0') || part.len() > ARGUMENT_MAX || index >= ARGUMENTS_MAX {
                let message = format!("accepted: {ARGUMENTS_MAX} parts of {ARGUMENT_MAX} bytes each, without NUL");
                self.refuse(&format!("artifacts.scanner.command[{index}]"), message);
            }
        }
    }

    fn retention(&mut self, retention: &Retention) {
        let Retention {
            ledger,
            code,
            outputs,
            artifacts,
        } = *retention;
        let spans = [
            ("ledger", ledger),
            ("code", code),
            ("outputs", outputs),
            ("artifacts", artifacts),
        ];
        for (key, span) in spans {
            self.not_zero::<Span>(&format!("retention.{key}"), span);
        }
    }
}

fn is_extension(text: &str) -> bool {
    let lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.strip_prefix('.')
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(lower))
}
