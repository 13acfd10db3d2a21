//! What can go wrong with a template or an image, by who has to act.

use std::io;
use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a template was not built, or an image not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such template file.
    #[error("unknown template {name:?}{suggestion}; there are: {}", list(.known))]
    UnknownTemplate {
        name: String,
        known: Vec<String>,
        suggestion: String,
    },
    /// There is no such image in the store.
    #[error("unknown image {name:?}; there are: {}", list(.known))]
    UnknownImage { name: String, known: Vec<String> },
    /// A template or lock file says something it may not.
    #[error("{}: {message}", file.display())]
    Invalid { file: PathBuf, message: String },
    /// This host lacks something.
    #[error("{problem}\nhint: {mend}")]
    Host { problem: String, mend: String },
    /// The packages to be had are not those of the lock.
    #[error("{} does not hold: {}", file.display(), .differences.join("; "))]
    Locked { file: PathBuf, differences: Vec<String> },
    /// A file of the tree would give more rights to who runs it.
    #[error("privileged files are left in the tree: {}", list(.paths))]
    Privileged { paths: Vec<String> },
    /// A program of the build failed.
    #[error("build step {step:?} failed: {message}\nhint: the whole log is in {}", log.display())]
    Step {
        step: String,
        message: String,
        log: PathBuf,
    },
    /// A call to the system failed.
    #[error("{what}: {error}")]
    Io { what: String, error: io::Error },
}

impl Error {
    pub(crate) fn invalid(file: &Path, message: impl Into<String>) -> Self {
        Self::Invalid {
            file: file.to_owned(),
            message: message.into(),
        }
    }
}

/// Says what was being done when a call to the system failed.
pub(crate) trait Doing<T> {
    fn doing(self, verb: &str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, verb: &str, path: &Path) -> Result<T> {
        self.map_err(|error| Error::Io {
            what: format!("{verb} {}", path.display()),
            error: error.into(),
        })
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}
