//! Makes a tree of installed packages the root of jails: users, mount points, files of the template; and takes away
//! what a jail has no use for or what differs from build to build.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, chown, lchown};
use std::path::Path;

use crate::error::{Doing, Result};
use crate::hash;
use crate::template::Template;

/// All times in a tree, in seconds since 1970, and the clock of the programs that make it: 1 January 2025.
pub(crate) const TIME: i64 = 1_735_689_600;

/// What prepare programs may write, readable by all later.
const SHARED: &str = "usr/share/brig";

/// Removed with all they hold.
const GONE: [&str; 19] = [
    "etc/.pwd.lock",
    "etc/group-",
    "etc/gshadow",
    "etc/gshadow-",
    "etc/passwd-",
    "etc/shadow",
    "etc/shadow-",
    "etc/apt",
    "etc/cron.daily",
    "etc/logrotate.d",
    "etc/systemd",
    "usr/lib/systemd",
    "usr/share/bug",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "var/backups",
    "var/lib/apt",
];

/// Emptied; the folder itself stays or is made. Mount points of a jail are among them.
const EMPTY: [&str; 16] = [
    "boot",
    "dev",
    "home",
    "home/user",
    "media",
    "mnt",
    "proc",
    "root",
    "run",
    "srv",
    "sys",
    "tmp",
    "usr/lib/brig",
    "var/cache",
    "var/log",
    "var/tmp",
];

/// Small files of /etc, with their whole content.
const FILES: [(&str, &str); 6] = [
    ("etc/fstab", ""),
    ("etc/hostname", "sandbox\n"),
    ("etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n"),
    ("etc/machine-id", ""),
    (
        "etc/nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    ),
    ("etc/resolv.conf", ""),
];

/// Adds the users of a jail and the template's files, and a folder for its prepare program.
pub(crate) fn furnish(template: &Template, tree: &Path) -> Result<()> {
    append(
        &tree.join("etc/passwd"),
        "brig-files:x:999:999::/:/usr/sbin/nologin\nuser:x:1000:1000:user:/home/user:/bin/bash\n",
    )?;
    append(&tree.join("etc/group"), "brig-files:x:999:\nuser:x:1000:\n")?;
    for (path, name) in &template.files {
        let (source, target) = (template.beside(name), tree.join(path.trim_start_matches('/')));
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).doing("make", folder)?;
        }
        let content = fs::read(&source).doing("read", &source)?;
        fs::write(&target, content).doing("write", &target)?;
        fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).doing("set the mode of", &target)?;
    }
    let shared = tree.join(SHARED);
    fs::create_dir_all(&shared).doing("make", &shared)?;
    chown(&shared, Some(1000), Some(1000)).doing("give away", &shared)
}

/// Gives what the prepare program made to root.
pub(crate) fn take_back(tree: &Path) -> Result<()> {
    let shared = tree.join(SHARED);
    for path in hash::walk(&shared)?.iter().chain([&shared]) {
        lchown(path, Some(0), Some(0)).doing("take back", path)?;
    }
    Ok(())
}

/// Removes byte code that packages brought or made: it holds times.
pub(crate) fn drop_bytecode(tree: &Path) -> Result<()> {
    for path in hash::walk(tree)?.iter().filter(|path| path.ends_with("__pycache__")) {
        fs::remove_dir_all(path).doing("remove", path)?;
    }
    Ok(())
}

/// Removes lists, logs, documentation, identities and all else that jails don't need; makes the mount points.
pub(crate) fn clean(tree: &Path) -> Result<()> {
    for path in GONE.map(|name| tree.join(name)) {
        remove(&path)?;
    }
    for path in EMPTY.map(|name| tree.join(name)) {
        remove(&path)?;
        fs::create_dir_all(&path).doing("make", &path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).doing("set the mode of", &path)?;
    }
    for path in ["tmp", "var/tmp"].map(|name| tree.join(name)) {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o1777)).doing("set the mode of", &path)?;
    }
    for (name, content) in FILES {
        let path = tree.join(name);
        remove(&path)?;
        fs::write(&path, content).doing("write", &path)?;
    }
    keep_only_status(&tree.join("var/lib/dpkg"))
}

/// Scanners for known weaknesses read dpkg's `status`; nothing else of it is of use where no package is installed.
fn keep_only_status(dpkg: &Path) -> Result<()> {
    let entries = match fs::read_dir(dpkg) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.doing("list", dpkg)?,
    };
    for entry in entries {
        let entry = entry.doing("list", dpkg)?;
        if entry.file_name() != "status" {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn append(file: &Path, lines: &str) -> Result<()> {
    let mut text = fs::read_to_string(file).doing("read", file)?;
    text.push_str(lines);
    fs::write(file, text).doing("write", file)
}

fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Err(error) => Err(error),
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result.doing("remove", path),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::clean;

    #[test]
    fn a_cleaned_tree_has_its_mount_points_and_no_identity() {
        let tree = tempfile::tempdir().unwrap();
        let root = tree.path();
        for folder in ["etc", "var/lib/dpkg/info", "var/lib/apt/lists", "dev"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for file in [
            "etc/machine-id",
            "etc/shadow",
            "var/lib/dpkg/status",
            "var/lib/dpkg/info/x.list",
            "dev/null",
        ] {
            fs::write(root.join(file), "content").unwrap();
        }
        clean(root).unwrap();
        assert_eq!(fs::read_to_string(root.join("etc/machine-id")).unwrap(), "");
        assert_eq!(fs::read_dir(root.join("dev")).unwrap().count(), 0);
        assert!(!root.join("etc/shadow").exists());
        assert!(!root.join("var/lib/apt").exists());
        assert!(!root.join("var/lib/dpkg/info").exists());
        assert!(root.join("var/lib/dpkg/status").exists());
        assert!(root.join("home/user").is_dir());
        assert!(root.join("usr/lib/brig").is_dir());
    }
}
