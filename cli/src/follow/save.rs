//! Writes artifacts below the directory of `--out`, and nowhere else.
//!
//! The paths come from a jail. They are checked again here, every directory on the way is opened without following a
//! link, and a file is written under a name of ours and moved into place when it is complete: what stood at its path
//! before, a link perhaps, is replaced and not written through.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

/// Why an artifact was not saved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    /// The path is not one below the directory.
    #[error("path {path:?} of an artifact is refused: {why}")]
    Path { path: String, why: &'static str },
    /// A call failed.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The bytes that came are not the artifact that was told of.
    #[error("{}: got {got}, expected {expected}", path.display())]
    Content {
        path: PathBuf,
        got: String,
        expected: String,
    },
}

/// The directory of `--out`.
#[derive(Debug)]
pub(crate) struct OutDirectory {
    directory: OwnedFd,
    path: PathBuf,
}

impl OutDirectory {
    /// Makes the directory if it is not there, and opens it. Its own path is the user's and may hold links.
    pub(crate) fn open(path: &Path) -> Result<Self, SaveError> {
        let failed = |source| SaveError::Io {
            path: path.to_path_buf(),
            source,
        };
        std::fs::create_dir_all(path).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        Ok(Self {
            directory,
            path: path.to_path_buf(),
        })
    }

    /// Begins a file at a path relative to the directory.
    pub(crate) fn begin(&self, relative: &[u8]) -> Result<PartialFile, SaveError> {
        let (parents, name) = components(relative)?;
        let path = self.path.join(OsStr::from_bytes(relative));
        let failed = |errno: Errno| SaveError::Io {
            path: path.clone(),
            source: errno.into(),
        };
        let mut directory = self.directory.try_clone().map_err(|source| SaveError::Io {
            path: path.clone(),
            source,
        })?;
        for parent in parents {
            directory = enter(&directory, parent).map_err(failed)?;
        }
        let (file, temporary) = create(&directory).map_err(failed)?;
        let name = name.to_os_string();
        Ok(PartialFile {
            directory,
            file,
            temporary: Some(temporary),
            name,
            path,
            size: 0,
            hash: Sha256::new(),
        })
    }
}

/// A file that is not complete yet; dropped before `finish`, it is removed.
#[derive(Debug)]
pub(crate) struct PartialFile {
    directory: OwnedFd,
    file: File,
    temporary: Option<OsString>,
    name: OsString,
    path: PathBuf,
    size: u64,
    hash: Sha256,
}

impl PartialFile {
    /// Adds bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), SaveError> {
        self.file.write_all(bytes).map_err(|source| SaveError::Io {
            path: self.path.clone(),
            source,
        })?;
        self.hash.update(bytes);
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Moves the file into its place and says where that is. Size and hash must be those of the artifact.
    pub(crate) fn finish(mut self, size: u64, sha256: &str) -> Result<PathBuf, SaveError> {
        if self.size != size {
            return Err(self.content(format!("{} bytes", self.size), format!("{size} bytes")));
        }
        let hash = hex(&std::mem::take(&mut self.hash).finalize());
        if hash != sha256 {
            return Err(self.content(format!("sha256 {hash}"), format!("sha256 {sha256}")));
        }
        let temporary = self.temporary.as_deref().unwrap_or_default();
        rustix::fs::renameat(&self.directory, temporary, &self.directory, &self.name).map_err(|errno| {
            SaveError::Io {
                path: self.path.clone(),
                source: errno.into(),
            }
        })?;
        self.temporary = None;
        Ok(std::mem::take(&mut self.path))
    }

    fn content(&self, got: String, expected: String) -> SaveError {
        SaveError::Content {
            path: self.path.clone(),
            got,
            expected,
        }
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            // Nothing better can be done about a file that can't be removed.
            rustix::fs::unlinkat(&self.directory, &temporary, AtFlags::empty()).ok();
        }
    }
}

/// Splits a path into its directories and its name, if it names a file below the directory.
fn components(path: &[u8]) -> Result<(Vec<&OsStr>, &OsStr), SaveError> {
    let refuse = |why| SaveError::Path {
        path: String::from_utf8_lossy(path).into_owned(),
        why,
    };
    if path.contains(&0) {
        return Err(refuse("it holds a NUL"));
    }
    let mut parts: Vec<&OsStr> = path.split(|byte| *byte == b'/').map(OsStr::from_bytes).collect();
    if parts.iter().any(|part| part.is_empty()) {
        return Err(refuse("it is absolute or has an empty part"));
    }
    if parts.iter().any(|part| *part == "." || *part == "..") {
        return Err(refuse("it has a . or .. in it"));
    }
    let name = parts.pop().ok_or_else(|| refuse("it is empty"))?;
    Ok((parts, name))
}

