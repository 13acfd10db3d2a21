//! What is wrong in a configuration file, and where: file, line, key, value, and what would be accepted.
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One thing that is wrong in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub file: PathBuf,
    /// Counted from 1; absent where no line is at fault, as for a missing key.
    pub line: Option<usize>,
    /// Path of the key, such as `limits.timeout.max`; empty where the file as a whole is at fault.
    pub key: String,
    /// The value and what would be accepted.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if self.key.is_empty() {
            write!(f, ": {}", self.message)
        } else {
            write!(f, ": {}: {}", self.key, self.message)
        }
    }
}

/// A TOML file's text with the places of its keys.
#[derive(Debug)]
pub(crate) struct Document<'t> {
    file: &'t Path,
    text: &'t str,
    /// Every key of the file, outer before inner.
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    path: String,
    name: Range<usize>,
    value: Range<usize>,
}

impl<'t> Document<'t> {
    /// Parses a text into a type, and keeps the places of its keys for what is found wrong later.
    pub(crate) fn parse<T: DeserializeOwned>(file: &'t Path, text: &'t str) -> Result<(T, Self), Problem> {
        let mut document = Self {
            file,
            text,
            keys: Vec::new(),
        };
        let root = DeTable::parse(text).map_err(|error| document.explain(&error))?;
        collect_table(root.get_ref(), "", &mut document.keys);
        let value = toml::from_str(text).map_err(|error| document.explain(&error))?;
        Ok((value, document))
    }

    /// Tells what is wrong with a key.
    pub(crate) fn problem(&self, key: &str, message: impl Into<String>) -> Problem {
        // A key with a dotted rest (`limits.timeout.max` of `timeout = "30s"`) is at the line of what is written.
        let written = self
            .keys
            .iter()
            .filter(|known| key == known.path || key.starts_with(&format!("{}.", known.path)));
        let line = written
            .max_by_key(|known| known.path.len())
            .map(|known| self.line_of(known.name.start));
        Problem {
            file: self.file.to_owned(),
            line,
            key: key.to_owned(),
            message: message.into(),
        }
    }

    fn explain(&self, error: &toml::de::Error) -> Problem {
        let line = error.span().map(|span| self.line_of(span.start));
        let key = error.span().and_then(|span| self.key_at(&span)).unwrap_or_default();
        let message = error.message().replace('\n', ", ");
        let message = match unknown_key(&message) {
            Some(found) => format!("{message}; did you mean `{found}`?"),
            None => message,
        };
        Problem {
            file: self.file.to_owned(),
            line,
            key,
            message,
        }
    }

    /// Finds the innermost key whose name or value covers a place.
    fn key_at(&self, place: &Range<usize>) -> Option<String> {
        let covers = |range: &Range<usize>| range.start <= place.start && place.end <= range.end;
        self.keys
            .iter()
            .rev()
            .find(|key| covers(&key.name) || covers(&key.value))
            .map(|key| key.path.clone())
    }

    fn line_of(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
    }
}

fn collect_table(table: &DeTable<'_>, above: &str, keys: &mut Vec<Key>) {
    for (name, value) in table {
        let path = if above.is_empty() {
            name.get_ref().to_string()
        } else {
            format!("{above}.{}", name.get_ref())
        };
        keys.push(Key {
            path: path.clone(),
            name: name.span(),
            value: value.span(),
        });
        collect_value(value, &path, keys);
    }
}

fn collect_value(value: &Spanned<DeValue<'_>>, path: &str, keys: &mut Vec<Key>) {
    match value.get_ref() {
        DeValue::Table(table) => collect_table(table, path, keys),
        DeValue::Array(array) => {
            for (index, element) in array.iter().enumerate() {
                let path = format!("{path}[{index}]");
                keys.push(Key {
                    path: path.clone(),
                    name: element.span(),
                    value: element.span(),
                });
                collect_value(element, &path, keys);
            }
        }
        _ => {}
    }
}

/// Reads serde's message about an unknown key or value, and finds the nearest that would be accepted.
fn unknown_key(message: &str) -> Option<&str> {
    let rest = message
        .strip_prefix("unknown field `")
        .or_else(|| message.strip_prefix("unknown variant `"))?;
    let (unknown, rest) = rest.split_once('`')?;
    // What is accepted stands in backticks: every second piece of the rest.
    nearest(unknown, rest.split('`').skip(1).step_by(2))
}

/// Finds the name that was probably meant: at most a third of its letters differ.
pub(crate) fn nearest<'n>(wrong: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let (distance, name) = names.map(|name| (distance(wrong, name), name)).min()?;
    (distance <= name.len().max(3) / 3).then_some(name)
}

/// Counts the letters to change, add, drop or swap with the next one (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut next = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let change = row[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            next[j] = change.min(row[j] + 1).min(next[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                next[j] = next[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut row, next);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_understood_and_another_word_is_not() {
        let names = ["timeout", "memory", "cpus", "disk"];
        let found = ["tiemout", "timeouts", "memroy", "cpu", "bandwidth", "x", ""]
            .map(|wrong| nearest(wrong, names.into_iter()));
        assert_eq!(
            found,
            [
                Some("timeout"),
                Some("timeout"),
                Some("memory"),
                Some("cpus"),
                None,
                None,
                None
            ]
        );
    }
}
