//! Where downloaded bytes go: standard output, or a file that gets its name when it is whole.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::Format;

/// Where the bytes go.
pub(crate) enum Target {
    Stdout(io::Stdout),
    File(NamedTempFile, PathBuf),
}

impl Target {
    /// Opens `to`; in a directory of that name if there is one, under `name`; - is standard output.
    pub(crate) fn open(to: &Path, name: &str, force: bool, format: Format) -> Result<Self, Failure> {
        if to == Path::new("-") {
            if format != Format::Text {
                let message = "stdout can't have both the file and a document; give a file to write to";
                return Err(Failure::usage("--format", message));
            }
            return Ok(Self::Stdout(io::stdout()));
        }
        let mut path = to.to_owned();
        if path.is_dir() {
            path.push(name);
        }
        if !force && path.symlink_metadata().is_ok() {
            let message = format!("{}: is there already; --force replaces it", path.display());
            return Err(Failure::usage("FILE", message));
        }
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let file = NamedTempFile::new_in(directory.unwrap_or(Path::new(".")));
        let file = file.map_err(|error| unwritable(&path, &error))?;
        Ok(Self::File(file, path))
    }

    /// Adds bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Stdout(stdout) => stdout
                .write_all(bytes)
                .map_err(|error| unwritable(Path::new("-"), &error)),
            Self::File(file, path) => file.write_all(bytes).map_err(|error| unwritable(path, &error)),
        }
    }

    /// Gives the file its name.
    pub(crate) fn keep(self, force: bool) -> Result<(), Failure> {
        match self {
            Self::Stdout(mut stdout) => stdout.flush().map_err(|error| unwritable(Path::new("-"), &error)),
            Self::File(file, path) => {
                let kept = if force {
                    file.persist(&path)
                } else {
                    file.persist_noclobber(&path)
                };
                kept.map(drop).map_err(|error| unwritable(&path, &error.error))
            }
        }
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("{}: {error}", path.display()))
}
