//! Excel workbooks: the list of parts, and the size of the first sheet.
//!
//! Nothing is unpacked but the start of that sheet, where its `dimension` stands; where it does not, its rows are
//! counted as far as the limits allow.
//!
//! Source: APPNOTE.TXT 6.3.10, 4.3 and 4.4; ECMA-376 part 1, 18.3.1.35.
#![forbid(unsafe_code)]

use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZError, MZFlush, MZStatus};
use std::io::Read;

use super::source::Source;
use super::{Flag, Inspected, Stop};

/// A comment at the end of the archive has 65,535 bytes at most, the record itself 22.
const END_MAX: u64 = 65_557;
const DIRECTORY_MAX: u64 = 4 * 1024 * 1024;
const PARTS_MAX: u64 = 20_000;
/// Bytes of a sheet that are unpacked to count its rows.
const UNPACKED_MAX: u64 = 64 * 1024 * 1024;
/// Bytes in which the dimension of a sheet stands, if it has one.
const PREAMBLE: usize = 64 * 1024;

pub(super) fn xlsx(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let directory = read_directory(source)?;
    let (mut sheets, mut unpacked, mut is_workbook) = (Vec::new(), 0_u64, false);
    let mut rest = directory.as_slice();
    for _ in 0..PARTS_MAX {
        let Some((part, next)) = Part::read(rest) else { break };
        unpacked = unpacked.saturating_add(part.unpacked);
        is_workbook |= part.name == b"xl/workbook.xml";
        match part.name {
            name if name.starts_with(b"xl/worksheets/") && name.ends_with(b".xml") => sheets.push(part),
            b"xl/vbaProject.bin" => seen.flag(Flag::Macro),
            name if name.starts_with(b"xl/externalLinks/") => seen.flag(Flag::ExternalReference),
            name if name.starts_with(b"xl/embeddings/") => seen.flag(Flag::EmbeddedFile),
            _ => {}
        }
        rest = next;
    }
    seen.number("sheets", sheets.len() as u64);
    seen.number("unpacked_bytes", unpacked);
    let first = sheets.iter().min_by_key(|part| (part.name.len(), part.name));
    let (true, Some(first)) = (is_workbook, first) else {
        return Err(Stop::Invalid("not a workbook"));
    };
    let (rows, columns) = sheet_size(source, first)?;
    seen.number("rows", rows);
    seen.number("columns", columns);
    Ok(())
}

/// Reads the list of parts, which lies near the end of the file.
fn read_directory(source: &mut Source) -> Result<Vec<u8>, Stop> {
    let head: [u8; 4] = source.array_at(0)?;
    if &head != b"PK\x03\x04" {
        return Err(Stop::Invalid("not a ZIP archive"));
    }
    let start = source.size().saturating_sub(END_MAX);
    let mut tail = vec![0; usize::try_from(source.size() - start).unwrap_or(0)];
    source.read_exact_at(&mut tail, start)?;
    let end = tail.windows(22).rposition(|bytes| bytes.starts_with(b"PK\x05\x06"));
    let end = &tail[end.ok_or(Stop::Invalid("an archive without its directory"))?..];
    let (length, offset) = (le(&end[12..16]), le(&end[16..20]));
    if length > DIRECTORY_MAX || offset.saturating_add(length) > source.size() {
        return Err(Stop::Invalid("an archive whose directory is too large"));
    }
    let mut directory = vec![0; usize::try_from(length).unwrap_or(0)];
    source.read_exact_at(&mut directory, offset)?;
    Ok(directory)
}

/// A part of the archive as its directory lists it.
#[derive(Debug, Clone, Copy)]
struct Part<'d> {
    name: &'d [u8],
    packed: u64,
    unpacked: u64,
    deflated: bool,
    header: u64,
}

impl<'d> Part<'d> {
    fn read(directory: &'d [u8]) -> Option<(Self, &'d [u8])> {
        let fixed = directory.get(..46).filter(|fixed| fixed.starts_with(b"PK\x01\x02"))?;
        let [name, extra, comment] = [28, 30, 32].map(|at| usize::from(u16::from_le_bytes([fixed[at], fixed[at + 1]])));
        let part = Self {
            name: directory.get(46..46 + name)?,
            packed: le(&fixed[20..24]),
            unpacked: le(&fixed[24..28]),
            deflated: fixed[10] == 8,
            header: le(&fixed[42..46]),
        };
        Some((part, directory.get(46 + name + extra + comment..)?))
    }
}

/// Rows and columns of a sheet.
fn sheet_size(source: &mut Source, part: &Part<'_>) -> Result<(u64, u64), Stop> {
    let header: [u8; 30] = source.array_at(part.header)?;
    if !header.starts_with(b"PK\x03\x04") {
        return Err(Stop::Invalid("a part that is not where the directory says"));
    }
    source.seek(part.header + 30 + le(&header[26..28]) + le(&header[28..30]));
    let mut sheet = Sheet::default();
    unpack(source, part, |piece| sheet.take(piece))?;
    sheet.count(sheet.window.len());
    Ok(sheet.dimension.unwrap_or((sheet.rows, sheet.columns)))
}

