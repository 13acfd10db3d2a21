//! `brig schema`: the shapes of what Brig gives to programs.

use clap::Subcommand;

use crate::exit::Exit;
use crate::output::screen::Screen;

/// Prints JSON schemas of what Brig gives to programs.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum SchemaCommand {
    /// The result of a job: what `brig run --json` prints.
    Result,
    /// What `brig run --json` prints instead when nothing ran.
    Refusal,
}

/// Prints a schema.
pub(crate) fn schema(command: &SchemaCommand, screen: &mut Screen) -> Exit {
    match command {
        SchemaCommand::Refusal => screen.out.text(brig_proto::schema::REFUSAL),
        SchemaCommand::Result => screen.out.text(brig_proto::schema::RESULT),
    }
    Exit::Success
}
