//! What the build needs of this host, and what the host's own apt says about Debian's mirror.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// Debian packages that a build needs on the host, beside what every Debian has.
pub const HOST_PACKAGES: [&str; 2] = ["mmdebstrap", "python3-pip"];

/// Refuses a host that can't build, before anything is written.
pub(crate) fn check(wheels: bool) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(needs("building a template needs root", "run the command again as root"));
    }
    if !starts("mmdebstrap", &["--version"]) {
        return Err(needs("the program mmdebstrap is missing", &install()));
    }
    if wheels && !starts("python3", &["-m", "pip", "--version"]) {
        return Err(needs("python3 has no pip", &install()));
    }
    Ok(())
}

/// Lines of `sources.list` that get `suite`, its updates and its security fixes from where this host gets its own.
pub(crate) fn debian_sources(suite: &str) -> Result<Vec<String>> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .unwrap_or_default();
    let entries: Vec<Source> = apt_files().iter().filter_map(|f| read_sources(f)).flatten().collect();
    let lines = lines_for(&entries, codename.trim_matches('"'), suite);
    if lines.is_empty() {
        let problem = format!("no source of Debian {codename:?} found in /etc/apt");
        return Err(needs(
            &problem,
            "build on a Debian host whose apt has a source with the component main",
        ));
    }
    Ok(lines)
}

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    uri: String,
    suite: String,
    components: Vec<String>,
}

fn lines_for(entries: &[Source], codename: &str, suite: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for source in entries
        .iter()
        .filter(|source| source.components.iter().any(|c| c == "main"))
    {
        let Some(kind) = source.suite.strip_prefix(codename).filter(|_| !codename.is_empty()) else {
            continue;
        };
        if ["", "-updates", "-security"].contains(&kind) {
            let line = format!("deb [signed-by={KEYRING}] {} {suite}{kind} main", source.uri);
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines
}

fn apt_files() -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    let listed = fs::read_dir("/etc/apt/sources.list.d")
        .into_iter()
        .flatten()
        .filter_map(|e| Some(e.ok()?.path()));
    files.extend(listed);
    files.sort();
    files
}

fn read_sources(file: &Path) -> Option<Vec<Source>> {
    let text = fs::read_to_string(file).ok()?;
    match file.extension()?.to_str()? {
        "list" => Some(text.lines().filter_map(one_line).collect()),
        "sources" => Some(text.split("\n\n").flat_map(stanza).collect()),
        _ => None,
    }
}

/// `deb [options] URI SUITE COMPONENT..`
fn one_line(line: &str) -> Option<Source> {
    let rest = line.trim().strip_prefix("deb ")?.trim_start();
    let rest = if rest.starts_with('[') {
        rest.split_once(']')?.1
    } else {
        rest
    };
    let mut words = rest.split_whitespace().map(str::to_owned);
    Some(Source {
        uri: words.next()?,
        suite: words.next()?,
        components: words.collect(),
    })
}

/// The deb822 form: one source per pair of URI and suite.
fn stanza(text: &str) -> Vec<Source> {
    let field = |name: &str| {
        let value = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        value
            .map(|(_, value)| value.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            .unwrap_or_default()
    };
    if field("Enabled").iter().any(|v| v == "no") || !field("Types").iter().any(|t| t == "deb") {
        return Vec::new();
    }
    let (suites, components) = (field("Suites"), field("Components"));
    let source = |uri: &String, suite: &String| Source {
        uri: uri.clone(),
        suite: suite.clone(),
        components: components.clone(),
    };
    field("URIs")
        .iter()
        .flat_map(|uri| suites.iter().map(move |suite| source(uri, suite)))
        .collect()
}

fn starts(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn install() -> String {
    format!("apt-get install --no-install-recommends {}", HOST_PACKAGES.join(" "))
}

fn needs(problem: &str, mend: &str) -> Error {
    Error::Host {
        problem: problem.to_owned(),
        mend: mend.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, lines_for, one_line, stanza};

    fn source(uri: &str, suite: &str) -> Source {
        Source {
            uri: uri.to_owned(),
            suite: suite.to_owned(),
            components: vec!["main".to_owned()],
        }
    }

    #[test]
    fn both_forms_of_sources_are_read() {
        assert_eq!(
            one_line("deb [arch=amd64] http://m/debian bookworm main"),
            Some(source("http://m/debian", "bookworm"))
        );
        assert_eq!(one_line("# deb http://m/debian bookworm main"), None);
        let text = "Types: deb\nURIs: http://m/debian\nSuites: bookworm bookworm-updates\nComponents: main\n";
        assert_eq!(
            stanza(text),
            [
                source("http://m/debian", "bookworm"),
                source("http://m/debian", "bookworm-updates")
            ]
        );
        assert_eq!(stanza(&format!("{text}Enabled: no\n")), []);
    }

    #[test]
    fn the_mirror_is_used_for_the_suite_of_the_template_and_other_sources_are_not() {
        let entries = [
            source("http://m/d", "trixie"),
            source("http://m/s", "trixie-security"),
            source("http://x/", "tools"),
        ];
        let expected = [
            "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://m/d bookworm main",
            "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://m/s bookworm-security main",
        ];
        assert_eq!(lines_for(&entries, "trixie", "bookworm"), expected);
    }
}
