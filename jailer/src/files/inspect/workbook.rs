//! Office documents, which are archives of parts: programs and links in them; of a workbook the sheets and the size of
//! the first one.
//!
//! Of a sheet nothing is unpacked but the start, where its `dimension` stands; where it does not, its rows are counted
//! as far as the limits allow.
//!
//! Source: ECMA-376 part 1, 18.3.1.35, and part 2, 9.
#![forbid(unsafe_code)]

use super::source::Source;
use super::zip::{Part, read_directory};
use super::{Flag, Inspected, Stop, has};

/// Bytes of a sheet that are unpacked to count its rows.
const UNPACKED_MAX: u64 = 64 * 1024 * 1024;
/// Bytes in which the dimension of a sheet stands, if it has one.
const PREAMBLE: u64 = 64 * 1024;
/// Bytes of a list of relationships or of types that are looked at, and how many lists.
const LIST_MAX: u64 = 1024 * 1024;
const LISTS_MAX: usize = 500;

pub(super) fn xlsx(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let directory = read_directory(source, seen)?;
    let unpacked = look_at_parts(source, &directory, seen)?;
    let is_workbook = Part::all(&directory).any(|part| part.name == b"xl/workbook.xml");
    let is_sheet = |part: &Part<'_>| part.name.starts_with(b"xl/worksheets/") && part.name.ends_with(b".xml");
    let sheets = Part::all(&directory).filter(is_sheet);
    seen.number("sheets", sheets.count() as u64);
    seen.weigh(source.size(), unpacked);
    let first = Part::all(&directory)
        .filter(is_sheet)
        .min_by_key(|part| (part.name.len(), part.name));
    let (true, Some(first)) = (is_workbook, first) else {
        return Err(Stop::Invalid("not a workbook"));
    };
    let mut sheet = Sheet::default();
    first.unpack(source, UNPACKED_MAX, |piece| sheet.take(piece))?;
    sheet.count(sheet.window.len());
    let counted = (sheet.seen < UNPACKED_MAX).then_some((sheet.rows, sheet.columns));
    if let Some((rows, columns)) = sheet.dimension.or(counted) {
        seen.number("rows", rows);
        seen.number("columns", columns);
    }
    Ok(())
}

/// A document or a presentation.
pub(super) fn office(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let directory = read_directory(source, seen)?;
    let unpacked = look_at_parts(source, &directory, seen)?;
    seen.weigh(source.size(), unpacked);
    Ok(())
}

/// Flags what the names of the parts show, and what the lists of relationships and types say. Gives the sum of sizes.
fn look_at_parts(source: &mut Source, directory: &[u8], seen: &mut Inspected) -> Result<u64, Stop> {
    let (mut unpacked, mut lists) = (0_u64, 0);
    for part in Part::all(directory) {
        unpacked = unpacked.saturating_add(part.unpacked);
        let name = part.name.to_ascii_lowercase();
        if name.ends_with(b"vbaproject.bin") || has(&name, b"/activex/") {
            seen.flag(Flag::Macro);
        }
        if has(&name, b"/externallinks/") {
            seen.flag(Flag::ExternalReference);
        }
        if has(&name, b"/embeddings/") {
            seen.flag(Flag::EmbeddedFile);
        }
        if name.ends_with(b".rels") || name == b"[content_types].xml" {
            lists += 1;
            if lists > LISTS_MAX || part.unpacked > LIST_MAX {
                source.cut_short();
            } else {
                look_at_list(source, &part, seen)?;
            }
        }
    }
    Ok(unpacked)
}

/// A part with a program may have any name, but its type says what it is; what is outside of the file has a mode.
fn look_at_list(source: &mut Source, part: &Part<'_>, seen: &mut Inspected) -> Result<(), Stop> {
    let mut text = Vec::new();
    part.unpack(source, LIST_MAX, |piece| {
        text.extend(piece.iter().map(u8::to_ascii_lowercase));
        true
    })?;
    if text.len() as u64 >= LIST_MAX {
        source.cut_short();
    }
    if has(&text, b"external") {
        seen.flag(Flag::ExternalReference);
        // A template from elsewhere brings its programs along.
        if has(&text, b"attachedtemplate") || has(&text, b"/oleobject") {
            seen.flag(Flag::Macro);
        }
    }
    if has(&text, b"vbaproject") || has(&text, b"macroenabled") || has(&text, b"activex") {
        seen.flag(Flag::Macro);
    }
    Ok(())
}

/// What is known of a sheet while its text goes by.
#[derive(Debug, Default)]
struct Sheet {
    dimension: Option<(u64, u64)>,
    seen: u64,
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
        self.seen = self.seen.saturating_add(piece.len() as u64);
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
