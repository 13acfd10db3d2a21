//! Running code and commands to their end: what is told on the way, and how the end is named.
#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod ends;
mod events;
mod given;
mod requests;

use brig_tests::Outcome;

/// Name, message and line of the exception.
fn error(outcome: &Outcome) -> (&str, &str, Option<u32>) {
    let error = outcome.result.error.as_ref().unwrap();
    (&error.name, &error.message, error.line)
}
