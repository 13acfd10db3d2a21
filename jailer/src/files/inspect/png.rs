//! PNG: its real size. It is unpacked as far as its header says, and nothing of it is kept.
#![forbid(unsafe_code)]

use std::io::Read;

use miniz_oxide::DataFormat;

use super::inflate::{Inflater, Progress};
use super::pictures::{STEPS_MAX, flag_tail, size};
use super::source::Source;
use super::{Flag, Inspected, Stop};

/// Source: PNG specification, third edition, 5, 7.2, 8.1 and 11.2.
pub(super) fn png(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let head: [u8; 29] = source.array_at(0)?;
    if &head[..16] != b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" {
        return Err(Stop::Invalid("not a PNG"));
    }
    let (width, height) = (be(&head[16..20]), be(&head[20..24]));
    size(seen, width, height)?;
    // One that is too large is not unpacked.
    let is_bomb = seen.flags.contains(&Flag::Bomb);
    let mut picture = Unpacked {
        inflater: Inflater::new(DataFormat::Zlib),
        expected: picture_bytes(width, height, [head[24], head[25], head[28]])?,
        ended: false,
    };
    let mut at = 8;
    for _ in 0..STEPS_MAX {
        let chunk: [u8; 8] = source.array_at(at)?;
        let length = be(&chunk[..4]);
        if at + 12 + length > source.size() {
            return Err(Stop::Invalid("it ends too early"));
        }
        if &chunk[4..] == b"IDAT" && !is_bomb {
            picture.take(source, length)?;
        }
        at += 12 + length;
        if &chunk[4..] == b"IEND" {
            flag_tail(source, seen, at);
            let whole = is_bomb || picture.inflater.total() == picture.expected;
            return whole
                .then_some(())
                .ok_or(Stop::Invalid("less picture than its header says"));
        }
    }
    Err(Stop::Invalid("too many chunks"))
}

/// The lines of a PNG.
struct Unpacked {
    inflater: Inflater,
    /// What its header promises, in bytes.
    expected: u64,
    ended: bool,
}

impl Unpacked {
    /// Unpacks the chunk that the source stands in.
    fn take(&mut self, source: &mut Source, length: u64) -> Result<(), Stop> {
        let (mut left, mut buffer) = (length, vec![0; 16 * 1024]);
        while left > 0 && !self.ended {
            let most = usize::try_from(left).unwrap_or(buffer.len()).min(buffer.len());
            source.read_exact(&mut buffer[..most])?;
            left -= most as u64;
            let mut total = self.inflater.total();
            let expected = self.expected;
            let progress = self.inflater.feed(&buffer[..most], |piece| {
                total = total.saturating_add(piece.len() as u64);
                total <= expected
            })?;
            match progress {
                Progress::Hungry => {}
                Progress::Ended(_) => self.ended = true,
                Progress::Enough => return Err(Stop::Invalid("more picture than its header says")),
            }
        }
        Ok(())
    }
}

/// How many bytes the lines have, by the depth and kind of colours; the third is 1 where they come in seven passes.
fn picture_bytes(width: u64, height: u64, [depth, colour, interlaced]: [u8; 3]) -> Result<u64, Stop> {
    let channels = match colour {
        0 | 3 => 1,
        4 => 2,
        2 => 3,
        6 => 4,
        _ => return Err(Stop::Invalid("colours of no known kind")),
    };
    if !matches!(depth, 1 | 2 | 4 | 8 | 16) || interlaced > 1 {
        return Err(Stop::Invalid("colours of no known kind"));
    }
    let bits = u64::from(depth) * channels;
    let lines = |width: u64, height: u64| {
        let line = 1 + width.saturating_mul(bits).div_ceil(8);
        if width == 0 { 0 } else { height.saturating_mul(line) }
    };
    if interlaced == 0 {
        return Ok(lines(width, height));
    }
    // First column and row of each pass, and the distance to the next.
    let passes = [
        (0, 0, 8, 8),
        (4, 0, 8, 8),
        (0, 4, 4, 8),
        (2, 0, 4, 4),
        (0, 2, 2, 4),
        (1, 0, 2, 2),
        (0, 1, 1, 2),
    ];
    let of_pass = |(x, y, dx, dy): (u64, u64, u64, u64)| {
        lines(
            width.saturating_sub(x).div_ceil(dx),
            height.saturating_sub(y).div_ceil(dy),
        )
    };
    Ok(passes.into_iter().map(of_pass).fold(0, u64::saturating_add))
}

fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
