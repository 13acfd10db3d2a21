//! ZIP archives: what their directory lists. Nothing is unpacked here.
//!
//! Source: APPNOTE.TXT 6.3.10, 4.3, 4.4 and 4.5.3.
#![forbid(unsafe_code)]

use miniz_oxide::DataFormat;
use std::io::Read;

use super::inflate::{Inflater, Progress};
use super::source::Source;
use super::{Flag, Inspected, Stop};

/// A comment at the end of the archive has 65,535 bytes at most, the record itself 22.
const END_MAX: u64 = 65_557;
/// Some 80,000 entries.
const DIRECTORY_MAX: u64 = 8 * 1024 * 1024;
/// In place of a size that an extra field has.
const ELSEWHERE: u64 = 0xffff_ffff;

pub(super) fn zip(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let directory = read_directory(source, seen)?;
    let (mut entries, mut unpacked) = (0, 0_u64);
    for part in Part::all(&directory) {
        entries += 1;
        unpacked = unpacked.saturating_add(part.unpacked);
        if part.encrypted {
            seen.flag(Flag::Encrypted);
        }
        if leads_outside(part.name) {
            seen.flag(Flag::EscapingName);
        }
    }
    seen.number("entries", entries);
    seen.weigh(source.size(), unpacked);
    Ok(())
}

/// Whether a name would leave the folder that an archive is unpacked in.
pub(super) fn leads_outside(name: &[u8]) -> bool {
    let is_separator = |byte: &u8| matches!(byte, b'/' | b'\\');
    let has_drive = name.get(1) == Some(&b':') && name.first().is_some_and(u8::is_ascii_alphabetic);
    name.first().is_some_and(is_separator) || has_drive || name.split(is_separator).any(|part| part == b"..")
}

/// Reads the list of parts, which lies near the end of the file.
pub(super) fn read_directory(source: &mut Source, seen: &mut Inspected) -> Result<Vec<u8>, Stop> {
    let head: [u8; 4] = source.array_at(0)?;
    if !matches!(&head, b"PK\x03\x04" | b"PK\x05\x06") {
        return Err(Stop::Invalid("not a ZIP archive"));
    }
    let start = source.size().saturating_sub(END_MAX);
    let mut tail = vec![0; usize::try_from(source.size() - start).unwrap_or(0)];
    source.read_exact_at(&mut tail, start)?;
    let end = tail.windows(22).rposition(|bytes| bytes.starts_with(b"PK\x05\x06"));
    let end = &tail[end.ok_or(Stop::Invalid("an archive without its directory"))?..];
    let (length, offset) = (le(&end[12..16]), le(&end[16..20]));
    if length > DIRECTORY_MAX {
        seen.flag(Flag::Bomb);
        return Err(Stop::Invalid("an archive whose directory is too large"));
    }
    if offset.saturating_add(length) > source.size() {
        return Err(Stop::Invalid("an archive whose directory is not where it says"));
    }
    let mut directory = vec![0; usize::try_from(length).unwrap_or(0)];
    source.read_exact_at(&mut directory, offset)?;
    Ok(directory)
}

/// A part of the archive as its directory lists it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'d> {
    pub(super) name: &'d [u8],
    packed: u64,
    pub(super) unpacked: u64,
    deflated: bool,
    encrypted: bool,
    header: u64,
}

impl<'d> Part<'d> {
    /// All parts of a directory.
    pub(super) fn all(directory: &'d [u8]) -> impl Iterator<Item = Self> {
        let mut rest = directory;
        std::iter::from_fn(move || {
            let (part, next) = Part::read(rest)?;
            rest = next;
            Some(part)
        })
    }

    fn read(directory: &'d [u8]) -> Option<(Self, &'d [u8])> {
        let fixed = directory.get(..46).filter(|fixed| fixed.starts_with(b"PK\x01\x02"))?;
        let [name, extra, comment] = [28, 30, 32].map(|at| usize::from(u16::from_le_bytes([fixed[at], fixed[at + 1]])));
        let unpacked = match le(&fixed[24..28]) {
            ELSEWHERE => large_size(directory.get(46 + name..46 + name + extra)?).unwrap_or(ELSEWHERE),
            size => size,
        };
        let part = Self {
            name: directory.get(46..46 + name)?,
            packed: le(&fixed[20..24]),
            unpacked,
            deflated: fixed[10] == 8,
            encrypted: fixed[8] & 1 != 0,
            header: le(&fixed[42..46]),
        };
        Some((part, directory.get(46 + name + extra + comment..)?))
    }

    /// Shows what a part unpacks to, piece by piece, until `look` has seen enough or `most` bytes have come.
    pub(super) fn unpack(
        &self,
        source: &mut Source,
        most: u64,
        mut look: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Stop> {
        let header: [u8; 30] = source.array_at(self.header)?;
        if !header.starts_with(b"PK\x03\x04") {
            return Err(Stop::Invalid("a part that is not where the directory says"));
        }
        source.seek(self.header + 30 + le(&header[26..28]) + le(&header[28..30]));
        let mut inflater = Inflater::new(DataFormat::Raw);
        let (mut packed, mut left, mut total) = (vec![0; 16 * 1024], self.packed, 0_u64);
        while left > 0 && total < most {
            let want = usize::try_from(left).unwrap_or(packed.len()).min(packed.len());
            let read = source.read(&mut packed[..want])?;
            if read == 0 {
                return Err(Stop::Read(std::io::ErrorKind::UnexpectedEof.into()));
            }
            left -= read as u64;
            if self.deflated {
                let mut seen = total;
                let progress = inflater.feed(&packed[..read], |piece| {
                    seen = seen.saturating_add(piece.len() as u64);
                    look(piece) && seen < most
                })?;
                if progress != Progress::Hungry {
                    return Ok(());
                }
                total = inflater.total();
            } else {
                total += read as u64;
                if !look(&packed[..read]) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// The size of a part of 4 GiB or more.
fn large_size(mut extra: &[u8]) -> Option<u64> {
    loop {
        let (head, rest) = extra.split_at_checked(4)?;
        let length = usize::from(u16::from_le_bytes([head[2], head[3]]));
        if head[..2] == [1, 0] {
            return rest.get(..8.min(length)).map(le);
        }
        extra = rest.get(length..)?;
    }
}

pub(super) fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
