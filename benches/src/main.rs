//! `make bench`: how fast Brig is beside others, measured in turns on one machine. `benches/README.md` says how to read it.

mod collect;
mod context;
mod fresh;
mod growth;
mod idle;
mod machine;
mod ours;
mod peers;
mod plot;
mod report;
mod samples;
mod stream;
mod table;
mod times;
mod transfer;

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, ValueEnum};

use self::collect::Collect;
use self::context::Cells;
use self::fresh::Fresh;
use self::machine::Machine;
use self::ours::Ours;
use self::peers::{Place, Rootfs};
use self::report::{Report, rows};
use self::samples::Measurement;
use self::stream::Stream;
use self::transfer::Transfer;

/// Sessions that may be kept beside the idle ones.
const SPARE_SESSIONS: usize = 20;

/// Measures Brig and its peers in turns, and writes what was found to DIR.
#[derive(Debug, Parser)]
struct Options {
    /// Rounds: everybody has a turn in each
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Rounds from one large transfer or stream to the next
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    transfer_every: u32,
    /// What is transferred and streamed, in bytes
    #[arg(long, default_value_t = 1_000_000_000)]
    bytes: u64,
    /// Idle sessions without a context
    #[arg(long, default_value_t = 500)]
    sessions: usize,
    /// Idle sessions with a context
    #[arg(long, default_value_t = 50)]
    contexts: usize,
    /// Measures these alone
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Group>,
    /// Where the report goes
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,
    /// The folder of this program's scripts
    #[arg(long, value_name = "DIR", default_value = "benches")]
    scripts: PathBuf,
    /// Python with ipykernel and jupyter_client
    #[arg(long, value_name = "PROGRAM", default_value = "target/bench/venv/bin/python")]
    jupyter: PathBuf,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Fresh sessions against other sandboxes
    Fresh,
    /// The next cell in a live context against ipykernel
    Context,
    /// The look at a session's files after an execution
    Collect,
    /// Large files against cp
    Transfer,
    /// Stdout of a command that streams
    Stream,
    /// Memory of idle sessions
    Idle,
}

/// Things that are measured in turns.
trait Turns {
    /// Gives everybody one turn.
    fn round(&mut self, round: usize) -> anyhow::Result<()>;
    /// What was found.
    fn measurements(self: Box<Self>) -> Vec<Measurement>;
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let scratch = tempfile::Builder::new().prefix("brig-bench-").tempdir()?;
    let ours = Ours::start(options.sessions + options.contexts + SPARE_SESSIONS)?;
    let machine = Machine::look(ours.directory())?;
    let rootfs = Rootfs::find(scratch.path())?;
    let mut left_out = Vec::new();

    let mut groups = groups(&options, &ours, &rootfs, &mut left_out)?;
    for round in 0..options.rounds {
        say(&format!("\rround {} of {}", round + 1, options.rounds))?;
        for (every, group) in &mut groups {
            if round % *every == 0 {
                group.round(usize::try_from(round)?)?;
            }
        }
    }
    let mut measured: Vec<Measurement> = groups.into_iter().flat_map(|(_, group)| group.measurements()).collect();
    if options.wants(Group::Idle) {
        say("\ridle sessions        ")?;
        measured.extend(idle::idle(&ours, options.sessions, options.contexts, &mut left_out)?);
    }

    let report = Report {
        machine,
        rows: measured.iter().flat_map(rows).collect(),
    };
    fs::create_dir_all(&options.out)?;
    let document = options.out.join("report.json");
    fs::write(&document, serde_json::to_string_pretty(&report)? + "\n")?;
    let plots = plot::draw(&ours, &measured, &options.scripts.join("plot.py"), &options.out)?;
    say("\r                     \r")?;
    let text = table::table(&report, &left_out);
    fs::write(options.out.join("report.txt"), &text)?;
    writeln!(
        std::io::stdout(),
        "{text}\n{} and {plots} plots beside it",
        document.display()
    )?;
    Ok(())
}

/// What takes turns, each with the rounds from one of its turns to the next.
fn groups<'o>(
    options: &Options,
    ours: &'o Ours,
    rootfs: &Rootfs,
    left_out: &mut Vec<String>,
) -> anyhow::Result<Vec<(u32, Box<dyn Turns + 'o>)>> {
    let mut groups: Vec<(u32, Box<dyn Turns + 'o>)> = Vec::new();
    if options.wants(Group::Fresh) {
        let place = Place::enter(&rootfs.scratch)?;
        groups.push((1, Box::new(Fresh::new(ours, place, rootfs, left_out)?)));
    }
    if options.wants(Group::Context) {
        match Cells::new(ours, &options.scripts.join("cells.py"), &options.jupyter) {
            Ok(cells) => groups.push((1, Box::new(cells))),
            Err(error) => left_out.push(format!("next cell in a live context: {error:#}")),
        }
    }
    if options.wants(Group::Collect) {
        groups.push((1, Box::new(Collect::new(ours)?)));
    }
    if options.wants(Group::Transfer) {
        groups.push((options.transfer_every, Box::new(Transfer::new(ours, options.bytes)?)));
    }
    if options.wants(Group::Stream) {
        match Stream::new(ours, options.bytes) {
            Ok(stream) => groups.push((options.transfer_every, Box::new(stream))),
            Err(error) => left_out.push(format!("stdout of a command, streamed: {error:#}")),
        }
    }
    Ok(groups)
}

impl Options {
    fn wants(&self, group: Group) -> bool {
        self.only.is_empty() || self.only.contains(&group)
    }
}

/// Progress, for people.
fn say(text: &str) -> anyhow::Result<()> {
    let mut stderr = std::io::stderr();
    stderr
        .write_all(text.as_bytes())
        .and_then(|()| stderr.flush())
        .context("stderr")
}
