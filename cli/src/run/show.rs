//! What a format of `brig run` makes of a call.

use brig_proto::v1::ExecutionEvent;

use super::call::Outcome;
use crate::failure::Failure;

/// Shows a call.
pub(crate) trait Show {
    /// Shows an event that is not the last; `false` means that nobody reads any more.
    fn event(&mut self, event: &ExecutionEvent) -> bool;

    /// Tells people something beside the result.
    fn note(&mut self, text: &str);

    /// Shows the end.
    fn finished(&mut self, outcome: &Outcome);

    /// Shows that there was no run, or that its end is not known.
    fn refused(&mut self, failure: &Failure);
}
