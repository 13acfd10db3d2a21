//! Entries of the journal, with their fields.
//!
//! The crate `tracing-journald` finds the socket by its path for every entry, which a jailer can't once its mount
//! namespace hides /run, waits for a journal that does not read, and passes control characters on. This one keeps a
//! connected socket, never waits, and escapes them; what the journal had no room for is counted, and told with the next
//! entry that it takes.
//!
//! Source: systemd, "Native Journal Protocol"; systemd.journal-fields(7).

use std::fmt::Write as _;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::log::{VALUE_MAX, clean};

/// The longest message, in characters: with all its fields an entry fits one datagram.
const MESSAGE_MAX: usize = 4 * VALUE_MAX;
/// Fields of one entry, those of its spans included; ours have a handful.
const FIELDS_MAX: usize = 32;

/// The way to the journal.
#[derive(Debug)]
pub(super) struct Journal {
    socket: UnixDatagram,
    program: String,
    /// Entries that the journal had no room for.
    lost: AtomicU64,
}

/// Names and cleaned values of a span or an event.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    values: Vec<(String, String)>,
}

impl Journal {
    pub(super) fn connect(path: &Path, program: &str) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            program: program.to_owned(),
            lost: AtomicU64::new(0),
        })
    }

    fn send(&self, metadata: &Metadata<'_>, fields: &Fields) {
        let mut entry = self.entry(metadata, fields);
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            put(&mut entry, "BRIG_LOST_ENTRIES", &lost.to_string());
        }
        if self.socket.send(&entry).is_err() {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }

    fn entry(&self, metadata: &Metadata<'_>, fields: &Fields) -> Vec<u8> {
        let mut text = fields.message.clone();
        for (name, value) in &fields.values {
            // Writing to a String can't fail.
            let _ = write!(text, "{}{name}={value}", if text.is_empty() { "" } else { " " });
        }
        let mut entry = Vec::with_capacity(512);
        put(&mut entry, "MESSAGE", &clean(&text, MESSAGE_MAX));
        put(&mut entry, "PRIORITY", priority(*metadata.level()));
        put(&mut entry, "SYSLOG_IDENTIFIER", &self.program);
        put(&mut entry, "BRIG_TARGET", metadata.target());
        if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
            put(&mut entry, "CODE_FILE", file);
            put(&mut entry, "CODE_LINE", &line.to_string());
        }
        for (name, value) in &fields.values {
            put(&mut entry, &format!("BRIG_{}", name.to_ascii_uppercase()), value);
        }
        entry
    }
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for Journal {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            fields.name_id_after(span.name());
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(of_span) = span.extensions().get::<Fields>() {
                fields.values.extend(of_span.values.iter().cloned());
            }
        }
        fields.values.truncate(FIELDS_MAX);
        self.send(event.metadata(), &fields);
    }
}

impl Fields {
    /// The id of what a span is about is told by what it is: `execution{id=..}` is `BRIG_EXECUTION`.
    fn name_id_after(&mut self, span: &str) {
        for (name, _) in &mut self.values {
            if name == "id" {
                *name = span.to_owned();
            }
        }
    }

    fn put(&mut self, field: &Field, value: &str) {
        let value = clean(value, VALUE_MAX);
        if field.name() == "message" {
            self.message = value;
        } else if self.values.len() < FIELDS_MAX {
            let letters = field
                .name()
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
            self.values.push((letters.collect(), value));
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.put(field, &format!("{value:?}"));
    }
}

/// Appends a field. Cleaned values have no line end, so that the simple form will do.
fn put(entry: &mut Vec<u8>, name: &str, value: &str) {
    entry.extend_from_slice(format!("{name}={}\n", value.replace('\n', " ")).as_bytes());
}

/// Source: syslog(3).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn journal(directory: &Path) -> (UnixDatagram, Journal) {
        let path = directory.join("journal");
        let reader = UnixDatagram::bind(&path).unwrap();
        reader.set_nonblocking(true).unwrap();
        (reader, Journal::connect(&path, "brigd").unwrap())
    }

    fn entry(reader: &UnixDatagram) -> Vec<String> {
        let mut buffer = vec![0; 256 * 1024];
        let length = reader.recv(&mut buffer).unwrap();
        let text = String::from_utf8(buffer[..length].to_vec()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn an_entry_has_the_fields_of_its_event_and_its_spans() {
        let directory = tempfile::tempdir().unwrap();
        let (reader, journal) = journal(directory.path());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(journal), || {
            let span = tracing::info_span!("execution", id = "e1", session = %"s1");
            let _in = span.enter();
            tracing::warn!(status = "lost", ran_ms = 12, "execution finished");
        });
        let entry = entry(&reader);
        for expected in [
            "MESSAGE=execution finished status=lost ran_ms=12 execution=e1 session=s1",
            "PRIORITY=4",
            "SYSLOG_IDENTIFIER=brigd",
            "BRIG_STATUS=lost",
            "BRIG_RAN_MS=12",
            "BRIG_EXECUTION=e1",
            "BRIG_SESSION=s1",
        ] {
            assert!(entry.iter().any(|line| line == expected), "{expected} in {entry:?}");
        }
    }

    #[test]
    fn a_value_can_neither_add_a_field_nor_control_a_terminal() {
        let directory = tempfile::tempdir().unwrap();
        let (reader, journal) = journal(directory.path());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(journal), || {
            let name = "x\nPRIORITY=0\n_UID=0\u{1b}]0;\u{7}";
            tracing::info!(%name, path = name, "{name}");
        });
        let entry = entry(&reader);
        assert_eq!(entry.iter().filter(|line| line.starts_with("PRIORITY=")).count(), 1);
        assert!(!entry.iter().any(|line| line.starts_with("_UID")), "{entry:?}");
        assert!(!entry.concat().chars().any(char::is_control), "{entry:?}");
    }

    #[test]
    fn a_journal_that_does_not_read_holds_nobody_up_and_hears_what_it_missed() {
        let directory = tempfile::tempdir().unwrap();
        let (reader, journal) = journal(directory.path());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(journal), || {
            for number in 0..5000 {
                tracing::info!(number, "flood");
            }
            let mut heard = 0;
            while reader.recv(&mut [0; 4096]).is_ok() {
                heard += 1;
            }
            assert!((1..5000).contains(&heard), "{heard}");
            tracing::info!("after");
            let lost = format!("BRIG_LOST_ENTRIES={}", 5000 - heard);
            assert!(entry(&reader).contains(&lost));
        });
    }
}
