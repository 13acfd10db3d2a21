//! Colour, only where a person looks at it.

use std::io::IsTerminal;

/// Whether text is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    color: bool,
}

impl Style {
    /// Text without colour.
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { color: false };
    /// Text with colour.
    #[cfg(test)]
    pub(crate) const COLORED: Self = Self { color: true };

    /// Colour on a terminal, unless `NO_COLOR` is set to something or the terminal is a dumb one.
    pub(crate) fn of(stream: &impl IsTerminal) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            color: stream.is_terminal() && !refused && !dumb,
        }
    }

    /// Whether text is coloured.
    pub(crate) fn is_colored(self) -> bool {
        self.color
    }

    /// Bold text.
    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// Text of less weight.
    pub(crate) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// Text that says: failed.
    pub(crate) fn red(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    /// Text that says: good.
    pub(crate) fn green(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// Text that says: look at this.
    pub(crate) fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.color && !text.is_empty() {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_style_adds_nothing() {
        assert_eq!(Style::PLAIN.red("x"), "x");
    }

    #[test]
    fn colored_style_ends_what_it_begins() {
        assert_eq!(Style::COLORED.red("x"), "\u{1b}[1;31mx\u{1b}[0m");
        assert_eq!(Style::COLORED.red(""), "");
    }
}
