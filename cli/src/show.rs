//! What is shown of an execution that is followed, in each format.

mod json;
mod text;

use brig_proto::v1::ExecutionEvent;

use self::json::{JsonDocument, JsonLines};
pub(crate) use self::text::Ending;
use self::text::Text;
use crate::failure::Failure;
use crate::follow::Outcome;
use crate::options::{Format, OutputOptions};
use crate::output::escape;
use crate::output::screen::Screen;

/// Shows an execution.
pub(crate) trait Show {
    /// Shows an event that is not the last; `false` means that nobody reads any more.
    fn event(&mut self, event: &ExecutionEvent) -> bool;

    /// Tells people something beside the result, unless they asked for quiet.
    fn note(&mut self, text: &str);

    /// Tells people something that they have to know to go on.
    fn tell(&mut self, text: &str);

    /// Shows the end.
    fn finished(&mut self, outcome: &Outcome);

    /// Shows that there was no run, or that its end is not known.
    fn refused(&mut self, failure: &Failure);
}

/// Lets something be shown in the format of the options; text ends with what `ending` says.
pub(crate) fn with<T>(
    screen: &mut Screen,
    options: OutputOptions,
    ending: Ending,
    work: impl FnOnce(&mut dyn Show) -> T,
) -> T {
    match options.format.format() {
        Format::Text => work(&mut Text::new(screen, options, ending)),
        Format::Json => work(&mut JsonDocument::new(screen, options)),
        Format::Jsonl => work(&mut JsonLines::new(screen, options)),
    }
}

/// Writes a line to stderr.
fn line(screen: &mut Screen, label: &str, text: &str) {
    screen.err.text(&format!("{label} {}\n", escape::line(text)));
}
