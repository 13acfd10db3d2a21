//! Comma-separated values: rows and columns, quotes followed.
//!
//! Source: RFC 4180; the separator is the candidate that the first line has most of.
#![forbid(unsafe_code)]

use std::io::Read;

use super::source::Source;
use super::text::Encoding;
use super::{Flag, Inspected, Stop};

const SEPARATORS: [u8; 4] = *b",;\t|";
/// How much of the first line decides on the separator.
const SNIFFED: usize = 16 * 1024;

pub(super) fn csv(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let mut head = vec![0; SNIFFED];
    let read = source.read(&mut head)?;
    source.seek(0);
    read_table(source, seen, separator(&head[..read]))
}

pub(super) fn tsv(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    read_table(source, seen, b'\t')
}

fn read_table(source: &mut Source, seen: &mut Inspected, separator: u8) -> Result<(), Stop> {
    let mut encoding = Encoding::default();
    let mut table = Table::new(separator);
    source.for_each_piece(|piece| {
        encoding.take(piece);
        piece.iter().for_each(|byte| table.take(*byte));
        true
    })?;
    table.end_row();
    seen.number("rows", table.rows);
    seen.number("columns", table.columns);
    if table.formula {
        seen.flag(Flag::Formula);
    }
    encoding.tell(seen)?;
    if table.at == At::Quoted && !source.was_cut() {
        Err(Stop::Invalid("a quote that never ends"))
    } else {
        Ok(())
    }
}

fn separator(head: &[u8]) -> u8 {
    let mut counts = [0_usize; SEPARATORS.len()];
    let mut quoted = false;
    for byte in head {
        match byte {
            b'"' => quoted = !quoted,
            b'\n' if !quoted => break,
            _ if quoted => {}
            _ => {
                if let Some(which) = SEPARATORS.iter().position(|separator| separator == byte) {
                    counts[which] += 1;
                }
            }
        }
    }
    let most = counts.iter().copied().max().unwrap_or(0);
    SEPARATORS[counts.iter().position(|count| *count == most).unwrap_or(0)]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    FieldStart,
    /// The first character of a quoted field is due.
    QuotedStart,
    Plain,
    Quoted,
    /// A quote within a quoted field: the end of it, or half of a doubled one.
    Quote,
    /// A plus or minus at the start: a number, or a formula.
    Sign,
    QuotedSign,
}

#[derive(Debug)]
struct Table {
    separator: u8,
    at: At,
    /// Separators seen in this row.
    separators: u64,
    row_has_bytes: bool,
    rows: u64,
    columns: u64,
    formula: bool,
}

impl Table {
    fn new(separator: u8) -> Self {
        let at = At::FieldStart;
        Self {
            separator,
            at,
            separators: 0,
            row_has_bytes: false,
            rows: 0,
            columns: 0,
            formula: false,
        }
    }

    fn take(&mut self, byte: u8) {
        let quoted = matches!(self.at, At::QuotedStart | At::Quoted | At::QuotedSign);
        if !quoted && byte == b'\n' {
            self.end_row();
            self.at = At::FieldStart;
        } else if !quoted && byte == self.separator {
            self.separators += 1;
            self.row_has_bytes = true;
            self.at = At::FieldStart;
        } else if byte != b'\r' {
            self.row_has_bytes = true;
            self.at = self.after(byte);
        }
    }

    /// Where a byte of a field leads.
    fn after(&mut self, byte: u8) -> At {
        match (self.at, byte) {
            (At::FieldStart, b'"') => At::QuotedStart,
            (At::QuotedStart | At::Quoted | At::QuotedSign, b'"') => At::Quote,
            (At::Quote, b'"') => At::Quoted,
            (At::FieldStart, b'+' | b'-') => At::Sign,
            (At::QuotedStart, b'+' | b'-') => At::QuotedSign,
            (At::FieldStart | At::QuotedStart, b'=' | b'@') => {
                self.formula = true;
                if self.at == At::FieldStart {
                    At::Plain
                } else {
                    At::Quoted
                }
            }
            (At::Sign | At::QuotedSign, _) => {
                self.formula |= byte.is_ascii_alphabetic() && !matches!(byte, b'i' | b'I' | b'n' | b'N');
                self.formula |= matches!(byte, b'(' | b'=' | b'@' | b'+');
                if self.at == At::Sign { At::Plain } else { At::Quoted }
            }
            (At::QuotedStart | At::Quoted, _) => At::Quoted,
            (At::FieldStart | At::Plain | At::Quote, _) => At::Plain,
        }
    }

    /// Counts a row; empty lines are none.
    fn end_row(&mut self) {
        if self.row_has_bytes {
            self.rows += 1;
            self.columns = self.columns.max(self.separators + 1);
        }
        self.row_has_bytes = false;
        self.separators = 0;
    }
}
