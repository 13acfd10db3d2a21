//! Makes guest text harmless for a terminal.
//!
//! A terminal obeys what it shows: an escape sequence in the output of a job could retitle the window, answer on behalf
//! of the user or hide a line. Everything that is not plain text is therefore shown as an escape: `\x1b`, `\u{202e}`.

use std::fmt::Write;

use brig_proto::display::changes_display;
pub(crate) use brig_proto::display::json;

/// Escapes a stream that arrives in pieces; a character may be cut between two of them.
#[derive(Debug, Default)]
pub(crate) struct Escaper {
    /// The first bytes of a character whose rest has not come yet, three at most.
    cut: Vec<u8>,
    /// Whether the last byte was a carriage return, which is dropped when a new line follows.
    carriage_return: bool,
}

impl Escaper {
    /// Escapes the next piece; line ends and tabs stay.
    pub(crate) fn push(&mut self, piece: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.cut);
        bytes.extend_from_slice(piece);
        let mut shown = String::with_capacity(bytes.len());
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.text(text, &mut shown);
                    break;
                }
                Err(error) => {
                    let (good, bad) = rest.split_at(error.valid_up_to());
                    self.text(std::str::from_utf8(good).unwrap_or_default(), &mut shown);
                    let Some(length) = error.error_len() else {
                        self.cut = bad.to_vec();
                        break;
                    };
                    self.bytes(&bad[..length], &mut shown);
                    rest = &bad[length..];
                }
            }
        }
        shown
    }

    /// Gives what is left at the end of the stream.
    pub(crate) fn finish(&mut self) -> String {
        let mut shown = String::new();
        let cut = std::mem::take(&mut self.cut);
        self.bytes(&cut, &mut shown);
        self.flush_return(&mut shown);
        shown
    }

    fn text(&mut self, text: &str, shown: &mut String) {
        for character in text.chars() {
            if character == '\n' {
                self.carriage_return = false;
                shown.push('\n');
                continue;
            }
            self.flush_return(shown);
            match character {
                '\r' => self.carriage_return = true,
                '\t' => shown.push('\t'),
                other => escape(other, shown),
            }
        }
    }

    fn bytes(&mut self, bytes: &[u8], shown: &mut String) {
        for byte in bytes {
            self.flush_return(shown);
            append(shown, format_args!("\\x{byte:02x}"));
        }
    }

    fn flush_return(&mut self, shown: &mut String) {
        if std::mem::take(&mut self.carriage_return) {
            shown.push_str("\\r");
        }
    }
}

/// Escapes a whole text of several lines.
pub(crate) fn lines(text: &str) -> String {
    let mut escaper = Escaper::default();
    let mut shown = escaper.push(text.as_bytes());
    shown.push_str(&escaper.finish());
    shown
}

/// Escapes a text that must stay on one line, such as a file name in a table.
pub(crate) fn line(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        escape(character, &mut shown);
    }
    shown
}

fn escape(character: char, shown: &mut String) {
    match character {
        '\n' => shown.push_str("\\n"),
        '\r' => shown.push_str("\\r"),
        '\t' => shown.push_str("\\t"),
        low if (low as u32) < 0x20 || low as u32 == 0x7f => append(shown, format_args!("\\x{:02x}", low as u32)),
        hidden if changes_display(hidden) => append(shown, format_args!("\\u{{{:x}}}", hidden as u32)),
        plain => shown.push(plain),
    }
}

fn append(shown: &mut String, arguments: std::fmt::Arguments<'_>) {
    shown.write_fmt(arguments).expect("writing to a String does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_of_plain_text_stays_as_it_is() {
        assert_eq!(Escaper::default().push("a\tb\nä 中 🙂\n".as_bytes()), "a\tb\nä 中 🙂\n");
    }

    #[test]
    fn escape_sequences_are_shown_not_obeyed() {
        assert_eq!(
            lines("\u{1b}]0;title\u{7}\u{1b}[31mred"),
            "\\x1b]0;title\\x07\\x1b[31mred"
        );
        assert_eq!(lines("\u{9b}2J\u{7f}\u{0}"), "\\u{9b}2J\\x7f\\x00");
    }

    #[test]
    fn text_cannot_be_reordered_or_overwritten() {
        assert_eq!(lines("good\u{202e}lave"), "good\\u{202e}lave");
        assert_eq!(lines("refused\rgranted"), "refused\\rgranted");
        assert_eq!(lines("end\r"), "end\\r");
    }

    #[test]
    fn windows_line_ends_are_line_ends_even_when_cut() {
        let mut escaper = Escaper::default();
        assert_eq!(escaper.push(b"a\r"), "a");
        assert_eq!(escaper.push(b"\nb\r\n"), "\nb\n");
        assert_eq!(escaper.finish(), "");
    }

    #[test]
    fn a_character_cut_between_two_pieces_is_put_together() {
        let mut escaper = Escaper::default();
        assert_eq!(escaper.push(&[b'x', 0xe4, 0xb8]), "x");
        assert_eq!(escaper.push(&[0xad, b'y']), "中y");
    }

    #[test]
    fn bytes_that_are_not_utf8_are_shown_in_hex() {
        let mut escaper = Escaper::default();
        assert_eq!(escaper.push(&[0xff, b'a', 0xc3]), "\\xffa");
        assert_eq!(escaper.finish(), "\\xc3");
    }

    #[test]
    fn a_name_stays_on_its_line() {
        assert_eq!(line("a\nb\tc\u{1b}"), "a\\nb\\tc\\x1b");
    }
}
