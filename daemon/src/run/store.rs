//! The policies and templates that requests name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use brig_jailer::policy::{LoadError, Policy, PolicySet, Trust};
use brig_jailer::template::{Template, Templates};
use brig_proto::v1::Reason;

use crate::config::Config;
use crate::status::FieldProblem;

/// What there is to run with.
#[derive(Debug)]
pub struct Store {
    policies: RwLock<Arc<PolicySet>>,
    images: PathBuf,
    /// What was read last, and when the store's directory was changed then: a new build replaces an entry of it.
    templates: Mutex<Option<(SystemTime, TemplateList)>>,
}

/// The current templates.
#[derive(Debug, Clone)]
pub struct TemplateList(Arc<Templates>);

impl Store {
    /// Reads the policies; templates are read when they are asked for, since building one needs no restart.
    pub fn load(config: &Config) -> Result<Self, LoadError> {
        let policies = PolicySet::load(&config.policies, Trust::RootOwned)?;
        Ok(Self {
            policies: RwLock::new(Arc::new(policies)),
            images: config.images.clone(),
            templates: Mutex::new(None),
        })
    }

    /// Takes other policies and templates. Who has found a policy keeps it.
    pub fn replace(&self, policies: PolicySet, templates: Templates) {
        *self.policies.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policies);
        let mut known = self.templates.lock().unwrap_or_else(PoisonError::into_inner);
        *known = known
            .take()
            .map(|(changed, _)| (changed, TemplateList(Arc::new(templates))));
    }

    /// All policies.
    pub fn policies(&self) -> Arc<PolicySet> {
        Arc::clone(&self.policies.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Finds a policy by `name` or `name@hash`, where the hash may be cut to 12 digits.
    pub fn policy(&self, wanted: &str) -> Result<Arc<Policy>, FieldProblem> {
        let unknown = |message: String| FieldProblem {
            field: "policy".to_owned(),
            message,
            reason: Reason::UnknownPolicy,
        };
        let (name, hash) = wanted
            .split_once('@')
            .map_or((wanted, None), |(name, hash)| (name, Some(hash)));
        let policies = self.policies();
        let policy = policies.get(name).map_err(|error| unknown(error.to_string()))?;
        match hash {
            Some(hash) if hash != policy.hash && hash != policy.short_hash() => {
                Err(unknown(format!("{name} is {} now", policy.id())))
            }
            _ => Ok(Arc::new(policy.clone())),
        }
    }

    /// The ids of all policies, by name.
    pub fn policy_ids(&self) -> Vec<String> {
        self.policies().iter().map(Policy::id).collect()
    }

    /// Reads the current templates, if they changed.
    pub fn templates(&self) -> Result<TemplateList, LoadError> {
        let changed = std::fs::metadata(&self.images)
            .and_then(|metadata| metadata.modified())
            .ok();
        let mut known = self.templates.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some((time, list)), Some(changed)) = (known.as_ref(), changed)
            && *time == changed
        {
            return Ok(list.clone());
        }
        let list = TemplateList(Arc::new(Templates::load(&self.images, Trust::RootOwned)?));
        *known = changed.map(|changed| (changed, list.clone()));
        Ok(list)
    }
}

/// The names of the Python packages of an image: of all its packages those that lie beside its interpreter's own. An image
/// is root's, so that its folders can be looked at.
pub fn python_packages(template: &Template) -> Vec<String> {
    let library = template.tree.join("usr/local/lib");
    let installed: BTreeSet<String> = names_in(&library)
        .filter(|name| name.starts_with("python"))
        .flat_map(|python| names_in(&library.join(python).join("dist-packages")))
        .filter_map(|name| {
            let (name, _version) = name.strip_suffix(".dist-info")?.split_once('-')?;
            Some(plain(name))
        })
        .collect();
    let packages = template.packages.iter().map(|package| &package.name);
    let found: BTreeSet<&String> = packages.filter(|name| installed.contains(&plain(name))).collect();
    found.into_iter().cloned().collect()
}

/// What is in a folder; nothing if there is none.
fn names_in(folder: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// A name of a package in the form in which all ways of writing it are the same.
fn plain(name: &str) -> String {
    name.to_lowercase().replace(['-', '.'], "_")
}

impl TemplateList {
    /// Finds a template by name or id.
    pub fn find(&self, wanted: &str) -> Result<Arc<Template>, FieldProblem> {
        let found = self.0.get(wanted).map_err(|error| FieldProblem {
            field: "template".to_owned(),
            message: error.to_string(),
            reason: Reason::UnknownTemplate,
        })?;
        Ok(Arc::new(found.clone()))
    }

    /// Goes through the templates, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Template> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use brig_jailer::template::Package;

    use super::*;

    #[test]
    fn python_packages_are_told_from_those_of_the_system() {
        let tree = tempfile::tempdir().unwrap();
        let site = tree.path().join("usr/local/lib/python3.11/dist-packages");
        for name in [
            "numpy",
            "numpy-2.4.6.dist-info",
            "scikit_learn-1.9.1.dist-info",
            "tzdata-2026.6.dist-info",
        ] {
            std::fs::create_dir_all(site.join(name)).unwrap();
        }
        let package = |name: &str| Package {
            name: name.to_owned(),
            version: "1".to_owned(),
        };
        let template = Template {
            name: "t".to_owned(),
            hash: String::new(),
            id: "t@0".to_owned(),
            tree: tree.path().to_owned(),
            interpreter: None,
            environment: Vec::new(),
            packages: ["numpy", "scikit-learn", "tzdata", "bash", "tzdata"]
                .map(package)
                .to_vec(),
            warm_up: None,
            imports: Vec::new(),
        };
        assert_eq!(python_packages(&template), ["numpy", "scikit-learn", "tzdata"]);
        let bare = Template {
            tree: tree.path().join("none"),
            ..template
        };
        assert!(python_packages(&bare).is_empty());
    }
}
