//! Sizes, spans of time and CPUs as people write them: one parser for the command line, policies and configuration.
//!
//! Sizes are a number of bytes, or a number with `K`, `M` or `G` (powers of 1024). Spans are a number of seconds, or a
//! number with `ms`, `s`, `m`, `h` or `d`. CPUs are a decimal number with at most three digits after the point. All are
//! whole numbers inside, arithmetic is checked, and formatting gives back a text that parses to the same value.
//!
//! The serde forms take a text or a number and need a self-describing format (TOML, JSON; not postcard).
#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// Says why a text is not a size, a span or a number of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {}", .kind.accepted())]
pub struct UnitError {
    text: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Size,
    Span,
    Cpus,
}

impl Kind {
    fn accepted(self) -> &'static str {
        match self {
            Kind::Size => "a size: a whole number of bytes, or one with K, M or G (powers of 1024), such as 512M",
            Kind::Span => {
                "a span of time: a whole number of seconds, or one with ms, s, m, h or d, such as 500ms or 30s"
            }
            Kind::Cpus => "a number of CPUs: a number with at most three digits after the point, such as 0.5 or 2",
        }
    }

    /// Keeps only the beginning of a long text: it may be anybody's.
    fn error(self, text: &str) -> UnitError {
        UnitError {
            text: text.chars().take(60).collect(),
            kind: self,
        }
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

/// A span of time, to the millisecond.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

/// CPU time per wall time, to the thousandth of a CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpus(u64);

const SIZES: &[(&str, u64)] = &[("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10), ("", 1)];
const SPANS: &[(&str, u64)] = &[
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
    ("", 1_000),
];

impl ByteSize {
    /// Takes a number of bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Takes a number of mebibytes.
    pub const fn from_mib(mib: u32) -> Self {
        Self((mib as u64) << 20)
    }

    /// Gives the number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl Span {
    /// Takes a number of milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Takes a number of seconds.
    pub const fn from_secs(seconds: u32) -> Self {
        Self(seconds as u64 * 1000)
    }

    /// Gives the number of milliseconds.
    pub const fn millis(self) -> u64 {
        self.0
    }

    /// Gives the standard library's form.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl Cpus {
    /// Takes a number of thousandths of a CPU.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Gives the number of thousandths of a CPU.
    pub const fn millis(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        scaled(text, SIZES).map(Self).ok_or_else(|| Kind::Size.error(text))
    }
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        scaled(text, SPANS).map(Self).ok_or_else(|| Kind::Span.error(text))
    }
}

impl FromStr for Cpus {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        thousandths(text).map(Self).ok_or_else(|| Kind::Cpus.error(text))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shortest(f, self.0, SIZES)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A bare number would mean seconds, so the smallest unit is always written.
        if self.0 == 0 {
            f.write_str("0s")
        } else {
            shortest(f, self.0, &SPANS[..5])
        }
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fraction = format!("{:03}", self.0 % 1000);
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{}", self.0 / 1000),
            digits => write!(f, "{}.{digits}", self.0 / 1000),
        }
    }
}

/// Reads digits and a unit; `None` for anything else and for what does not fit 64 bits.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    // `parse` would take a sign, but a sign is not a digit and ends up in the unit.
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

fn thousandths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 3 {
        return None;
    }
    let fraction = format!("{fraction:0<3}").parse::<u64>().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(fraction)
}

/// Writes a number with the largest unit that divides it.
fn shortest(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let fits = |(_, factor): &&(&str, u64)| value != 0 && value.is_multiple_of(*factor);
    let (unit, factor) = units.iter().find(fits).unwrap_or(&("", 1));
    write!(f, "{}{unit}", value / factor)
}

/// Gives a type its serde form: written as text, read from a text or a number.
macro_rules! serde_by_text {
    ($($name:ident: $kind:expr),+) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;

                impl Visitor<'_> for Text {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($kind.accepted())
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }

                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$name, E> {
                        number.to_string().parse().map_err(E::custom)
                    }

                    fn visit_u64<E: de::Error>(self, number: u64) -> Result<$name, E> {
                        number.to_string().parse().map_err(E::custom)
                    }

                    fn visit_f64<E: de::Error>(self, number: f64) -> Result<$name, E> {
                        // Display of a float is its shortest exact text, and never has an exponent.
                        number.to_string().parse().map_err(E::custom)
                    }
                }

                deserializer.deserialize_any(Text)
            }
        }
    )+};
}

