//! What the program is told.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::fresh::Start;
use crate::works::{PANDAS, PRINT, Work};

/// Measures Brig and its peers in turns, and writes what was found to DIR.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// Rounds: everybody has a turn in each
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Rounds in which what takes seconds has a turn too: transfer, stream, sustained, deadline
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) long_rounds: u32,
    /// Rounds of starts beside live sessions, after all others
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) live_rounds: u32,
    /// How long clients of sustained begin new sessions in one turn, in milliseconds
    #[arg(long, default_value_t = 2_000)]
    pub(crate) span: u64,
    /// What is transferred and streamed, in bytes
    #[arg(long, default_value_t = 1_000_000_000)]
    pub(crate) bytes: u64,
    /// The most live sessions to start beside; levels above it are left out
    #[arg(long, default_value_t = 512)]
    pub(crate) live: usize,
    /// Idle sessions without a context
    #[arg(long, default_value_t = 500)]
    pub(crate) sessions: usize,
    /// Idle sessions with a context
    #[arg(long, default_value_t = 50)]
    pub(crate) contexts: usize,
    /// Sessions that wait for a request
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) waiting: u32,
    /// Measures these rows alone
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) rows: Vec<Rows>,
    /// Where the report goes
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub(crate) out: PathBuf,
    /// The folder of this program's scripts
    #[arg(long, value_name = "DIR", default_value = "benches")]
    pub(crate) scripts: PathBuf,
    /// Python with ipykernel and jupyter_client
    #[arg(long, value_name = "PROGRAM", default_value = "target/bench/venv/bin/python")]
    pub(crate) jupyter: PathBuf,
}

/// What can be measured: each is a few rows of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rows {
    /// print(1) in a fresh session that waited, against other sandboxes
    PoolPrint,
    /// An import of pandas in one
    PoolPandas,
    /// print(1) in a fresh session, into which an interpreter is forked on demand
    FreshPrint,
    /// An import of pandas in one
    FreshPandas,
    /// print(1) in a fresh session of the template base that waited
    PoolBase,
    /// print(1) in a fresh session of the template base, into which an interpreter is forked on demand
    FreshBase,
    /// Fresh sessions a second, by eight clients at one time
    Sustained,
    /// The next cell in a live context against ipykernel
    Context,
    /// The look at a session's files after an execution
    Collect,
    /// One end of an execution, written to the ledger with fsync
    Ledger,
    /// From a deadline until all processes are reaped
    Deadline,
    /// Large files against cp
    Transfer,
    /// Stdout of a command that streams
    Stream,
    /// Starts on demand beside live sessions
    Live,
    /// Memory of idle sessions
    Idle,
    /// Memory of sessions that wait for a request
    Waiting,
}

impl Options {
    pub(crate) fn wants(&self, rows: Rows) -> bool {
        self.rows.is_empty() || self.rows.contains(&rows)
    }

    /// The fresh sessions that are to be measured, of the template `data`.
    pub(crate) fn fresh(&self) -> Vec<(Work, Start)> {
        self.wanted(&[
            (Rows::PoolPrint, PRINT, Start::Pool),
            (Rows::PoolPandas, PANDAS, Start::Pool),
            (Rows::FreshPrint, PRINT, Start::Demand),
            (Rows::FreshPandas, PANDAS, Start::Demand),
        ])
    }

    /// Those of the template `base`.
    pub(crate) fn fresh_of_base(&self) -> Vec<(Work, Start)> {
        self.wanted(&[
            (Rows::PoolBase, PRINT, Start::Pool),
            (Rows::FreshBase, PRINT, Start::Demand),
        ])
    }

    fn wanted(&self, all: &[(Rows, Work, Start)]) -> Vec<(Work, Start)> {
        let wanted = all.iter().filter(|(rows, ..)| self.wants(*rows));
        wanted.map(|(_, work, start)| (*work, *start)).collect()
    }

    /// Sessions that there may be at one time.
    pub(crate) fn most_sessions(&self) -> usize {
        /// Of what is measured in turns.
        const SPARE: usize = 20;
        self.live.max(self.sessions + self.contexts) + SPARE
    }
}

/// Whether what has some turns in all has one in this round: they are spread evenly, from the first round on.
pub(crate) fn has_turn(round: u32, turns: u32, rounds: u32) -> bool {
    let turns = turns.min(rounds);
    u64::from(round) * u64::from(turns) % u64::from(rounds) < u64::from(turns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_spread_over_the_rounds() {
        let turns =
            |turns, rounds| -> Vec<u32> { (0..rounds).filter(|round| has_turn(*round, turns, rounds)).collect() };
        assert_eq!(turns(6, 30), [0, 5, 10, 15, 20, 25]);
        assert_eq!(turns(2, 5), [0, 3]);
        assert_eq!(turns(6, 1), [0]);
        assert_eq!(turns(4, 3), [0, 1, 2]);
    }

    #[test]
    fn one_row_can_be_asked_for() {
        let options = Options::parse_from(["brig-bench", "--rows", "pool-pandas,ledger"]);
        let fresh: Vec<(&str, Start)> = options
            .fresh()
            .iter()
            .map(|(work, start)| (work.name, *start))
            .collect();
        assert_eq!(fresh, [("pandas", Start::Pool)]);
        assert!(options.wants(Rows::Ledger) && !options.wants(Rows::Idle));
    }
}
