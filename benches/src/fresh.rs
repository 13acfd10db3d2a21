//! Fresh sessions: code runs in a sandbox that is made for it and gone afterwards.

use crate::Turns;
use crate::ours::Ours;
use crate::peers::{BARE, Crowd};
use crate::samples::{Measurement, Of, Unit, millis};
use crate::times::Times;
use crate::works::{PRINT, Work};

/// The sandbox that `print(1)` is compared with: limits by control groups, and a filter of system calls.
const JAIL: &[&str] = &["nsjail", "crun"];

const MOMENTS: [&str; 3] = ["to first output", "finished", "torn down"];

/// How a session comes to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Nothing waits for the request.
    Demand,
    /// It has waited.
    Pool,
}

/// Brig and its peers, in turns.
pub(crate) struct Fresh<'o> {
    ours: &'o Ours,
    crowd: &'o Crowd,
    works: Vec<Work>,
    series: Vec<Series>,
}

/// One work, started in one way.
struct Series {
    work: Work,
    start: Start,
    moments: [Measurement; 3],
}

impl<'o> Fresh<'o> {
    /// Runs each once, so that what is asked for waits.
    pub(crate) fn new(ours: &'o Ours, crowd: &'o Crowd, wanted: &[(Work, Start)]) -> anyhow::Result<Self> {
        let mut works: Vec<Work> = Vec::new();
        for (work, start) in wanted {
            if works.iter().all(|known| known.name != work.name) {
                works.push(*work);
            }
            match start {
                Start::Demand => drop(ours.fresh(*work)?),
                Start::Pool => ours.ask_ahead(*work, 1)?,
            }
        }
        Ok(Self {
            ours,
            crowd,
            works,
            series: wanted
                .iter()
                .map(|(work, start)| Series::new(*work, *start, ours.template()))
                .collect(),
        })
    }

    /// A turn of one of the peers, or of one of the ways to start ours.
    fn turn(&mut self, work: Work, who: usize) -> anyhow::Result<()> {
        let mut of_work = self.series.iter_mut().filter(|series| series.work.name == work.name);
        match self.crowd.names().nth(who) {
            Some(name) => {
                let times = self.crowd.ask(who, work)?;
                of_work.for_each(|series| series.peer(name, times));
            }
            None => {
                if let Some(series) = of_work.nth(who - self.crowd.names().len()) {
                    let times = match series.start {
                        Start::Demand => self.ours.fresh(work)?,
                        Start::Pool => self.ours.waited(work)?,
                    };
                    series.ours(times);
                }
            }
        }
        Ok(())
    }
}

impl Turns for Fresh<'_> {
    fn round(&mut self, round: usize) -> anyhow::Result<()> {
        for work in self.works.clone() {
            let ways = self
                .series
                .iter()
                .filter(|series| series.work.name == work.name)
                .count();
            let all = self.crowd.names().len() + ways;
            for turn in 0..all {
                // Everybody follows everybody: what one leaves to be done meets another each time.
                self.turn(work, (round + turn) % all)?;
            }
        }
        Ok(())
    }

    fn measurements(self: Box<Self>) -> Vec<Measurement> {
        self.series.into_iter().flat_map(|series| series.moments).collect()
    }
}

impl Series {
    fn new(work: Work, start: Start, template: &str) -> Self {
        let of = match template {
            "" => String::new(),
            template => format!(" of {template}"),
        };
        let how = match start {
            Start::Demand => " by a fork",
            Start::Pool => " from the pool",
        };
        let moments = MOMENTS.map(|moment| {
            let name = format!("fresh session{of}{how}, {}, {moment}", work.name);
            let goals = goals(work, start, moment).iter();
            goals.fold(Measurement::new(name, Unit::Milliseconds), |row, (of, least)| {
                row.goal(*of, *least)
            })
        });
        Self { work, start, moments }
    }

    fn ours(&mut self, times: Times) {
        let spans = self.moments.iter_mut().zip(times.moments());
        spans.for_each(|(row, span)| row.ours.push(millis(span)));
    }

    fn peer(&mut self, name: &str, times: Times) {
        let spans = self.moments.iter_mut().zip(times.moments());
        spans.for_each(|(row, span)| row.peer(name, millis(span)));
    }
}

/// What is asked for.
fn goals(work: Work, start: Start, moment: &str) -> &'static [(Of, f64)] {
    match (start, work.name == PRINT.name, moment) {
        (Start::Pool, false, "to first output") => &[(Of::Fastest, 80.0), (Of::FastestWorst, 30.0)],
        (Start::Demand, false, "to first output") => &[(Of::Fastest, 20.0)],
        (Start::Demand, false, "torn down") => &[(Of::Fastest, 15.0)],
        (Start::Pool, true, "to first output") => &[(Of::Ratio(JAIL), 15.0), (Of::Ratio(&[BARE]), 8.0)],
        (Start::Demand, true, "to first output") => &[(Of::Ratio(JAIL), 3.0), (Of::Ratio(&[BARE]), 1.2)],
        _ => &[],
    }
}