/// Opens a directory below another one, which is made if it is not there; a link is not followed.
fn enter(directory: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

/// Makes a new file under a name that nothing has, without execute bits.
fn create(directory: &OwnedFd) -> Result<(File, OsString), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let name = OsString::from(format!(".brig-{}.part", crate::identity::random_id()));
    let file = rustix::fs::openat(directory, &name, flags, Mode::from_raw_mode(0o666))?;
    Ok((File::from(file), name))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    fn save(out: &OutDirectory, path: &[u8]) -> Result<PathBuf, SaveError> {
        let mut file = out.begin(path)?;
        file.write(b"hel")?;
        file.write(b"lo")?;
        file.finish(5, HELLO)
    }

    fn names(directory: &Path) -> Vec<OsString> {
        std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect()
    }

    #[test]
    fn a_file_is_saved_with_its_directories_and_without_execute_bits() {
        let root = tempfile::tempdir().unwrap();
        let out = OutDirectory::open(&root.path().join("new/out")).unwrap();
        let saved = save(&out, b"a/b/c.txt").unwrap();
        assert_eq!(saved, root.path().join("new/out/a/b/c.txt"));
        assert_eq!(std::fs::read(&saved).unwrap(), b"hello");
        assert_eq!(std::fs::metadata(&saved).unwrap().permissions().mode() & 0o111, 0);
        assert_eq!(names(saved.parent().unwrap()), ["c.txt"]);
    }

    #[test]
    fn paths_that_lead_out_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let out = OutDirectory::open(&root.path().join("out")).unwrap();
        for path in [
            &b"../x"[..],
            b"a/../../x",
            b"/etc/x",
            b"",
            b"a//x",
            b"a/",
            b"./x",
            b"..",
            b"a\0b",
        ] {
            assert!(matches!(save(&out, path), Err(SaveError::Path { .. })), "{path:?}");
        }
        assert_eq!(names(root.path()), ["out"]);
    }

    #[test]
    fn a_link_on_the_way_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = root.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        let out = OutDirectory::open(&root.path().join("out")).unwrap();
        symlink(&elsewhere, root.path().join("out/link")).unwrap();
        assert!(matches!(save(&out, b"link/x"), Err(SaveError::Io { .. })));
        assert!(names(&elsewhere).is_empty());
    }

    #[test]
    fn a_link_at_the_path_is_replaced_not_written_through() {
        let root = tempfile::tempdir().unwrap();
        let victim = root.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        let out = OutDirectory::open(&root.path().join("out")).unwrap();
        symlink(&victim, root.path().join("out/x")).unwrap();
        let saved = save(&out, b"x").unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        assert!(std::fs::symlink_metadata(saved).unwrap().is_file());
    }

    #[test]
    fn an_existing_file_is_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let out = OutDirectory::open(root.path()).unwrap();
        std::fs::write(root.path().join("x"), "a longer text that was here before").unwrap();
        assert_eq!(std::fs::read(save(&out, b"x").unwrap()).unwrap(), b"hello");
    }

    #[test]
    fn a_file_that_is_not_finished_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let out = OutDirectory::open(root.path()).unwrap();
        let mut file = out.begin(b"x").unwrap();
        file.write(b"half").unwrap();
        drop(file);
        assert!(names(root.path()).is_empty());
    }

    #[test]
    fn other_bytes_than_announced_are_not_saved() {
        let root = tempfile::tempdir().unwrap();
        let out = OutDirectory::open(root.path()).unwrap();
        let mut short = out.begin(b"x").unwrap();
        short.write(b"hell").unwrap();
        assert!(matches!(short.finish(5, HELLO), Err(SaveError::Content { .. })));
        let mut wrong = out.begin(b"x").unwrap();
        wrong.write(b"jello").unwrap();
        assert!(matches!(wrong.finish(5, HELLO), Err(SaveError::Content { .. })));
        assert!(names(root.path()).is_empty());
    }

    #[test]
    fn a_name_that_is_not_utf8_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let out = OutDirectory::open(root.path()).unwrap();
        save(&out, b"caf\xe9").unwrap();
        assert_eq!(names(root.path()), [OsStr::from_bytes(b"caf\xe9")]);
    }
}
