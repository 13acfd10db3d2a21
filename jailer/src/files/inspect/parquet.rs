//! Parquet: rows and columns from the footer, which Thrift's compact protocol encodes.
//!
//! Source: parquet-format 2.10, `FileMetaData` and `SchemaElement`; thrift-compact-protocol.md.
#![forbid(unsafe_code)]

use super::source::Source;
use super::{Inspected, Stop};

/// What is read of the footer: schema and number of rows come before all that grows with the file.
const FOOTER_MAX: u64 = 4 * 1024 * 1024;
/// Levels of nested values.
const DEPTH_MAX: u32 = 16;

pub(super) fn parquet(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    if &source.array_at::<4>(0)? != b"PAR1" || source.size() < 12 {
        return Err(Stop::Invalid("not a Parquet file"));
    }
    let tail: [u8; 8] = source.array_at(source.size() - 8)?;
    if &tail[4..] != b"PAR1" {
        return Err(Stop::Invalid("it ends too early"));
    }
    let length = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    let start = (source.size() - 8).checked_sub(length).filter(|start| *start >= 4);
    let start = start.ok_or(Stop::Invalid("a footer that is longer than the file"))?;
    let mut footer = vec![0; usize::try_from(length.min(FOOTER_MAX)).unwrap_or(0)];
    source.read_exact_at(&mut footer, start)?;
    let (rows, columns) = read_footer(&footer).ok_or(Stop::Invalid("a footer that can't be read"))?;
    seen.number("records", rows);
    seen.number("columns", columns);
    Ok(())
}

/// Rows, and the columns at the top of the schema.
fn read_footer(footer: &[u8]) -> Option<(u64, u64)> {
    let mut reader = Reader { rest: footer };
    let (mut last, mut columns) = (0, None);
    loop {
        let (field, kind) = reader.field(&mut last)??;
        match (field, kind) {
            (2, LIST) => columns = Some(reader.first_of_schema()?),
            (3, I32 | I64) => return Some((u64::try_from(reader.signed()?).ok()?, columns?)),
            _ => reader.skip(kind, DEPTH_MAX)?,
        }
    }
}

/// Types of values.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;

struct Reader<'b> {
    rest: &'b [u8],
}

impl Reader<'_> {
    /// Reads the list of schema elements; gives the number of children of the first, which is the root.
    fn first_of_schema(&mut self) -> Option<u64> {
        let (count, kind) = self.list()?;
        if kind != STRUCT || count == 0 {
            return None;
        }
        let (mut last, mut children) = (0, 0);
        while let Some((field, kind)) = self.field(&mut last)? {
            match (field, kind) {
                (5, I32) => children = u64::try_from(self.signed()?).ok()?,
                _ => self.skip(kind, DEPTH_MAX)?,
            }
        }
        for _ in 1..count {
            self.skip(STRUCT, DEPTH_MAX)?;
        }
        Some(children)
    }

    /// Reads the head of a field; nothing within at the end of the struct.
    fn field(&mut self, last: &mut i64) -> Option<Option<(i64, u8)>> {
        let head = self.byte()?;
        if head == 0 {
            return Some(None);
        }
        *last = match head >> 4 {
            0 => self.signed()?,
            more => last.checked_add(more.into())?,
        };
        Some(Some((*last, head & 15)))
    }

    /// Reads the head of a list: how many of what.
    fn list(&mut self) -> Option<(u64, u8)> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.unsigned()?,
            few => few.into(),
        };
        Some((count, head & 15))
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            TRUE | FALSE => Some(()),
            BYTE => self.byte().map(drop),
            I16 | I32 | I64 => self.unsigned().map(drop),
            DOUBLE => self.bytes(8),
            BINARY => {
                let length = self.unsigned()?;
                self.bytes(length)
            }
            LIST | SET => {
                let (count, kind) = self.list()?;
                (0..count).try_for_each(|_| self.skip_element(kind, depth))
            }
            MAP => {
                let count = self.unsigned()?;
                if count == 0 {
                    return Some(());
                }
                let kinds = self.byte()?;
                (0..count).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 15, depth)
                })
            }
            STRUCT => {
                let mut last = 0;
                while let Some((_, kind)) = self.field(&mut last)? {
                    self.skip(kind, depth)?;
                }
                Some(())
            }
            _ => None,
        }
    }

    /// In a list a truth value has a byte of its own, so that each element takes one and counts end with the bytes.
    fn skip_element(&mut self, kind: u8, depth: u32) -> Option<()> {
        match kind {
            TRUE | FALSE => self.byte().map(drop),
            kind => self.skip(kind, depth),
        }
    }

    fn signed(&mut self) -> Option<i64> {
        let value = self.unsigned()?;
        Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn bytes(&mut self, count: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(count).ok()?..)?;
        Some(())
    }
}
