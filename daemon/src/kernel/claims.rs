//! From the body of a frame to a bounded claim.

mod chart;

use std::collections::BTreeMap;
use std::fmt;

use prost::Message;
use prost_types::Struct;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::output::cut_text;

use chart::Chart;

/// The largest representation of a rich result, in bytes.
const DATUM_MAX: usize = 512 * 1024;
/// The most representations of one rich result.
const DATA_MAX: usize = 16;
/// The longest media type and display id, in bytes.
const NAME_MAX: usize = 200;
/// The longest message of an error, in bytes.
const MESSAGE_MAX: usize = 8 * 1024;
/// The longest traceback, in bytes.
const TRACEBACK_MAX: usize = 64 * 1024;

/// Something that the code displayed.
#[derive(Debug, Clone, PartialEq)]
pub struct RichResult {
    /// Whether it is the value of the last expression.
    pub main: bool,
    pub display_id: Option<String>,
    /// Representations by media type; base64 for binary ones, unchecked.
    pub data: BTreeMap<String, String>,
    /// What a plot shows.
    pub chart: Option<Struct>,
}

/// The exception that ended the code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorClaim {
    pub name: String,
    pub message: String,
    /// Line of the user's code, from 1.
    pub line: Option<u32>,
    pub traceback: String,
}

impl RichResult {
    pub fn size(&self) -> usize {
        let data: usize = self.data.iter().map(|(name, datum)| name.len() + datum.len()).sum();
        let chart = self.chart.as_ref().map_or(0, Message::encoded_len);
        data + chart + self.display_id.as_ref().map_or(0, String::len)
    }
}

/// How an execution of a context came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoneClaim {
    /// As a process would have exited with.
    pub exit_code: i32,
    pub execution_count: u64,
    /// Whether variables are still there.
    pub kept: bool,
}

/// What a frame holds.
#[derive(Debug)]
pub(super) enum Parsed {
    Result {
        result: RichResult,
        dropped: u64,
    },
    Error(ErrorClaim),
    Done(DoneClaim),
    /// A context takes work.
    Ready,
    /// A context can't be what it was asked to be.
    Refused(String),
    /// An event of a newer kernel.
    Unknown,
}

/// A frame of a context: what it holds, and the execution that it names.
#[derive(Debug)]
pub(super) struct Said {
    pub id: Option<String>,
    pub parsed: Parsed,
}

/// Reads the body of a frame of a context.
pub(super) fn parse_said(body: &[u8]) -> Option<Said> {
    let named: Named = serde_json::from_slice(body).ok()?;
    Some(Said {
        id: named.id.map(|id| id.0),
        parsed: parse(body)?,
    })
}

/// Reads the body of a frame; `None` if it is not an object of the protocol.
///
/// No type here nests, and the JSON reader passes over what it doesn't know without recursion, so depth costs nothing.
pub(super) fn parse(body: &[u8]) -> Option<Parsed> {
    let event: Event = serde_json::from_slice(body).ok()?;
    Some(match event.ev.as_str() {
        "result" => {
            let frame: ResultFrame = serde_json::from_slice(body).ok()?;
            // By itself, so that one that can't be read costs nothing else.
            let chart =
                serde_json::from_slice(body).map_or_else(|_| Chart::unreadable(), |frame: ChartFrame| frame.chart);
            let display_id = frame.display_id.map(|id| cut_text(&id.0, NAME_MAX).to_owned());
            let result = RichResult {
                main: frame.main,
                display_id,
                data: frame.data.kept,
                chart: chart.shown,
            };
            Parsed::Result {
                result,
                dropped: frame.data.dropped + u64::from(chart.dropped),
            }
        }
        "error" => {
            let frame: ErrorFrame = serde_json::from_slice(body).ok()?;
            Parsed::Error(ErrorClaim {
                name: cut_text(&frame.name.0, NAME_MAX).to_owned(),
                message: cut_text(&frame.message.0, MESSAGE_MAX).to_owned(),
                line: frame.line.and_then(|line| u32::try_from(line).ok()),
                traceback: cut_traceback(&frame.traceback.0),
            })
        }
        "done" => {
            let frame: DoneFrame = serde_json::from_slice(body).ok()?;
            Parsed::Done(DoneClaim {
                exit_code: i32::try_from(frame.exit_code).unwrap_or(1),
                execution_count: frame.execution_count.unwrap_or_default(),
                kept: frame.kept.unwrap_or(true),
            })
        }
        "ready" => Parsed::Ready,
        "refused" => {
            let frame: RefusedFrame = serde_json::from_slice(body).ok()?;
            Parsed::Refused(cut_text(&frame.message.0, MESSAGE_MAX).to_owned())
        }
        _ => Parsed::Unknown,
    })
}

/// Keeps the beginning, which shows the user's line, and the end, which shows the error.
fn cut_traceback(text: &str) -> String {
    if text.len() <= TRACEBACK_MAX {
        return text.to_owned();
    }
    let head = cut_text(text, TRACEBACK_MAX / 2);
    let mut from = text.len() - TRACEBACK_MAX / 2;
    while !text.is_char_boundary(from) {
        from += 1;
    }
    format!("{head}\n[...]\n{}", &text[from..])
}

#[derive(Deserialize)]
struct Event {
    ev: String,
}

#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    id: Option<Text>,
}

#[derive(Deserialize)]
struct DoneFrame {
    #[serde(default)]
    exit_code: i64,
    #[serde(default)]
    execution_count: Option<u64>,
    #[serde(default)]
    kept: Option<bool>,
}

#[derive(Deserialize)]
struct RefusedFrame {
    #[serde(default)]
    message: Text,
}

#[derive(Deserialize)]
struct ResultFrame {
    #[serde(default)]
    main: bool,
    #[serde(default)]
    display_id: Option<Text>,
    #[serde(default)]
    data: Data,
}

#[derive(Deserialize)]
struct ChartFrame {
    #[serde(default)]
    chart: Chart,
}

#[derive(Deserialize)]
struct ErrorFrame {
    name: Text,
    #[serde(default)]
    message: Text,
    #[serde(default)]
    line: Option<i64>,
    #[serde(default)]
    traceback: Text,
}

/// A text in which whatever is not Unicode became U+FFFD.
///
/// Python's strings may hold lone surrogates, which JSON can carry and a `String` can't: they must not cost the rest
/// of the frame.
#[derive(Default)]
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(TextVisitor)
    }
}

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Text, E> {
        Ok(Text(String::from_utf8_lossy(bytes).into_owned()))
    }
}

/// The representations of a result, bounded while they are read.
#[derive(Default)]
struct Data {
    kept: BTreeMap<String, String>,
    dropped: u64,
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(DataVisitor)
    }
}

struct DataVisitor;

impl<'de> Visitor<'de> for DataVisitor {
    type Value = Data;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("representations by media type")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Data, A::Error> {
        let mut data = Data::default();
        while let Some((Text(name), Text(datum))) = map.next_entry::<Text, Text>()? {
            let plain = name.bytes().all(|b| b.is_ascii_graphic());
            if plain && name.len() <= NAME_MAX && datum.len() <= DATUM_MAX && data.kept.len() < DATA_MAX {
                data.kept.insert(name, datum);
            } else {
                data.dropped += 1;
            }
        }
        Ok(data)
    }
}
