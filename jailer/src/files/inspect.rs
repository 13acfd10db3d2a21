//! Looks into a file: what it is, and what it may do when somebody opens it.
//!
//! The readers are small and read forward or by offset, with a limit of bytes and time; none keeps more than a buffer.
//! They run inside the jail because files are hostile, and what they say is a claim. What they look at is a copy of the
//! very bytes that brigd has, by SHA-256: a program that lives on can't show them another file.
#![forbid(unsafe_code)]

mod address;
mod anywhere;
mod inflate;
mod json;
mod markup;
mod parquet;
mod pdf;
mod pictures;
mod png;
mod source;
mod table;
mod tar;
mod text;
mod workbook;
mod zip;

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
    let Some(look) = reader_for(&ask.media_type) else {
        return Ok(Inspected::default());
    };
    Ok(run(look, &mut Source::copy(root, ask)?))
}

fn reader_for(media_type: &str) -> Option<Look> {
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    Some(match essence {
        "image/png" => png::png,
        "image/jpeg" => pictures::jpeg,
        "image/gif" => pictures::gif,
        "image/webp" => pictures::webp,
        "image/svg+xml" => markup::svg,
        "text/html" => markup::html,
        "text/csv" => table::csv,
        "text/tab-separated-values" => table::tsv,
        "text/plain" | "text/markdown" | "text/x-python" | "text/x-script" | "text/javascript" => text::text,
        "application/json" => json::json,
        "application/x-ndjson" => json::lines,
        "application/pdf" => pdf::pdf,
        "application/vnd.apache.parquet" => parquet::parquet,
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet" => workbook::xlsx,
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
        | "application/vnd.openxmlformats-officedocument.presentationml.presentation" => workbook::office,
        "application/zip" => zip::zip,
        "application/x-tar" => tar::tar,
        "application/gzip" => tar::gzip,
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

fn has(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Unpacked sizes above this are a bomb where they are so many times the packed one.
const BOMB_BYTES: u64 = 256 * 1024 * 1024;
const BOMB_RATIO: u64 = 100;

impl Inspected {
    /// Tells what a packed file unpacks to.
    fn weigh(&mut self, packed: u64, unpacked: u64) {
        let ratio = unpacked / packed.max(1);
        self.number("unpacked_bytes", unpacked);
        self.number("ratio", ratio);
        if unpacked > BOMB_BYTES && ratio > BOMB_RATIO {
            self.flag(Flag::Bomb);
        }
    }

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
