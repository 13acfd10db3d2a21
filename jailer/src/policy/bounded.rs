//! A limit with a default and a maximum.
#![forbid(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize as Derive, Serialize};

/// A limit that a caller may choose up to a maximum; written as `{ default = .., max = .. }` or as one value for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bounded<T> {
    pub default: T,
    pub max: T,
}

impl<T: Copy> Bounded<T> {
    /// Makes a limit that can't be raised, only lowered.
    pub const fn fixed(value: T) -> Self {
        Self {
            default: value,
            max: value,
        }
    }

    /// Applies a function to both values.
    pub fn map<U>(self, f: impl Fn(T) -> U) -> Bounded<U> {
        Bounded {
            default: f(self.default),
            max: f(self.max),
        }
    }
}

#[derive(Derive)]
#[serde(deny_unknown_fields)]
struct Pair<T> {
    default: T,
    max: T,
}

impl<'de, T: Deserialize<'de> + Copy> Deserialize<'de> for Bounded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Form(PhantomData))
    }
}

struct Form<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + Copy> Visitor<'de> for Form<T> {
    type Value = Bounded<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one value, or { default = .., max = .. }")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Bounded<T>, E> {
        T::deserialize(text.into_deserializer()).map(Bounded::fixed)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Bounded<T>, E> {
        T::deserialize(number.into_deserializer()).map(Bounded::fixed)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Bounded<T>, E> {
        T::deserialize(number.into_deserializer()).map(Bounded::fixed)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Bounded<T>, A::Error> {
        let Pair { default, max } = Pair::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Bounded { default, max })
    }
}
