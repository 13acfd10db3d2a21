//! Fresh sessions: code runs in a sandbox that is made for it and gone afterwards.

use std::sync::{Arc, Mutex, PoisonError};

use crate::Turns;
use crate::ours::Ours;
use crate::peers::{self, Peer, Place, Rootfs};
use crate::samples::{Measurement, Unit, millis};
use crate::times::{Times, timed};

/// What is run, and what it writes.
const WORKS: [Work; 2] = [
    Work {
        name: "print(1)",
        source: "print(1)",
        expected: "1\n",
    },
    Work {
        name: "pandas",
        source: "import pandas, numpy\nprint(pandas.DataFrame({'a': numpy.arange(10)}).a.sum())",
        expected: "45\n",
    },
];
const MOMENTS: [&str; 3] = ["to first output", "finished", "torn down"];

#[derive(Debug, Clone, Copy)]
struct Work {
    name: &'static str,
    source: &'static str,
    expected: &'static str,
}

/// Brig and its peers, in turns.
pub(crate) struct Fresh<'o> {
    ours: &'o Ours,
    place: Place,
    peers: Vec<Arc<Mutex<Box<dyn Peer>>>>,
    /// By work and moment.
    measured: Vec<[Measurement; 3]>,
    /// The same in sessions that have waited.
    waited: Vec<[Measurement; 3]>,
}

impl<'o> Fresh<'o> {
    /// Finds the peers, and tries each; those that can't run here are left out.
    pub(crate) fn new(
        ours: &'o Ours,
        place: Place,
        rootfs: &Rootfs,
        left_out: &mut Vec<String>,
    ) -> anyhow::Result<Self> {
        let (found, missing) = peers::find(rootfs);
        left_out.extend(missing);
        let mut fresh = Self {
            ours,
            place,
            peers: Vec::new(),
            measured: WORKS.iter().map(|work| measurements(work, "")).collect(),
            waited: WORKS.iter().map(|work| measurements(work, " from the pool")).collect(),
        };
        for peer in found {
            let name = peer.name();
            let peer = Arc::new(Mutex::new(peer));
            match WORKS.iter().try_for_each(|work| fresh.ask(&peer, *work).map(drop)) {
                Ok(()) => fresh.peers.push(peer),
                Err(error) => left_out.push(format!("{name}: {error:#}")),
            }
        }
        for work in WORKS {
            ours.fresh(work.source, work.expected)?;
            ours.ask_ahead(work.source, work.expected)?;
        }
        Ok(fresh)
    }

    fn ask(&self, peer: &Arc<Mutex<Box<dyn Peer>>>, work: Work) -> anyhow::Result<(String, Times)> {
        let peer = Arc::clone(peer);
        self.place.run(move || {
            let mut peer = peer.lock().unwrap_or_else(PoisonError::into_inner);
            let command = peer.command(work.source)?;
            Ok((peer.name(), timed(command, work.expected)?))
        })?
    }
}

impl Turns for Fresh<'_> {
    fn round(&mut self, round: usize) -> anyhow::Result<()> {
        let all = self.peers.len() + 2;
        for (number, work) in WORKS.into_iter().enumerate() {
            for turn in 0..all {
                // Everybody follows everybody: what one leaves to be done meets another each time.
                let who = (round + turn) % all;
                if let Some(peer) = self.peers.get(who).map(Arc::clone) {
                    let (name, times) = self.ask(&peer, work)?;
                    for rows in [&mut self.measured[number], &mut self.waited[number]] {
                        let spans = rows.iter_mut().zip(times.moments());
                        spans.for_each(|(row, span)| row.peer(&name, millis(span)));
                    }
                    continue;
                }
                let (rows, times) = if who == self.peers.len() {
                    (&mut self.measured[number], self.ours.fresh(work.source, work.expected)?)
                } else {
                    (&mut self.waited[number], self.ours.waited(work.source, work.expected)?)
                };
                let spans = rows.iter_mut().zip(times.moments());
                spans.for_each(|(row, span)| row.ours.push(millis(span)));
            }
        }
        Ok(())
    }

    fn measurements(self: Box<Self>) -> Vec<Measurement> {
        self.waited.into_iter().chain(self.measured).flatten().collect()
    }
}

fn measurements(work: &Work, how: &str) -> [Measurement; 3] {
    MOMENTS.map(|moment| {
        let name = format!("fresh session{how}, {}, {moment}", work.name);
        Measurement::new(name, Unit::Milliseconds)
    })
}
