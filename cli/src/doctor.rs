//! `brig doctor`: what this host can enforce, what it lacks, and the mend.

use std::path::Path;
use std::process::Command;

use brig_jailer::api::{Check, HostReport, Verdict};
use brig_proto::v1::host_client::HostClient;
use brig_proto::v1::{HostCheck, HostGetRequest, HostVerdict};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::Format;
use crate::output::escape;
use crate::output::screen::Screen;
use crate::output::style::Style;
use crate::output::table::{self, Cell};
use crate::programs::{self, Places};

/// Says what this host can enforce, what it lacks, and how to mend that.
///
/// Asks the daemon; without one, as root, looks itself. Exits with 0 if nothing is missing, 1 if sessions run with less
/// than the best, 78 if no session can be made.
#[derive(Debug, Clone, Args)]
pub(crate) struct DoctorOptions {
    /// For people, or one JSON document.
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "text")]
    format: DoctorFormat,

    #[command(flatten)]
    places: Places,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DoctorFormat {
    Text,
    Json,
}

impl DoctorOptions {
    /// What stdout is.
    pub(crate) fn format(&self) -> Format {
        match self.format {
            DoctorFormat::Text => Format::Text,
            DoctorFormat::Json => Format::Json,
        }
    }
}

/// What was found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Report {
    verdict: Mark,
    /// Who looked: the daemon, or the jailer started for it.
    source: &'static str,
    checks: Vec<CheckDocument>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct CheckDocument {
    what: String,
    verdict: Mark,
    found: String,
    needed: String,
    mend: String,
}

/// A verdict, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mark {
    Ok,
    Degraded,
    Missing,
}

/// Finds out and shows it.
pub(crate) fn doctor(options: &DoctorOptions, screen: &mut Screen) -> Result<Exit, Failure> {
    let report = look(&options.places)?;
    match options.format {
        DoctorFormat::Text => {
            let text = render(&report, screen.out.style());
            screen.out.text(&text);
        }
        DoctorFormat::Json => screen.out.json(&report),
    }
    Ok(match report.verdict {
        Mark::Ok => Exit::Success,
        Mark::Degraded => Exit::Error,
        Mark::Missing => Exit::Configuration,
    })
}

/// Asks the daemon if there is one, else, as root, the jailer.
fn look(places: &Places) -> Result<Report, Failure> {
    let runtime = connect::runtime()?;
    match runtime.block_on(ask_daemon()) {
        Err(failure) if failure.exit == Exit::NoDaemon && rustix::process::geteuid().is_root() => ask_jailer(places),
        Err(failure) if failure.exit == Exit::NoDaemon => Err(failure.hint("or look without one: sudo brig doctor")),
        found => found,
    }
}

async fn ask_daemon() -> Result<Report, Failure> {
    let channel = connect::connect(&connect::socket()?).await?;
    let answer = HostClient::new(channel).get(HostGetRequest::default()).await;
    let host = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
    Ok(Report::new(
        "brigd",
        host.checks.into_iter().map(CheckDocument::from).collect(),
    ))
}

/// Asks the jailer itself, in a process of its own.
fn ask_jailer(places: &Places) -> Result<Report, Failure> {
    let program = programs::find("brig-jailer", places.programs.as_deref())?;
    // Its helpers lie beside it, wherever that is.
    let programs = places
        .programs
        .clone()
        .or_else(|| program.parent().map(Path::to_path_buf));
    let places = Places {
        programs,
        ..places.clone()
    };
    let failed = |what: String| Failure::new(Exit::Failed, format!("{}: {what}", program.display()));
    let output = Command::new(&program).arg("--doctor").args(places.arguments()).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    let report: HostReport = serde_json::from_slice(&output.stdout).map_err(|error| {
        let said = String::from_utf8_lossy(&output.stderr);
        failed(format!("{}: {error}; {}", output.status, said.trim()))
    })?;
    Ok(Report::new(
        "brig-jailer",
        report.checks.into_iter().map(CheckDocument::from).collect(),
    ))
}