/// Shows what a part unpacks to, piece by piece, until `look` has seen enough.
fn unpack(source: &mut Source, part: &Part<'_>, mut look: impl FnMut(&[u8]) -> bool) -> Result<(), Stop> {
    let mut state = InflateState::new_boxed(DataFormat::Raw);
    let (mut packed, mut out) = (vec![0; 16 * 1024], vec![0; 64 * 1024]);
    let (mut left, mut total) = (part.packed, 0_u64);
    while left > 0 && total < UNPACKED_MAX {
        let want = usize::try_from(left).unwrap_or(packed.len()).min(packed.len());
        let read = source.read(&mut packed[..want])?;
        if read == 0 {
            return Err(Stop::Read(std::io::ErrorKind::UnexpectedEof.into()));
        }
        left -= read as u64;
        let mut input = &packed[..read];
        if !part.deflated {
            total += read as u64;
            if !look(input) {
                return Ok(());
            }
            continue;
        }
        loop {
            let step = inflate(&mut state, input, &mut out, MZFlush::None);
            input = &input[step.bytes_consumed..];
            total += step.bytes_written as u64;
            let goes_on = look(&out[..step.bytes_written]);
            match step.status {
                _ if !goes_on || total >= UNPACKED_MAX => return Ok(()),
                Ok(MZStatus::StreamEnd) => return Ok(()),
                Ok(_) if step.bytes_written > 0 || !input.is_empty() => {}
                Ok(_) | Err(MZError::Buf) => break,
                Err(_) => return Err(Stop::Invalid("a part that can't be unpacked")),
            }
        }
    }
    Ok(())
}

/// What is known of a sheet while its text goes by.
#[derive(Debug, Default)]
struct Sheet {
    dimension: Option<(u64, u64)>,
    seen: usize,
    /// The end of the text so far: a tag may lie across two pieces.
    window: Vec<u8>,
    rows: u64,
    cells: u64,
    columns: u64,
}

impl Sheet {
    /// Says whether more is needed.
    fn take(&mut self, piece: &[u8]) -> bool {
        const OVERLAP: usize = 128;
        self.window.extend_from_slice(piece);
        if self.seen < PREAMBLE {
            self.dimension = dimension(&self.window).or(self.dimension);
        }
        self.seen = self.seen.saturating_add(piece.len());
        let whole = self.window.len().saturating_sub(OVERLAP);
        self.count(whole);
        self.window.drain(..whole);
        self.dimension.is_none()
    }

    /// Counts the rows that begin in the first `whole` bytes, and the cells of the widest.
    fn count(&mut self, whole: usize) {
        for at in (0..whole).filter(|at| self.window[*at] == b'<') {
            match &self.window[at + 1..] {
                [b'r', b'o', b'w', b' ' | b'>', ..] => (self.rows, self.cells) = (self.rows + 1, 0),
                [b'c', b' ' | b'>', ..] => self.cells += 1,
                _ => {}
            }
            self.columns = self.columns.max(self.cells);
        }
    }
}

/// Reads `<dimension ref="A1:C12449"/>`; a sheet of one cell names just that.
fn dimension(text: &[u8]) -> Option<(u64, u64)> {
    let start = text.windows(11).position(|bytes| bytes == b"<dimension ")?;
    let tag = text[start..]
        .iter()
        .position(|byte| *byte == b'>')
        .map(|end| &text[start..start + end])?;
    let value = tag
        .windows(5)
        .position(|bytes| bytes == b"ref=\"")
        .map(|at| &tag[at + 5..])?;
    let value = value.split(|byte| *byte == b'"').next()?;
    let mut corners = value.split(|byte| *byte == b':');
    let first = cell(corners.next()?)?;
    let last = corners.next().map_or(Some(first), cell)?;
    // openpyxl's streaming writer leaves `A1`, or nothing, whatever the sheet holds.
    (corners.next().is_none() && first != last).then_some(())?;
    Some((last.0.checked_sub(first.0)? + 1, last.1.checked_sub(first.1)? + 1))
}

/// Row and column of a cell's name.
fn cell(name: &[u8]) -> Option<(u64, u64)> {
    let letters = name.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    let (column, row) = name.split_at(letters);
    if !(1..=3).contains(&letters) || row.len() > 7 {
        return None;
    }
    let column = column
        .iter()
        .fold(0, |value, letter| value * 26 + u64::from(letter - b'A') + 1);
    Some((std::str::from_utf8(row).ok()?.parse().ok()?, column))
}

fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
