//! The command line of brigd, and how its start can fail.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// The daemon of Brig: runs code in jails for the programs of this host.
#[derive(Debug, Clone, Parser)]
#[command(name = "brigd", version)]
pub struct Options {
    /// Configuration file; without it /etc/brig/brigd.toml if that exists, else the defaults.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Checks the configuration, says what is wrong with it, and ends.
    #[arg(long)]
    pub check_config: bool,

    /// Prints the configuration in force, defaults included, and ends.
    #[arg(long)]
    pub print_config: bool,

    /// Runs a private daemon with a jailer of its own; socket, ledger and spool lie in DIR. Needs root.
    #[arg(long, value_name = "DIR")]
    pub standalone: Option<PathBuf>,

    /// Directories of policies instead of the configured ones; a later one overrides an earlier one by file name.
    #[arg(long, value_name = "DIR", num_args = 1..)]
    pub policies: Vec<PathBuf>,

    /// Directory of template images instead of the configured one.
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,

    /// Directory of the Python kernel layer, for the private jailer.
    #[arg(long, value_name = "DIR", requires = "standalone")]
    pub kernel: Option<PathBuf>,

    /// Directory of brig-jailer, brig-init and brig-files, for the private jailer.
    #[arg(long, value_name = "DIR", requires = "standalone")]
    pub programs: Option<PathBuf>,

    /// Descriptor that gets one line once the daemon serves.
    #[arg(long, value_name = "N")]
    pub ready_fd: Option<u32>,

    /// Ends the daemon when the reader of the pipe given by --ready-fd is gone, however that happened.
    #[arg(long, requires = "ready_fd")]
    pub tied: bool,
}

/// Why brigd did not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Whoever started brigd may not.
    #[error("{0}")]
    NotPermitted(String),
    /// The configuration is wrong, or what it names is not there.
    #[error("{0}")]
    Configuration(String),
    /// Something broke.
    #[error("{0}")]
    Failed(String),
}

impl StartError {
    /// The exit code of the process, by the table of docs/cli.md.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::NotPermitted(_) => 77,
            Self::Configuration(_) => 78,
            Self::Failed(_) => 70,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Options::command().debug_assert();
    }

    #[test]
    fn several_policy_directories_can_be_named_in_both_ways() {
        let options = Options::parse_from(["brigd", "--policies", "a", "b", "--policies", "c"]);
        assert_eq!(options.policies, ["a", "b", "c"].map(PathBuf::from));
    }
}
