//! tar archives and gzip streams: what they list, read by, kept nowhere.
//!
//! Source: POSIX.1-2008, pax, "ustar Interchange Format"; RFC 1952.
#![forbid(unsafe_code)]

use std::io::{self, BufRead, BufReader, Read};

use miniz_oxide::DataFormat;

use super::inflate::{Inflater, Progress};
use super::source::Source;
use super::zip::leads_outside;
use super::{Flag, Inspected, Stop};

const BLOCK: usize = 512;
/// What is unpacked of a gzip stream to count it. Deflate makes 1 KiB of a byte at most, so that a bomb is one by then.
const UNPACKED_MAX: u64 = 1 << 30;
/// What a tar of no header looks like: the end of the archive.
const NOTHING: [u8; BLOCK] = [0; BLOCK];

pub(super) fn tar(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let mut walk = Walk::default();
    source.for_each_piece(|piece| {
        walk.take(piece);
        !walk.broken
    })?;
    walk.tell(seen);
    seen.weigh(source.size(), walk.unpacked);
    if walk.headers == 0 || walk.broken {
        return Err(Stop::Invalid("not a tar archive"));
    }
    if (walk.skip > 0 || !walk.header.is_empty()) && !source.was_cut() {
        return Err(Stop::Read(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(())
}

pub(super) fn gzip(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let mut walk = Walk::default();
    let mut total = 0;
    let read = read_members(source, &mut walk, &mut total);
    let enough = total >= UNPACKED_MAX;
    if enough {
        source.cut_short();
    }
    if walk.headers > 0 && !walk.broken {
        walk.tell(seen);
    }
    seen.weigh(source.size(), total);
    read
}

/// One stream after the other, as gzip itself reads them.
fn read_members(source: &mut Source, walk: &mut Walk, total: &mut u64) -> Result<(), Stop> {
    let mut reader = BufReader::with_capacity(16 * 1024, source);
    loop {
        read_head(&mut reader)?;
        let mut inflater = Inflater::new(DataFormat::Raw);
        let before = *total;
        loop {
            let input = reader.fill_buf()?;
            if input.is_empty() {
                return Err(Stop::Read(io::ErrorKind::UnexpectedEof.into()));
            }
            let (length, mut sum) = (input.len(), before + inflater.total());
            let progress = inflater.feed(input, |piece| {
                walk.take(piece);
                sum += piece.len() as u64;
                sum < UNPACKED_MAX
            })?;
            *total = before + inflater.total();
            match progress {
                Progress::Hungry => reader.consume(length),
                Progress::Ended(used) => {
                    reader.consume(used);
                    break;
                }
                Progress::Enough => return Ok(()),
            }
        }
        let mut tail = [0; 8];
        reader.read_exact(&mut tail)?;
        if reader.fill_buf()?.is_empty() {
            return Ok(());
        }
    }
}

/// Reads over the head of a gzip stream.
fn read_head(reader: &mut impl BufRead) -> Result<(), Stop> {
    let mut head = [0; 10];
    reader.read_exact(&mut head)?;
    if head[..3] != [0x1f, 0x8b, 8] {
        return Err(Stop::Invalid("not a gzip stream"));
    }
    let has = |bit: u8| head[3] & bit != 0;
    if has(4) {
        let mut length = [0; 2];
        reader.read_exact(&mut length)?;
        skip(reader, u16::from_le_bytes(length).into())?;
    }
    for _text in [8, 16].into_iter().filter(|bit| has(*bit)) {
        skip_text(reader)?;
    }
    if has(2) {
        skip(reader, 2)?;
    }
    Ok(())
}

fn skip(reader: &mut impl BufRead, bytes: u64) -> io::Result<()> {
    io::copy(&mut reader.take(bytes), &mut io::sink()).map(drop)
}

/// Up to and with a zero byte.
fn skip_text(reader: &mut impl BufRead) -> Result<(), Stop> {
    loop {
        let bytes = reader.fill_buf()?;
        let (length, end) = (bytes.len(), bytes.iter().position(|byte| *byte == 0));
        reader.consume(end.map_or(length, |end| end + 1));
        match end {
            Some(_) => return Ok(()),
            None if length == 0 => return Err(Stop::Read(io::ErrorKind::UnexpectedEof.into())),
            None => {}
        }
    }
}

/// What is known of a tar while its bytes go by.
#[derive(Debug, Default)]
struct Walk {
    /// The part of a header that has come.
    header: Vec<u8>,
    /// Bytes of content that are passed over.
    skip: u64,
    headers: u64,
    entries: u64,
    unpacked: u64,
    escaping: bool,
    /// It is no tar, or no more.
    broken: bool,
    ended: bool,
}

impl Walk {
    fn take(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() && !self.broken && !self.ended {
            let passed = usize::try_from(self.skip).unwrap_or(usize::MAX).min(piece.len());
            self.skip -= passed as u64;
            piece = &piece[passed..];
            let missing = (BLOCK - self.header.len()).min(piece.len());
            self.header.extend_from_slice(&piece[..missing]);
            piece = &piece[missing..];
            if self.header.len() == BLOCK {
                self.read_header();
                self.header.clear();
            }
        }
    }

    fn read_header(&mut self) {
        if self.header == NOTHING {
            self.ended = true;
            return;
        }
        let sum = self.header.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let own = self.header[148..156].iter().map(|byte| u64::from(*byte)).sum::<u64>();
        // The sum is over the header with blanks in the place of the sum.
        let expected = sum - own + 8 * u64::from(b' ');
        let (Some(stated), Some(size)) = (number(&self.header[148..156]), number(&self.header[124..136])) else {
            self.broken = true;
            return;
        };
        self.broken = stated != expected;
        self.headers += 1;
        self.skip = size.div_ceil(BLOCK as u64).saturating_mul(BLOCK as u64);
        // Names and attributes of the entry that follows are no entries.
        if !matches!(self.header[156], b'x' | b'g' | b'L' | b'K') {
            self.entries += 1;
            self.unpacked = self.unpacked.saturating_add(size);
            let name = self.header[..100].split(|byte| *byte == 0).next().unwrap_or_default();
            self.escaping |= leads_outside(name);
        }
    }

    fn tell(&self, seen: &mut Inspected) {
        seen.number("entries", self.entries);
        if self.escaping {
            seen.flag(Flag::EscapingName);
        }
    }
}

/// Reads an octal number, or a large one in base 256.
fn number(field: &[u8]) -> Option<u64> {
    if field.first().is_some_and(|first| first & 0x80 != 0) {
        let (first, rest) = field.split_first()?;
        let start = u64::from(first & 0x7f);
        return rest
            .iter()
            .try_fold(start, |value, byte| value.checked_mul(256)?.checked_add((*byte).into()));
    }
    let text = std::str::from_utf8(field).ok()?;
    let text = text.trim_matches(|c| matches!(c, '\0' | ' '));
    if text.is_empty() {
        Some(0)
    } else {
        u64::from_str_radix(text, 8).ok()
    }
}
