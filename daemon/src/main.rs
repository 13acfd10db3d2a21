//! brigd: see the library for how it works.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use brig_daemon::options::Options;
use clap::Parser;

fn main() -> ExitCode {
    let options = Options::parse();
    match brig_daemon::daemon::start(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is nobody left to tell if stderr is gone too.
            let _ = writeln!(std::io::stderr(), "brigd: {error}");
            error.exit_code()
        }
    }
}
