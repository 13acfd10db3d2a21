//! Where commands write: stdout and stderr, each a terminal or not.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::escape::{self, Escaper};
use super::style::Style;
use crate::exit::Exit;
use crate::interact::raw;

/// The two streams of a command.
pub(crate) struct Screen {
    pub(crate) out: Sink,
    pub(crate) err: Sink,
}

/// One stream.
///
/// A write that fails because nobody reads is remembered and not repeated; any other failure too, as there is nowhere
/// left to tell it.
pub(crate) struct Sink {
    writer: Box<dyn Write>,
    terminal: bool,
    style: Style,
    escaper: Escaper,
    /// Whether the last byte written was not a line end.
    open_line: bool,
    failed: bool,
}

impl Screen {
    /// The process's own streams.
    pub(crate) fn standard() -> Self {
        let (out, err) = (io::stdout(), io::stderr());
        let (out_terminal, err_terminal) = (out.is_terminal(), err.is_terminal());
        let (out_style, err_style) = (Style::of(&out), Style::of(&err));
        Self {
            out: Sink::new(Box::new(out), out_terminal, out_style),
            err: Sink::new(Box::new(err), err_terminal, err_style),
        }
    }

    /// The exit of a command: a result that nobody could be given is no success.
    pub(crate) fn exit(&self, exit: Exit) -> Exit {
        if exit == Exit::Success && self.out.failed() {
            Exit::Failed
        } else {
            exit
        }
    }

    /// Ends a line that a guest left open, where stdout and stderr are the same terminal for a reader.
    pub(crate) fn finish_line(&mut self) {
        let shared = self.out.terminal && self.err.terminal;
        if self.err.open_line || (shared && self.out.open_line) {
            self.err.text("\n");
            self.out.open_line = false;
        }
    }
}

impl Sink {
    /// A stream that writes there.
    pub(crate) fn new(writer: Box<dyn Write>, terminal: bool, style: Style) -> Self {
        Self {
            writer,
            terminal,
            style,
            escaper: Escaper::default(),
            open_line: false,
            failed: false,
        }
    }

    /// How text is to be coloured here.
    pub(crate) fn style(&self) -> Style {
        self.style
    }

    /// Whether a write failed: nobody reads any more.
    pub(crate) fn failed(&self) -> bool {
        self.failed
    }

    /// Writes text of ours.
    pub(crate) fn text(&mut self, text: &str) {
        if self.terminal && raw::is_on() {
            self.write(text.replace('\n', "\r\n").as_bytes());
        } else {
            self.write(text.as_bytes());
        }
    }

    /// Writes a document, indented.
    pub(crate) fn json(&mut self, document: &impl Serialize) {
        self.text(&self::document(document));
    }

    /// Writes a document on one line.
    pub(crate) fn json_line(&mut self, document: &impl Serialize) {
        let text = serde_json::to_string(document).expect("our documents have text keys only");
        self.text(&escape::json(&text));
        self.text("\n");
    }

    /// Writes bytes of a guest: exact into a pipe or file and with `raw`, harmless on a terminal.
    pub(crate) fn guest(&mut self, bytes: &[u8], raw: bool) {
        if raw || !self.terminal {
            self.write(bytes);
        } else {
            let shown = self.escaper.push(bytes);
            self.write(shown.as_bytes());
        }
    }

    /// Writes what is left of a character that was cut at the end of the guest's output.
    pub(crate) fn finish_guest(&mut self) {
        let shown = self.escaper.finish();
        self.write(shown.as_bytes());
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.failed || bytes.is_empty() {
            return;
        }
        self.open_line = bytes.last() != Some(&b'\n');
        self.failed = self.writer.write_all(bytes).and_then(|()| self.writer.flush()).is_err();
    }
}

/// A document as text, indented, with a line end.
pub(crate) fn document(document: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(document).expect("our documents have text keys only");
    format!("{}\n", escape::json(&text))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// What was written to a sink of a test.
    #[derive(Clone, Default)]
    pub(crate) struct Written(Rc<RefCell<Vec<u8>>>);

    impl Written {
        pub(crate) fn sink(&self, terminal: bool) -> Sink {
            Sink::new(Box::new(self.clone()), terminal, Style::PLAIN)
        }

        pub(crate) fn bytes(&self) -> Vec<u8> {
            self.0.borrow().clone()
        }

        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.bytes()).unwrap()
        }
    }

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn guest_bytes_are_exact_in_a_pipe() {
        let written = Written::default();
        written.sink(false).guest(b"\x1b[31m\xff\r\n", false);
        assert_eq!(written.bytes(), b"\x1b[31m\xff\r\n");
    }

    #[test]
    fn guest_bytes_are_escaped_on_a_terminal_unless_raw() {
        let written = Written::default();
        let mut sink = written.sink(true);
        sink.guest(b"\x1b[31m\xe4", false);
        sink.finish_guest();
        sink.guest(b"\x1b[0m", true);
        assert_eq!(written.text(), "\\x1b[31m\\xe4\u{1b}[0m");
    }

    #[test]
    fn a_line_that_the_guest_left_open_is_ended_before_ours() {
        let (out, err) = (Written::default(), Written::default());
        let mut screen = Screen {
            out: out.sink(true),
            err: err.sink(true),
        };
        screen.out.guest(b"no line end", false);
        screen.finish_line();
        screen.finish_line();
        assert_eq!((out.text(), err.text()), ("no line end".to_owned(), "\n".to_owned()));
    }

    #[test]
    fn a_pipe_stays_exact_to_its_last_byte() {
        let (out, err) = (Written::default(), Written::default());
        let mut screen = Screen {
            out: out.sink(false),
            err: err.sink(false),
        };
        screen.out.guest(b"no line end", false);
        screen.finish_line();
        assert_eq!((out.text(), err.text()), ("no line end".to_owned(), String::new()));
    }

    #[test]
    fn a_reader_that_is_gone_is_noticed() {
        let mut sink = Sink::new(Box::new(Closed), false, Style::PLAIN);
        sink.guest(b"x", false);
        assert!(sink.failed());
    }
}
