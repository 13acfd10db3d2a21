//! The `brig` command: a client of brigd, and the tools around it that need no daemon.
#![forbid(unsafe_code)]

mod command;
mod connect;
mod doctor;
mod execution;
mod exit;
mod failure;
mod identity;
mod output;
mod policy;
mod programs;
mod run;
mod schema;
mod template;
mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::command::{Brig, Command};
use crate::output::screen::Screen;

fn main() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    let mut screen = Screen::standard();
    let brig = match Brig::read(&line) {
        Ok(brig) => brig,
        Err(error) => return command::misread(&line, &error, &mut screen).into(),
    };
    let done = match &brig.command {
        Command::Run(options) => Ok(run::run(options, &mut screen)),
        Command::Doctor(options) => doctor::doctor(options, &mut screen),
        Command::Policy(command) => policy::policy(command, &mut screen),
        Command::Template(command) => template::template(command, &mut screen),
        Command::Execution(command) => execution::execution(command, &mut screen),
        Command::Schema(command) => Ok(schema::schema(command, &mut screen)),
        Command::Version => Ok(version::version(&mut screen)),
    };
    match done {
        Ok(exit) => exit.into(),
        Err(failure) => {
            let text = failure.render(screen.err.style());
            screen.err.text(&text);
            failure.exit.into()
        }
    }
}
