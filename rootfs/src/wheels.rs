//! Python packages: the lock that pins each wheel by hash, and their installation without running any of their code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::error::{Doing, Error, Result};
use crate::hash;
use crate::progress::Progress;
use crate::run::Log;
use crate::store::Package;
use crate::template::{Python, Template};

/// glibc versions 2.17 to 2.36 (the one of bookworm): wheels made for these run in the tree.
const GLIBC_MINORS: std::ops::RangeInclusive<u32> = 17..=36;

/// Names in the second line of a lock which template it was made for.
const MADE_FOR: &str = "# requirements ";

/// Packages that are wanted, and the lock that pins them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    python: &'a Python,
    /// Where the lock lies.
    folder: &'a Path,
    /// The command that makes the lock.
    relock: &'a str,
    /// Only what runs with any Python on any machine, and nothing that is not named.
    pure: bool,
}

impl<'a> Wanted<'a> {
    /// The packages of a template, for its Python, with all that they need.
    pub(crate) fn of(template: &'a Template, relock: &'a str) -> Self {
        Self {
            python: &template.python,
            folder: &template.folder,
            relock,
            pure: false,
        }
    }

    /// The packages of the kernel layer.
    pub(crate) fn pure(python: &'a Python, folder: &'a Path, relock: &'a str) -> Self {
        Self {
            python,
            folder,
            relock,
            pure: true,
        }
    }

    /// The lock's file, if there is to be one.
    pub(crate) fn lock_file(&self) -> Option<PathBuf> {
        self.python.lock.as_ref().map(|name| self.folder.join(name))
    }
}

/// The command that makes a template's lock.
pub(crate) fn relock(template: &Template) -> String {
    format!("brig template lock {}", template.name)
}

/// Looks up all that the requirements need and gives the text of the lock.
pub(crate) fn resolve(wanted: Wanted<'_>, scratch: &Path, log: &mut Log, progress: &Progress) -> Result<String> {
    let report = scratch.join("report.json");
    let mut command = pip(wanted);
    command
        .args(["install", "--dry-run", "--ignore-installed", "--target"])
        .arg(scratch.join("none"));
    if wanted.pure {
        command.arg("--no-deps");
    }
    command.arg("--report").arg(&report).args(&wanted.python.requirements);
    log.run("resolve Python packages", &mut command, progress)?;
    let text = fs::read_to_string(&report).doing("read", &report)?;
    let report: Report = serde_json::from_str(&text).map_err(|e| Error::invalid(&report, e.to_string()))?;
    Ok(lock_text(wanted, &report))
}

/// Reads a lock, after a check that it was made for what is wanted now.
pub(crate) fn read_lock(wanted: Wanted<'_>) -> Result<String> {
    let Some(file) = wanted.lock_file() else {
        return Ok(String::new());
    };
    let text = fs::read_to_string(&file).doing("read", &file)?;
    let made_for = text.lines().find_map(|line| line.strip_prefix(MADE_FOR));
    if made_for != Some(&fingerprint(wanted)) {
        let message = format!("made for other requirements; run: {}", wanted.relock);
        return Err(Error::invalid(&file, message));
    }
    Ok(text)
}

/// The packages that a lock pins.
pub(crate) fn packages(lock: &str) -> Vec<Package> {
    let pins = lock
        .lines()
        .filter_map(|line| line.split_whitespace().next()?.split_once("=="));
    pins.map(|(name, version)| Package {
        name: name.to_owned(),
        version: version.to_owned(),
    })
    .collect()
}

