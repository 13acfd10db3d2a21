//! JSON: valid or not, what is at the top, and how large the table is that it has the form of.
//!
//! A table is an array of objects or of arrays, or an object of columns: arrays of one length, or objects with the same
//! keys. JSON Lines are a table of as many rows as there are values.
#![forbid(unsafe_code)]

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufReader, Read};

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;

use super::source::Source;
use super::{Inspected, Stop};

/// Levels of arrays and objects; the parser keeps a byte for each.
const DEPTH_MAX: u32 = 256;
/// The longest string, in bytes: keys and a string at the top are kept whole.
const STRING_MAX: u32 = 4 * 1024 * 1024;

pub(super) fn json(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let top = parse(source, |mut parser| {
        let top = parser.deserialize_any(Values { look_within: true })?;
        parser.end().map(|()| top)
    })?;
    match top {
        Shape::Scalar(kind) => seen.word("kind", kind),
        Shape::Object { keys, within, .. } => {
            seen.word("kind", "object");
            seen.number("entries", keys);
            if let (true, Some(rows)) = (within.alike, within.most) {
                tell_table(seen, rows, keys);
            }
        }
        Shape::Array { length, within } => {
            seen.word("kind", "array");
            seen.number("entries", length);
            if let (true, Some(columns)) = (within.of_one_kind, within.most) {
                tell_table(seen, length, columns);
            }
        }
    }
    Ok(())
}

pub(super) fn lines(source: &mut Source, seen: &mut Inspected) -> Result<(), Stop> {
    let (rows, within) = parse(source, |parser| {
        let (mut rows, mut within) = (0, Within::default());
        for value in parser.into_iter::<Shape>() {
            within.add(&value?);
            rows += 1;
        }
        Ok((rows, within))
    })?;
    seen.word("kind", "lines");
    seen.number("entries", rows);
    if let (true, Some(columns)) = (within.of_one_kind, within.most) {
        tell_table(seen, rows, columns);
    }
    Ok(())
}

fn tell_table(seen: &mut Inspected, rows: u64, columns: u64) {
    seen.number("records", rows);
    seen.number("columns", columns);
}

type Parser<'g, 's> = serde_json::Deserializer<serde_json::de::IoRead<BufReader<&'g mut Guard<'s>>>>;

/// Reads JSON within bounds of nesting and strings.
fn parse<T>(source: &mut Source, read: impl FnOnce(Parser<'_, '_>) -> Result<T, serde_json::Error>) -> Result<T, Stop> {
    let mut guard = Guard {
        source,
        quoted: false,
        escaped: false,
        depth: 0,
        length: 0,
        refused: None,
    };
    let parser = serde_json::Deserializer::from_reader(BufReader::with_capacity(64 * 1024, &mut guard));
    read(parser).map_err(|error| match (guard.refused, error.classify()) {
        (Some(why), _) => Stop::Invalid(why),
        (None, Category::Eof) => Stop::Read(io::ErrorKind::UnexpectedEof.into()),
        (None, _) => Stop::Invalid("not JSON"),
    })
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

/// The form of a value.
#[derive(Debug)]
enum Shape {
    Scalar(&'static str),
    Object {
        keys: u64,
        /// A hash of the keys, in their order.
        names: u64,
        within: Within,
    },
    Array {
        length: u64,
        within: Within,
    },
}

/// The forms of the values in another.
#[derive(Debug)]
struct Within {
    first: Option<(Kind, u64, u64)>,
    /// Whether all are objects, or all are arrays.
    of_one_kind: bool,
    /// And with the same keys, or of one length.
    alike: bool,
    /// The most entries that one has; none where there is no object and no array.
    most: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Scalar,
    Object,
    Array,
}

impl Default for Within {
    fn default() -> Self {
        Self {
            first: None,
            of_one_kind: true,
            alike: true,
            most: None,
        }
    }
}

impl Within {
    fn add(&mut self, value: &Shape) {
        let form = match value {
            Shape::Scalar(_) => (Kind::Scalar, 0, 0),
            Shape::Object { keys, names, .. } => (Kind::Object, *keys, *names),
            Shape::Array { length, .. } => (Kind::Array, *length, 0),
        };
        let first = *self.first.get_or_insert(form);
        self.of_one_kind &= form.0 == first.0 && form.0 != Kind::Scalar;
        self.alike &= self.of_one_kind && form == first;
        self.most = self.most.max((form.0 != Kind::Scalar).then_some(form.1));
    }
}

/// Reads a value; what is directly within it only if that is asked for, and what is deeper is only checked.
#[derive(Debug, Clone, Copy)]
struct Values {
    look_within: bool,
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Values { look_within: false })
    }
}

impl<'de> Visitor<'de> for Values {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
        let (mut keys, mut names, mut within) = (0, 0_u64, Within::default());
        while let Some(Key(name)) = map.next_key()? {
            if self.look_within {
                within.add(&map.next_value()?);
            } else {
                let IgnoredAny = map.next_value()?;
            }
            names = names.rotate_left(5) ^ name;
            keys += 1;
        }
        Ok(Shape::Object { keys, names, within })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Shape, A::Error> {
        let (mut length, mut within) = (0, Within::default());
        if self.look_within {
            while let Some(value) = array.next_element()? {
                within.add(&value);
                length += 1;
            }
        } else {
            while array.next_element::<IgnoredAny>()?.is_some() {
                length += 1;
            }
        }
        Ok(Shape::Array { length, within })
    }

    fn visit_str<E>(self, _: &str) -> Result<Shape, E> {
        Ok(Shape::Scalar("string"))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Shape, E> {
        Ok(Shape::Scalar("boolean"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Shape, E> {
        Ok(Shape::Scalar("number"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Shape, E> {
        Ok(Shape::Scalar("number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Shape, E> {
        Ok(Shape::Scalar("number"))
    }

    fn visit_unit<E>(self) -> Result<Shape, E> {
        Ok(Shape::Scalar("null"))
    }
}

/// A key, of which only a hash is kept.
struct Key(u64);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(Hashed)
    }
}

struct Hashed;

impl Visitor<'_> for Hashed {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Key, E> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        Ok(Key(hasher.finish()))
    }
}
