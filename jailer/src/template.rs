//! Images of templates: the root file systems that sessions see.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::policy::{LoadError, Problem, Trust, check_folder, is_name, read_text};

/// One built image of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub name: String,
    /// SHA-256 over the tree, in hex.
    pub hash: String,
    /// `name@hash12`, as requests and results show it.
    pub id: String,
    /// The root directory.
    pub tree: PathBuf,
    /// Path inside the tree of the interpreter that runs code; absent: the template runs commands only.
    pub interpreter: Option<String>,
    /// Variables that every program gets.
    pub environment: Vec<(String, String)>,
    pub packages: Vec<Package>,
    /// Line of code that pooled sessions have run.
    pub warm_up: Option<String>,
    /// Modules that zygotes have imported.
    pub imports: Vec<String>,
}

/// A package of a template.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    pub name: String,
    pub version: String,
}

/// The current images of the store, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Templates(BTreeMap<String, Template>);

/// `image.json`. Unknown keys are kept out of the way: newer builders may write more.
#[derive(Deserialize)]
struct Image {
    name: String,
    hash: String,
    interpreter: Option<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    packages: Vec<Package>,
    warm_up: Option<String>,
    #[serde(default)]
    imports: Vec<String>,
}

impl Templates {
    /// Reads the current image of each template: `NAME` is a link to `NAME-HASH12`, which holds `image.json` and `tree`.
    ///
    /// A store that does not exist is empty. An image that can't be used is left out with a warning: it must not keep the
    /// others from being used.
    pub fn load(images: &Path, trust: Trust) -> Result<Self, LoadError> {
        let failed = |source| LoadError::Io {
            path: images.to_owned(),
            source,
        };
        let store = match fs::canonicalize(images) {
            Ok(store) => store,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(failed(error)),
        };
        check_folder(&store, trust)?;
        let mut templates = BTreeMap::new();
        for entry in fs::read_dir(&store).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().map_err(failed)?.is_symlink() && is_name(&name) {
                match Template::load(&entry.path(), &name, trust) {
                    Ok(template) => drop(templates.insert(name, template)),
                    Err(error) => tracing::warn!(%error, "image left out"),
                }
            }
        }
        Ok(Self(templates))
    }

    /// Finds the current image by the template's name or by the image's id.
    pub fn get(&self, name_or_id: &str) -> Result<&Template, LoadError> {
        let name = name_or_id.split('@').next().unwrap_or_default();
        let found = self
            .0
            .get(name)
            .filter(|template| name_or_id == template.name || name_or_id == template.id);
        found.ok_or_else(|| LoadError::Unknown {
            what: "template",
            name: name_or_id.chars().take(80).collect(),
            existing: self.0.values().map(|template| template.id.clone()).collect(),
            mend: format!(
                "build it with: brig template build {}",
                if is_name(name) { name } else { "NAME" }
            ),
        })
    }

    /// Goes through all templates, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Template> {
        self.0.values()
    }
}

impl Template {
    fn load(link: &Path, name: &str, trust: Trust) -> Result<Self, LoadError> {
        let failed = |source| LoadError::Io {
            path: link.to_owned(),
            source,
        };
        let folder = fs::canonicalize(link).map_err(failed)?;
        let file = folder.join("image.json");
        let invalid = |message: String| {
            LoadError::Invalid(vec![Problem {
                file: file.clone(),
                line: None,
                key: String::new(),
                message,
            }])
        };
        let image: Image =
            serde_json::from_str(&read_text(&file, trust)?).map_err(|error| invalid(error.to_string()))?;
        if image.name != name {
            return Err(invalid(format!("is the image of {:?}, not of {name:?}", image.name)));
        }
        if image.hash.len() != 64 || !image.hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(invalid(format!(
                "hash: {:?} is not 64 lower-case hex digits",
                image.hash
            )));
        }
        let tree = folder.join("tree");
        if !fs::symlink_metadata(&tree).is_ok_and(|meta| meta.is_dir()) {
            return Err(invalid("there is no directory \"tree\" beside it".to_owned()));
        }
        check_folder(&tree, trust)?;
        Ok(Self {
            id: format!("{name}@{}", &image.hash[..12]),
            name: image.name,
            hash: image.hash,
            tree,
            interpreter: image.interpreter,
            environment: image.environment.into_iter().collect(),
            packages: image.packages,
            warm_up: image.warm_up,
            imports: image.imports,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    /// A store with one image of `data`, described by this text.
    fn store(description: &str) -> tempfile::TempDir {
        let store = tempfile::tempdir().unwrap();
        let image = store.path().join("data-0123456789ab");
        fs::create_dir_all(image.join("tree")).unwrap();
        fs::write(image.join("image.json"), description).unwrap();
        fs::set_permissions(image.join("image.json"), Permissions::from_mode(0o644)).unwrap();
        symlink("data-0123456789ab", store.path().join("data")).unwrap();
        store
    }

    fn description() -> String {
        format!(
            r#"{{"name":"data","hash":"{HASH}","interpreter":"/usr/bin/python3","environment":{{"PATH":"/usr/bin"}},
                "packages":[{{"name":"numpy","version":"2.0"}}],"warm_up":null,"imports":["numpy"],"later":1}}"#
        )
    }

