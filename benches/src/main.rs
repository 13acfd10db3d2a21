//! `make bench`: how fast Brig is beside others, measured in turns on one machine. `benches/README.md` says how to read it.

mod append;
mod collect;
mod context;
mod deadline;
mod fresh;
mod groups;
mod growth;
mod idle;
mod live;
mod machine;
mod memory;
mod options;
mod ours;
mod peers;
mod plot;
mod report;
mod samples;
mod stream;
mod sustained;
mod table;
mod times;
mod transfer;
mod waiting;
mod works;

use std::fs;
use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;

use self::append::Append;
use self::collect::Collect;
use self::context::Cells;
use self::deadline::Deadline;
use self::fresh::Fresh;
use self::machine::Machine;
use self::options::{Options, Rows, has_turn};
use self::ours::{Ours, Scale};
use self::peers::{Crowd, Rootfs};
use self::report::{Report, rows};
use self::samples::Measurement;
use self::stream::Stream;
use self::sustained::Sustained;
use self::transfer::Transfer;
use self::works::{PANDAS, PRINT};

/// Things that are measured in turns.
trait Turns {
    /// Gives everybody one turn.
    fn round(&mut self, round: usize) -> anyhow::Result<()>;
    /// What was found.
    fn measurements(self: Box<Self>) -> Vec<Measurement>;
}

/// What takes turns, each with how many it has.
type Groups<'o> = Vec<(u32, Box<dyn Turns + 'o>)>;

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let scratch = tempfile::Builder::new().prefix("brig-bench-").tempdir()?;
    let ours = Ours::start(Scale {
        sessions: options.most_sessions(),
        ..Scale::default()
    })?;
    let machine = Machine::look(ours.directory())?;
    let rootfs = Rootfs::find(scratch.path())?;
    let mut left_out = Vec::new();

    let of_base = options.fresh_of_base();
    let small = (!of_base.is_empty())
        .then(|| {
            Ours::start(Scale {
                template: "base",
                ..Scale::default()
            })
        })
        .transpose()?;
    let wants_peers = options.wants(Rows::Sustained) || small.is_some() || !options.fresh().is_empty();
    let gather = || Crowd::gather(&rootfs, &[PRINT, PANDAS], &mut left_out);
    let crowd = wants_peers.then(gather).transpose()?;
    let mut groups = groups(&options, &ours, &machine, crowd.as_ref(), &mut left_out)?;
    if let (Some(small), Some(crowd)) = (&small, &crowd) {
        groups.push((options.rounds, Box::new(Fresh::new(small, crowd, &of_base)?)));
    }
    for round in 0..options.rounds {
        say(&format!("\rround {} of {}", round + 1, options.rounds))?;
        for (turns, group) in &mut groups {
            if has_turn(round, *turns, options.rounds) {
                group.round(usize::try_from(round)?)?;
            }
        }
    }
    let mut measured: Vec<Measurement> = groups.into_iter().flat_map(|(_, group)| group.measurements()).collect();
    measured.extend(alone(&options, &ours, &mut left_out)?);

    let report = Report {
        machine,
        rows: measured.iter().flat_map(rows).collect(),
    };
    fs::create_dir_all(&options.out)?;
    let document = options.out.join("report.json");
    fs::write(&document, serde_json::to_string_pretty(&report)? + "\n")?;
    let plots = plot::draw(&ours, &measured, &options.scripts.join("plot.py"), &options.out)?;
    say("\r\x1b[K")?;
    let text = table::table(&report, &left_out);
    fs::write(options.out.join("report.txt"), &text)?;
    writeln!(
        std::io::stdout(),
        "{text}\n{} and {plots} plots beside it",
        document.display()
    )?;
    Ok(())
}

fn groups<'o>(
    options: &Options,
    ours: &'o Ours,
    machine: &Machine,
    crowd: Option<&'o Crowd>,
    left_out: &mut Vec<String>,
) -> anyhow::Result<Groups<'o>> {
    let (always, seldom) = (options.rounds, options.long_rounds);
    let mut groups: Groups<'o> = Vec::new();
    if let Some(crowd) = crowd {
        let fresh = options.fresh();
        if !fresh.is_empty() {
            groups.push((always, Box::new(Fresh::new(ours, crowd, &fresh)?)));
        }
        if options.wants(Rows::Sustained) {
            let span = Duration::from_millis(options.span);
            groups.push((seldom, Box::new(Sustained::new(crowd, span, left_out)?)));
        }
    }
    if options.wants(Rows::Context) {
        match Cells::new(ours, &options.scripts.join("cells.py"), &options.jupyter) {
            Ok(cells) => groups.push((always, Box::new(cells))),
            Err(error) => left_out.push(format!("next cell in a live context: {error:#}")),
        }
    }
    if options.wants(Rows::Collect) {
        groups.push((always, Box::new(Collect::new(ours)?)));
    }
    if options.wants(Rows::Ledger) {
        match Append::new(ours.directory(), &machine.disk) {
            Ok(append) => groups.push((always, Box::new(append))),
            Err(error) => left_out.push(format!("ledger append with fsync: {error:#}")),
        }
    }
    if options.wants(Rows::Deadline) {
        groups.push((seldom, Box::new(Deadline::new(ours))));
    }
    if options.wants(Rows::Transfer) {
        groups.push((seldom, Box::new(Transfer::new(ours, options.bytes)?)));
    }
    if options.wants(Rows::Stream) {
        match Stream::new(ours, options.bytes) {
            Ok(stream) => groups.push((seldom, Box::new(stream))),
            Err(error) => left_out.push(format!("stdout of a command, streamed: {error:#}")),
        }
    }
    Ok(groups)
}

/// What needs the machine for itself: so much is there that it would disturb others' turns.
fn alone(options: &Options, ours: &Ours, left_out: &mut Vec<String>) -> anyhow::Result<Vec<Measurement>> {
    let mut measured = Vec::new();
    if options.wants(Rows::Live) {
        let rounds = usize::try_from(options.live_rounds)?;
        measured.extend(live::live(ours, options.live, rounds, say)?);
    }
    if options.wants(Rows::Idle) {
        say("\r\x1b[Kidle sessions")?;
        measured.extend(idle::idle(ours, options.sessions, options.contexts, left_out)?);
    }
    if options.wants(Rows::Waiting) {
        say("\r\x1b[Kwaiting sessions")?;
        measured.extend(waiting::waiting(usize::try_from(options.waiting)?, left_out)?);
    }
    Ok(measured)
}

/// Progress, for people.
fn say(text: &str) -> anyhow::Result<()> {
    let mut stderr = std::io::stderr();
    stderr
        .write_all(text.as_bytes())
        .and_then(|()| stderr.flush())
        .context("stderr")
}
