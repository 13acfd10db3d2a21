//! Pictures but PNG: their real size. All parts are stepped through, to the end of the picture and what lies behind it.
#![forbid(unsafe_code)]

use std::io::{self, BufRead, BufReader, Read};

use super::source::Source;
use super::{Flag, Inspected, Stop};

/// Chunks or segments that are stepped over at most.
pub(super) const STEPS_MAX: u32 = 100_000;
/// Above it a picture takes a viewer 256 MiB, whatever the file has.
const PIXELS_MAX: u64 = 64 * 1024 * 1024;

/// Source: ITU-T T.81, B.1.1.2, B.1.1.3 and B.2.
pub(super) fn jpeg(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    if source.array_at(0)? != [0xff, 0xd8] {
        return Err(Stop::Invalid("not a JPEG"));
    }
    source.seek(0);
    let mut reader = Counted::new(source);
    reader.skip(2)?;
    let (mut has_frame, mut next) = (false, None);
    for _ in 0..STEPS_MAX {
        let marker = match next.take() {
            Some(marker) => marker,
            None => reader.marker()?,
        };
        match marker {
            0xd9 => {
                let end = reader.passed;
                drop(reader);
                flag_tail(source, seen, end);
                return Ok(());
            }
            0x01 | 0xd0..=0xd7 => {}
            marker => {
                let length = reader.number(2)?.checked_sub(2);
                let length = length.ok_or(Stop::Invalid("a segment of no length"))?;
                let is_frame = matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc);
                if is_frame && length >= 6 && !has_frame {
                    let [_depth, height, width] = [reader.number(1)?, reader.number(2)?, reader.number(2)?];
                    size(seen, width, height)?;
                    has_frame = true;
                    reader.skip(length - 5)?;
                } else {
                    reader.skip(length)?;
                }
                if marker == 0xda && !has_frame {
                    return Err(Stop::Invalid("no frame header where one is due"));
                } else if marker == 0xda {
                    next = Some(reader.skip_scan()?);
                }
            }
        }
    }
    Err(Stop::Invalid("too many segments"))
}

/// Reads on, and knows how far it came.
struct Counted<'s> {
    reader: BufReader<&'s mut Source>,
    passed: u64,
}

