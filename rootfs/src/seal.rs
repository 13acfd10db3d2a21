//! The last steps on a tree: no file in it gives rights to who runs it, and all its times are one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use rustix::io::Errno;

use crate::error::{Doing, Error, Result};
use crate::hash;
use crate::settle::TIME;

/// setuid and setgid.
const PRIVILEGED_BITS: u32 = 0o6000;
const CAPABILITIES: &str = "security.capability";

/// Takes setuid and setgid bits and file capabilities away.
pub(crate) fn strip_privileges(tree: &Path) -> Result<()> {
    for path in hash::walk(tree)? {
        let meta = fs::symlink_metadata(&path).doing("look at", &path)?;
        if meta.is_symlink() {
            continue;
        }
        if meta.mode() & PRIVILEGED_BITS != 0 {
            let mode = rustix::fs::Mode::from_raw_mode(meta.mode() & 0o7777 & !PRIVILEGED_BITS);
            rustix::fs::chmod(&path, mode).doing("set the mode of", &path)?;
        }
        match rustix::fs::lremovexattr(&path, CAPABILITIES) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error).doing("remove capabilities of", &path),
        }
    }
    Ok(())
}

/// Fails with the names of all files that still have such a bit or capability.
pub(crate) fn prove_no_privileges(tree: &Path) -> Result<()> {
    let mut paths = Vec::new();
    for path in hash::walk(tree)? {
        let meta = fs::symlink_metadata(&path).doing("look at", &path)?;
        let capable = match rustix::fs::lgetxattr(&path, CAPABILITIES, &mut [0_u8; 64]) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => false,
            // A value longer than the buffer is one too.
            Ok(_) | Err(Errno::RANGE) => true,
            Err(error) => return Err(error).doing("read capabilities of", &path),
        };
        if capable || (!meta.is_symlink() && meta.mode() & PRIVILEGED_BITS != 0) {
            paths.push(path.strip_prefix(tree).unwrap_or(&path).display().to_string());
        }
    }
    if paths.is_empty() {
        Ok(())
    } else {
        Err(Error::Privileged { paths })
    }
}

/// Sets all times to [`TIME`], the root's too.
pub(crate) fn set_times(tree: &Path) -> Result<()> {
    let time = Timespec {
        tv_sec: TIME,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    for path in hash::walk(tree)?.iter().map(AsRef::as_ref).chain([tree]) {
        utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).doing("set the times of", path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::{prove_no_privileges, set_times, strip_privileges};

    fn tree_with_mode(mode: u32) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir(tree.path().join("bin")).unwrap();
        let file = tree.path().join("bin/su");
        fs::write(&file, "").unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        tree
    }

    #[test]
    fn a_setuid_file_fails_the_proof_by_name() {
        let error = prove_no_privileges(tree_with_mode(0o4755).path()).unwrap_err();
        assert_eq!(error.to_string(), "privileged files are left in the tree: bin/su");
    }

    #[test]
    fn a_setgid_file_fails_the_proof() {
        assert!(prove_no_privileges(tree_with_mode(0o2755).path()).is_err());
    }

    #[test]
    fn a_stripped_tree_passes_the_proof_and_keeps_other_bits() {
        let tree = tree_with_mode(0o6751);
        strip_privileges(tree.path()).unwrap();
        prove_no_privileges(tree.path()).unwrap();
        assert_eq!(fs::metadata(tree.path().join("bin/su")).unwrap().mode() & 0o7777, 0o751);
    }

    #[test]
    fn a_link_out_of_the_tree_is_not_followed() {
        let outside = tree_with_mode(0o4755);
        let tree = tempfile::tempdir().unwrap();
        symlink(outside.path().join("bin/su"), tree.path().join("su")).unwrap();
        strip_privileges(tree.path()).unwrap();
        prove_no_privileges(tree.path()).unwrap();
        assert_eq!(
            fs::metadata(outside.path().join("bin/su")).unwrap().mode() & 0o7777,
            0o4755
        );
    }

    #[test]
    fn all_times_are_the_same() {
        let tree = tree_with_mode(0o755);
        symlink("nowhere", tree.path().join("link")).unwrap();
        set_times(tree.path()).unwrap();
        let times = ["", "bin", "bin/su", "link"].map(|p| fs::symlink_metadata(tree.path().join(p)).unwrap().mtime());
        assert_eq!(times, [super::TIME; 4]);
    }
}
