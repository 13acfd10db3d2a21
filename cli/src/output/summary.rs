//! The summary of a job for people.

use brig_proto::result::{Artifact, CauseKind, Clamped, Error, ResultDocument, Review, Status};
use serde::Serialize;

use super::style::Style;
use super::table::{self, Cell};
use super::{amount, escape};
use crate::follow::collect::Saved;

/// Says how a job ended, what it left behind and what to change.
pub(crate) fn render(document: &ResultDocument, saved: &Saved, style: Style) -> String {
    let mut text = headline(document, style);
    if let Some(cause) = &document.cause {
        text.push_str(&labelled("cause:", &cause.message, style));
    }
    if let Some(error) = &document.error {
        text.push_str(&exception(error, &document.stderr, style));
    }
    text.push_str(&remarks(document, style));
    text.push_str(&artifacts(&document.artifacts, saved, style));
    for path in &document.missing_outputs {
        text.push_str(&labelled("missing:", path, style));
    }
    if let Some(hint) = &document.hint {
        text.push_str(&labelled("hint:", hint, style));
    }
    text
}

/// Says what is not as its caller would expect, and nothing if all is: what ended the job if it was not the job itself,
/// and what is missing of its output.
pub(crate) fn trouble(document: &ResultDocument, style: Style) -> String {
    let cause = document.cause.as_ref().map(|cause| {
        let label = style.red(&format!("{}:", name(&document.status)));
        format!("{label} {}\n", escape::line(&cause.message))
    });
    cause.unwrap_or_default() + &remarks(document, style)
}

fn headline(document: &ResultDocument, style: Style) -> String {
    let status = name(&document.status);
    let status = match document.status {
        Status::Success => style.green(&status),
        _ => style.red(&status),
    };
    let mut facts = vec![format!("{status} in {}", amount::span(document.duration_ms.into()))];
    if let Some(peak) = document.usage.memory_peak_bytes {
        facts.push(format!("{} of memory at peak", amount::size(peak)));
    }
    match (document.exit_code, document.signal) {
        (Some(code), _) if code != 0 => facts.push(format!("exit code {code}")),
        (_, Some(signal)) => facts.push(format!("signal {signal}")),
        _ => {}
    }
    format!("{}\n", facts.join(", "))
}

/// An exception that was not caught. Its traceback stands on stderr already, unless the job closed that.
fn exception(error: &Error, stderr: &str, style: Style) -> String {
    let what = if error.message.is_empty() {
        error.name.clone()
    } else {
        format!("{}: {}", error.name, error.message)
    };
    let place = error.line.map(|line| format!(" (line {line})")).unwrap_or_default();
    let traceback = error.traceback.trim();
    let mut text = String::new();
    if !traceback.is_empty() && !stderr.contains(traceback) {
        text.push_str(&format!("{}\n", escape::lines(traceback)));
    }
    text.push_str(&labelled("exception:", &format!("{what}{place}"), style));
    text
}

/// What a reader would otherwise not notice: clamped limits, limits that were reached, output that is not all there.
fn remarks(document: &ResultDocument, style: Style) -> String {
    let mut text = String::new();
    text.push_str(&clamped(&document.clamped, style));
    let cause = document.cause.as_ref().map(|cause| cause.kind);
    let others: Vec<CauseKind> = document
        .limits_hit
        .iter()
        .copied()
        .filter(|kind| Some(*kind) != cause)
        .collect();
    for kind in others {
        text.push_str(&labelled(
            "note:",
            &format!("the limit of {} was reached", name(&kind)),
            style,
        ));
    }
    for (stream, written) in [("stdout", document.output.stdout), ("stderr", document.output.stderr)] {
        if written.dropped > 0 {
            let dropped = amount::size(written.dropped);
            let said = format!("{dropped} of {} of {stream} were dropped", amount::size(written.bytes));
            text.push_str(&labelled("note:", &said, style));
        }
    }
    for input in document.inputs.iter().filter(|input| input.name != input.path) {
        text.push_str(&labelled(
            "note:",
            &format!("input {} is {} in the job", input.name, input.path),
            style,
        ));
    }
    text
}

/// Says which quantities were more than the policy allows.
pub(crate) fn clamped(clamped: &[Clamped], style: Style) -> String {
    let lines = clamped.iter().map(|clamped| {
        let said = format!(
            "{} {} is above the policy's maximum, {} was used",
            clamped.limit, clamped.requested, clamped.applied
        );
        labelled("note:", &said, style)
    });
    lines.collect()
}

fn artifacts(artifacts: &[Artifact], saved: &Saved, style: Style) -> String {
    if artifacts.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<Cell>> = artifacts
        .iter()
        .map(|artifact| {
            let mut flags = artifact.flags.clone();
            flags.iter_mut().for_each(|flag| *flag = flag.replace('_', " "));
            let texts = [
                artifact.path.clone(),
                artifact.media_type.clone(),
                amount::size(artifact.size_bytes),
                format!("{}/{}", name(&artifact.class), name(&artifact.handling)),
                flags.join(", "),
            ];
            let place = place(artifact, saved);
            texts
                .iter()
                .map(|text| Cell::new(escape::line(text)))
                .chain([place])
                .collect()
        })
        .collect();
    table::render(&["artifact", "type", "size", "class", "flags", "saved"], &rows, style)
}

/// Where an artifact went.
fn place(artifact: &Artifact, saved: &Saved) -> Cell {
    match (saved.get(&artifact.artifact_id), artifact.review) {
        (Some(Ok(path)), _) => Cell::painted(escape::line(&path.display().to_string()), Style::green),
        (Some(Err(error)), _) => Cell::painted(format!("not saved: {}", escape::line(error)), Style::red),
        (None, Review::Pending) => Cell::painted("pending review", Style::yellow),
        (None, Review::Rejected | Review::Expired) => Cell::painted(name(&artifact.review), Style::red),
        (None, Review::NotNeeded | Review::Approved | Review::Unknown) => Cell::new(""),
    }
}

fn labelled(label: &str, said: &str, style: Style) -> String {
    format!("{} {}\n", style.yellow(label), escape::line(said))
}

/// The name of a value of a closed list, as JSON has it, with blanks.
pub(crate) fn name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name.replace('_', " "),
        _ => String::new(),
    }
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
