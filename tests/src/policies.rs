//! The shipped policies, with changed copies of the policy `data` beside them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::host::{Places, can_run};

/// A text of the policy `data` that must be there, and what stands in its place.
pub type Change = (&'static str, &'static str);

/// What makes a policy ask for the approval of all that runs.
pub const REVIEWED: Change = ("review = \"none\"", "review = \"required\"");

/// A folder of policies that root alone can change.
#[derive(Debug)]
pub struct Policies(TempDir);

impl Policies {
    /// Adds a copy under a new name for each change; `None` where this host can't run jails.
    pub fn with(changes: &[(&str, Change)]) -> Option<Self> {
        if !can_run() {
            return None;
        }
        let folder = tempfile::Builder::new().prefix("brig-test-").tempdir().unwrap();
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        copy(&Places::find().policies, folder.path());
        let data = fs::read_to_string(folder.path().join("data.toml")).unwrap();
        for (name, (from, to)) in changes {
            assert_eq!(data.matches(from).count(), 1, "{from}");
            fs::write(folder.path().join(format!("{name}.toml")), data.replace(from, to)).unwrap();
        }
        Some(Self(folder))
    }

    /// Adds a copy that differs in several places.
    pub fn and(self, name: &str, changes: &[Change]) -> Self {
        let mut text = fs::read_to_string(self.path().join("data.toml")).unwrap();
        for (from, to) in changes {
            assert_eq!(text.matches(from).count(), 1, "{from}");
            text = text.replace(from, to);
        }
        fs::write(self.path().join(format!("{name}.toml")), text).unwrap();
        self
    }

    /// Where they are.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let (path, kind): (PathBuf, _) = entry.map(|entry| (entry.path(), entry.file_type().unwrap())).unwrap();
        let target = to.join(path.file_name().unwrap());
        if kind.is_dir() {
            fs::create_dir(&target).unwrap();
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}