impl<'s> Counted<'s> {
    fn new(source: &'s mut Source) -> Self {
        Self {
            reader: BufReader::with_capacity(16 * 1024, source),
            passed: 0,
        }
    }

    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.reader.read_exact(&mut byte)?;
        self.passed += 1;
        Ok(byte[0])
    }

    fn number(&mut self, bytes: u32) -> io::Result<u64> {
        (0..bytes).try_fold(0, |value, _| Ok(value << 8 | u64::from(self.byte()?)))
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        let skipped = io::copy(&mut (&mut self.reader).take(bytes), &mut io::sink())?;
        self.passed += skipped;
        if skipped == bytes {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    /// Reads the marker that must stand here, after any number of fill bytes.
    fn marker(&mut self) -> Result<u8, Stop> {
        if self.byte()? != 0xff {
            return Err(Stop::Invalid("no marker where one is due"));
        }
        loop {
            match self.byte()? {
                0xff => {}
                0 => return Err(Stop::Invalid("no marker where one is due")),
                marker => return Ok(marker),
            }
        }
    }

    /// Passes over coded data; gives the marker that ends it.
    fn skip_scan(&mut self) -> io::Result<u8> {
        loop {
            let bytes = self.reader.fill_buf()?;
            let found = bytes.iter().position(|byte| *byte == 0xff);
            let passed = found.map_or(bytes.len(), |at| at + 1);
            if passed == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.reader.consume(passed);
            self.passed += passed as u64;
            while found.is_some() {
                match self.byte()? {
                    0xff => {}
                    // A byte of data, or a restart within it.
                    0 | 0xd0..=0xd7 => break,
                    marker => return Ok(marker),
                }
            }
        }
    }
}

/// Source: GIF89a specification, 17 to 27.
pub(super) fn gif(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let head: [u8; 13] = source.array_at(0)?;
    if !matches!(&head[..6], b"GIF87a" | b"GIF89a") {
        return Err(Stop::Invalid("not a GIF"));
    }
    let (mut width, mut height) = (le(&head[6..8]), le(&head[8..10]));
    let mut reader = Counted::new(source);
    reader.skip(colours(head[10]))?;
    for _ in 0..STEPS_MAX {
        match reader.byte()? {
            0x3b => {
                let end = 13 + reader.passed;
                drop(reader);
                flag_tail(source, seen, end);
                return size(seen, width, height);
            }
            0x21 => {
                reader.skip(1)?;
                skip_blocks(&mut reader)?;
            }
            0x2c => {
                let mut picture = [0; 9];
                for byte in &mut picture {
                    *byte = reader.byte()?;
                }
                // Viewers make room for a picture that is larger than the screen it is for.
                width = width.max(le(&picture[..2]) + le(&picture[4..6]));
                height = height.max(le(&picture[2..4]) + le(&picture[6..8]));
                reader.skip(colours(picture[8]) + 1)?;
                skip_blocks(&mut reader)?;
            }
            _ => return Err(Stop::Invalid("a block of no known kind")),
        }
    }
    Err(Stop::Invalid("too many blocks"))
}

/// Size of a table of colours, as a byte of flags tells it.
fn colours(flags: u8) -> u64 {
    if flags & 0x80 == 0 { 0 } else { 3 << ((flags & 7) + 1) }
}

fn skip_blocks(reader: &mut Counted<'_>) -> io::Result<()> {
    loop {
        match reader.byte()? {
            0 => return Ok(()),
            length => reader.skip(length.into())?,
        }
    }
}

/// Source: RFC 9649, 2.3 to 2.7, and RFC 6386, 9.1.
pub(super) fn webp(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let head: [u8; 12] = source.array_at(0)?;
    if &head[..4] != b"RIFF" || &head[8..12] != b"WEBP" {
        return Err(Stop::Invalid("not a WebP"));
    }
    let end = 8 + le(&head[4..8]);
    if end > source.size() {
        return Err(Stop::Invalid("it ends too early"));
    }
    let (mut canvas, mut picture, mut at) = (None, (0, 0), 12);
    for _ in 0..STEPS_MAX {
        if at + 8 > end {
            break;
        }
        let chunk: [u8; 8] = source.array_at(at)?;
        let found = match &chunk[..4] {
            b"VP8X" => {
                let sides: [u8; 10] = source.array_at(at + 8)?;
                canvas = Some((le(&sides[4..7]) + 1, le(&sides[7..10]) + 1));
                None
            }
            b"ANMF" => {
                let frame: [u8; 12] = source.array_at(at + 8)?;
                let side =
                    |start: usize, length: usize| 2 * le(&frame[start..start + 3]) + le(&frame[length..length + 3]) + 1;
                Some((side(0, 6), side(3, 9)))
            }
            b"VP8 " => Some(lossy_sides(source.array_at(at + 8)?)?),
            b"VP8L" => Some(lossless_sides(source.array_at(at + 8)?)?),
            _ => None,
        };
        if let Some((width, height)) = found {
            picture = (picture.0.max(width), picture.1.max(height));
        }
        let length = le(&chunk[4..]);
        at += 8 + length + length % 2;
    }
    if picture == (0, 0) {
        return Err(Stop::Invalid("no picture in it"));
    }
    let (width, height) = canvas.unwrap_or(picture);
    flag_tail(source, seen, end + end % 2);
    size(seen, width, height)?;
    if picture.0 > width || picture.1 > height {
        return Err(Stop::Invalid("more picture than its header says"));
    }
    Ok(())
}

fn lossy_sides(head: [u8; 10]) -> Result<(u64, u64), Stop> {
    if head[3..6] != [0x9d, 0x01, 0x2a] {
        return Err(Stop::Invalid("no picture in it"));
    }
    Ok((le(&head[6..8]) & 0x3fff, le(&head[8..10]) & 0x3fff))
}

fn lossless_sides(head: [u8; 5]) -> Result<(u64, u64), Stop> {
    if head[0] != 0x2f {
        return Err(Stop::Invalid("no picture in it"));
    }
    let bits = le(&head[1..5]);
    Ok(((bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1))
}

pub(super) fn size(seen: &mut Inspected, width: u64, height: u64) -> Result<(), Stop> {
    seen.number("width", width);
    seen.number("height", height);
    if width.saturating_mul(height) > PIXELS_MAX {
        seen.flag(Flag::Bomb);
    }
    if width == 0 || height == 0 {
        Err(Stop::Invalid("a side of no length"))
    } else {
        Ok(())
    }
}

/// Bytes after the end are not shown by any viewer: a second file may lie there.
pub(super) fn flag_tail(source: &Source, seen: &mut Inspected, end: u64) {
    if source.size() > end {
        seen.flag(Flag::EmbeddedFile);
    }
}

fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
