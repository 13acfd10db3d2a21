//! Reading configuration that decides about privileges: who may have written it, and how much of it there may be.
#![forbid(unsafe_code)]

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::problem::{Problem, nearest};

/// The largest configuration file that is read, in bytes; ours are a few KiB.
const FILE_MAX: u64 = 1 << 20;
/// Write permission of group and others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Whose files are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Only what root alone can change: the file, its folder, and every folder above.
    RootOwned,
    /// Any file: for checks that decide nothing.
    Any,
}

/// Why configuration could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Somebody but root could change it.
    #[error("{}: {why}; only root may be able to change it", .path.display())]
    Untrusted { path: PathBuf, why: String },
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
    #[error("no {what} named {name:?}{}; {}", suggestion(.name, .existing), existing_list(.existing, .mend))]
    Unknown {
        what: &'static str,
        name: String,
        existing: Vec<String>,
        mend: String,
    },
    #[error("no {what} found in {}", .folders.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", "))]
    Empty { what: &'static str, folders: Vec<PathBuf> },
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

fn suggestion(name: &str, existing: &[String]) -> String {
    let found = nearest(name, existing.iter().map(String::as_str));
    found
        .map(|found| format!(", did you mean {found:?}?"))
        .unwrap_or_default()
}

fn existing_list(existing: &[String], mend: &str) -> String {
    let list = if existing.is_empty() {
        "there is none".to_owned()
    } else {
        format!("there are: {}", existing.join(", "))
    };
    if mend.is_empty() {
        list
    } else {
        format!("{list}; {mend}")
    }
}

/// Reads a text file, if the trust allows it.
pub(crate) fn read_text(path: &Path, trust: Trust) -> Result<String, LoadError> {
    let failed = |source| LoadError::Io {
        path: path.to_owned(),
        source,
    };
    let real = fs::canonicalize(path).map_err(failed)?;
    if let Some(folder) = real.parent() {
        check_folder(folder, trust)?;
    }
    let file = File::open(&real).map_err(failed)?;
    // Looked at by descriptor, so that what is checked is what is read.
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(failed(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        )));
    }
    check_owner(&real, &meta, trust)?;
    let mut text = String::new();
    file.take(FILE_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_MAX {
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 1 MiB")));
    }
    Ok(text)
}

/// Lists `NAME.toml` files of a folder by name; a folder that does not exist is empty.
pub(crate) fn list(folder: &Path, trust: Trust) -> Result<Vec<(String, PathBuf)>, LoadError> {
    let failed = |source| LoadError::Io {
        path: folder.to_owned(),
        source,
    };
    let real = match fs::canonicalize(folder) {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    check_folder(&real, trust)?;
    let mut found = Vec::new();
    for entry in fs::read_dir(&real).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if path.extension().is_some_and(|extension| extension == "toml") && !name.starts_with('.') {
            found.push((name.to_owned(), path));
        }
    }
    found.sort();
    Ok(found)
}

/// Checks a folder and all above it; the path has no symbolic links.
pub(crate) fn check_folder(folder: &Path, trust: Trust) -> Result<(), LoadError> {
    for (depth, path) in folder.ancestors().enumerate() {
        let meta = fs::symlink_metadata(path).map_err(|source| LoadError::Io {
            path: path.to_owned(),
            source,
        })?;
        // In a sticky folder (/tmp) nobody but its owner can replace an entry, but anybody can add one: good enough
        // for the folders above, not for the folder that is listed.
        if depth > 0 && meta.mode() & STICKY != 0 && meta.uid() == 0 {
            continue;
        }
        check_owner(path, &meta, trust)?;
    }
    Ok(())
}

fn check_owner(path: &Path, meta: &Metadata, trust: Trust) -> Result<(), LoadError> {
    let untrusted = |why| {
        Err(LoadError::Untrusted {
            path: path.to_owned(),
            why,
        })
    };
    match trust {
        Trust::Any => Ok(()),
        Trust::RootOwned if meta.uid() != 0 => untrusted(format!("owned by uid {}", meta.uid())),
        Trust::RootOwned if meta.mode() & WRITABLE_BY_OTHERS != 0 => {
            untrusted(format!("writable by group or others (mode {:o})", meta.mode() & 0o7777))
        }
        Trust::RootOwned => Ok(()),
    }
}
