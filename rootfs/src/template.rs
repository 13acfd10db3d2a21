//! Template files: what they may say, and how they are found and read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Doing, Error, Result};
use crate::suggest;

/// Keys of a template file and of its `[python]` table; everything else is an error.
const KEYS: [&str; 12] = [
    "name",
    "description",
    "extends",
    "suite",
    "interpreter",
    "debian",
    "imports",
    "warm_up",
    "prepare",
    "python",
    "environment",
    "files",
];
const PYTHON_KEYS: [&str; 3] = ["version", "requirements", "lock"];

/// A template as its file describes it, with what it extends already merged in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// The name that policies and `brig run --template` use.
    pub name: String,
    /// One line for `brig template list`.
    pub description: String,
    /// Debian release, as `bookworm`.
    pub suite: String,
    /// Absolute path of the Python that runs code, if the template has one.
    pub interpreter: Option<String>,
    /// Debian packages beside the essential ones.
    #[serde(default)]
    pub debian: Vec<String>,
    #[serde(default)]
    pub python: Python,
    /// Environment of everything that runs in a jail on this template.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Files to be put into the tree: absolute path in it, and name beside the template file.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// A Python program beside the template file that runs once in the finished tree, without rights and network.
    pub prepare: Option<String>,
    /// Modules that a session made ahead imports.
    #[serde(default)]
    pub imports: Vec<String>,
    /// Code that a session made ahead runs once after its imports.
    #[serde(default)]
    pub warm_up: Vec<String>,
    /// The folder of the template file.
    #[serde(skip)]
    pub folder: PathBuf,
}

/// Python packages of a template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Python {
    /// Version of the interpreter that the suite brings, as `3.11`.
    #[serde(default)]
    pub version: String,
    /// Packages that the template is about, each pinned by `==`.
    #[serde(default)]
    pub requirements: Vec<String>,
    /// File beside the template file that pins these and all they need, by hash.
    pub lock: Option<String>,
}

impl Template {
    /// Reads a template by path (anything with a slash or ending in `.toml`) or by name from the first folder that has it.
    pub fn find(name: &str, folders: &[PathBuf]) -> Result<Self> {
        if name.contains('/') || Path::new(name).extension().is_some_and(|e| e == "toml") {
            return Self::read(Path::new(name));
        }
        let file = folders
            .iter()
            .map(|folder| folder.join(format!("{name}.toml")))
            .find(|file| file.is_file());
        match file {
            Some(file) => Self::read(&file),
            None => {
                let known = shipped(folders);
                let suggestion = suggest::clause(name, known.iter().map(String::as_str));
                Err(Error::UnknownTemplate {
                    name: name.to_owned(),
                    known,
                    suggestion,
                })
            }
        }
    }

    /// Reads a template file and what it extends, from the same folder.
    pub fn read(file: &Path) -> Result<Self> {
        let mut table = read_table(file)?;
        let folder = file.parent().map(Path::to_owned).unwrap_or_default();
        if let Some(parent) = table.remove("extends") {
            let parent = parent
                .as_str()
                .ok_or_else(|| Error::invalid(file, "extends: expected the name of a template"))?;
            let parent_file = folder.join(format!("{parent}.toml"));
            let parent_table = read_table(&parent_file)?;
            if parent_table.contains_key("extends") {
                return Err(Error::invalid(
                    &parent_file,
                    "extends: a template that is extended can't extend another",
                ));
            }
            table = merged(parent_table, table);
        }
        let mut template: Self = table
            .try_into()
            .map_err(|e: toml::de::Error| Error::invalid(file, e.message()))?;
        template.folder = folder;
        template.check().map_err(|message| Error::invalid(file, message))?;
        Ok(template)
    }

    /// The path of a file that the template names.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn check(&self) -> std::result::Result<(), String> {
        name_only("name", &self.name, "a-z, 0-9 and -")?;
        name_only("suite", &self.suite, "a-z, 0-9 and -")?;
        for package in &self.debian {
            let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
            if package.is_empty() || package.starts_with('-') || !package.chars().all(fine) {
                return Err(format!("debian: {package:?} is not the name of a Debian package"));
            }
        }
        for requirement in &self.python.requirements {
            if !requirement.contains("==") || requirement.starts_with('-') || requirement.contains(char::is_whitespace)
            {
                return Err(format!(
                    "python.requirements: {requirement:?} is not pinned: expected name==version"
                ));
            }
        }
        if !self.python.requirements.is_empty() && self.python.lock.is_none() {
            return Err("python.lock: missing, and python.requirements needs it".to_owned());
        }
        if !self.python.requirements.is_empty() && self.python.version.is_empty() {
            return Err("python.version: missing, and python.requirements needs it".to_owned());
        }
        if self.interpreter.as_ref().is_some_and(|path| !path.starts_with('/')) {
            return Err("interpreter: expected an absolute path".to_owned());
        }
        for path in self.files.keys() {
            if !path.starts_with('/') || Path::new(path).components().any(|part| part.as_os_str() == "..") {
                return Err(format!("files: {path:?}: expected an absolute path without \"..\""));
            }
        }
        for (name, value) in &self.environment {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(format!("environment: {name:?} can't be set"));
            }
        }
        Ok(())
    }
}

/// Names of all templates in the folders, sorted.
pub fn shipped(folders: &[PathBuf]) -> Vec<String> {
    let mut names: Vec<String> = folders
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| {
            entry
                .ok()?
                .file_name()
                .to_str()?
                .strip_suffix(".toml")
                .map(str::to_owned)
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

fn name_only(field: &str, value: &str, accepted: &str) -> std::result::Result<(), String> {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if value.is_empty() || value.len() > 40 || value.starts_with('-') || !value.chars().all(fine) {
        return Err(format!(
            "{field}: {value:?} has other characters than {accepted}, or is empty or over 40 long"
        ));
    }
    Ok(())
}

fn read_table(file: &Path) -> Result<toml::Table> {
    let text = fs::read_to_string(file).doing("read", file)?;
    let table: toml::Table = text
        .parse()
        .map_err(|e: toml::de::Error| Error::invalid(file, e.to_string()))?;
    known_keys(&table, "", &KEYS).map_err(|message| Error::invalid(file, message))?;
    if let Some(python) = table.get("python").and_then(toml::Value::as_table) {
        known_keys(python, "python.", &PYTHON_KEYS).map_err(|message| Error::invalid(file, message))?;
    }
    Ok(table)
}

fn known_keys(table: &toml::Table, prefix: &str, known: &[&str]) -> std::result::Result<(), String> {
    match table.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let suggestion = suggest::clause(key, known.iter().copied());
            Err(format!(
                "unknown key {prefix}{key}{suggestion}; there are: {}",
                known.join(", ")
            ))
        }
    }
}

/// The parent's lists are added to, its tables overlaid, its other values replaced.
fn merged(mut parent: toml::Table, child: toml::Table) -> toml::Table {
    for (key, value) in child {
        match (parent.get_mut(&key), value) {
            (Some(toml::Value::Array(old)), toml::Value::Array(new)) => old.extend(new),
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => {
                let both = merged(std::mem::take(old), new);
                *old = both;
            }
            (_, value) => {
                parent.insert(key, value);
            }
        }
    }
    parent
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
