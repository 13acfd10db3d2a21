//! Where the log of a daemon goes, and in which form.
//!
//! Whatever the form, an entry is one line: control characters, which can come in by names of files or messages of other
//! programs, are written as escapes.

use std::fmt;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use super::journal::Journal;

/// The socket of journald. Source: systemd, "Native Journal Protocol".
const JOURNAL: &str = "/run/systemd/journal/socket";
/// The longest value of a field, in characters.
pub(super) const VALUE_MAX: usize = 2048;

/// Form of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// `Journal` where stderr is connected to the journal, else `Text`.
    #[default]
    Auto,
    /// Lines on stderr.
    Text,
    /// JSON lines on stderr.
    Json,
    /// Entries of the journal, with a field `BRIG_...` for each value.
    Journal,
}

/// Why there is no log as it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("log = \"journal\": {JOURNAL}: {0}")]
    Journal(std::io::Error),
    #[error("BRIG_LOG={text}: {source}")]
    Filter {
        text: String,
        source: tracing_subscriber::filter::ParseError,
    },
}

/// Starts the log of this process. `program` is the name under which the journal keeps it.
///
/// `BRIG_LOG` says what is logged, as in `debug` or `brig_daemon::run=debug`; `quiet` is laid under it.
pub fn start(format: LogFormat, program: &str, quiet: &str) -> Result<(), LogError> {
    let wanted = std::env::var("BRIG_LOG").unwrap_or_else(|_unset| "info".to_owned());
    let filter = EnvFilter::try_new(format!("{quiet}{wanted}")).map_err(|source| LogError::Filter {
        text: clean(&wanted, VALUE_MAX),
        source,
    })?;
    let registry = tracing_subscriber::registry().with(output(format, program)?.with_filter(filter));
    registry.init();
    Ok(())
}

type Output = Box<dyn Layer<Registry> + Send + Sync>;

fn output(format: LogFormat, program: &str) -> Result<Output, LogError> {
    let journal = || Journal::connect(Path::new(JOURNAL), program);
    match format {
        LogFormat::Text => Ok(text()),
        LogFormat::Json => Ok(tracing_subscriber::fmt::layer()
            .json()
            .with_writer(std::io::stderr)
            .boxed()),
        LogFormat::Journal => Ok(journal().map_err(LogError::Journal)?.boxed()),
        // What is written to stderr reaches the journal too, if only as text.
        LogFormat::Auto if is_journal(&std::env::var("JOURNAL_STREAM").unwrap_or_default(), std::io::stderr()) => {
            Ok(journal().map_or_else(|_unreachable| text(), Layer::boxed))
        }
        LogFormat::Auto => Ok(text()),
    }
}

fn text() -> Output {
    let fields = debug_fn(|writer, field, value| {
        let value = clean(&format!("{value:?}"), VALUE_MAX);
        match field.name() {
            "message" => write!(writer, "{value}"),
            name => write!(writer, "{name}={value}"),
        }
    });
    tracing_subscriber::fmt::layer()
        .fmt_fields(fields.delimited(" "))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .boxed()
}

/// Whether `stderr` is the stream to the journal that `JOURNAL_STREAM` names. Source: systemd.exec(5).
fn is_journal(stream: &str, stderr: impl AsFd) -> bool {
    rustix::fs::fstat(stderr).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// A text with its control characters escaped, cut after `max` characters.
pub fn clean(text: &str, max: usize) -> String {
    let mut cleaned = String::with_capacity(text.len().min(max));
    for (index, character) in text.chars().enumerate() {
        if index == max {
            cleaned.push('…');
            break;
        }
        if character.is_control() || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}') {
            cleaned.extend(character.escape_default());
        } else {
            cleaned.push(character);
        }
    }
    cleaned
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Text => "text",
            Self::Json => "json",
            Self::Journal => "journal",
        })
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Auto, Self::Text, Self::Json, Self::Journal];
        all.into_iter()
            .find(|format| format.to_string() == text)
            .ok_or_else(|| format!("{text:?} is not one of auto, text, json, journal"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cleaned_text_is_one_line_without_control_characters() {
        assert_eq!(
            clean("a\nb\u{1b}[31m\u{202e}ü\u{9b}", 99),
            "a\\nb\\u{1b}[31m\\u{202e}ü\\u{9b}"
        );
        assert_eq!(clean("abcd", 3), "abc…");
        assert_eq!(clean("abc", 3), "abc");
    }

    #[test]
    fn a_format_reads_back_from_its_name() {
        for format in [LogFormat::Auto, LogFormat::Text, LogFormat::Json, LogFormat::Journal] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert!(
            "syslog"
                .parse::<LogFormat>()
                .unwrap_err()
                .contains("auto, text, json, journal")
        );
    }

    #[test]
    fn only_the_stream_that_is_named_leads_to_the_journal() {
        use std::os::unix::fs::MetadataExt;
        let [stream, other] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        let metadata = stream.metadata().unwrap();
        let name = format!("{}:{}", metadata.dev(), metadata.ino());
        assert!(is_journal(&name, &stream));
        assert!(!is_journal(&name, &other) && !is_journal("", &stream));
    }
}
