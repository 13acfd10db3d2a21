//! Text: lines and encoding.
#![forbid(unsafe_code)]

use super::source::Source;
use super::{Inspected, Stop};

pub(super) fn text(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let mut encoding = Encoding::default();
    let (mut lines, mut last) = (0_u64, b'\n');
    source.for_each_piece(|piece| {
        encoding.take(piece);
        lines += piece.iter().filter(|byte| **byte == b'\n').count() as u64;
        last = *piece.last().unwrap_or(&last);
        true
    })?;
    seen.number("lines", lines + u64::from(last != b'\n'));
    encoding.tell(seen)
}

/// Finds out how text is encoded, piece by piece.
#[derive(Debug, Default)]
pub(super) struct Encoding {
    /// The start of a character whose end is in the next piece.
    open: Vec<u8>,
    above_ascii: bool,
    not_utf8: bool,
    nul: bool,
}

impl Encoding {
    pub(super) fn take(&mut self, piece: &[u8]) {
        self.nul |= piece.contains(&0);
        self.above_ascii |= !piece.is_ascii();
        if self.not_utf8 {
            return;
        }
        // Up to three bytes finish the open character; then the piece is looked at from there.
        let mut rest = piece;
        while let ([first, after @ ..], false) = (rest, self.open.is_empty()) {
            self.open.push(*first);
            rest = after;
            match std::str::from_utf8(&self.open) {
                Ok(_) => self.open.clear(),
                Err(error) if error.error_len().is_none() => {}
                Err(_) => {
                    self.not_utf8 = true;
                    return;
                }
            }
        }
        if let Err(error) = std::str::from_utf8(rest) {
            self.not_utf8 = error.error_len().is_some();
            self.open = rest[error.valid_up_to()..].iter().take(3).copied().collect();
        }
    }

    pub(super) fn is_utf8(&self) -> bool {
        !self.not_utf8 && self.open.is_empty()
    }

    /// Tells the encoding; a file with NUL bytes is no text (or is UTF-16, which nothing here reads).
    pub(super) fn tell(&self, seen: &mut Inspected) -> Result<(), Stop> {
        seen.word(
            "encoding",
            if !self.above_ascii {
                "ascii"
            } else if self.is_utf8() {
                "utf-8"
            } else {
                "unknown"
            },
        );
        if self.nul {
            Err(Stop::Invalid("NUL bytes in text"))
        } else {
            Ok(())
        }
    }
}