    fn refused(description: &str) -> String {
        Template::load(&store(description).path().join("data"), "data", Trust::Any)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn the_current_image_is_found_by_name_and_by_id() {
        let store = store(&description());
        let templates = Templates::load(store.path(), Trust::RootOwned).unwrap();
        let expected = Template {
            name: "data".into(),
            hash: HASH.into(),
            id: "data@0123456789ab".into(),
            tree: fs::canonicalize(store.path()).unwrap().join("data-0123456789ab/tree"),
            interpreter: Some("/usr/bin/python3".into()),
            environment: vec![("PATH".into(), "/usr/bin".into())],
            packages: vec![Package {
                name: "numpy".into(),
                version: "2.0".into(),
            }],
            warm_up: None,
            imports: vec!["numpy".into()],
        };
        assert_eq!(templates.get("data").unwrap(), &expected);
        assert_eq!(templates.get("data@0123456789ab").unwrap(), &expected);
        assert_eq!(templates.iter().count(), 1);
    }

    #[test]
    fn an_unknown_template_lists_what_exists_and_how_to_build_it() {
        let templates = Templates::load(store(&description()).path(), Trust::Any).unwrap();
        let told = |name: &str| templates.get(name).unwrap_err().to_string();
        assert_eq!(
            told("base"),
            "no template named \"base\"; there are: data@0123456789ab; build it with: brig template build base"
        );
        assert!(told("data@aaaaaaaaaaaa").starts_with("no template named \"data@aaaaaaaaaaaa\""));
        assert!(told("../x").ends_with("build it with: brig template build NAME"));
        let none = Templates::load(Path::new("/nonexistent/images"), Trust::RootOwned).unwrap();
        assert_eq!(
            none.get("data").unwrap_err().to_string(),
            "no template named \"data\"; there is none; build it with: brig template build data"
        );
    }

    #[test]
    fn descriptions_that_do_not_fit_are_refused_with_their_file() {
        assert!(refused("{").contains("image.json: EOF while parsing"));
        assert!(refused(&description().replace("\"data\"", "\"other\"")).contains("is the image of \"other\""));
        assert!(refused(&description().replace(HASH, "abc")).contains("hash: \"abc\" is not 64 lower-case hex digits"));
        assert!(refused(&description().replace(HASH, &"\u{e4}".repeat(32))).contains("is not 64"));
    }

    #[test]
    fn an_image_that_others_can_change_is_not_trusted() {
        let store = store(&description());
        let tree = store.path().join("data-0123456789ab/tree");
        chown(&tree, Some(12345), None).expect("this test gives a file away and needs root");
        let error = Template::load(&store.path().join("data"), "data", Trust::RootOwned)
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with("tree: owned by uid 12345; only root may be able to change it"),
            "{error}"
        );
        assert_eq!(
            Templates::load(store.path(), Trust::RootOwned).unwrap(),
            Templates::default()
        );
        fs::remove_dir(&tree).unwrap();
        symlink("/usr", &tree).unwrap();
        let error = Template::load(&store.path().join("data"), "data", Trust::RootOwned)
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("there is no directory \"tree\" beside it"), "{error}");
    }
}
