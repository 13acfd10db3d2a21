//! SVG and HTML: what they may do in a browser.
//!
//! Two scans, which would rather see too much. One follows the markup as a reader of XML does: tags, attributes,
//! comments, character data, declarations; it decodes character references in values, and judges names without their
//! prefix. The other, [`super::anywhere`], follows nothing, and so sees what the first takes for a comment and another
//! reader for a script. Names and values are cut at a length, so that memory is bounded; where that could hide
//! something, it is flagged. Entities can make anything of anything: their declarations alone are flagged.
//!
//! Source: XML 1.0, fifth edition; the HTML standard, 13.2; CSS Syntax Module Level 3, 4.3.
#![forbid(unsafe_code)]

use super::address::{PICTURES, is_animated, is_locator, is_outside, leads_outside, loads, plain};
use super::anywhere::{Anywhere, flag_of_element};
use super::source::Source;
use super::text::Encoding;
use super::{Flag, Inspected, Stop, has};

/// Bytes of a name, a value or a piece of text that are looked at.
const KEPT: usize = 4096;
/// Encodings in which a byte below 128 is what it is in ASCII.
const ENCODINGS: [&[u8]; 6] = [b"utf-8", b"utf8", b"us-ascii", b"ascii", b"iso-8859-1", b"windows-1252"];

pub(super) fn html(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let (encoding, _) = scan(source, seen)?;
    encoding.tell(seen)
}

pub(super) fn svg(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let (encoding, root) = scan(source, seen)?;
    if !encoding.is_utf8() && !source.was_cut() {
        return Err(Stop::Invalid("not UTF-8"));
    }
    encoding.tell(seen)?;
    if root.name != b"svg" {
        return Err(Stop::Invalid("the first element is not svg"));
    }
    if let Some((width, height)) = root.size() {
        seen.number("width", width);
        seen.number("height", height);
    }
    Ok(())
}

fn scan(source: &mut Source, seen: &mut Inspected) -> Result<(Encoding, Element), Stop> {
    let (mut encoding, mut anywhere) = (Encoding::default(), Anywhere::default());
    let mut scan = Scan {
        at: At::Text,
        word: Vec::new(),
        cut: false,
        name: Vec::new(),
        closes: false,
        in_style: false,
        root: Element::default(),
        seen,
    };
    source.for_each_piece(|piece| {
        encoding.take(piece);
        for byte in piece.to_ascii_lowercase() {
            anywhere.take(byte, scan.seen);
            scan.take(byte);
        }
        true
    })?;
    scan.text();
    Ok((encoding, scan.root))
}

/// The first element, as far as it tells a size.
#[derive(Debug, Default)]
struct Element {
    name: Vec<u8>,
    closed: bool,
    width: Option<u64>,
    height: Option<u64>,
    view_box: Option<(u64, u64)>,
}

impl Element {
    fn size(&self) -> Option<(u64, u64)> {
        self.width.zip(self.height).or(self.view_box)
    }

    fn attribute(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b"width" => self.width = length(value),
            b"height" => self.height = length(value),
            b"viewbox" => {
                let mut numbers = value
                    .split(|byte| matches!(byte, b' ' | b','))
                    .filter(|part| !part.is_empty())
                    .skip(2);
                self.view_box = numbers.next().and_then(length).zip(numbers.next().and_then(length));
            }
            _ => {}
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Text,
    /// After `<`.
    Open,
    TagName,
    /// Within a tag, before the name of an attribute.
    Tag,
    AttributeName,
    /// After `=`.
    Equals,
    /// Within a value; ends at this quote, or at white space for an unquoted one.
    Value(Option<u8>),
    Comment,
    /// `<![CDATA[...]]>`
    Characters,
    /// `<?...?>`
    Instruction,
    /// `<!...>`
    Declaration,
}

#[derive(Debug)]
struct Scan<'s> {
    at: At,
    /// The name, value or text that is being read, cut at [`KEPT`], in lower case.
    word: Vec<u8>,
    /// Whether the word is longer than what is kept of it.
    cut: bool,
    /// The attribute whose value is being read.
    name: Vec<u8>,
    /// Whether the tag is the end of an element.
    closes: bool,
    /// Whether the text belongs to a style sheet.
    in_style: bool,
    root: Element,
    seen: &'s mut Inspected,
}