impl Report {
    fn new(source: &'static str, checks: Vec<CheckDocument>) -> Self {
        let verdict = checks.iter().map(|check| check.verdict).max().unwrap_or(Mark::Ok);
        Self {
            verdict,
            source,
            checks,
        }
    }
}

impl From<Check> for CheckDocument {
    fn from(check: Check) -> Self {
        let verdict = match check.verdict {
            Verdict::Ok => Mark::Ok,
            Verdict::Degraded => Mark::Degraded,
            Verdict::Missing => Mark::Missing,
        };
        Self {
            what: check.what,
            verdict,
            found: check.found,
            needed: check.needed,
            mend: check.mend,
        }
    }
}

impl From<HostCheck> for CheckDocument {
    fn from(check: HostCheck) -> Self {
        let verdict = match check.verdict() {
            HostVerdict::Ok => Mark::Ok,
            HostVerdict::Degraded => Mark::Degraded,
            // A verdict of a newer daemon: better too strict than too kind.
            HostVerdict::Missing | HostVerdict::Unspecified => Mark::Missing,
        };
        Self {
            what: check.what,
            verdict,
            found: check.found,
            needed: check.needed,
            mend: check.mend,
        }
    }
}

fn render(report: &Report, style: Style) -> String {
    let rows: Vec<Vec<Cell>> = report.checks.iter().map(row).collect();
    let mut text = table::render(&["", "what", "found", "needed"], &rows, style);
    for check in report
        .checks
        .iter()
        .filter(|check| check.verdict != Mark::Ok && !check.mend.is_empty())
    {
        text.push_str(&format!(
            "{} {}: {}\n",
            style.yellow("mend:"),
            escape::line(&check.what),
            escape::line(&check.mend)
        ));
    }
    text.push_str(&match report.verdict {
        Mark::Ok => style.green("This host enforces everything that Brig promises."),
        Mark::Degraded => style.yellow("Sessions run on this host, with less than the best."),
        Mark::Missing => style.red("No session can be made on this host."),
    });
    text.push('\n');
    text
}

fn row(check: &CheckDocument) -> Vec<Cell> {
    let mark = match check.verdict {
        Mark::Ok => Cell::painted("ok", Style::green),
        Mark::Degraded => Cell::painted("degraded", Style::yellow),
        Mark::Missing => Cell::painted("missing", Style::red),
    };
    let texts = [&check.what, &check.found, &check.needed];
    std::iter::once(mark)
        .chain(texts.map(|text| Cell::new(escape::line(text))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(what: &str, verdict: Verdict, mend: &str) -> CheckDocument {
        let text = |text: &str| text.to_owned();
        Check {
            what: text(what),
            found: text("6.1"),
            needed: text("6.1 or later"),
            verdict,
            mend: text(mend),
        }
        .into()
    }

    #[test]
    fn the_worst_check_decides() {
        let ok = check("kernel", Verdict::Ok, "");
        let degraded = check("swap", Verdict::Degraded, "boot with swapaccount=1");
        let missing = check("memory", Verdict::Missing, "");
        let verdict = |checks: &[&CheckDocument]| Report::new("", checks.iter().copied().cloned().collect()).verdict;
        assert_eq!(
            [
                verdict(&[&ok]),
                verdict(&[&degraded, &ok]),
                verdict(&[&missing, &degraded]),
                verdict(&[])
            ],
            [Mark::Ok, Mark::Degraded, Mark::Missing, Mark::Ok]
        );
    }

    #[test]
    fn the_table_says_what_was_found_and_how_to_mend() {
        let checks = vec![
            check("kernel", Verdict::Ok, ""),
            check("swap", Verdict::Degraded, "boot with swapaccount=1"),
        ];
        assert_eq!(
            render(&Report::new("brigd", checks), Style::PLAIN),
            "          what    found  needed\n\
             ok        kernel  6.1    6.1 or later\n\
             degraded  swap    6.1    6.1 or later\n\
             mend: swap: boot with swapaccount=1\n\
             Sessions run on this host, with less than the best.\n"
        );
    }
}
