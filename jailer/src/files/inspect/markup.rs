//! SVG and HTML: what they may do in a browser.
//!
//! Not a parser but a scan that would rather see too much: it knows tags, attributes, comments and the text between,
//! decodes character references in values, and judges names without their prefix. Names and values are cut at a
//! length, so that memory is bounded.
#![forbid(unsafe_code)]

use super::source::Source;
use super::text::Encoding;
use super::{Flag, Inspected, Stop};

/// Bytes of a name, a value or a piece of text that are looked at.
const KEPT: usize = 4096;

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
    let mut encoding = Encoding::default();
    let mut scan = Scan {
        at: At::Text,
        word: Vec::new(),
        name: Vec::new(),
        root: Element::default(),
        seen,
    };
    source.for_each_piece(|piece| {
        encoding.take(piece);
        piece.iter().for_each(|byte| scan.take(*byte));
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
    /// `<!...>` and `<?...>`.
    Declaration,
}

#[derive(Debug)]
struct Scan<'s> {
    at: At,
    /// The name, value or text that is being read, cut at [`KEPT`], in lower case.
    word: Vec<u8>,
    /// The attribute whose value is being read.
    name: Vec<u8>,
    root: Element,
    seen: &'s mut Inspected,
}

impl Scan<'_> {
    fn take(&mut self, byte: u8) {
        let byte = byte.to_ascii_lowercase();
        self.at = match (self.at, byte) {
            (At::Text, b'<') => {
                self.text();
                At::Open
            }
            (At::Open, b'!' | b'?') => At::Declaration,
            (At::Open, b'/') => At::TagName,
            (At::Open, b'a'..=b'z' | b'_' | b':') => self.keep(byte, At::TagName),
            (At::Open, _) => At::Text,
            (At::Comment, b'>') if self.word.ends_with(b"--") => self.done(At::Text),
            (At::Comment, _) => self.keep_last(byte),
            (At::Declaration, b'>') => self.declaration(),
            (At::Declaration, _) => self.keep_in_declaration(byte),
            (At::TagName, b'>' | b'/' | b' ' | b'\t' | b'\r' | b'\n' | b'\x0c') => self.element(byte),
            (At::TagName | At::AttributeName, _) if !ends_name(byte) => self.keep(byte, self.at),
            (At::AttributeName, b'=') => {
                self.name = std::mem::take(&mut self.word);
                At::Equals
            }
            (At::AttributeName, _) => {
                self.name = std::mem::take(&mut self.word);
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
            (at, _) => self.keep(byte, at),
        };
    }

    fn keep(&mut self, byte: u8, next: At) -> At {
        if self.word.len() < KEPT {
            self.word.push(byte);
        } else if self.at == At::Text {
            // Long text is judged in pieces that overlap.
            self.text_so_far();
            self.word.drain(..KEPT - 64);
            self.word.push(byte);
        }
        next
    }

    fn keep_last(&mut self, byte: u8) -> At {
        if self.word.len() >= 2 {
            self.word.remove(0);
        }
        self.keep(byte, At::Comment)
    }

    fn keep_in_declaration(&mut self, byte: u8) -> At {
        self.keep(byte, At::Declaration);
        match self.word.as_slice() {
            b"--" => self.done(At::Comment),
            b"[cdata[" => self.done(At::Text),
            _ => At::Declaration,
        }
    }

    fn done(&mut self, next: At) -> At {
        self.word.clear();
        next
    }

    fn text(&mut self) {
        self.text_so_far();
        self.word.clear();
    }

    /// Style sheets are text, and load what they name.
    fn text_so_far(&mut self) {
        if has(&self.word, b"@import") || loads(&self.word) {
            self.seen.flag(Flag::ExternalReference);
        }
    }

    fn declaration(&mut self) -> At {
        if has(&self.word, b"entity") {
            self.seen.flag(Flag::Entity);
        }
        if has(&self.word, b"://") && !has(&self.word, b"doctype") || has(&self.word, b"xml-stylesheet") {
            self.seen.flag(Flag::ExternalReference);
        }
        self.done(At::Text)
    }

    fn element(&mut self, byte: u8) -> At {
        let name = local(&self.word).to_vec();
        match name.as_slice() {
            b"script" => self.seen.flag(Flag::Script),
            b"foreignobject" | b"iframe" | b"object" | b"embed" | b"form" | b"frame" => {
                self.seen.flag(Flag::ForeignObject);
            }
            b"base" | b"link" => self.seen.flag(Flag::ExternalReference),
            _ => {}
        }
        if self.root.name.is_empty() {
            self.root.name = name;
        }
        self.word.clear();
        if byte == b'>' { self.end_tag() } else { At::Tag }
    }

    fn end_tag(&mut self) -> At {
        self.root.closed = true;
        self.done(At::Text)
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
        if [&b"javascript:"[..], b"vbscript:", b"data:text/html"]
            .iter()
            .any(|scheme| has(&squeezed, scheme))
        {
            self.seen.flag(Flag::Script);
        }
        if !is_namespace && (loads(&value) || (is_address(name) && is_outside(&squeezed))) {
            self.seen.flag(Flag::ExternalReference);
        }
        self.word.clear();
        if ends_tag { self.end_tag() } else { At::Tag }
    }
}

