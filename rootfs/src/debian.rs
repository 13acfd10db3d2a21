//! The Debian part of a tree: mmdebstrap, and the lock of what it installed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::error::{Doing, Error, Result};
use crate::host;
use crate::progress::Progress;
use crate::run::{self, Log};
use crate::settle::TIME;
use crate::template::Template;

/// A Debian package by name, version and hash of its file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deb {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) sha256: String,
}

/// What dpkg leaves out; copyright files stay, as the licences of many packages want them shipped.
const PATH_RULES: [&str; 6] = [
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
];

/// Installs the template's packages in a new tree, in the versions of the lock if there is one.
pub(crate) fn install(
    template: &Template,
    locked: Option<&[Deb]>,
    tree: &Path,
    log: &mut Log,
    progress: &Progress,
) -> Result<()> {
    let packages: Vec<String> = match locked {
        Some(debs) => debs.iter().map(|deb| format!("{}={}", deb.name, deb.version)).collect(),
        None => template.debian.clone(),
    };
    let mut command = run::private("mmdebstrap");
    // Lists and caches are removed later by `settle`; the lock is made from them.
    command.args([
        "--mode=root",
        "--variant=essential",
        "--skip=cleanup/apt,cleanup/reproducible",
    ]);
    command.args([
        "--aptopt=Acquire::Languages \"none\"",
        "--aptopt=Acquire::Retries \"3\"",
        "--dpkgopt=force-unsafe-io",
    ]);
    command.args(PATH_RULES.map(|rule| format!("--dpkgopt={rule}")));
    if !packages.is_empty() {
        command.arg(format!("--include={}", packages.join(",")));
    }
    command
        .arg(&template.suite)
        .arg(tree)
        .args(host::debian_sources(&template.suite)?);
    command
        .env("SOURCE_DATE_EPOCH", TIME.to_string())
        .env("LANG", "C.UTF-8");
    log.run("install Debian packages", &mut command, progress)
}

/// The packages installed in a tree, with the hashes that apt's signed lists give for them.
pub(crate) fn installed(tree: &Path) -> Result<Vec<Deb>> {
    let status = tree.join("var/lib/dpkg/status");
    let text = fs::read_to_string(&status).doing("read", &status)?;
    let hashes = listed_hashes(&tree.join("var/lib/apt/lists"))?;
    let mut debs = Vec::new();
    for stanza in text
        .split("\n\n")
        .filter(|stanza| field(stanza, "Status") == Some("install ok installed"))
    {
        let (Some(name), Some(version)) = (field(stanza, "Package"), field(stanza, "Version")) else {
            continue;
        };
        let Some(sha256) = hashes.get(&(name.to_owned(), version.to_owned())) else {
            return Err(Error::invalid(
                &status,
                format!("{name} {version} is in none of apt's lists"),
            ));
        };
        debs.push(Deb {
            name: name.to_owned(),
            version: version.to_owned(),
            sha256: sha256.clone(),
        });
    }
    debs.sort();
    Ok(debs)
}

/// Reads a `debs.lock`.
pub(crate) fn read_lock(file: &Path) -> Result<Vec<Deb>> {
    let text = fs::read_to_string(file).doing("read", file)?;
    parse_lock(&text).map_err(|line| Error::invalid(file, format!("{line:?} is not `name version sha256`")))
}

/// The text of a `debs.lock`.
pub(crate) fn lock_text(debs: &[Deb]) -> String {
    let lines = debs
        .iter()
        .map(|deb| format!("{} {} {}\n", deb.name, deb.version, deb.sha256));
    std::iter::once("# name version sha256\n".to_owned())
        .chain(lines)
        .collect()
}

/// Says by name how the installed packages differ from the locked ones.
pub(crate) fn demand(lock: &Path, locked: &[Deb], installed: &[Deb]) -> Result<()> {
    let missing = locked
        .iter()
        .filter(|deb| !installed.contains(deb))
        .map(|deb| match find(installed, &deb.name) {
            None => format!("{} {} is not installed", deb.name, deb.version),
            Some(other) if other.version == deb.version => format!("{} {} has another hash", deb.name, deb.version),
            Some(other) => format!("{} is {}, locked is {}", deb.name, other.version, deb.version),
        });
    let extra = installed.iter().filter(|deb| find(locked, &deb.name).is_none());
    let differences: Vec<String> = missing
        .chain(extra.map(|deb| format!("{} is not locked", deb.name)))
        .collect();
    if differences.is_empty() {
        return Ok(());
    }
    Err(Error::Locked {
        file: lock.to_owned(),
        differences,
    })
}

