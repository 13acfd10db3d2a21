//! Text that nobody vouches for, made harmless for a terminal without changing what it says to programs.

use std::fmt::Write;

/// Escapes a JSON text; it says the same afterwards, as such characters stand within its strings only.
pub fn json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character == '\u{7f}' || changes_display(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(shown, "\\u{unit:04x}").expect("writing to a String does not fail");
            }
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Whether a character is a command to the display: C1 controls, line and paragraph separators, and the marks that
/// reorder or hide text.
pub fn changes_display(character: char) -> bool {
    matches!(u32::from(character), 0x80..=0x9f | 0x200b | 0x200e..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff | 0xe0000..=0xe007f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_the_same_and_commands_no_terminal() {
        let value = "a\u{9b}2J\u{7f}\u{202e}\u{e0001}ä\n";
        let text = json(&serde_json::to_string(value).unwrap());
        assert_eq!(text, "\"a\\u009b2J\\u007f\\u202e\\udb40\\udc01ä\\n\"");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), value);
    }
}
