//! Pictures: their size from the headers.
#![forbid(unsafe_code)]

use super::source::Source;
use super::{Flag, Inspected, Stop};

/// Chunks or segments that are stepped over at most.
const STEPS_MAX: u32 = 100_000;

/// Source: PNG specification, third edition, 5 and 11.2.
pub(super) fn png(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let head: [u8; 24] = source.array_at(0)?;
    if &head[..16] != b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" {
        return Err(Stop::Invalid("not a PNG"));
    }
    size(seen, be32(&head[16..20]), be32(&head[20..24]))?;
    let mut at = 8;
    for _ in 0..STEPS_MAX {
        let chunk: [u8; 8] = source.array_at(at)?;
        at += 12 + be32(&chunk[..4]);
        if at > source.size() {
            return Err(Stop::Invalid("it ends too early"));
        }
        if &chunk[4..] == b"IEND" {
            flag_tail(source, seen, at);
            return Ok(());
        }
    }
    Err(Stop::Invalid("too many chunks"))
}

/// Source: ITU-T T.81, B.1.1.3 and B.2.2.
pub(super) fn jpeg(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    if source.array_at(0)? != [0xff, 0xd8] {
        return Err(Stop::Invalid("not a JPEG"));
    }
    let mut at = 2;
    for _ in 0..STEPS_MAX {
        let [ff, marker]: [u8; 2] = source.array_at(at)?;
        match (ff, marker) {
            (0xff, 0xff) => at += 1,
            (0xff, 0xc0..=0xcf) if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                let frame: [u8; 5] = source.array_at(at + 4)?;
                return size(seen, be16(&frame[3..5]), be16(&frame[1..3]));
            }
            (0xff, 0x01 | 0xd0..=0xd7) => at += 2,
            (0xff, 0xc4 | 0xc8 | 0xcc | 0xdb | 0xdd..=0xfe) => {
                at += 2 + be16(&source.array_at::<2>(at + 2)?).max(2);
            }
            _ => return Err(Stop::Invalid("no frame header where one is due")),
        }
    }
    Err(Stop::Invalid("too many segments"))
}

/// Source: GIF89a specification, 17 and 18.
pub(super) fn gif(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let head: [u8; 13] = source.array_at(0)?;
    if !matches!(&head[..6], b"GIF87a" | b"GIF89a") {
        return Err(Stop::Invalid("not a GIF"));
    }
    size(seen, le16(&head[6..8]), le16(&head[8..10]))
}

/// Source: RFC 9649, 2.3 to 2.7, and RFC 6386, 9.1.
pub(super) fn webp(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let head: [u8; 30] = source.array_at(0)?;
    if &head[..4] != b"RIFF" || &head[8..12] != b"WEBP" {
        return Err(Stop::Invalid("not a WebP"));
    }
    let length = 8 + u64::from(u32::from_le_bytes([head[4], head[5], head[6], head[7]]));
    if length > source.size() {
        return Err(Stop::Invalid("it ends too early"));
    }
    flag_tail(source, seen, length + length % 2);
    let le24 = |at: usize| le16(&head[at..at + 2]) + (u64::from(head[at + 2]) << 16);
    match &head[12..16] {
        b"VP8X" => size(seen, le24(24) + 1, le24(27) + 1),
        b"VP8 " if head[23..26] == [0x9d, 0x01, 0x2a] => {
            size(seen, le16(&head[26..28]) & 0x3fff, le16(&head[28..30]) & 0x3fff)
        }
        b"VP8L" if head[20] == 0x2f => {
            let bits = u64::from(u32::from_le_bytes([head[21], head[22], head[23], head[24]]));
            size(seen, (bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1)
        }
        _ => Err(Stop::Invalid("no picture in it")),
    }
}

fn size(seen: &mut Inspected, width: u64, height: u64) -> Result<(), Stop> {
    seen.number("width", width);
    seen.number("height", height);
    if width == 0 || height == 0 {
        Err(Stop::Invalid("a side of no length"))
    } else {
        Ok(())
    }
}

/// Bytes after the end are not shown by any viewer: a second file may lie there.
fn flag_tail(source: &Source, seen: &mut Inspected, end: u64) {
    if source.size() > end {
        seen.flag(Flag::EmbeddedFile);
    }
}

fn be16(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .take(2)
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn be32(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .take(4)
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn le16(bytes: &[u8]) -> u64 {
    u64::from(bytes[0]) | u64::from(bytes[1]) << 8
}