fn ends_name(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, b'>' | b'/' | b'=')
}

fn local(name: &[u8]) -> &[u8] {
    name.rsplit(|byte| *byte == b':').next().unwrap_or(name)
}

fn has(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn is_address(name: &[u8]) -> bool {
    let known: [&[u8]; 11] = [
        b"href",
        b"src",
        b"srcset",
        b"action",
        b"formaction",
        b"data",
        b"poster",
        b"background",
        b"ping",
        b"to",
        b"values",
    ];
    known.contains(&name)
}

/// Whether an address leads out of the file: not to a part of it, nor data within it.
fn is_outside(address: &[u8]) -> bool {
    !address.is_empty()
        && !address.starts_with(b"#")
        && !address.starts_with(b"data:")
        && (has(address, b"/") || has(address, b":"))
}

/// Whether a style loads something from outside.
fn loads(style: &[u8]) -> bool {
    style
        .windows(4)
        .enumerate()
        .filter(|(_, window)| *window == b"url(")
        .any(|(at, _)| {
            let address = style[at + 4..].trim_ascii_start();
            let address = address
                .strip_prefix(b"\"")
                .or_else(|| address.strip_prefix(b"'"))
                .unwrap_or(address);
            !address.starts_with(b"#") && !address.starts_with(b"data:")
        })
}

/// A value as a browser reads it: references resolved, control characters gone, in lower case.
fn plain(value: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::new(), value);
    while let [first, after @ ..] = rest {
        let reference = (*first == b'&').then(|| reference(after)).flatten();
        let (byte, next) = reference.unwrap_or((*first, after));
        if !byte.is_ascii_control() || byte.is_ascii_whitespace() {
            plain.push(byte.to_ascii_lowercase());
        }
        rest = next;
    }
    plain
}

/// Resolves what follows an `&`, to one byte; what is not ASCII does not matter here.
fn reference(after: &[u8]) -> Option<(u8, &[u8])> {
    let named: [(&[u8], u8); 8] = [
        (b"colon;", b':'),
        (b"sol;", b'/'),
        (b"tab;", b'\t'),
        (b"newline;", b'\n'),
        (b"amp;", b'&'),
        (b"quot;", b'"'),
        (b"lt;", b'<'),
        (b"gt;", b'>'),
    ];
    if let Some((name, byte)) = named.iter().find(|(name, _)| after.starts_with(name)) {
        return Some((*byte, &after[name.len()..]));
    }
    let digits = after.strip_prefix(b"#")?;
    let (digits, radix) = digits.strip_prefix(b"x").map_or((digits, 10), |digits| (digits, 16));
    let end = digits
        .iter()
        .position(|byte| !byte.is_ascii_hexdigit())
        .unwrap_or(digits.len());
    let code = u32::from_str_radix(std::str::from_utf8(&digits[..end]).ok()?, radix).ok()?;
    let rest = &digits[end..];
    Some((
        u8::try_from(code).unwrap_or(b'?'),
        rest.strip_prefix(b";").unwrap_or(rest),
    ))
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