/// Unpacks the locked wheels into a directory.
///
/// With a cache their files are kept there, and nothing is fetched if all are.
pub(crate) fn install(
    wanted: Wanted<'_>,
    site: &Path,
    cache: Option<&Path>,
    log: &mut Log,
    progress: &Progress,
) -> Result<()> {
    let Some(lock) = wanted.lock_file() else {
        return Ok(());
    };
    let unpack = |offline: Option<&Path>| {
        let mut command = pip(wanted);
        command
            .args(["install", "--require-hashes", "--no-deps", "--no-compile", "--target"])
            .arg(site);
        if let Some(cache) = offline {
            command.arg("--no-index").arg("--find-links").arg(cache);
        }
        command.arg("--requirement").arg(&lock);
        command
    };
    match cache {
        None => log.run("install Python packages", &mut unpack(None), progress)?,
        Some(cache) => {
            if log
                .run("install kept Python packages", &mut unpack(Some(cache)), progress)
                .is_err()
            {
                fetch(wanted, &lock, cache, log, progress)?;
                log.run("install Python packages", &mut unpack(Some(cache)), progress)?;
            }
        }
    }
    drop_scripts(site)
}

fn fetch(wanted: Wanted<'_>, lock: &Path, cache: &Path, log: &mut Log, progress: &Progress) -> Result<()> {
    fs::create_dir_all(cache).doing("make", cache)?;
    let mut command = pip(wanted);
    command
        .args(["download", "--require-hashes", "--no-deps", "--dest"])
        .arg(cache);
    command.arg("--requirement").arg(lock);
    log.run("fetch Python packages", &mut command, progress)
}

/// pip for the Python that is meant: what is not a wheel for it is refused, and its own Python is not looked at.
fn pip(wanted: Wanted<'_>) -> Command {
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "--no-input", "--disable-pip-version-check"]);
    command
        .env("PIP_ROOT_USER_ACTION", "ignore")
        .env("PIP_PROGRESS_BAR", "off");
    // Before the arguments of the subcommand comes the subcommand, so that these are given as variables.
    command
        .env("PIP_ONLY_BINARY", ":all:")
        .env("PIP_PYTHON_VERSION", &wanted.python.version);
    let (implementation, abi, platforms) = if wanted.pure {
        ("py", "none".to_owned(), "any".to_owned())
    } else {
        let machine = std::env::consts::ARCH;
        let platforms = GLIBC_MINORS.rev().map(|minor| format!("manylinux_2_{minor}_{machine}"));
        let platforms: Vec<String> = platforms.chain([format!("manylinux2014_{machine}")]).collect();
        let abi = format!("cp{}", wanted.python.version.replace('.', ""));
        ("cp", format!("{abi} abi3 none"), platforms.join(" "))
    };
    command
        .env("PIP_IMPLEMENTATION", implementation)
        .env("PIP_ABI", abi)
        .env("PIP_PLATFORM", platforms);
    command
}

/// Commands of packages would start the host's Python: their names are not in the tree, nor in the packages' records.
fn drop_scripts(site: &Path) -> Result<()> {
    for folder in ["bin", "share"]
        .map(|name| site.join(name))
        .iter()
        .filter(|folder| folder.exists())
    {
        fs::remove_dir_all(folder).doing("remove", folder)?;
    }
    for path in hash::walk(site)?.iter().filter(|path| path.ends_with("RECORD")) {
        let text = fs::read_to_string(path).doing("read", path)?;
        let mut lines: Vec<&str> = text.lines().filter(|line| is_kept(line)).collect();
        lines.sort_unstable();
        fs::write(path, lines.join("\n") + "\n").doing("write", path)?;
    }
    Ok(())
}

fn is_kept(line: &str) -> bool {
    !["../", "bin/", "share/"].iter().any(|start| line.starts_with(start))
}

fn lock_text(wanted: Wanted<'_>, report: &Report) -> String {
    let mut pins: Vec<String> = report
        .install
        .iter()
        .map(|item| {
            let (metadata, hashes) = (&item.metadata, &item.download_info.archive_info.hashes);
            format!(
                "{}=={} --hash=sha256:{}\n",
                metadata.name.to_lowercase(),
                metadata.version,
                hashes.sha256
            )
        })
        .collect();
    pins.sort();
    let machine = if wanted.pure { "any" } else { std::env::consts::ARCH };
    format!(
        "# Made by: {}\n{MADE_FOR}{}\n# python {} {machine}\n{}",
        wanted.relock,
        fingerprint(wanted),
        wanted.python.version,
        pins.concat()
    )
}

