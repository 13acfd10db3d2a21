//! Fresh sessions again and again, by several clients at one time: what must be made for the next ones is part of it.

use std::time::{Duration, Instant};

use anyhow::ensure;
use brig_tests::Client;
use brig_tests::spec::code;

use crate::Turns;
use crate::ours::{Ours, Scale, follow};
use crate::peers::{Crowd, together};
use crate::samples::{Measurement, Of, Unit, per_second};
use crate::works::PANDAS;

/// Clients at one time.
const CLIENTS: usize = 8;
/// How long the last ones may take to be gone, and the next ones to be made.
const REFILLED: Duration = Duration::from_secs(60);
/// How many times more than the fastest sandbox.
const LEAST: f64 = 15.0;

/// Brig, as many of whose sessions wait as there are clients, and its peers.
pub(crate) struct Sustained<'o> {
    ours: Ours,
    crowd: &'o Crowd,
    /// No client begins another session after this time.
    span: Duration,
    /// Those that can run several at one time.
    peers: Vec<usize>,
    rate: Measurement,
}

impl<'o> Sustained<'o> {
    /// Starts daemons with a larger pool, and tries each peer with so many clients.
    pub(crate) fn new(crowd: &'o Crowd, span: Duration, left_out: &mut Vec<String>) -> anyhow::Result<Self> {
        let ours = Ours::start(Scale {
            waiting: CLIENTS,
            running: 2 * CLIENTS,
            ..Scale::default()
        })?;
        ours.ask_ahead(PANDAS, CLIENTS)?;
        let name = format!("fresh pandas sessions, {CLIENTS} clients at one time, until the pool is as it was");
        let mut peers = Vec::new();
        for (number, peer) in crowd.names().enumerate() {
            match crowd.repeat(number, PANDAS, CLIENTS, Duration::from_millis(1)) {
                Ok(_) => peers.push(number),
                Err(error) => left_out.push(format!("{name}: {peer}: {error:#}")),
            }
        }
        Ok(Self {
            ours,
            crowd,
            span,
            peers,
            rate: Measurement::new(name, Unit::SessionsPerSecond).goal(Of::Fastest, LEAST),
        })
    }

    fn ours(&self) -> anyhow::Result<f64> {
        self.ours.await_waiting(CLIENTS)?;
        let held = self.ours.holders();
        let socket = self.ours.services().socket();
        let (start, span) = (Instant::now(), self.span);
        let sessions = together(CLIENTS, || {
            let client = Client::new(&socket);
            let mut sessions = 0;
            while start.elapsed() < span {
                follow(client.begin(code(PANDAS.source)), Instant::now(), PANDAS.expected)?;
                sessions += 1;
            }
            Ok(sessions)
        })?;
        // As before: so many wait, and nothing is there but them.
        self.ours.await_waiting(CLIENTS)?;
        self.ours.await_holders(held)?;
        while self.ours.groups().sessions().len() > CLIENTS + self.ours.holders() {
            ensure!(start.elapsed() < REFILLED, "sessions that have ended are not gone");
            std::thread::sleep(Duration::from_micros(500));
        }
        Ok(per_second(sessions, start.elapsed()))
    }
}

impl Turns for Sustained<'_> {
    fn round(&mut self, round: usize) -> anyhow::Result<()> {
        let all = self.peers.len() + 1;
        for turn in 0..all {
            match self.peers.get((round + turn) % all) {
                Some(&number) => {
                    let (sessions, span) = self.crowd.repeat(number, PANDAS, CLIENTS, self.span)?;
                    let name = self.crowd.names().nth(number).unwrap_or_default();
                    self.rate.peer(name, per_second(sessions, span));
                }
                None => self.rate.ours.push(self.ours()?),
            }
        }
        Ok(())
    }

    fn measurements(self: Box<Self>) -> Vec<Measurement> {
        vec![self.rate]
    }
}
