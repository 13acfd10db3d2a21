//! Names that become cgroup directories, file names and DNS labels: checked once, where they enter.
#![forbid(unsafe_code)]

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names a session, an execution or a request.
///
/// Matches `^[a-z][a-z0-9]{0,39}$`, so that it can stand in a path, a cgroup name and a DNS label unescaped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id(String);

/// Says why a text is not an [`Id`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an id: 1 to 40 characters, a lower-case letter first, then lower-case letters and digits")]
pub struct InvalidId(String);

impl Id {
    /// Checks a text and keeps it.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        let bytes = text.as_bytes();
        let valid = (1..=40).contains(&bytes.len())
            && bytes[0].is_ascii_lowercase()
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if valid {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidId(text.chars().take(60).collect()))
        }
    }

    /// Gives the text back.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Id {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        Self::parse(&text)
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_dns_labels_without_dashes() {
        let longest = format!("a{}", "9".repeat(39));
        for good in ["a", "s0", "abc123", longest.as_str()] {
            assert_eq!(Id::parse(good).map(String::from), Ok(good.to_owned()));
        }
        let too_long = format!("a{}", "9".repeat(40));
        for bad in ["", "0a", "A", "a-b", "a/b", "..", "a\n", "\u{e4}", too_long.as_str()] {
            assert_eq!(Id::parse(bad), Err(InvalidId(bad.to_owned())));
        }
    }
}