serde_by_text!(ByteSize: Kind::Size, Span: Kind::Span, Cpus: Kind::Cpus);

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(texts: &[&str]) -> Vec<Option<u64>> {
        texts
            .iter()
            .map(|text| text.parse().ok().map(ByteSize::bytes))
            .collect()
    }

    fn spans(texts: &[&str]) -> Vec<Option<u64>> {
        texts.iter().map(|text| text.parse().ok().map(Span::millis)).collect()
    }

    fn cpus(texts: &[&str]) -> Vec<Option<u64>> {
        texts.iter().map(|text| text.parse().ok().map(Cpus::millis)).collect()
    }

    #[test]
    fn sizes_are_bytes_or_powers_of_1024() {
        assert_eq!(
            sizes(&["0", "1", "64K", "512M", "2G", "17179869183G"]),
            [
                Some(0),
                Some(1),
                Some(65536),
                Some(512 << 20),
                Some(2 << 30),
                Some(u64::MAX - (1 << 30) + 1)
            ]
        );
        let wrong = [
            "",
            "K",
            "1k",
            "1KB",
            "1KiB",
            "1.5G",
            " 1",
            "1 M",
            "-1",
            "+1",
            "0x10",
            "1T",
            "17179869184G",
            "1e3",
        ];
        assert_eq!(sizes(&wrong), [None; 14]);
    }

    #[test]
    fn spans_are_seconds_or_carry_a_unit() {
        assert_eq!(
            spans(&["0", "30", "500ms", "30s", "5m", "1h", "90d", "18446744073709551615ms"]),
            [
                Some(0),
                Some(30_000),
                Some(500),
                Some(30_000),
                Some(300_000),
                Some(3_600_000),
                Some(7_776_000_000),
                Some(u64::MAX)
            ]
        );
        let wrong = [
            "",
            "s",
            "1.5s",
            "1h30m",
            "1 s",
            "-1s",
            "1w",
            "1M",
            "18446744073709551615",
            "213503982335d",
        ];
        assert_eq!(spans(&wrong), [None; 10]);
    }

    #[test]
    fn cpus_are_decimal_numbers() {
        assert_eq!(
            cpus(&["0", "1", "1.0", "0.5", "2.25", "0.125"]),
            [Some(0), Some(1000), Some(1000), Some(500), Some(2250), Some(125)]
        );
        let wrong = [
            "",
            ".5",
            "1.",
            "0.0005",
            "-1",
            "1e3",
            "inf",
            "NaN",
            "1,5",
            "18446744073709552",
            "1.2.3",
        ];
        assert_eq!(cpus(&wrong), [None; 11]);
    }

    #[test]
    fn what_is_written_is_read_back() {
        for value in [
            0,
            1,
            999,
            1000,
            1024,
            1025,
            60_000,
            90_000,
            3 << 20,
            5 << 30,
            86_400_000,
            u64::MAX,
        ] {
            assert_eq!(ByteSize(value).to_string().parse(), Ok(ByteSize(value)));
            assert_eq!(Span(value).to_string().parse(), Ok(Span(value)));
            assert_eq!(Cpus(value).to_string().parse(), Ok(Cpus(value)));
        }
        let shown = [
            ByteSize(512 << 20).to_string(),
            Span(30_000).to_string(),
            Span(1500).to_string(),
        ];
        assert_eq!(shown, ["512M", "30s", "1500ms"]);
        assert_eq!([Cpus(1000).to_string(), Cpus(2250).to_string()], ["1", "2.25"]);
    }

    #[test]
    fn errors_name_the_value_and_what_is_accepted() {
        assert_eq!(
            "512MB".parse::<ByteSize>().unwrap_err().to_string(),
            "\"512MB\" is not a size: a whole number of bytes, or one with K, M or G (powers of 1024), such as 512M"
        );
        assert_eq!(
            "soon".parse::<Span>().unwrap_err().to_string(),
            "\"soon\" is not a span of time: a whole number of seconds, or one with ms, s, m, h or d, such as 500ms or 30s"
        );
        let long = "9".repeat(1000).parse::<Cpus>().unwrap_err().to_string();
        assert!(long.len() < 200, "{long}");
    }
}
