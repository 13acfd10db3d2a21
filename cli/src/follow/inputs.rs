//! Files that go in with a job.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// An opened input; its bytes are read while they are sent.
#[derive(Debug)]
pub(crate) struct InputFile {
    /// The name it shall have in the job's working directory.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    file: File,
    pub(crate) size: u64,
}

impl InputFile {
    /// Opens what `FILE` or `FILE=NAME` says.
    ///
    /// A file may have a `=` in its own name: if a file of the whole name exists, that is meant.
    pub(crate) fn open(argument: &OsStr) -> Result<Self, Failure> {
        let (path, name) = split(argument);
        let refuse = |what: String| Failure::usage("input", format!("{}: {what}", path.display()));
        let file = File::open(path).map_err(|error| refuse(error.to_string()))?;
        let metadata = file.metadata().map_err(|error| refuse(error.to_string()))?;
        if !metadata.is_file() {
            return Err(refuse(
                "not a regular file; put a directory into an archive first".to_owned(),
            ));
        }
        let name = name
            .or_else(|| path.file_name())
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.is_empty() {
            return Err(refuse("has an empty name behind the '='".to_owned()));
        }
        Ok(Self {
            name,
            path: path.to_path_buf(),
            file,
            size: metadata.len(),
        })
    }

    /// Reads all of it.
    pub(crate) fn read(&self) -> Result<Vec<u8>, Failure> {
        self.read_at(0, usize::try_from(self.size).unwrap_or(usize::MAX))
    }

    /// Reads a part; the place is not the file's own, so that a request can be sent again.
    pub(crate) fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>, Failure> {
        let mut data = vec![0; length];
        match self.file.read_exact_at(&mut data, offset) {
            Ok(()) => Ok(data),
            Err(error) => {
                let message = format!("{}: {error} (was it changed meanwhile?)", self.path.display());
                Err(Failure::usage("input", message))
            }
        }
    }
}

fn split(argument: &OsStr) -> (&Path, Option<&OsStr>) {
    let whole = Path::new(argument);
    let bytes = argument.as_bytes();
    match bytes.iter().rposition(|byte| *byte == b'=') {
        Some(at) if !whole.exists() => (
            Path::new(OsStr::from_bytes(&bytes[..at])),
            Some(OsStr::from_bytes(&bytes[at + 1..])),
        ),
        _ => (whole, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn opened(directory: &Path, argument: &str) -> Result<(String, u64), Failure> {
        let input = InputFile::open(directory.join(argument).as_os_str())?;
        Ok((input.name, input.size))
    }

    #[test]
    fn an_input_keeps_its_name_or_gets_another() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("Q3 sales.csv"), "a,b\n").unwrap();
        assert_eq!(
            opened(directory.path(), "Q3 sales.csv"),
            Ok(("Q3 sales.csv".to_owned(), 4))
        );
        assert_eq!(
            opened(directory.path(), "Q3 sales.csv=in.csv"),
            Ok(("in.csv".to_owned(), 4))
        );
    }

    #[test]
    fn a_name_with_an_equals_sign_is_found() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a=b"), "x").unwrap();
        assert_eq!(opened(directory.path(), "a=b"), Ok(("a=b".to_owned(), 1)));
        assert_eq!(opened(directory.path(), "a=b=c"), Ok(("c".to_owned(), 1)));
    }

    #[test]
    fn what_is_not_a_readable_file_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("x"), "").unwrap();
        for wrong in ["missing", "", "x="] {
            let failure = opened(directory.path(), wrong).unwrap_err();
            assert_eq!((failure.exit, failure.field.as_deref()), (Exit::Usage, Some("input")));
        }
    }
}
