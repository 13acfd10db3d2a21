//! The key that links are signed with: a file of this daemon, made when there is none.
//!
//! It outlives the daemon, so that a restart ends no link. Who wants to end all of them removes the file and reloads.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of a key: as many as the digest has. Source: RFC 2104, section 3.
const SIZE: usize = 32;

/// A key for HMAC with SHA-256.
#[derive(Debug, Clone)]
pub struct Key(hmac::Key);

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("links: key {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    /// The file is not what brigd has made.
    #[error("links: key {path}: {problem}; remove it, and a new one is made (links that were made end with it)")]
    Unfit { path: PathBuf, problem: String },
    #[error("links: no random numbers for a key")]
    Random,
}

impl Key {
    /// Reads the key, or makes one if there is none.
    pub fn open(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::File {
            path: path.to_owned(),
            source,
        };
        let mut options = OpenOptions::new();
        let no_links = OFlag::O_NOFOLLOW.bits();
        match options.read(true).custom_flags(no_links).open(path) {
            Ok(file) => Self::read(file, path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut bytes = [0; SIZE];
                SystemRandom::new().fill(&mut bytes).map_err(|_| KeyError::Random)?;
                write(path, &bytes).map_err(failed)?;
                Ok(Self::of(&bytes))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Signs.
    pub(super) fn sign(&self, parts: &[&[u8]]) -> [u8; SIZE] {
        let mut context = hmac::Context::with_key(&self.0);
        parts.iter().for_each(|part| context.update(part));
        let tag = context.sign();
        tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// Whether a signature is ours; takes as long whichever byte of it is wrong.
    pub(super) fn verify(&self, signed: &[u8], signature: &[u8]) -> bool {
        hmac::verify(&self.0, signed, signature).is_ok()
    }

    pub(super) fn of(bytes: &[u8; SIZE]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    fn read(mut file: File, path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::File {
            path: path.to_owned(),
            source,
        };
        let unfit = |problem: String| KeyError::Unfit {
            path: path.to_owned(),
            problem,
        };
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() || metadata.len() != SIZE as u64 {
            return Err(unfit(format!("is no file of {SIZE} bytes")));
        }
        if metadata.mode() & 0o077 != 0 {
            let mode = metadata.mode() & 0o777;
            return Err(unfit(format!(
                "others than its owner can use it (mode {mode:04o}, needed is 0600)"
            )));
        }
        let mut bytes = [0; SIZE];
        file.read_exact(&mut bytes).map_err(failed)?;
        Ok(Self::of(&bytes))
    }
}

/// Writes a key, whole or not at all: it gets its name when it is on the disk.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("new");
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&draft, path)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_for_its_owner_alone_and_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("links.key");
        let made = Key::open(&path).unwrap();
        let metadata = path.metadata().unwrap();
        assert_eq!((metadata.mode() & 0o777, metadata.len()), (0o600, 32));
        assert_eq!(Key::open(&path).unwrap().sign(&[b"x"]), made.sign(&[b"x"]));
        std::fs::remove_file(&path).unwrap();
        assert_ne!(Key::open(&path).unwrap().sign(&[b"x"]), made.sign(&[b"x"]));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_none_of_ours_is_named_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("links.key");
        std::fs::write(&path, [0; 31]).unwrap();
        let error = Key::open(&path).unwrap_err().to_string();
        assert!(error.contains("links.key: is no file of 32 bytes"), "{error}");
        std::fs::write(&path, [0; 32]).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let error = Key::open(&path).unwrap_err().to_string();
        assert!(error.contains("mode 0640"), "{error}");
        std::fs::rename(&path, directory.path().join("other")).unwrap();
        std::os::unix::fs::symlink("other", &path).unwrap();
        assert!(matches!(Key::open(&path), Err(KeyError::File { .. })));
    }
}