impl Scan<'_> {
    /// Takes a byte, in lower case.
    fn take(&mut self, byte: u8) {
        self.at = match (self.at, byte) {
            (At::Text, b'<') => {
                self.text();
                At::Open
            }
            (At::Open, b'!') => At::Declaration,
            (At::Open, b'?') => At::Instruction,
            (At::Open, b'/') => {
                self.closes = true;
                At::TagName
            }
            (At::Open, b'a'..=b'z' | b'_' | b':' | 0x80..) => self.keep(byte, At::TagName),
            (At::Open, _) => At::Text,
            (At::Comment, b'>') if self.word.ends_with(b"--") => self.done(At::Text),
            (At::Comment, _) => self.keep_last(byte, At::Comment),
            (At::Characters, b'>') if self.word.ends_with(b"]]") => {
                self.text();
                At::Text
            }
            (At::Characters, _) => self.keep_text(byte, At::Characters),
            (At::Instruction, b'>') if self.word.ends_with(b"?") || self.cut => self.instruction(),
            (At::Instruction, _) => self.keep(byte, At::Instruction),
            (At::Declaration, b'>') => self.declaration(),
            (At::Declaration, _) => self.keep_in_declaration(byte),
            (At::TagName, b'>' | b'/' | b' ' | b'\t' | b'\r' | b'\n' | b'\x0c') => self.element(byte),
            (At::TagName | At::AttributeName, _) if !ends_name(byte) => self.keep(byte, self.at),
            (At::AttributeName, b'=') => {
                self.attribute_name();
                At::Equals
            }
            (At::AttributeName, _) => {
                self.attribute_name();
                self.attribute(byte == b'>')
            }
            (At::Tag, b'>') => self.end_tag(),
            (At::Tag, _) if ends_name(byte) => At::Tag,
            (At::Tag, _) => self.keep(byte, At::AttributeName),
            (At::Equals, b'"' | b'\'') => At::Value(Some(byte)),
            (At::Equals, b'>') => self.attribute(true),
            (At::Equals, _) if byte.is_ascii_whitespace() => At::Equals,
            (At::Equals, _) => self.keep(byte, At::Value(None)),
            (At::Value(Some(quote)), _) if byte == quote => self.attribute(false),
            (At::Value(None), b'>') => self.attribute(true),
            (At::Value(None), _) if byte.is_ascii_whitespace() => self.attribute(false),
            (At::Text, _) => self.keep_text(byte, At::Text),
            (at, _) => self.keep(byte, at),
        };
    }

    fn keep(&mut self, byte: u8, next: At) -> At {
        if self.word.len() < KEPT {
            self.word.push(byte);
        } else {
            self.cut = true;
        }
        next
    }

    /// Long text is judged in pieces that overlap.
    fn keep_text(&mut self, byte: u8, next: At) -> At {
        if self.word.len() >= KEPT {
            self.text_so_far();
            self.word.drain(..KEPT - 64);
        }
        self.keep(byte, next)
    }

    /// Keeps the two bytes that may be the beginning of an end.
    fn keep_last(&mut self, byte: u8, next: At) -> At {
        if self.word.len() >= 2 {
            self.word.remove(0);
        }
        self.keep(byte, next)
    }

    fn keep_in_declaration(&mut self, byte: u8) -> At {
        self.keep(byte, At::Declaration);
        if byte == b'[' && self.word.starts_with(b"doctype") {
            // What stands in there declares entities, or what is as good.
            self.seen.flag(Flag::Entity);
        }
        match self.word.as_slice() {
            b"--" => self.done(At::Comment),
            b"[cdata[" => self.done(At::Characters),
            _ => At::Declaration,
        }
    }

    fn done(&mut self, next: At) -> At {
        self.word.clear();
        self.cut = false;
        next
    }

    fn text(&mut self) {
        self.text_so_far();
        self.done(At::Text);
    }

    /// Style sheets are text, and load what they name. Escapes can hide a name: a drawing has no use for them there.
    fn text_so_far(&mut self) {
        let hidden = self.in_style && (has(&self.word, b"\\") || has(&self.word, b"&"));
        if hidden || has(&self.word, b"@import") || loads(&self.word) {
            self.seen.flag(Flag::ExternalReference);
        }
    }

    fn instruction(&mut self) -> At {
        if has(&self.word, b"xml-stylesheet") {
            self.seen.flag(Flag::ExternalReference);
        }
        if let Some(encoding) = self.word.starts_with(b"xml").then(|| encoding(&self.word)).flatten()
            && !ENCODINGS.contains(&encoding)
        {
            // Read so, the same bytes may be other markup.
            self.seen.flag(Flag::Entity);
        }
        self.done(At::Text)
    }

    fn declaration(&mut self) -> At {
        if has(&self.word, b"entity") || self.cut {
            self.seen.flag(Flag::Entity);
        }
        if self.word.starts_with(b"doctype") && leads_outside(&self.word) {
            self.seen.flag(Flag::ExternalReference);
        }
        self.done(At::Text)
    }

    fn element(&mut self, byte: u8) -> At {
        let name = local(&self.word).to_vec();
        if let Some(flag) = flag_of_element(&name) {
            self.seen.flag(flag);
        }
        if self.cut {
            // Its end, which says what it is, was not seen.
            self.seen.flag(Flag::Script);
        }
        let closes = std::mem::take(&mut self.closes);
        self.in_style = name == b"style" && !closes;
        if self.root.name.is_empty() {
            self.root.name = name;
        }
        self.done(At::Text);
        if byte == b'>' { self.end_tag() } else { At::Tag }
    }

    fn end_tag(&mut self) -> At {
        self.root.closed = true;
        self.done(At::Text)
    }

    fn attribute_name(&mut self) {
        if self.cut {
            self.seen.flag(Flag::EventHandler);
        }
        self.name = std::mem::take(&mut self.word);
        self.cut = false;
    }

    fn attribute(&mut self, ends_tag: bool) -> At {
        let value = plain(&self.word);
        let name = std::mem::take(&mut self.name);
        let is_namespace = name.starts_with(b"xmlns");
        let name = local(&name);
        if !self.root.closed {
            self.root.attribute(name, &value);
        }
        if name.starts_with(b"on") && name.len() > 2 {
            self.seen.flag(Flag::EventHandler);
        }
        let squeezed: Vec<u8> = value
            .iter()
            .copied()
            .filter(|byte| !byte.is_ascii_whitespace())
            .collect();
        let is_picture = PICTURES.iter().any(|kind| squeezed.starts_with(kind));
        let carries_document = is_locator(name) && squeezed.starts_with(b"data:") && !is_picture;
        // A long address that is no picture, or a long list of them, is not seen to its end.
        let is_hidden = self.cut && !is_picture && (is_locator(name) || is_animated(name));
        let runs = [&b"javascript:"[..], b"vbscript:", b"data:text/html"]
            .iter()
            .any(|scheme| has(&squeezed, scheme));
        if runs || carries_document || is_hidden {
            self.seen.flag(Flag::Script);
        }
        let leads = is_locator(name) && is_outside(&squeezed) || is_animated(name) && has(&squeezed, b"//");
        let hidden = has(&value, b"\\") && has(&value, b"(");
        if !is_namespace && (leads || hidden || loads(&value)) {
            self.seen.flag(Flag::ExternalReference);
        }
        self.done(At::Text);
        if ends_tag { self.end_tag() } else { At::Tag }
    }
}

fn ends_name(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, b'>' | b'/' | b'=')
}

fn local(name: &[u8]) -> &[u8] {
    name.rsplit(|byte| *byte == b':').next().unwrap_or(name)
}

/// The encoding that a file says it has.
fn encoding(instruction: &[u8]) -> Option<&[u8]> {
    let at = instruction.windows(8).position(|window| window == b"encoding")?;
    let value = instruction[at + 8..].trim_ascii_start().strip_prefix(b"=")?;
    let value = value.trim_ascii_start();
    let (quote, value) = value.split_first()?;
    value.split(|byte| byte == quote).next()
}

/// Reads a length as `120`, `120.5px` or `90pt`, without its unit.
fn length(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    if value.ends_with(b"%") {
        return None;
    }
    let digits: Vec<u8> = value.iter().copied().take_while(u8::is_ascii_digit).take(9).collect();
    std::str::from_utf8(&digits).ok()?.parse().ok()
}
