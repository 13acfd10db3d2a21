//! The store of built images: a folder per image, a symbolic link per name to the current one.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Doing, Error, Result};
use crate::progress::Progress;

/// Digits of the hash that the name of an image's folder has.
const SHORT_HASH: usize = 12;

/// Start of the names of folders that are being made or removed.
const UNFINISHED: &str = ".unfinished-";

/// `image.json`: what an image is, for those who run code on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    pub name: String,
    /// SHA-256 over the tree: paths, modes, owners, contents and link targets; 64 hexadecimal digits.
    pub hash: String,
    /// Absolute path of the Python that runs code; none: the template runs commands only.
    pub interpreter: Option<String>,
    /// Environment of everything that runs on it.
    pub environment: BTreeMap<String, String>,
    /// Python packages, then Debian packages.
    pub packages: Vec<Package>,
    /// Code that a session made ahead runs once after its imports.
    pub warm_up: Option<String>,
    /// Modules that a session made ahead imports.
    pub imports: Vec<String>,
}

impl Image {
    /// `name@hash12`, as requests and results show it.
    pub fn id(&self) -> String {
        format!("{}@{}", self.name, &self.hash[..SHORT_HASH])
    }
}

/// A package of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    pub name: String,
    pub version: String,
}

/// `build.json`: what an image was made from, so that the next build knows whether it has to do anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Hash over all that decides what is built.
    pub(crate) inputs: String,
    /// Version of the builder.
    pub(crate) builder: String,
    /// Bytes of all regular files of the tree.
    pub(crate) bytes: u64,
}

/// An image in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub image: Image,
    /// Its folder, which holds `tree/`.
    pub folder: PathBuf,
    /// Whether its name leads to it.
    pub current: bool,
    /// Bytes of all regular files of the tree.
    pub bytes: u64,
    pub(crate) inputs: String,
}

