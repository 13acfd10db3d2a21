//! What a job is: code, or a program.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use brig_proto::sizes::CODE_MAX;

use super::options::RunOptions;
use crate::failure::Failure;

/// What runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Work {
    /// The name is what tracebacks show; code without a file has none.
    Code {
        source: String,
        filename: Option<String>,
        arguments: Vec<String>,
    },
    Command {
        argv: Vec<OsString>,
    },
}

impl Work {
    /// Reads what the options say runs; `stdin` is read for `-`.
    pub(crate) fn from_options(options: &RunOptions, stdin: impl Read) -> Result<Self, Failure> {
        let RunOptions {
            code, words, escaped, ..
        } = options;
        if let Some(code) = code {
            let source = code_text(code.as_bytes().to_vec(), "-c")?;
            return Ok(Self::Code {
                source,
                filename: None,
                arguments: texts(words)?,
            });
        }
        match words.split_first() {
            None => Err(Failure::usage(
                "FILE",
                "nothing to run; accepted: FILE, -, -c CODE, or -- PROGRAM",
            )),
            Some(_) if *escaped => Ok(Self::Command { argv: words.clone() }),
            Some((file, arguments)) => Ok(Self::Code {
                source: read_script(file, options, stdin)?,
                filename: name(file),
                arguments: texts(arguments)?,
            }),
        }
    }
}

fn read_script(file: &OsStr, options: &RunOptions, stdin: impl Read) -> Result<String, Failure> {
    let shown = file.to_string_lossy();
    let read = if file == "-" {
        if options.job.stdin.as_deref() == Some(Path::new("-")) {
            return Err(Failure::usage(
                "stdin",
                "standard input is the code already; it can't be the job's input too",
            ));
        }
        read_bounded(stdin)
    } else {
        std::fs::File::open(file).and_then(read_bounded)
    };
    code_text(
        read.map_err(|error| Failure::usage("FILE", format!("{shown}: {error}")))?,
        &shown,
    )
}

/// Reads one byte more than is allowed at most, so that too much is noticed and never held.
fn read_bounded(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(CODE_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn code_text(bytes: Vec<u8>, shown: &str) -> Result<String, Failure> {
    if bytes.len() > CODE_MAX {
        let message = format!("{shown}: the code is larger than 1M");
        return Err(Failure::usage("code", message).hint("put data into files and give them by --input"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::usage("code", format!("{shown}: the code is not UTF-8 (at byte {at})"))
    })
}

/// The name of a script inside the job: the last part of its path.
fn name(file: &OsStr) -> Option<String> {
    let name = Path::new(file).file_name().filter(|_| file != "-")?;
    Some(name.to_string_lossy().into_owned())
}

fn texts(words: &[OsString]) -> Result<Vec<String>, Failure> {
    words
        .iter()
        .map(|word| match word.to_str() {
            Some(text) => Ok(text.to_owned()),
            None => Err(Failure::usage(
                "argv",
                format!("{}: an argument of code must be UTF-8", word.display()),
            )),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Brig, Command};
    use crate::exit::Exit;
    use crate::options::Format;

    fn options(words: &[&str]) -> RunOptions {
        let line: Vec<OsString> = ["brig", "run"].iter().chain(words).map(OsString::from).collect();
        match Brig::read(&line).unwrap().command {
            Command::Run(options) => *options,
            other => panic!("{other:?}"),
        }
    }

    fn work(words: &[&str]) -> Result<Work, Failure> {
        Work::from_options(&options(words), &b"print(1)"[..])
    }

    fn code(source: &str, filename: Option<&str>, arguments: &[&str]) -> Work {
        let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
        Work::Code {
            source: source.to_owned(),
            filename: filename.map(str::to_owned),
            arguments,
        }
    }

    fn command(argv: &[&str]) -> Work {
        Work::Command {
            argv: argv.iter().map(OsString::from).collect(),
        }
    }

    #[test]
    fn code_takes_the_options_behind_it_and_arguments() {
        assert_eq!(work(&["-c", "1+1", "--json"]).unwrap(), code("1+1", None, &[]));
        assert_eq!(options(&["-c", "1+1", "--json"]).output.format.format(), Format::Json);
        assert_eq!(
            work(&["-c", "x", "a", "--json"]).unwrap(),
            code("x", None, &["a", "--json"])
        );
        assert_eq!(
            work(&["-c", "x", "--", "-a", "b"]).unwrap(),
            code("x", None, &["-a", "b"])
        );
        assert_eq!(work(&["-c", "-1"]).unwrap(), code("-1", None, &[]));
    }

    #[test]
    fn a_file_takes_everything_behind_it_as_arguments() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("job.py");
        std::fs::write(&file, "pass").unwrap();
        let file = file.to_str().unwrap();
        let named = Some("job.py");
        assert_eq!(work(&[file]).unwrap(), code("pass", named, &[]));
        assert_eq!(
            work(&["-q", file, "--out", "x"]).unwrap(),
            code("pass", named, &["--out", "x"])
        );
        assert_eq!(
            work(&[file, "a", "--", "-b"]).unwrap(),
            code("pass", named, &["a", "--", "-b"])
        );
    }

    #[test]
    fn a_dash_is_standard_input() {
        assert_eq!(work(&["-", "a"]).unwrap(), code("print(1)", None, &["a"]));
        let both = work(&["--stdin", "-", "-"]).unwrap_err();
        assert_eq!((both.exit, both.field.as_deref()), (Exit::Usage, Some("stdin")));
    }

    #[test]
    fn a_program_stands_behind_two_dashes() {
        assert_eq!(
            work(&["--", "ls", "-l", "--", "x"]).unwrap(),
            command(&["ls", "-l", "--", "x"])
        );
        assert_eq!(
            work(&["--json", "--", "python3", "--json"]).unwrap(),
            command(&["python3", "--json"])
        );
    }

    #[test]
    fn nothing_to_run_is_a_usage_error() {
        assert_eq!(work(&[]).unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn code_that_is_too_large_or_not_text_is_refused() {
        let large = Work::from_options(&options(&["-"]), io::repeat(b'#')).unwrap_err();
        assert_eq!(large.message, "-: the code is larger than 1M");
        let binary = Work::from_options(&options(&["-"]), &b"ab\xff"[..]).unwrap_err();
        assert_eq!(binary.message, "-: the code is not UTF-8 (at byte 2)");
    }
}