fn fingerprint(wanted: Wanted<'_>) -> String {
    let mut requirements = wanted.python.requirements.clone();
    requirements.sort();
    let parts = [wanted.python.version.as_bytes()]
        .into_iter()
        .chain(requirements.iter().map(String::as_bytes));
    hash::parts(parts)
}

/// What of pip's installation report is used.
#[derive(Debug, Deserialize)]
struct Report {
    install: Vec<Item>,
}

#[derive(Debug, Deserialize)]
struct Item {
    metadata: Metadata,
    download_info: DownloadInfo,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
    version: String,
}

#[derive(Debug, Deserialize)]
struct DownloadInfo {
    archive_info: ArchiveInfo,
}

#[derive(Debug, Deserialize)]
struct ArchiveInfo {
    hashes: Hashes,
}

#[derive(Debug, Deserialize)]
struct Hashes {
    sha256: String,
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{Report, Wanted, drop_scripts, is_kept, lock_text, packages, read_lock};
    use crate::store::Package;
    use crate::template::{Python, Template};

    const RELOCK: &str = "brig template lock t";
    const REPORT: &str = r#"{"version": "1", "install": [
        {"metadata": {"name": "Six", "version": "1.2"}, "download_info": {"url": "u", "archive_info": {"hashes": {"sha256": "aa"}}}},
        {"metadata": {"name": "attrs", "version": "3"}, "download_info": {"url": "u", "archive_info": {"hashes": {"sha256": "bb"}}}}]}"#;

    fn template(folder: &Path) -> Template {
        let python = Python {
            version: "3.11".into(),
            requirements: vec!["six==1.2".into()],
            lock: Some("t.lock".into()),
        };
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates/base.toml");
        Template {
            name: "t".into(),
            python,
            folder: folder.to_owned(),
            ..Template::read(&base).unwrap()
        }
    }

    #[test]
    fn the_lock_names_each_wheel_by_hash_and_is_sorted() {
        let template = template(Path::new("."));
        let text = lock_text(
            Wanted::of(&template, RELOCK),
            &serde_json::from_str::<Report>(REPORT).unwrap(),
        );
        assert!(
            text.ends_with("\nattrs==3 --hash=sha256:bb\nsix==1.2 --hash=sha256:aa\n"),
            "{text}"
        );
        let package = |name: &str, version: &str| Package {
            name: name.into(),
            version: version.into(),
        };
        assert_eq!(packages(&text), [package("attrs", "3"), package("six", "1.2")]);
    }

    #[test]
    fn a_lock_made_for_other_requirements_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut template = template(folder.path());
        let text = lock_text(
            Wanted::of(&template, RELOCK),
            &serde_json::from_str::<Report>(REPORT).unwrap(),
        );
        fs::write(folder.path().join("t.lock"), &text).unwrap();
        assert_eq!(read_lock(Wanted::of(&template, RELOCK)).unwrap(), text);
        template.python.requirements.push("more==1".into());
        let error = read_lock(Wanted::of(&template, RELOCK)).unwrap_err().to_string();
        assert!(
            error.ends_with("t.lock: made for other requirements; run: brig template lock t"),
            "{error}"
        );
    }

    #[test]
    fn the_shipped_lock_fits_the_shipped_template() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates/data.toml");
        let template = Template::read(&data).unwrap();
        let lock = read_lock(Wanted::of(&template, RELOCK)).unwrap();
        assert!(packages(&lock).iter().any(|package| package.name == "pandas"), "{lock}");
    }

    #[test]
    fn commands_of_packages_are_removed_with_their_records() {
        let site = tempfile::tempdir().unwrap();
        let info = site.path().join("x-1.dist-info");
        fs::create_dir_all(site.path().join("bin")).unwrap();
        fs::create_dir(&info).unwrap();
        fs::write(info.join("RECORD"), "x.py,,\n../../bin/x,,\nbin/x,,\n").unwrap();
        drop_scripts(site.path()).unwrap();
        assert_eq!(fs::read_to_string(info.join("RECORD")).unwrap(), "x.py,,\n");
        assert!(!site.path().join("bin").exists());
        assert!(is_kept("binary.py,,"));
    }
}
