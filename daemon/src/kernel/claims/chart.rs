//! What a plot shows, as an object of bounded size and depth.

use std::cell::Cell;
use std::fmt;

use prost::Message;
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// How deep a chart nests: plots of plots, their elements, points.
const DEPTH_MAX: usize = 12;
/// The most values in a chart.
const VALUES_MAX: usize = 32 * 1024;
/// The largest chart, in bytes of protobuf.
const BYTES_MAX: usize = 512 * 1024;

/// The chart of a frame; nothing where it is none, or was left out.
#[derive(Debug, Default)]
pub(super) struct Chart {
    pub shown: Option<Struct>,
    /// Whether it was too large, too deep or no object.
    pub dropped: bool,
}

impl Chart {
    pub(super) fn unreadable() -> Self {
        Self {
            shown: None,
            dropped: true,
        }
    }
}

impl<'de> Deserialize<'de> for Chart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let left = Cell::new(Some(VALUES_MAX));
        let node = Node {
            depth: DEPTH_MAX,
            left: &left,
        };
        let value = node.deserialize(deserializer)?;
        Ok(match (value.kind, left.get()) {
            (None | Some(Kind::NullValue(_)), Some(_)) => Self::default(),
            (Some(Kind::StructValue(chart)), Some(_)) if chart.encoded_len() <= BYTES_MAX => Self {
                shown: Some(chart),
                dropped: false,
            },
            _ => Self::unreadable(),
        })
    }
}

/// One value at a depth.
#[derive(Clone, Copy)]
struct Node<'c> {
    depth: usize,
    /// How many more there may be; nothing once it was too much.
    left: &'c Cell<Option<usize>>,
}

impl Node<'_> {
    /// A value further in; nothing where no more counts.
    fn inner(self) -> Option<Self> {
        let left = self.left.get().and_then(|left| left.checked_sub(1));
        let depth = self.depth.checked_sub(1).filter(|_| left.is_some());
        self.left.set(left.filter(|_| depth.is_some()));
        depth.map(|depth| Self { depth, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

fn value<E>(kind: Kind) -> Result<Value, E> {
    Ok(Value { kind: Some(kind) })
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what a plot shows")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        value(Kind::NullValue(0))
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        value(Kind::BoolValue(flag))
    }

    #[expect(clippy::cast_precision_loss, reason = "numbers of the API's objects are doubles")]
    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        value(Kind::NumberValue(number as f64))
    }

    #[expect(clippy::cast_precision_loss, reason = "numbers of the API's objects are doubles")]
    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        value(Kind::NumberValue(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        value(Kind::NumberValue(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        value(Kind::StringValue(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(inner) = self.inner() {
            match seq.next_element_seed(inner)? {
                Some(value) => values.push(value),
                None => return value(Kind::ListValue(ListValue { values })),
            }
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        value(Kind::NullValue(0))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Struct::default();
        while let Some(inner) = self.inner() {
            match map.next_key::<String>()? {
                Some(key) => {
                    let value = map.next_value_seed(inner)?;
                    object.fields.insert(key, value);
                }
                None => return value(Kind::StructValue(object)),
            }
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        value(Kind::NullValue(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Chart {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_chart_is_an_object_of_numbers_texts_and_lists() {
        let chart = read(r#"{"type":"line","elements":[{"points":[[1,2.5],["2024-01-01",null]]}]}"#);
        let fields = chart.shown.unwrap().fields;
        assert_eq!(fields["type"].kind, Some(Kind::StringValue("line".to_owned())));
        assert!(matches!(&fields["elements"].kind, Some(Kind::ListValue(list)) if list.values.len() == 1));
        assert!(!chart.dropped);
    }

    #[test]
    fn what_is_too_deep_too_much_or_no_object_is_left_out() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100), "]".repeat(100));
        let many = format!("{{\"a\":[0{}]}}", ",0".repeat(VALUES_MAX));
        let large = format!("{{\"a\":\"{}\"}}", "x".repeat(BYTES_MAX));
        for text in [deep.as_str(), many.as_str(), large.as_str(), "[1]", "1"] {
            let chart = read(text);
            assert!(
                chart.shown.is_none() && chart.dropped,
                "{}",
                &text[..text.len().min(40)]
            );
        }
        let none = read("null");
        assert!(none.shown.is_none() && !none.dropped);
    }
}
