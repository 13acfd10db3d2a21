//! JSON: valid or not, and what is at the top.
#![forbid(unsafe_code)]

use std::fmt;
use std::io::{self, BufReader, Read};

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;

use super::source::Source;
use super::{Inspected, Stop};

/// Levels of arrays and objects; the parser keeps a byte for each.
const DEPTH_MAX: u32 = 256;
/// The longest string, in bytes: keys and a string at the top are kept whole.
const STRING_MAX: u32 = 4 * 1024 * 1024;

pub(super) fn json(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let mut guard = Guard {
        source,
        quoted: false,
        escaped: false,
        depth: 0,
        length: 0,
        refused: None,
    };
    let mut parser = serde_json::Deserializer::from_reader(BufReader::with_capacity(64 * 1024, &mut guard));
    let parsed = parser.deserialize_any(Top).and_then(|top| parser.end().map(|()| top));
    drop(parser);
    match parsed {
        Ok((kind, entries)) => {
            seen.word("kind", kind);
            if let Some(entries) = entries {
                seen.number("entries", entries);
            }
            Ok(())
        }
        Err(error) => Err(match (guard.refused, error.classify()) {
            (Some(why), _) => Stop::Invalid(why),
            (None, Category::Eof) => Stop::Read(io::ErrorKind::UnexpectedEof.into()),
            (None, _) => Stop::Invalid("not JSON"),
        }),
    }
}

/// Passes bytes on while their nesting and their strings stay small.
#[derive(Debug)]
struct Guard<'s> {
    source: &'s mut Source,
    quoted: bool,
    escaped: bool,
    depth: u32,
    length: u32,
    refused: Option<&'static str>,
}

impl Guard<'_> {
    fn note(&mut self, byte: u8) {
        if self.quoted {
            self.length += 1;
            self.quoted = self.escaped || byte != b'"';
            self.escaped = !self.escaped && byte == b'\\';
            return;
        }
        match byte {
            b'"' => (self.quoted, self.length) = (true, 0),
            b'[' | b'{' => self.depth += 1,
            b']' | b'}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

impl Read for &mut Guard<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        for byte in &buffer[..read] {
            self.note(*byte);
            if self.depth > DEPTH_MAX {
                self.refused = Some("nested too deep");
            } else if self.length > STRING_MAX {
                self.refused = Some("a string too long");
            }
            if self.refused.is_some() {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(read)
    }
}

/// Tells the kind of a value, and how many entries it has.
struct Top;

impl<'de> Visitor<'de> for Top {
    type Value = (&'static str, Option<u64>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = 0;
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            entries += 1;
        }
        Ok(("object", Some(entries)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut entries = 0;
        while array.next_element::<IgnoredAny>()?.is_some() {
            entries += 1;
        }
        Ok(("array", Some(entries)))
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(("string", None))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(("boolean", None))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(("number", None))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(("number", None))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(("number", None))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(("null", None))
    }
}
