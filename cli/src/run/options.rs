//! The options of `brig run`.

use std::ffi::OsString;
use std::path::PathBuf;

use brig_jailer::units::{ByteSize, Cpus, Span};
use clap::{Args, ValueEnum};

use crate::programs::Places;

const EXAMPLES: &str = "\
Examples:
  brig run analysis.py                                 a script, its output as it comes
  brig run -c 'sum(range(10))'                         code; its last value is shown
  brig run -c 'import sys; print(sys.argv)' -- a b     code with arguments
  echo 'print(6*7)' | brig run -                       code from standard input
  brig run --input 'Q3 sales.csv' --expect chart.png --out results plot.py
                                                       files in, files out
  brig run --timeout 5s --memory 256M --json job.py    limits; one JSON document for programs
  brig run -- ls -l /home/user                         any program of the template
  brig run --stdin data.txt -- wc -l                   a program with standard input

Sizes take K, M, G (powers of 1024), times take ms, s, m, h; a bare number is bytes or seconds.

Exit codes:
  0 success                   1 error, or killed          2 invalid argument, nothing ran
  3 expected outputs missing (--require-outputs)         69 no daemon       70 failed, or lost
  75 limit or quota, try later                           77 not permitted, or rejected
  78 configuration, or the host cannot enforce           122 output limit
  124 timeout                 130 cancelled              137 out of memory";

/// Runs code or a program in a jail of its own and waits for its end.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
#[command(override_usage = "brig run [OPTIONS] FILE|- [ARG]...\n       \
                            brig run [OPTIONS] -c CODE [-- ARG...]\n       \
                            brig run [OPTIONS] -- PROGRAM [ARG]...")]
pub(crate) struct RunOptions {
    /// Runs this code instead of a file.
    #[arg(short, long = "code", value_name = "CODE", allow_hyphen_values = true)]
    pub(crate) code: Option<OsString>,

    #[command(flatten, next_help_heading = "Sandbox")]
    pub(crate) sandbox: SandboxOptions,

    #[command(flatten, next_help_heading = "Files")]
    pub(crate) files: FileOptions,

    #[command(flatten, next_help_heading = "Output")]
    pub(crate) output: OutputOptions,

    #[command(flatten, next_help_heading = "Private daemon")]
    pub(crate) private: PrivateOptions,

    /// Script to run (- for standard input) or, behind --, program to run; and its arguments. With -c, arguments only.
    #[arg(value_name = "FILE|PROGRAM", num_args = 0.., trailing_var_arg = true)]
    pub(crate) words: Vec<OsString>,

    /// Whether the words stood behind `--`.
    #[arg(skip)]
    pub(crate) escaped: bool,
}

impl RunOptions {
    /// Finds out whether the words stood behind `--`, which clap does not tell. They are always the end of the line.
    pub(crate) fn look_for_escape(&mut self, line: &[OsString]) {
        let before = line.len().checked_sub(self.words.len() + 1);
        self.escaped = before.is_some_and(|before| line[before] == "--");
    }
}

/// What the job may use.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SandboxOptions {
    /// Policy: what the job may do and use; the daemon's default if absent.
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,

    /// Template: the file system the job sees; the policy's if absent.
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,

    /// Ends the job after this time; the clock starts with the code.
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,

    /// Memory of all processes of the job together.
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

    /// Bytes of stdout and of stderr that are kept; what happens to more is the policy's.
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_output: Option<ByteSize>,

    /// Environment variable for the job; the policy must allow its name. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub(crate) env: Vec<(String, String)>,

    /// Who the job is for, as the ledger shall say it.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,

    /// Label of the execution, to find it again. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
}

/// What goes in and comes out.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FileOptions {
    /// File for the job's working directory, under its own name or NAME. Can be repeated.
    #[arg(long, value_name = "FILE[=NAME]")]
    pub(crate) input: Vec<OsString>,

    /// File the job is to leave behind; the result names missing ones. Can be repeated.
    #[arg(long, value_name = "NAME")]
    pub(crate) expect: Vec<String>,

    /// Exits with 3 if an expected file is missing.
    #[arg(long)]
    pub(crate) require_outputs: bool,

    /// What the job reads from its standard input (- for ours); nothing if absent.
    #[arg(long, value_name = "FILE|-")]
    pub(crate) stdin: Option<PathBuf>,

    /// Saves the artifacts below this directory, which is made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,

    /// Writes what --json prints into this file, whatever is shown.
    #[arg(long, value_name = "FILE")]
    pub(crate) result: Option<PathBuf>,
}

/// What is shown.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct OutputOptions {
    /// What stdout is: text (the job's own output), json (one document), jsonl (one object per event).
    #[arg(
        short = 'o',
        long = "format",
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true,
        conflicts_with = "json"
    )]
    pub(crate) format: Format,

    /// Short for -o json.
    #[arg(long)]
    pub(crate) json: bool,

    /// No progress and no summary.
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Guest output as it is, even its control characters on a terminal.
    #[arg(long)]
    pub(crate) raw: bool,

    /// Sends the job's stderr to its stdout, in exact order.
    #[arg(long)]
    pub(crate) merge_stderr: bool,
}

impl OutputOptions {
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
    /// One document: the result or the refusal.
    Json,
    /// One object per event, the result last.
    Jsonl,
}

/// A daemon for this call alone.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct PrivateOptions {
    /// Starts a private daemon for this call and stops it afterwards. Needs root.
    #[arg(long)]
    pub(crate) standalone: bool,

    #[command(flatten)]
    pub(crate) places: Places,
}

/// Reads `NAME=VALUE`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} has no name before a '='")),
    }
}
