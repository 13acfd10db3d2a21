//! PDF: a scan for names, without following the structure. Streams of packed objects are unpacked for it, piece by piece.
//!
//! Where no page is seen, the largest `/Count` is told. Names may be written with `#` escapes, which are resolved. Short
//! names can come about by chance in other data: they count only before a value.
//!
//! Source: ISO 32000-1, 7.3.5 (names), 7.5.7 (object streams), 7.6 (encryption), 7.7.3 (page tree), 12.6 (actions).
#![forbid(unsafe_code)]

use std::io::Read;

use miniz_oxide::DataFormat;

use super::inflate::{Inflater, Progress};
use super::source::Source;
use super::{Flag, Inspected, Stop};

/// The longest name, with its value, that is looked at.
const WINDOW: usize = 64;
/// Streams of packed objects that are looked into, and what is unpacked of each. One more, and the look is not whole.
const PACKED_MAX: usize = 2000;
const UNPACKED_MAX: u64 = 16 * 1024 * 1024;
/// Where the data of a stream begins, after the name of its type at the latest.
const DICTIONARY_MAX: usize = 4096;

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
    source.for_each_piece(|piece| {
        scan.take(piece, seen);
        true
    })?;
    scan.end(seen);
    let packed = std::mem::take(&mut scan.packed);
    if packed.len() > PACKED_MAX {
        source.cut_short();
    }
    for at in packed.into_iter().take(PACKED_MAX) {
        if !look_at_packed(source, at, &mut scan, seen)? {
            source.cut_short();
        }
    }
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

/// Looks at the objects of a packed stream; says whether all of them were seen.
fn look_at_packed(source: &mut Source, at: u64, scan: &mut Scan, seen: &mut Inspected) -> Result<bool, Stop> {
    let mut head = vec![0; DICTIONARY_MAX];
    source.seek(at);
    let read = source.read(&mut head)?;
    let Some(keyword) = head[..read].windows(6).position(|bytes| bytes == b"stream") else {
        // A name without a stream: nothing is packed there.
        return Ok(true);
    };
    let blanks = head[keyword + 6..read]
        .iter()
        .take_while(|byte| byte.is_ascii_whitespace());
    source.seek(at + (keyword + 6 + blanks.count()) as u64);
    let (mut inflater, mut buffer) = (Inflater::new(DataFormat::Zlib), vec![0; 16 * 1024]);
    loop {
        let read = source.read(&mut buffer)?;
        let mut total = inflater.total();
        let fed = inflater.feed(&buffer[..read], |piece| {
            scan.take(piece, seen);
            total += piece.len() as u64;
            total < UNPACKED_MAX
        });
        match fed {
            Ok(Progress::Hungry) if read > 0 => {}
            Ok(Progress::Ended(_)) => {
                scan.end(seen);
                return Ok(true);
            }
            Ok(_) | Err(Stop::Invalid(_)) => return Ok(false),
            Err(stop) => return Err(stop),
        }
    }
}

#[derive(Debug, Default)]
struct Scan {
    /// The end of what came so far: a name may lie across two pieces.
    window: Vec<u8>,
    /// Bytes that came before it.
    before: u64,
    pages: u64,
    /// The largest number of pages that a page tree names.
    count: u64,
    /// Where streams of packed objects are.
    packed: Vec<u64>,
}

impl Scan {
    fn take(&mut self, piece: &[u8], seen: &mut Inspected) {
        self.window.extend_from_slice(piece);
        self.look(self.window.len().saturating_sub(WINDOW), seen);
    }

    fn end(&mut self, seen: &mut Inspected) {
        self.look(self.window.len(), seen);
    }

    /// Looks at the names that begin in the first `whole` bytes, and forgets those.
    fn look(&mut self, whole: usize, seen: &mut Inspected) {
        let window = std::mem::take(&mut self.window);
        for (at, _) in window[..whole].iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            let (name, rest) = read_name(&window[at + 1..]);
            self.name(&name, rest, self.before + at as u64, seen);
        }
        self.before += whole as u64;
        self.window = window;
        self.window.drain(..whole);
    }

    fn name(&mut self, name: &[u8], rest: &[u8], at: u64, seen: &mut Inspected) {
        match name {
            b"Type" => {
                let value = rest
                    .trim_ascii_start()
                    .strip_prefix(b"/")
                    .map(|value| read_name(value).0);
                self.pages += u64::from(value.as_deref() == Some(b"Page"));
            }
            b"Count" => self.count = self.count.max(read_number(rest)),
            b"ObjStm" if self.packed.len() <= PACKED_MAX => self.packed.push(at),
            b"Encrypt" if is_before_value(rest) => seen.flag(Flag::Encrypted),
            b"JS" | b"AA" if is_before_value(rest) => seen.flag(Flag::Script),
            b"JavaScript" | b"OpenAction" | b"Launch" => seen.flag(Flag::Script),
            b"EmbeddedFile" | b"EmbeddedFiles" => seen.flag(Flag::EmbeddedFile),
            b"URI" | b"GoToR" | b"SubmitForm" => seen.flag(Flag::ExternalReference),
            _ => {}
        }
    }
}

/// Whether a string, a dictionary, an array or a reference follows.
fn is_before_value(rest: &[u8]) -> bool {
    rest.trim_ascii_start()
        .first()
        .is_none_or(|first| b"(<[%0123456789".contains(first))
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