/// A store of images.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// The store in a folder, which need not exist yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// All images, sorted by name, the current one of each name first.
    pub fn list(&self) -> Result<Vec<Stored>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.doing("list", &self.folder)?,
        };
        let mut images = Vec::new();
        for entry in entries {
            let entry = entry.doing("list", &self.folder)?;
            let is_folder = entry.file_type().doing("look at", &entry.path())?.is_dir();
            if is_folder && !entry.file_name().to_string_lossy().starts_with('.') {
                images.push(self.read(&entry.path())?);
            }
        }
        images.sort_by(|a, b| {
            (&a.image.name, !a.current, &a.image.hash).cmp(&(&b.image.name, !b.current, &b.image.hash))
        });
        Ok(images)
    }

    /// The current image of a name, or the one with an id (`name@hash12`).
    pub fn find(&self, name: &str) -> Result<Stored> {
        let images = self.list()?;
        let known = images.iter().map(|stored| stored.image.id()).collect();
        let is_it = |stored: &Stored| stored.image.id() == name || (stored.current && stored.image.name == name);
        let found = images.into_iter().find(is_it);
        found.ok_or_else(|| Error::UnknownImage {
            name: name.to_owned(),
            known,
        })
    }

    /// Removes the image with an id, or all images of a name. What a running session uses must not be removed: the
    /// store can't know.
    pub fn remove(&self, name: &str, progress: &Progress) -> Result<Vec<Stored>> {
        let _lock = self.lock(progress)?;
        let images = self.list()?;
        let known = images.iter().map(|stored| stored.image.id()).collect();
        let chosen: Vec<Stored> = images
            .into_iter()
            .filter(|s| s.image.id() == name || s.image.name == name)
            .collect();
        if chosen.is_empty() {
            return Err(Error::UnknownImage {
                name: name.to_owned(),
                known,
            });
        }
        for stored in &chosen {
            if stored.current {
                let link = self.folder.join(&stored.image.name);
                fs::remove_file(&link).doing("remove", &link)?;
            }
            // Out of sight by one rename, so that nobody ever finds half an image.
            let gone = self.unfinished(&stored.image.id());
            fs::rename(&stored.folder, &gone).doing("rename", &stored.folder)?;
            remove_tree(&gone)?;
        }
        Ok(chosen)
    }

    /// Makes an image of a finished folder: renames it to its final name and points the name at it.
    pub(crate) fn adopt(&self, finished: &Path, image: &Image) -> Result<PathBuf> {
        let folder = self.folder.join(folder_name(image));
        if folder.exists() {
            // The same tree was built before; what refers to it stays valid.
            let same = self.unfinished(&format!("{}-same", image.id()));
            fs::rename(&folder, &same).doing("rename", &folder)?;
            fs::rename(finished, &folder).doing("rename", finished)?;
            remove_tree(&same)?;
        } else {
            fs::rename(finished, &folder).doing("rename", finished)?;
        }
        let link = self.unfinished(&format!("{}-link", image.name));
        let _ = fs::remove_file(&link);
        symlink(folder_name(image), &link).doing("make", &link)?;
        fs::rename(&link, self.folder.join(&image.name)).doing("rename", &link)?;
        Ok(folder)
    }

    /// Waits until no other process changes the store; holds until dropped.
    pub(crate) fn lock(&self, progress: &Progress) -> Result<File> {
        fs::create_dir_all(&self.folder).doing("make", &self.folder)?;
        let path = self.folder.join(".lock");
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .doing("open", &path)?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            progress.say("waiting for another build to end");
            rustix::fs::flock(&file, FlockOperation::LockExclusive).doing("lock", &path)?;
        }
        Ok(file)
    }

    /// A place for work in progress, in the same file system.
    pub(crate) fn unfinished(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{UNFINISHED}{name}"))
    }

    /// Removes what interrupted builds left. Only for the holder of the lock.
    pub(crate) fn sweep(&self) -> Result<()> {
        for entry in fs::read_dir(&self.folder).doing("list", &self.folder)? {
            let entry = entry.doing("list", &self.folder)?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                remove_tree(&entry.path())?;
            }
        }
        Ok(())
    }

    /// The file for what the programs of a build write; it outlives the build.
    pub(crate) fn log_file(&self, name: &str) -> PathBuf {
        self.folder.join(".logs").join(format!("{name}.log"))
    }

    fn read(&self, folder: &Path) -> Result<Stored> {
        let image: Image = read_json(&folder.join("image.json"))?;
        if image.hash.len() != 64 || folder.file_name() != Some(folder_name(&image).as_ref()) {
            return Err(Error::invalid(
                &folder.join("image.json"),
                "name and hash are not those of the folder",
            ));
        }
        let record: Record = read_json(&folder.join("build.json"))?;
        let target = fs::read_link(self.folder.join(&image.name));
        let current = target.is_ok_and(|target| target.as_os_str() == folder_name(&image).as_str());
        Ok(Stored {
            image,
            folder: folder.to_owned(),
            current,
            bytes: record.bytes,
            inputs: record.inputs,
        })
    }
}

/// Removes a file or a folder with all it holds; refuses if something is mounted below it, as that would be emptied.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").doing("read", Path::new("/proc/self/mountinfo"))?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    if points.into_iter().any(|point| Path::new(point).starts_with(path)) {
        return Err(Error::invalid(path, "something is mounted below it; unmount it first"));
    }
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path).doing("remove", path),
        _ => fs::remove_file(path).doing("remove", path),
    }
}

/// Writes a value as JSON for programs and people.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Error::invalid(path, e.to_string()))?;
    fs::write(path, text + "\n").doing("write", path)
}

fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path).doing("read", path)?;
    serde_json::from_str(&text).map_err(|e| Error::invalid(path, e.to_string()))
}

fn folder_name(image: &Image) -> String {
    format!("{}-{}", image.name, &image.hash[..SHORT_HASH])
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
