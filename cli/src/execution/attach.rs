//! `brig execution attach`.

use brig_proto::v1::execution_spec::Work;
use clap::Args;

use super::get;
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::follow::Begin;
use crate::interact::{self, Wiring};
use crate::options::{Format, OutputOptions};
use crate::output::screen::Screen;
use crate::show::{self, Ending};

/// Shows the output of an execution from its beginning, and follows it to its end.
///
/// Ends with the exit code that brig run would have. Going away, also by Ctrl-C, ends nothing. If it has a terminal and
/// this command is at one, keys go to the program, and Ctrl-P Ctrl-Q leaves it.
#[derive(Debug, Clone, Args)]
pub(crate) struct AttachOptions {
    #[arg(value_name = "ID")]
    id: String,

    /// Begins behind this event (sequence in -o jsonl), to leave out what was seen before.
    #[arg(long, value_name = "SEQUENCE", default_value_t = 0)]
    after: u64,

    /// Only shows: no keys go to a program with a terminal.
    #[arg(long)]
    no_stdin: bool,

    #[command(flatten)]
    pub(super) output: OutputOptions,
}

/// Follows an execution; refusals are shown here too, as the format has its own way.
pub(super) fn attach(options: &AttachOptions, screen: &mut Screen) -> Exit {
    let begin = Begin::Attach {
        execution_id: options.id.clone(),
        after_sequence: options.after,
    };
    let mut output = options.output;
    let wiring = match wiring(options) {
        Ok(wiring) => wiring,
        Err(failure) => {
            show::with(screen, output, Ending::Summary, |show| show.refused(&failure));
            return screen.exit(failure.exit);
        }
    };
    // A terminal's sequences are for ours.
    output.raw |= wiring.terminal;
    let exit = show::with(screen, output, Ending::Summary, |show| {
        match interact::follow(&begin, wiring, show) {
            Ok(end) => {
                interact::show_end(&end, show).map_or(Exit::Success, |document| Exit::of_status(document.status))
            }
            Err(failure) => {
                show.refused(&failure);
                failure.exit
            }
        }
    });
    screen.exit(exit)
}

/// What of ours it gets: where it has a terminal and we are at one, that, and its keys if it reads any.
fn wiring(options: &AttachOptions) -> Result<Wiring, Failure> {
    if options.no_stdin || options.output.format.format() != Format::Text || interact::at_terminal().is_err() {
        return Ok(Wiring::default());
    }
    let spec = connect::runtime()?.block_on(get(&options.id))?.spec.unwrap_or_default();
    let terminal = matches!(&spec.work, Some(Work::Command(command)) if command.terminal.is_some());
    Ok(Wiring {
        input: terminal && spec.stdin_open,
        terminal,
    })
}
