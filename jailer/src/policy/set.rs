//! All policies of a host.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::trust::{LoadError, Trust, list, read_text};
use super::{Policy, Problem};

/// All policies of a host, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicySet(BTreeMap<String, Policy>);

impl PolicySet {
    /// Reads all policies; a file of a later folder replaces one with the same name whole.
    ///
    /// One bad file fails them all, so that nothing runs under half a configuration.
    pub fn load(folders: &[PathBuf], trust: Trust) -> Result<Self, LoadError> {
        let mut files = BTreeMap::new();
        for folder in folders {
            // `ceilings.toml` may lie beside the policies and is none.
            files.extend(list(folder, trust)?.into_iter().filter(|(name, _)| name != "ceilings"));
        }
        let mut policies = BTreeMap::new();
        let mut problems: Vec<Problem> = Vec::new();
        for (name, path) in &files {
            match Policy::parse_file(path, name, &read_text(path, trust)?) {
                Ok(policy) => drop(policies.insert(name.clone(), policy)),
                Err(found) => problems.extend(found),
            }
        }
        for policy in policies.values() {
            let scanner = policy.artifacts.scanner.as_ref().map(|scanner| &scanner.policy);
            problems.extend(
                scanner
                    .filter(|scanner| !files.contains_key(*scanner))
                    .map(|scanner| Problem {
                        file: files[&policy.name].clone(),
                        line: None,
                        key: "artifacts.scanner.policy".to_owned(),
                        message: format!("there is no policy {scanner:?}; there are: {}", names(&files)),
                    }),
            );
        }
        match () {
            () if !problems.is_empty() => Err(LoadError::Invalid(problems)),
            () if policies.is_empty() => Err(LoadError::Empty {
                what: "policy",
                folders: folders.to_vec(),
            }),
            () => Ok(Self(policies)),
        }
    }

    /// Finds a policy by name.
    pub fn get(&self, name: &str) -> Result<&Policy, LoadError> {
        self.0.get(name).ok_or_else(|| LoadError::Unknown {
            what: "policy",
            name: name.chars().take(60).collect(),
            existing: self.0.keys().cloned().collect(),
            mend: String::new(),
        })
    }

    /// Lists the names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Goes through all policies, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.0.values()
    }
}

fn names(files: &BTreeMap<String, PathBuf>) -> String {
    files.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}
