//! All peers that work here, in their place, alone and several at a time.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::{BARE, Bare, Bubblewrap, Firejail, Nsjail, Oci, Peer, Place, Podman, Rootfs};
use crate::times::{Times, timed};
use crate::works::Work;

type Shared = Arc<Mutex<Box<dyn Peer>>>;

/// The peers.
pub(crate) struct Crowd {
    place: Place,
    peers: Vec<(String, Shared)>,
}

impl fmt::Debug for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Crowd {
    /// Finds all that this host has and tries each; those that can't run here are named in `left_out`.
    pub(crate) fn gather(rootfs: &Rootfs, works: &[Work], left_out: &mut Vec<String>) -> anyhow::Result<Self> {
        let mut crowd = Self {
            place: Place::enter(&rootfs.scratch)?,
            peers: Vec::new(),
        };
        let made: [(&str, anyhow::Result<Box<dyn Peer>>); 7] = [
            (BARE, Ok(Box::new(Bare(rootfs.clone())))),
            ("bubblewrap", Bubblewrap::new(rootfs).map(|peer| Box::new(peer) as _)),
            ("nsjail", Nsjail::new(rootfs).map(|peer| Box::new(peer) as _)),
            ("crun", Oci::new("crun", rootfs).map(|peer| Box::new(peer) as _)),
            ("runc", Oci::new("runc", rootfs).map(|peer| Box::new(peer) as _)),
            ("firejail", Firejail::new(rootfs).map(|peer| Box::new(peer) as _)),
            ("podman", Podman::new(rootfs).map(|peer| Box::new(peer) as _)),
        ];
        for (name, peer) in made {
            if let Err(error) = peer.and_then(|peer| crowd.admit(peer, works)) {
                left_out.push(format!("{name}: {error:#}"));
            }
        }
        Ok(crowd)
    }

    fn admit(&mut self, peer: Box<dyn Peer>, works: &[Work]) -> anyhow::Result<()> {
        let name = peer.name();
        self.peers.push((name, Arc::new(Mutex::new(peer))));
        let number = self.peers.len() - 1;
        let tried = works.iter().try_for_each(|work| self.ask(number, *work).map(drop));
        if tried.is_err() {
            self.peers.pop();
        }
        tried
    }

    /// Their names, as the report has them.
    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.peers.iter().map(|(name, _)| name.as_str())
    }

    /// Lets one of them run something.
    pub(crate) fn ask(&self, number: usize, work: Work) -> anyhow::Result<Times> {
        let peer = self.peer(number)?;
        self.place.run(move || once(&peer, work))?
    }

    /// Lets one of them run something again and again, by `clients` at one time, until none begins after `span`.
    ///
    /// Gives how many there were, and how long it took until nothing of the last one was left.
    pub(crate) fn repeat(
        &self,
        number: usize,
        work: Work,
        clients: usize,
        span: Duration,
    ) -> anyhow::Result<(usize, Duration)> {
        let peer = self.peer(number)?;
        self.place.run(move || {
            let start = Instant::now();
            let run = || {
                let mut runs = 0;
                while start.elapsed() < span {
                    once(&peer, work)?;
                    runs += 1;
                }
                anyhow::Ok(runs)
            };
            let runs = together(clients, run)?;
            Ok((runs, start.elapsed()))
        })?
    }

    fn peer(&self, number: usize) -> anyhow::Result<Shared> {
        let peer = self.peers.get(number).map(|(_, peer)| Arc::clone(peer));
        peer.with_context(|| format!("no peer {number}"))
    }
}

/// Does something by several threads, which share the namespaces of this one; gives the sum.
pub(crate) fn together(threads: usize, work: impl Fn() -> anyhow::Result<usize> + Sync) -> anyhow::Result<usize> {
    std::thread::scope(|scope| {
        let begun: Vec<_> = (0..threads).map(|_| scope.spawn(&work)).collect();
        let mut sum = 0;
        for thread in begun {
            let ended = thread.join();
            ensure!(ended.is_ok(), "a client broke off");
            sum += ended.map_or(Ok(0), |result| result)?;
        }
        Ok(sum)
    })
}

fn once(peer: &Shared, work: Work) -> anyhow::Result<Times> {
    let run = {
        let mut peer = peer.lock().unwrap_or_else(PoisonError::into_inner);
        peer.run(work.source)?
    };
    // What it reads stays open until it has ended.
    timed(run.command, work.expected)
}
