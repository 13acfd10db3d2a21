//! PDF: a scan for names, without following the structure.
//!
//! Pages in compressed object streams are not seen one by one; then the largest `/Count` is told. Names may be written
//! with `#` escapes, which are resolved.
//!
//! Source: ISO 32000-1, 7.3.5 (names), 7.7.3 (page tree), 12.6 (actions).
#![forbid(unsafe_code)]

use super::source::Source;
use super::{Flag, Inspected, Stop};

/// The longest name, with its value, that is looked at.
const WINDOW: usize = 64;

pub(super) fn pdf(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let head: [u8; 8] = source.array_at(0)?;
    if !head.starts_with(b"%PDF-") {
        return Err(Stop::Invalid("not a PDF"));
    }
    let tail_start = source.size().saturating_sub(1024);
    let mut tail = vec![0; usize::try_from(source.size() - tail_start).unwrap_or(0)];
    source.read_exact_at(&mut tail, tail_start)?;
    source.seek(0);
    let mut scan = Scan::default();
    let mut window = Vec::new();
    source.for_each_piece(|piece| {
        window.extend_from_slice(piece);
        let whole = window.len().saturating_sub(WINDOW);
        scan.names(&window, whole, seen);
        window.drain(..whole);
        true
    })?;
    scan.names(&window, window.len(), seen);
    let pages = if scan.pages > 0 { scan.pages } else { scan.count };
    if pages > 0 {
        seen.number("pages", pages);
    }
    if tail.windows(5).any(|bytes| bytes == b"%%EOF") {
        Ok(())
    } else {
        Err(Stop::Invalid("it ends too early"))
    }
}

#[derive(Debug, Default)]
struct Scan {
    pages: u64,
    /// The largest number of pages that a page tree names.
    count: u64,
}

impl Scan {
    /// Looks at the names that begin in the first `whole` bytes.
    fn names(&mut self, bytes: &[u8], whole: usize, seen: &mut Inspected) {
        for (at, _) in bytes[..whole].iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            let (name, rest) = read_name(&bytes[at + 1..]);
            match name.as_slice() {
                b"Type" => {
                    let value = rest
                        .trim_ascii_start()
                        .strip_prefix(b"/")
                        .map(|value| read_name(value).0);
                    self.pages += u64::from(value.as_deref() == Some(b"Page"));
                }
                b"Count" => self.count = self.count.max(read_number(rest)),
                b"JavaScript" | b"JS" | b"OpenAction" | b"AA" | b"Launch" => seen.flag(Flag::Script),
                b"EmbeddedFile" | b"EmbeddedFiles" => seen.flag(Flag::EmbeddedFile),
                b"URI" | b"GoToR" | b"SubmitForm" => seen.flag(Flag::ExternalReference),
                _ => {}
            }
        }
    }
}

/// Reads a name after its slash, and what follows it.
fn read_name(bytes: &[u8]) -> (Vec<u8>, &[u8]) {
    let end = bytes
        .iter()
        .take(WINDOW)
        .position(|byte| !is_regular(*byte))
        .unwrap_or(bytes.len().min(WINDOW));
    let (mut name, mut raw) = (Vec::new(), &bytes[..end]);
    while let [first, rest @ ..] = raw {
        let escaped = (*first == b'#').then(|| rest.get(..2).and_then(hex)).flatten();
        name.push(escaped.unwrap_or(*first));
        raw = if escaped.is_some() { &rest[2..] } else { rest };
    }
    (name, &bytes[end..])
}

fn hex(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn read_number(bytes: &[u8]) -> u64 {
    let digits = bytes.trim_ascii_start().iter().take_while(|byte| byte.is_ascii_digit());
    digits
        .take(9)
        .fold(0, |value, digit| value * 10 + u64::from(digit - b'0'))
}

fn is_regular(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"()<>[]{}/%".contains(&byte)
}
