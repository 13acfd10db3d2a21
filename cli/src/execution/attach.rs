//! `brig execution attach`.

use clap::Args;

use crate::exit::Exit;
use crate::follow::{self, Begin};
use crate::options::OutputOptions;
use crate::output::screen::Screen;
use crate::show::{self, Ending};

/// Shows the output of an execution from its beginning, and follows it to its end.
///
/// Ends with the exit code that brig run would have. Going away, also by Ctrl-C, ends nothing.
#[derive(Debug, Clone, Args)]
pub(crate) struct AttachOptions {
    #[arg(value_name = "ID")]
    id: String,

    /// Begins behind this event (sequence in -o jsonl), to leave out what was seen before.
    #[arg(long, value_name = "SEQUENCE", default_value_t = 0)]
    after: u64,

    #[command(flatten)]
    pub(super) output: OutputOptions,
}

/// Follows an execution; refusals are shown here too, as the format has its own way.
pub(super) fn attach(options: &AttachOptions, screen: &mut Screen) -> Exit {
    let begin = Begin::Attach {
        execution_id: options.id.clone(),
        after_sequence: options.after,
    };
    let exit = show::with(
        screen,
        options.output,
        Ending::Summary,
        |show| match follow::on_daemon(show, async |call| call.until_end(&begin).await) {
            Ok(outcome) => {
                show.finished(&outcome);
                Exit::of_status(outcome.document.status)
            }
            Err(failure) => {
                show.refused(&failure);
                failure.exit
            }
        },
    );
    screen.exit(exit)
}
