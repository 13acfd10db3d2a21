//! Markup that some reader may take for live, wherever it stands: in a comment, in a value, in character data.
//!
//! Readers disagree about where a comment ends and what a quote is. Whoever writes for one of them alone hides from a
//! scan that follows another, but not from one that follows none.
#![forbid(unsafe_code)]

use super::{Flag, Inspected};

/// Longer names are none of those that are looked for, whatever their prefix.
const NAME_MAX: usize = 64;

/// Elements that run or load something.
pub(super) fn flag_of_element(name: &[u8]) -> Option<Flag> {
    match name {
        b"script" | b"handler" | b"listener" => Some(Flag::Script),
        b"foreignobject" | b"iframe" | b"object" | b"embed" | b"applet" | b"form" | b"frame" | b"frameset" => {
            Some(Flag::ForeignObject)
        }
        b"base" | b"link" | b"meta" => Some(Flag::ExternalReference),
        _ => None,
    }
}

/// Attributes that are handlers of events; in a tag whatever begins with `on` is one, in any text only these.
const HANDLERS: [&[u8]; 36] = [
    b"onabort",
    b"onactivate",
    b"onafterprint",
    b"onanimationend",
    b"onanimationiteration",
    b"onanimationstart",
    b"onauxclick",
    b"onbegin",
    b"onblur",
    b"onchange",
    b"onclick",
    b"ondblclick",
    b"ondrag",
    b"onend",
    b"onerror",
    b"onfocus",
    b"onfocusin",
    b"onfocusout",
    b"oninput",
    b"onkeydown",
    b"onkeyup",
    b"onload",
    b"onmousedown",
    b"onmouseenter",
    b"onmousemove",
    b"onmouseover",
    b"onmouseup",
    b"onpageshow",
    b"onpointerenter",
    b"onpointerover",
    b"onrepeat",
    b"onscroll",
    b"ontoggle",
    b"ontransitionend",
    b"onunload",
    b"onwheel",
];

/// Looks at bytes in lower case, one after the other.
#[derive(Debug, Default)]
pub(super) struct Anywhere {
    word: Vec<u8>,
    /// What stood before the word; of `</` the first.
    before: u8,
    /// The word before was a handler's name, and only white space came since.
    handler: bool,
}

impl Anywhere {
    pub(super) fn take(&mut self, byte: u8, seen: &mut Inspected) {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':' | b'-' | b'.') {
            self.handler = false;
            if self.word.len() < NAME_MAX {
                self.word.push(byte);
            }
            if self.word.ends_with(b"javascript:") || self.word.ends_with(b"vbscript:") {
                seen.flag(Flag::Script);
            }
            return;
        }
        if !self.word.is_empty() {
            let local = self.word.rsplit(|byte| *byte == b':').next().unwrap_or_default();
            if let Some(flag) = flag_of_element(local).filter(|_| self.before == b'<') {
                seen.flag(flag);
            }
            self.handler = HANDLERS.contains(&self.word.as_slice());
            self.word.clear();
        }
        if self.handler && byte == b'=' {
            seen.flag(Flag::EventHandler);
        }
        self.handler &= byte.is_ascii_whitespace();
        if byte != b'/' || self.before != b'<' {
            self.before = byte;
        }
    }
}
