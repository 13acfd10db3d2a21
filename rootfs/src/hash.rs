//! Hashes of files and of whole trees.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Doing, Error, Result};

/// Size and SHA-256 (64 hexadecimal digits) of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TreeHash {
    pub(crate) hex: String,
    /// Bytes of all regular files.
    pub(crate) bytes: u64,
}

/// Hashes paths, kinds, modes, owners, contents and link targets of all that lies below `root`, in the order of the
/// paths. Times are left out: the build sets them all to one value. Devices, sockets and FIFOs are refused.
pub(crate) fn tree(root: &Path) -> Result<TreeHash> {
    let mut hasher = Sha256::new();
    let mut bytes = 0;
    for path in walk(root)? {
        let meta = fs::symlink_metadata(&path).doing("look at", &path)?;
        let relative = path.strip_prefix(root).unwrap_or(&path);
        let kind = meta.file_type();
        let letter = if kind.is_dir() {
            'd'
        } else if kind.is_symlink() {
            'l'
        } else if kind.is_file() {
            'f'
        } else {
            return Err(Error::invalid(&path, "neither a file, a directory nor a symbolic link"));
        };
        hasher.update(format!(
            "{letter} {:o} {} {} ",
            meta.mode() & 0o7777,
            meta.uid(),
            meta.gid()
        ));
        framed(&mut hasher, relative.as_os_str().as_bytes());
        if kind.is_symlink() {
            framed(
                &mut hasher,
                fs::read_link(&path).doing("read", &path)?.as_os_str().as_bytes(),
            );
        } else if kind.is_file() {
            hasher.update(meta.len().to_le_bytes());
            io::copy(&mut File::open(&path).doing("open", &path)?, &mut hasher).doing("read", &path)?;
            bytes += meta.len();
        }
    }
    Ok(TreeHash {
        hex: hex(&hasher.finalize()),
        bytes,
    })
}

/// SHA-256 of parts, each with its length before it, so that no two lists of parts look the same.
pub(crate) fn parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        framed(&mut hasher, part);
    }
    hex(&hasher.finalize())
}

/// All paths below `root` (itself not), sorted by bytes within each directory, a directory before what it holds.
pub(crate) fn walk(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut pending = children(root)?;
    while let Some(path) = pending.pop() {
        let kind = fs::symlink_metadata(&path).doing("look at", &path)?.file_type();
        if kind.is_dir() {
            pending.extend(children(&path)?);
        }
        found.push(path);
    }
    Ok(found)
}

/// The children of a directory in falling order, as the caller takes them from the end.
fn children(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).doing("list", directory)?;
    let mut paths = entries
        .map(|e| e.map(|e| e.path()))
        .collect::<io::Result<Vec<_>>>()
        .doing("list", directory)?;
    paths.sort_by(|a, b| b.as_os_str().as_bytes().cmp(a.as_os_str().as_bytes()));
    Ok(paths)
}

fn framed(hasher: &mut Sha256, part: &[u8]) {
    hasher.update((part.len() as u64).to_le_bytes());
    hasher.update(part);
}

fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::with_capacity(64), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string can't fail");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::{parts, tree, walk};

    fn sample() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/file"), "content").unwrap();
        fs::write(folder.path().join("a.txt"), "").unwrap();
        symlink("a/file", folder.path().join("link")).unwrap();
        folder
    }

    fn hash(root: &Path) -> String {
        tree(root).unwrap().hex
    }

    #[test]
    fn equal_trees_have_equal_hashes() {
        let (one, two) = (sample(), sample());
        assert_eq!(tree(one.path()).unwrap(), tree(two.path()).unwrap());
        assert_eq!(tree(one.path()).unwrap().bytes, 7);
        assert_eq!(hash(one.path()).len(), 64);
    }

    #[test]
    fn a_changed_byte_changes_the_hash() {
        let (one, two) = (sample(), sample());
        fs::write(two.path().join("a/file"), "Content").unwrap();
        assert_ne!(hash(one.path()), hash(two.path()));
    }

    #[test]
    fn a_changed_mode_changes_the_hash() {
        let (one, two) = (sample(), sample());
        fs::set_permissions(two.path().join("a/file"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_ne!(hash(one.path()), hash(two.path()));
    }

    #[test]
    fn a_changed_link_target_changes_the_hash() {
        let (one, two) = (sample(), sample());
        fs::remove_file(two.path().join("link")).unwrap();
        symlink("a.txt", two.path().join("link")).unwrap();
        assert_ne!(hash(one.path()), hash(two.path()));
    }

    #[test]
    fn a_socket_is_refused() {
        let folder = sample();
        let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
        assert!(
            tree(folder.path())
                .unwrap_err()
                .to_string()
                .ends_with("neither a file, a directory nor a symbolic link")
        );
    }

    #[test]
    fn a_directory_comes_before_what_it_holds_and_names_are_sorted() {
        let folder = sample();
        let names: Vec<_> = walk(folder.path()).unwrap();
        let names: Vec<_> = names
            .iter()
            .map(|p| p.strip_prefix(folder.path()).unwrap().to_str().unwrap())
            .collect();
        assert_eq!(names, ["a", "a/file", "a.txt", "link"]);
    }

    #[test]
    fn parts_are_told_apart() {
        assert_ne!(parts([b"ab".as_slice(), b"c"]), parts([b"a".as_slice(), b"bc"]));
    }
}
