//! `brig policy`: what policies allow, and what is wrong with them.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use brig_jailer::policy::{
    Bounded, Ceilings, Class, Download, Found, LoadError, NetworkMode, OnOutputLimit, PackagesMode, Policy, PolicySet,
    Retention, Review, Rule, Summary, Trust, check_file,
};
use clap::{Args, Subcommand};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::escape;
use crate::output::screen::Screen;
use crate::output::style::Style;
use crate::output::table::{self, Cell};

/// Checks and shows policies: what jobs may do and use.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Checks policy files as the daemon would, and says what they allow.
    ///
    /// Problems are listed as FILE:LINE: KEY: what is wrong; then the exit code is 2.
    Check {
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Lists the policies of this host.
    List(Folders),
    /// Shows what a policy of this host allows.
    Show {
        name: String,
        #[command(flatten)]
        folders: Folders,
    },
}

/// Where policies lie.
#[derive(Debug, Clone, Args)]
pub(crate) struct Folders {
    /// Directories of policies, separated by colons; a later one overrides an earlier one by file name.
    #[arg(
        long,
        value_name = "DIR",
        env = "BRIG_POLICIES",
        hide_env_values = true,
        value_delimiter = ':',
        default_value = "/usr/share/brig/policies:/etc/brig/policies"
    )]
    policies: Vec<PathBuf>,
}

/// Runs a command about policies.
pub(crate) fn policy(command: &PolicyCommand, screen: &mut Screen) -> Result<Exit, Failure> {
    match command {
        PolicyCommand::Check { files } => Ok(check(files, screen)),
        PolicyCommand::List(folders) => {
            let text = list(&folders.load()?, screen.out.style());
            screen.out.text(&text);
            Ok(Exit::Success)
        }
        PolicyCommand::Show { name, folders } => {
            let set = folders.load()?;
            let policy = set
                .get(name)
                .map_err(|error| Failure::usage("policy", error.to_string()))?;
            screen.out.text(&summary(policy, screen.out.style()));
            Ok(Exit::Success)
        }
    }
}

fn check(files: &[PathBuf], screen: &mut Screen) -> Exit {
    let mut exit = Exit::Success;
    for file in files {
        match checked(file, screen.out.style()) {
            Ok(text) => screen.out.text(&text),
            Err(problems) => {
                exit = Exit::Usage;
                let label = screen.err.style().red("error:");
                for line in problems.lines() {
                    screen.err.text(&format!("{label} {}\n", escape::line(line)));
                }
            }
        }
    }
    exit
}

/// Says what a file allows, or what is wrong with it, one problem a line.
fn checked(file: &Path, style: Style) -> Result<String, String> {
    // The ceilings of the host may lie beside the policies, and are none.
    if file.file_name().is_some_and(|name| name == "ceilings.toml") {
        std::fs::metadata(file).map_err(|error| format!("{}: {error}", file.display()))?;
        Ceilings::load(file, Trust::Any).map_err(|error| error.to_string())?;
        return Ok(format!(
            "{}\n  good: no policy gives more than these\n",
            style.bold("ceilings")
        ));
    }
    let Summary {
        policy,
        filter_instructions,
        filter_hash,
    } = check_file(file).map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?;
    let hash: String = filter_hash.chars().take(12).collect();
    Ok(format!(
        "{}  filter     {filter_instructions} instructions, {hash}\n",
        summary(&policy, style)
    ))
}

impl Folders {
    fn load(&self) -> Result<PolicySet, Failure> {
        let folders: Vec<PathBuf> = self.policies.iter().filter(|folder| folder.is_dir()).cloned().collect();
        PolicySet::load(&folders, Trust::Any).map_err(|error| match error {
            LoadError::Empty { .. } => {
                let looked: Vec<_> = self
                    .policies
                    .iter()
                    .map(|folder| folder.display().to_string())
                    .collect();
                let message = format!("no policy in {}", looked.join(" or "));
                Failure::new(Exit::Configuration, message).hint("name their directory by --policies")
            }
            error => Failure::new(Exit::Configuration, error.to_string()),
        })
    }
}

fn list(set: &PolicySet, style: Style) -> String {
    let rows: Vec<Vec<Cell>> = set
        .iter()
        .map(|policy| {
            let limits = &policy.limits;
            [
                policy.id(),
                policy.template.clone(),
                bounded(limits.timeout),
                bounded(limits.memory),
                bounded(limits.cpus),
                bounded(limits.disk),
            ]
            .map(Cell::new)
            .to_vec()
        })
        .collect();
    table::render(
        &["policy", "template", "timeout", "memory", "cpus", "disk"],
        &rows,
        style,
    )
}

