//! Looks into a file: what it is, and what it may do when somebody opens it.
//!
//! The readers are small and read forward or by offset, with a limit of bytes and time; none keeps more than a buffer.
//! They run inside the jail because files are hostile, and what they say is a claim.
#![forbid(unsafe_code)]

mod json;
mod markup;
mod pdf;
mod pictures;
mod source;
mod table;
mod text;
mod workbook;

use std::io;

use self::source::Source;
use super::root::Root;
use super::wire::{Detail, Failure, Flag, Inspect, Inspected, Verdict};

/// Why a reader stopped early.
#[derive(Debug)]
enum Stop {
    /// The file is not what it is taken for.
    Invalid(&'static str),
    Read(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

type Look = fn(&mut Source, &mut Inspected) -> Result<(), Stop>;

/// Looks into a file as far as the request allows.
pub(super) fn inspect(root: &Root, ask: &Inspect) -> Result<Inspected, Failure> {
    let (file, stat) = root.open_regular(&ask.path)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let Some(look) = reader_for(&ask.media_type) else {
        return Ok(Inspected::default());
    };
    Ok(run(look, &mut Source::new(file, size, ask.max_bytes, ask.time_ms)))
}

fn reader_for(media_type: &str) -> Option<Look> {
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    Some(match essence {
        "image/png" => pictures::png,
        "image/jpeg" => pictures::jpeg,
        "image/gif" => pictures::gif,
        "image/webp" => pictures::webp,
        "image/svg+xml" => markup::svg,
        "text/html" => markup::html,
        "text/csv" => table::csv,
        "text/tab-separated-values" => table::tsv,
        "text/plain" | "text/markdown" => text::text,
        "application/json" => json::json,
        "application/pdf" => pdf::pdf,
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet" => workbook::xlsx,
        _ => return None,
    })
}

fn run(look: Look, source: &mut Source) -> Inspected {
    let mut seen = Inspected {
        verdict: Verdict::Valid,
        ..Inspected::default()
    };
    let problem = match look(source, &mut seen) {
        Ok(()) => None,
        Err(_) if source.was_cut() => None,
        Err(Stop::Invalid(why)) => Some(why),
        Err(Stop::Read(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Some("it ends too early"),
        Err(Stop::Read(_)) => Some("it can't be read"),
    };
    if let Some(why) = problem {
        seen.verdict = Verdict::Invalid;
        seen.problem = Some(why.to_owned());
    }
    seen.partial = source.was_cut();
    seen.flags.sort_unstable();
    seen.flags.dedup();
    seen
}

impl Inspected {
    fn number(&mut self, name: &str, value: u64) {
        self.details.push((name.to_owned(), Detail::Number(value)));
    }

    fn word(&mut self, name: &str, value: &str) {
        self.details.push((name.to_owned(), Detail::Text(value.to_owned())));
    }

    /// Raises a flag; many times is once.
    fn flag(&mut self, flag: Flag) {
        if !self.flags.contains(&flag) {
            self.flags.push(flag);
        }
    }
}

#[cfg(test)]
mod tests;
