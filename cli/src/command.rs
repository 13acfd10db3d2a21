//! The command line as a whole.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::artifact::ArtifactCommand;
use crate::context::ContextCommand;
use crate::doctor::DoctorOptions;
use crate::exec::{self, ExecOptions};
use crate::execution::ExecutionCommand;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::files::{GetOptions, LsOptions, PutOptions, WatchOptions};
use crate::input::InputCommand;
use crate::ledger::LedgerCommand;
use crate::options::Format;
use crate::output::screen::Screen;
use crate::policy::PolicyCommand;
use crate::run::options::RunOptions;
use crate::schema::SchemaCommand;
use crate::session::SessionCommand;
use crate::template::TemplateCommand;

/// Runs code that nobody has read in jails on this host.
#[derive(Debug, Clone, Parser)]
#[command(name = "brig", version, propagate_version = false, max_term_width = 100)]
#[command(
    after_help = "Environment:\n  BRIG_ENDPOINT   address of the daemon (default unix:///run/brig/brigd.sock)\n  \
                  BRIG_RECONNECT  how long a broken connection is tried again (default 60s; 0: not at all)\n  \
                  NO_COLOR        no colour, whatever stdout is"
)]
pub(crate) struct Brig {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Brig {
    /// Reads a command line, the program's name first.
    pub(crate) fn read(line: &[OsString]) -> Result<Self, clap::Error> {
        let mut brig = Self::try_parse_from(line)?;
        if let Command::Run(options) = &mut brig.command {
            options.look_for_escape(line);
        }
        Ok(brig)
    }
}

/// Shows what is wrong with a command line, or the help that was asked for.
///
/// A program that asked for JSON gets its one document here too, as far as the line can be read.
pub(crate) fn misread(line: &[OsString], error: &clap::Error, screen: &mut Screen) -> ExitCode {
    let text = error.render();
    if !error.use_stderr() {
        let shown = if screen.out.style().is_colored() {
            text.ansi().to_string()
        } else {
            text.to_string()
        };
        screen.out.text(&shown);
        return Exit::Success.into();
    }
    let shown = if screen.err.style().is_colored() {
        text.ansi().to_string()
    } else {
        text.to_string()
    };
    screen.err.text(&shown);
    if wants_json(line) {
        let plain = text.to_string();
        let message = plain
            .trim_start_matches("error: ")
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned();
        screen.out.json(&Failure::new(Exit::Usage, message).document());
    }
    if line.get(1).is_some_and(|word| word == "exec") {
        // All other codes are those of the program that did not run.
        return exec::BRIG_FAILED.into();
    }
    Exit::Usage.into()
}

fn wants_json(line: &[OsString]) -> bool {
    let words: Vec<_> = line
        .iter()
        .map(|word| word.to_string_lossy())
        .take_while(|word| word != "--")
        .collect();
    words
        .iter()
        .any(|word| word == "--json" || word == "-ojson" || word == "--format=json")
        || words
            .windows(2)
            .any(|pair| (pair[0] == "-o" || pair[0] == "--format") && pair[1] == "json")
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Command {
    Run(Box<RunOptions>),
    Exec(Box<ExecOptions>),
    Put(PutOptions),
    Get(GetOptions),
    Ls(LsOptions),
    Watch(WatchOptions),
    #[command(subcommand)]
    Artifact(ArtifactCommand),
    #[command(subcommand)]
    Input(InputCommand),
    #[command(subcommand)]
    Session(SessionCommand),
    #[command(subcommand)]
    Context(ContextCommand),
    #[command(subcommand)]
    Execution(ExecutionCommand),
    #[command(subcommand)]
    Ledger(LedgerCommand),
    Doctor(DoctorOptions),
    #[command(subcommand)]
    Policy(PolicyCommand),
    #[command(subcommand)]
    Template(TemplateCommand),
    #[command(subcommand)]
    Schema(SchemaCommand),
    /// Shows the version.
    Version,
}

impl Command {
    /// What stdout is, as far as the command has a choice.
    pub(crate) fn format(&self) -> Format {
        match self {
            Self::Run(options) => options.output.format.format(),
            Self::Exec(options) => options.output.format.format(),
            Self::Put(options) => options.format.format(),
            Self::Get(options) => options.format.format(),
            Self::Ls(options) => options.format.format(),
            Self::Watch(options) => options.format.format(),
            Self::Artifact(command) => command.format(),
            Self::Input(command) => command.format(),
            Self::Session(command) => command.format(),
            Self::Context(command) => command.format(),
            Self::Execution(command) => command.format(),
            Self::Ledger(command) => command.format(),
            Self::Doctor(options) => options.format(),
            Self::Policy(_) | Self::Template(_) | Self::Schema(_) | Self::Version => Format::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::output::screen::tests::Written;

    #[test]
    fn the_command_line_is_sound() {
        Brig::command().debug_assert();
    }

    #[test]
    fn what_is_not_in_this_version_is_an_unknown_option() {
        let error = Brig::try_parse_from(["brig", "run", "--package", "x", "-c", "1"]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn a_line_that_asks_for_json_gets_a_document_even_if_it_is_wrong() {
        let line: Vec<OsString> = ["brig", "run", "--json", "--timeout", "soon", "-c", "1"]
            .map(OsString::from)
            .to_vec();
        let (out, err) = (Written::default(), Written::default());
        let mut screen = Screen {
            out: out.sink(false),
            err: err.sink(false),
        };
        let error = Brig::read(&line).unwrap_err();
        assert_eq!(misread(&line, &error, &mut screen), Exit::Usage.into());
        let document: serde_json::Value = serde_json::from_str(&out.text()).unwrap();
        assert_eq!(document["refused"]["code"], "invalid_argument");
        assert!(
            document["refused"]["message"]
                .as_str()
                .unwrap()
                .contains("\"soon\" is not a span"),
            "{document}"
        );
    }
}
