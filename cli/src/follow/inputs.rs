//! Files that go in with a job.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use brig_jailer::ids::Id;
use brig_proto::sizes::INLINE_FILE_MAX;
use brig_proto::v1::input_source::Source;
use brig_proto::v1::{InputSource, StreamedInput};

use crate::failure::Failure;

/// What begins the name of a record. A file whose name begins so is given as `./input:...`.
const RECORD: &[u8] = b"input:";

/// What goes in with a job.
#[derive(Debug)]
pub(crate) enum Input {
    File(InputFile),
    /// A record that the daemon keeps; without a name it has its own.
    Record {
        id: Id,
        name: String,
    },
}

impl Input {
    /// Reads `FILE`, `FILE=NAME`, `input:ID` or `input:ID=NAME`.
    pub(crate) fn open(argument: &OsStr) -> Result<Self, Failure> {
        match argument.as_bytes().strip_prefix(RECORD) {
            Some(record) => Self::record(&String::from_utf8_lossy(record)),
            None => InputFile::open(argument).map(Self::File),
        }
    }

    /// All that the options name.
    pub(crate) fn open_all(arguments: &[OsString]) -> Result<Vec<Self>, Failure> {
        arguments.iter().map(|argument| Self::open(argument)).collect()
    }

    fn record(text: &str) -> Result<Self, Failure> {
        let refuse = |what: &str| Failure::usage("input", format!("input:{text}: {what}"));
        let (id, name) = text.split_once('=').map_or((text, None), |(id, name)| (id, Some(name)));
        if name == Some("") {
            return Err(refuse("has an empty name behind the '='"));
        }
        let id = Id::parse(id).map_err(|error| {
            let hint = "input:ID names a record of `brig input list`; a file of that name is given as ./input:...";
            refuse(&error.to_string()).hint(hint)
        })?;
        let name = name.unwrap_or_default().to_owned();
        Ok(Self::Record { id, name })
    }

    /// Its place in a request whose stream brings the bytes of files.
    pub(crate) fn streamed(&self) -> InputSource {
        match self {
            Self::File(file) => file.source(Source::Streamed(StreamedInput {
                size_bytes: Some(file.size),
                ..StreamedInput::default()
            })),
            Self::Record { id, name } => named(id, name),
        }
    }

    /// Its place in a request that has the bytes of files in it.
    pub(crate) fn inline(&self) -> Result<InputSource, Failure> {
        let file = match self {
            Self::File(file) => file,
            Self::Record { id, name } => return Ok(named(id, name)),
        };
        if file.size > INLINE_FILE_MAX as u64 {
            let path = file.path.display();
            let message = format!("{path}: is larger than 512K; accepted in a kept session: at most 512K");
            let hint = "larger ones: brig put FILE SESSION:, or brig input put FILE and --input input:ID";
            return Err(Failure::usage("input", message).hint(hint));
        }
        Ok(file.source(Source::Data(file.read()?.into())))
    }
}

fn named(id: &Id, name: &str) -> InputSource {
    InputSource {
        name: name.to_owned(),
        mode: None,
        source: Some(Source::InputId(id.to_string())),
    }
}

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
    fn open(argument: &OsStr) -> Result<Self, Failure> {
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

    fn source(&self, source: Source) -> InputSource {
        InputSource {
            name: self.name.clone(),
            mode: None,
            source: Some(source),
        }
    }

    /// Reads all of it.
    fn read(&self) -> Result<Vec<u8>, Failure> {
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
    fn a_record_is_named_by_its_id_whatever_files_there_are() {
        let record = |argument: &str| match Input::open(argument.as_ref()) {
            Ok(Input::Record { id, name }) => (id.to_string(), name),
            other => panic!("{other:?}"),
        };
        assert_eq!(record("input:i1"), ("i1".to_owned(), String::new()));
        assert_eq!(record("input:i1=a=b.csv"), ("i1".to_owned(), "a=b.csv".to_owned()));
        for wrong in ["input:", "input:i1=", "input:A", "input:../x"] {
            let failure = Input::open(wrong.as_ref()).unwrap_err();
            assert_eq!((failure.exit, failure.field.as_deref()), (Exit::Usage, Some("input")));
        }
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("input:i1"), "x").unwrap();
        assert_eq!(opened(directory.path(), "./input:i1"), Ok(("input:i1".to_owned(), 1)));
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