fn find<'a>(debs: &'a [Deb], name: &str) -> Option<&'a Deb> {
    debs.iter().find(|deb| deb.name == name)
}

fn parse_lock(text: &str) -> std::result::Result<Vec<Deb>, String> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            [name, version, sha256] if sha256.len() == 64 => Ok(Deb {
                name: name.to_owned(),
                version: version.to_owned(),
                sha256: sha256.to_owned(),
            }),
            _ => Err(line.to_owned()),
        })
        .collect()
}

/// SHA-256 by name and version, from the package lists that apt has verified.
fn listed_hashes(lists: &Path) -> Result<BTreeMap<(String, String), String>> {
    let mut hashes = BTreeMap::new();
    for entry in fs::read_dir(lists).doing("list", lists)? {
        let path = entry.doing("list", lists)?.path();
        if !path.to_string_lossy().ends_with("_Packages") {
            continue;
        }
        let text = fs::read_to_string(&path).doing("read", &path)?;
        for stanza in text.split("\n\n") {
            if let (Some(name), Some(version), Some(sha256)) = (
                field(stanza, "Package"),
                field(stanza, "Version"),
                field(stanza, "SHA256"),
            ) {
                hashes.insert((name.to_owned(), version.to_owned()), sha256.to_owned());
            }
        }
    }
    Ok(hashes)
}

fn field<'a>(stanza: &'a str, name: &str) -> Option<&'a str> {
    stanza
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{Deb, demand, installed, lock_text, parse_lock};

    fn deb(name: &str, version: &str, digit: &str) -> Deb {
        Deb {
            name: name.to_owned(),
            version: version.to_owned(),
            sha256: digit.repeat(64),
        }
    }

    #[test]
    fn a_lock_is_read_as_it_was_written() {
        let debs = [deb("bash", "5.2-1", "a"), deb("libc6", "2.36-9", "b")];
        assert_eq!(parse_lock(&lock_text(&debs)).unwrap(), debs);
    }

    #[test]
    fn a_line_that_is_no_package_is_an_error() {
        assert_eq!(parse_lock("bash 5.2\n").unwrap_err(), "bash 5.2");
    }

    #[test]
    fn differences_from_the_lock_are_named() {
        let locked = [deb("bash", "1", "a"), deb("gone", "1", "a"), deb("sed", "1", "a")];
        let now = [deb("bash", "2", "b"), deb("more", "1", "a"), deb("sed", "1", "f")];
        let error = demand(Path::new("debs.lock"), &locked, &now).unwrap_err().to_string();
        let expected = "debs.lock does not hold: bash is 2, locked is 1; gone 1 is not installed; \
            sed 1 has another hash; more is not locked";
        assert_eq!(error, expected);
        assert!(demand(Path::new("debs.lock"), &locked, &locked).is_ok());
    }

    #[test]
    fn hashes_of_installed_packages_come_from_the_lists() {
        let tree = tempfile::tempdir().unwrap();
        let (dpkg, lists) = (tree.path().join("var/lib/dpkg"), tree.path().join("var/lib/apt/lists"));
        fs::create_dir_all(&dpkg).unwrap();
        fs::create_dir_all(&lists).unwrap();
        let status = "Package: bash\nStatus: install ok installed\nVersion: 1\n\nPackage: old\nStatus: deinstall ok config-files\nVersion: 1\n";
        fs::write(dpkg.join("status"), status).unwrap();
        let list = format!(
            "Package: bash\nVersion: 1\nSHA256: {}\n\nPackage: bash\nVersion: 2\nSHA256: x\n",
            "a".repeat(64)
        );
        fs::write(lists.join("m_Packages"), list).unwrap();
        assert_eq!(installed(tree.path()).unwrap(), [deb("bash", "1", "a")]);
    }
}
