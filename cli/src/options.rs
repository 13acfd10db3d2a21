//! Options that several commands share.

use std::path::PathBuf;

use brig_jailer::ids::Id;
use brig_jailer::units::{ByteSize, Cpus, Span};
use clap::{Args, ValueEnum};

/// What a new session is made of; one that exists has its own.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SandboxOptions {
    /// Policy: what the code may do and use; the daemon's default if absent.
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,

    /// Template: the file system the code sees; the policy's if absent.
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,

    /// Memory of all processes of the session together.
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<ByteSize>,

    /// CPU time per wall time, such as 0.5 or 2.
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<Cpus>,

    /// Space for files: working directory, /tmp and /dev/shm together.
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<ByteSize>,

    /// Processes and threads.
    #[arg(long, value_name = "N")]
    pub(crate) pids: Option<u32>,
}

impl SandboxOptions {
    /// The names of those that were given.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        let given = [
            ("policy", self.policy.is_some()),
            ("template", self.template.is_some()),
            ("memory", self.memory.is_some()),
            ("cpus", self.cpus.is_some()),
            ("disk", self.disk.is_some()),
            ("pids", self.pids.is_some()),
        ];
        given
            .into_iter()
            .filter_map(|(name, given)| given.then_some(name))
            .collect()
    }
}

/// What holds for one execution, wherever it runs.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct JobOptions {
    /// Ends the job after this time; the clock starts with the code.
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,

    /// Bytes of stdout and of stderr that are kept; what happens to more is the policy's.
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_output: Option<ByteSize>,

    /// Environment variable for the job; the policy must allow its name. Can be repeated.
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub(crate) env: Vec<(String, String)>,

    /// What the job reads from its standard input (- for ours); nothing if absent. At most 1M.
    #[arg(long, value_name = "FILE|-")]
    pub(crate) stdin: Option<PathBuf>,

    /// Sends the job's stderr to its stdout, in exact order.
    #[arg(long)]
    pub(crate) merge_stderr: bool,

    #[command(flatten)]
    pub(crate) record: RecordOptions,
}

/// What a request is recorded as, and found by.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RecordOptions {
    /// Who it is for, as the ledger shall say it.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,

    /// Label, to find it again. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,

    /// Name of the request: the same one with the same content is not done twice. A new one if absent.
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    pub(crate) request_id: Option<String>,
}

/// What is shown of a job.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct OutputOptions {
    #[command(flatten)]
    pub(crate) format: FormatOptions,

    /// No progress and no summary.
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Guest output as it is, even its control characters on a terminal.
    #[arg(long)]
    pub(crate) raw: bool,
}

/// What stdout is.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct FormatOptions {
    /// What stdout is: text (for people; of a job, its own output), json (one document), jsonl (one object per line).
    #[arg(
        short = 'o',
        long = "format",
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true,
        conflicts_with = "json"
    )]
    format: Format,

    /// Short for -o json.
    #[arg(long)]
    json: bool,
}

impl FormatOptions {
    /// What stdout is, whichever option said it.
    pub(crate) fn format(self) -> Format {
        if self.json { Format::Json } else { self.format }
    }
}

/// What stdout is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people, and for pipes that want the job's own bytes.
    #[default]
    Text,
    /// One document: the answer or the refusal.
    Json,
    /// One object per event or per thing.
    Jsonl,
}

/// Reads `NAME=VALUE`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} has no name before a '='")),
    }
}

/// Reads the name of something new.
pub(crate) fn parse_id(text: &str) -> Result<String, String> {
    Id::parse(text).map(String::from).map_err(|error| error.to_string())
}
