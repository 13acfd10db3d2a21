//! The options of `brig run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::options::{JobOptions, OutputOptions, SandboxOptions};
use crate::programs::Places;

const EXAMPLES: &str = "\
Examples:
  brig run analysis.py                                 a script, its output as it comes
  brig run -c 'sum(range(10))'                         code; its last value is shown
  brig run -c 'import sys; print(sys.argv)' -- a b     code with arguments
  echo 'print(6*7)' | brig run -                       code from standard input
  brig run --input 'Q3 sales.csv' --expect chart.png --out results plot.py
                                                       files in, files out
  brig run --input input:ID=sales.csv plot.py          a file that was uploaded before (brig input put)
  brig run --timeout 5s --memory 256M --json job.py    limits; one JSON document for programs
  brig run -- ls -l /home/user                         any program of the template
  brig run --stdin data.txt -- wc -l                   a program with standard input
  brig run --keep prepare.py                           in a session that stays; its id is told
  brig run --session ID analysis.py                    in that session, with the files that are there
  brig run --session ID --context ID -c 'x + 1'        in an interpreter of it, with the variables too

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

    #[command(flatten, next_help_heading = "Session")]
    pub(crate) place: PlaceOptions,

    #[command(flatten, next_help_heading = "Job")]
    pub(crate) job: JobOptions,

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

/// Where the job runs: in a session of its own that ends with it, unless one of these is given.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct PlaceOptions {
    /// Runs the job in this session, which was made before and stays.
    #[arg(long, value_name = "ID", conflicts_with_all = ["keep", "standalone"])]
    pub(crate) session: Option<String>,

    /// Runs the code in this context of the session, with the variables that are there (brig context create).
    #[arg(long, value_name = "ID", requires = "session")]
    pub(crate) context: Option<String>,

    /// Keeps the session of the job, for others to run in; its id is told on stderr.
    #[arg(long, conflicts_with_all = ["standalone", "request_id"])]
    pub(crate) keep: bool,
}

impl PlaceOptions {
    /// Whether the session lives on behind the job.
    pub(crate) fn is_kept(&self) -> bool {
        self.keep || self.session.is_some()
    }
}

/// What goes in and comes out.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FileOptions {
    /// File for the job's working directory, under its own name or NAME; input:ID is a record of `brig input`
    /// (./input:ID a file of that name). Can be repeated.
    #[arg(long, value_name = "FILE[=NAME]|input:ID[=NAME]")]
    pub(crate) input: Vec<OsString>,

    /// File the job is to leave behind; the result names missing ones. Can be repeated.
    #[arg(long, value_name = "NAME")]
    pub(crate) expect: Vec<String>,

    /// Exits with 3 if an expected file is missing.
    #[arg(long)]
    pub(crate) require_outputs: bool,

    /// Saves the artifacts below this directory, which is made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,

    /// Writes what --json prints into this file, whatever is shown.
    #[arg(long, value_name = "FILE")]
    pub(crate) result: Option<PathBuf>,
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
