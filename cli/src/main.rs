//! The `brig` command: a client of brigd, and the tools around it that need no daemon.
#![forbid(unsafe_code)]

mod artifact;
mod command;
mod connect;
mod context;
mod doctor;
mod exec;
mod execution;
mod exit;
mod failure;
mod files;
mod follow;
mod identity;
mod input;
mod interact;
mod ledger;
mod options;
mod output;
mod policy;
mod programs;
mod run;
mod schema;
mod session;
mod show;
mod spec;
mod template;
mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::command::{Brig, Command};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::Format;
use crate::output::screen::Screen;

fn main() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    let mut screen = Screen::standard();
    let brig = match Brig::read(&line) {
        Ok(brig) => brig,
        Err(error) => return command::misread(&line, &error, &mut screen),
    };
    let done = match &brig.command {
        Command::Run(options) => Ok(run::run(options, &mut screen)),
        // Its exit codes are those of the program that it runs.
        Command::Exec(options) => return exec::exec(options, &mut screen),
        Command::Put(options) => files::put(options, &mut screen),
        Command::Get(options) => files::get(options, &mut screen),
        Command::Ls(options) => files::ls(options, &mut screen),
        Command::Watch(options) => files::watch(options, &mut screen),
        Command::Artifact(command) => artifact::artifact(command, &mut screen),
        Command::Input(command) => input::input(command, &mut screen),
        Command::Session(command) => session::session(command, &mut screen),
        Command::Context(command) => context::context(command, &mut screen),
        Command::Execution(command) => execution::execution(command, &mut screen),
        Command::Ledger(command) => ledger::ledger(command, &mut screen),
        Command::Doctor(options) => doctor::doctor(options, &mut screen),
        Command::Policy(command) => policy::policy(command, &mut screen),
        Command::Template(command) => template::template(command, &mut screen),
        Command::Schema(command) => Ok(schema::schema(command, &mut screen)),
        Command::Version => Ok(version::version(&mut screen)),
    };
    let exit = done.unwrap_or_else(|failure| refuse(&failure, brig.command.format(), &mut screen));
    screen.exit(exit).into()
}

/// Shows why a command did not do what it was asked: to people always, and to programs in the place of their document.
fn refuse(failure: &Failure, format: Format, screen: &mut Screen) -> Exit {
    let text = failure.render(screen.err.style());
    screen.err.text(&text);
    match format {
        Format::Text => {}
        Format::Json => screen.out.json(&failure.document()),
        Format::Jsonl => screen.out.json_line(&failure.event()),
    }
    failure.exit
}
