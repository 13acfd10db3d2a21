//! What happens to the files that an execution leaves.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use crate::units::ByteSize;

/// What kind of thing an artifact is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    Chart,
    Data,
    Report,
    Code,
    Executable,
    Archive,
    Other,
}

impl Class {
    /// All classes, in the order of the policy file.
    pub const ALL: [Class; 7] = [
        Class::Chart,
        Class::Data,
        Class::Report,
        Class::Code,
        Class::Executable,
        Class::Archive,
        Class::Other,
    ];

    /// The name as policies and results show it.
    pub fn name(self) -> &'static str {
        match self {
            Class::Chart => "chart",
            Class::Data => "data",
            Class::Report => "report",
            Class::Code => "code",
            Class::Executable => "executable",
            Class::Archive => "archive",
            Class::Other => "other",
        }
    }
}

/// What is done with an artifact of a class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handling {
    /// Handed out, and shown at once.
    Preview,
    /// Handed out.
    Download,
    /// Handed out after somebody has said yes.
    #[default]
    Review,
}

impl Handling {
    /// The name as policies and results show it.
    pub fn name(self) -> &'static str {
        match self {
            Handling::Preview => "preview",
            Handling::Download => "download",
            Handling::Review => "review",
        }
    }
}

/// The rule of one class. A class that a policy does not mention is reviewed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    pub handling: Handling,
    /// Endings, with the dot and in lower case, that a file of this class may have; empty: any.
    pub extensions: Vec<String>,
    /// Size of one artifact of this class; absent: `limits.artifact_bytes`.
    pub max_bytes: Option<ByteSize>,
    /// Above this size a preview becomes a download.
    pub preview_max_bytes: Option<ByteSize>,
}

impl Rule {
    /// Tells what is done with an artifact of this size.
    pub fn handling_of(&self, size_bytes: u64) -> Handling {
        match (self.handling, self.preview_max_bytes) {
            (Handling::Preview, Some(max)) if size_bytes > max.bytes() => Handling::Download,
            (handling, _) => handling,
        }
    }
}

/// A command that looks at each artifact, in a session of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scanner {
    /// The policy of that session, whose template has the command.
    pub policy: String,
    /// Program and arguments; the artifact is `artifact` in the working directory.
    pub command: Vec<String>,
    #[serde(default)]
    pub found: Found,
}

/// What becomes of an artifact in which the scanner found something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// It waits for review.
    #[default]
    Review,
    /// It never leaves.
    Refuse,
}

/// The rules of all classes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Artifacts {
    pub chart: Rule,
    pub data: Rule,
    pub report: Rule,
    pub code: Rule,
    pub executable: Rule,
    pub archive: Rule,
    pub other: Rule,
    pub scanner: Option<Scanner>,
}

impl Artifacts {
    /// Gives the rule of a class.
    pub fn rule(&self, class: Class) -> &Rule {
        match class {
            Class::Chart => &self.chart,
            Class::Data => &self.data,
            Class::Report => &self.report,
            Class::Code => &self.code,
            Class::Executable => &self.executable,
            Class::Archive => &self.archive,
            Class::Other => &self.other,
        }
    }

    /// Finds the class that lists the ending of a file name, by its last dot and without regard to case.
    pub fn class_of_name(&self, name: &str) -> Option<Class> {
        let extension = name[name.rfind('.')?..].to_ascii_lowercase();
        Class::ALL
            .into_iter()
            .find(|class| self.rule(*class).extensions.contains(&extension))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_preview_becomes_a_download_and_a_review_stays_one() {
        let max = Some(ByteSize::from_bytes(10));
        let preview = Rule {
            handling: Handling::Preview,
            preview_max_bytes: max,
            ..Rule::default()
        };
        assert_eq!(
            [preview.handling_of(10), preview.handling_of(11)],
            [Handling::Preview, Handling::Download]
        );
        assert_eq!(Rule::default().handling_of(u64::MAX), Handling::Review);
    }

    #[test]
    fn the_last_ending_decides_the_class() {
        let chart = Rule {
            extensions: vec![".png".into()],
            ..Rule::default()
        };
        let artifacts = Artifacts {
            chart,
            ..Artifacts::default()
        };
        let classes = ["a.png", "A.PNG", "a.png.sh", "png", "a.", ".png", ""].map(|name| artifacts.class_of_name(name));
        let chart = Some(Class::Chart);
        assert_eq!(classes, [chart, chart, None, None, None, chart, None]);
    }
}