/// Says what a policy allows, one subject a line.
fn summary(policy: &Policy, style: Style) -> String {
    let limits = &policy.limits;
    let mut text = format!("{}\n", style.bold(&policy.id()));
    let mut line = |subject: &str, said: String| text.push_str(&format!("  {subject:<10} {said}\n"));
    line("template", policy.template.clone());
    line(
        "time",
        format!("{}; start within {}", bounded(limits.timeout), limits.start_timeout),
    );
    line("memory", bounded(limits.memory));
    line("cpus", bounded(limits.cpus));
    line(
        "disk",
        format!("{}, {} files", bounded(limits.disk), bounded(limits.inodes)),
    );
    line(
        "processes",
        format!(
            "{}; {} open files each",
            bounded(limits.pids),
            bounded(limits.open_files)
        ),
    );
    let excess = match limits.on_output_limit {
        OnOutputLimit::Drop => "more is dropped and counted",
        OnOutputLimit::End => "more ends the job",
    };
    line("output", format!("{}; {excess}", bounded(limits.output_bytes)));
    line(
        "input",
        format!("{} of code, {} of files", limits.code_bytes, limits.upload_bytes),
    );
    line(
        "env",
        either(&policy.environment.allow.join(" "), "no variable may be set"),
    );
    line("syscalls", policy.syscalls.groups.join(" "));
    let network = match policy.network.mode {
        NetworkMode::None => "none",
        NetworkMode::Egress => "named hosts",
    };
    line("network", network.to_owned());
    let packages = match policy.packages.mode {
        PackagesMode::Preinstalled => "those of the template",
        PackagesMode::AllowList => "those of the template, and a list of others",
        PackagesMode::Index => "those of the template, and of an index",
    };
    line("packages", packages.to_owned());
    line(
        "artifacts",
        format!(
            "{} of at most {} each; {}",
            limits.artifacts,
            limits.artifact_bytes,
            download(policy)
        ),
    );
    for class in Class::ALL {
        line(
            "",
            format!("{:<10} {}", class.name(), rule(policy.artifacts.rule(class))),
        );
    }
    if let Some(scanner) = &policy.artifacts.scanner {
        let program = scanner.command.first().map_or("", String::as_str);
        let found = match scanner.found {
            Found::Review => "is reviewed",
            Found::Refuse => "never leaves",
        };
        line(
            "scanner",
            format!("{program} under {}; what it finds {found}", scanner.policy),
        );
    }
    if policy.execution.review == Review::Required {
        let timeout = policy.execution.review_timeout;
        line(
            "approval",
            format!("each execution waits for a reviewer, at most {timeout}"),
        );
    }
    let Retention {
        ledger,
        code,
        outputs,
        artifacts,
    } = policy.retention;
    line(
        "kept for",
        format!("ledger {ledger}, code {code}, output {outputs}, artifacts {artifacts}"),
    );
    text
}

fn bounded<T: PartialEq + Display>(limit: Bounded<T>) -> String {
    if limit.default == limit.max {
        limit.max.to_string()
    } else {
        format!("{} (up to {})", limit.default, limit.max)
    }
}

fn download(policy: &Policy) -> &'static str {
    match policy.files.download {
        Download::Any => "any file may leave",
        Download::Artifacts => "they may leave as follows",
        Download::None => "no file may leave",
    }
}

fn rule(rule: &Rule) -> String {
    let mut text = rule.handling.name().to_owned();
    if !rule.extensions.is_empty() {
        text.push_str(&format!(" of {}", rule.extensions.join(" ")));
    }
    if let Some(max) = rule.max_bytes {
        text.push_str(&format!(", at most {max}"));
    }
    if let Some(max) = rule.preview_max_bytes {
        text.push_str(&format!(", above {max} download"));
    }
    text
}

fn either(text: &str, empty: &str) -> String {
    if text.is_empty() {
        empty.to_owned()
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::screen::tests::Written;

    const POLICY: &str = r#"
template = "data"
[limits]
timeout = { default = "30s", max = "5m" }
output_bytes = "1M"
[environment]
allow = ["TZ", "LC_*"]
[syscalls]
groups = ["base", "python"]
[artifacts.chart]
handling = "preview"
extensions = [".png"]
max_bytes = "10M"
[artifacts.scanner]
policy = "scan"
command = ["/usr/bin/clamscan", "artifact"]
found = "refuse"
[execution]
review = "required"
review_timeout = "2h"
[retention]
artifacts = "1d"
"#;

    #[test]
    fn a_summary_says_what_is_allowed() {
        let policy = Policy::parse("test", POLICY).unwrap();
        let text = summary(&policy, Style::PLAIN);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], policy.id());
        for expected in [
            "  time       30s (up to 5m); start within 10s",
            "  memory     512M (up to 2G)",
            "  output     1M; more is dropped and counted",
            "  env        TZ LC_*",
            "             chart      preview of .png, at most 10M",
            "             code       review",
            "  scanner    /usr/bin/clamscan under scan; what it finds never leaves",
            "  approval   each execution waits for a reviewer, at most 2h",
            "  kept for   ledger 90d, code 30d, output 7d, artifacts 1d",
        ] {
            assert!(lines.contains(&expected), "{expected:?} is not in\n{text}");
        }
    }

    #[test]
    fn problems_go_to_stderr_with_file_and_line() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bad.toml");
        std::fs::write(&file, POLICY.replacen("timeout", "tiemout", 1)).unwrap();
        let (out, err) = (Written::default(), Written::default());
        let mut screen = Screen {
            out: out.sink(false),
            err: err.sink(false),
        };
        let exit = check(std::slice::from_ref(&file), &mut screen);
        assert_eq!((exit, out.text()), (Exit::Usage, String::new()));
        let start = format!("error: {}:4: limits.tiemout: ", file.display());
        assert!(err.text().starts_with(&start), "{}", err.text());
        assert!(err.text().contains("did you mean `timeout`?"), "{}", err.text());
    }
}
