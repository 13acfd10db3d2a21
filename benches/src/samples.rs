//! What was measured, turn by turn.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

/// What a value is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Milliseconds,
    /// Of 10^6 bytes.
    MegabytesPerSecond,
    Mebibytes,
    SessionsPerSecond,
}

impl Unit {
    /// As tables and the report have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::MegabytesPerSecond => "MB/s",
            Self::Mebibytes => "MiB",
            Self::SessionsPerSecond => "sessions/s",
        }
    }

    /// Whether the larger value is the better one.
    pub(crate) fn more_is_better(self) -> bool {
        matches!(self, Self::MegabytesPerSecond | Self::SessionsPerSecond)
    }
}

/// Values of one thing.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// Adds a value.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// How many there are.
    pub(crate) fn n(&self) -> usize {
        self.0.len()
    }

    /// The middle one.
    pub(crate) fn p50(&self) -> f64 {
        self.percentile(50)
    }

    /// What at most one in twenty is worse than: larger, or smaller where more is better.
    pub(crate) fn p95(&self, unit: Unit) -> f64 {
        self.percentile(if unit.more_is_better() { 5 } else { 95 })
    }

    /// The mean.
    pub(crate) fn mean(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a bench has far fewer than 2^52 samples")]
        let n = self.n() as f64;
        self.0.iter().sum::<f64>() / n
    }

    /// By nearest rank.
    fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

/// One thing that was measured of Brig, and of those that it is compared with.
#[derive(Debug, Clone)]
pub(crate) struct Measurement {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) ours: Samples,
    pub(crate) peers: BTreeMap<String, Samples>,
    pub(crate) goals: Vec<Goal>,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Goal {
    pub(crate) of: Of,
    /// The least ratio; or the bound of our value, which must be at least that much where more is better,
    /// and at most where less is.
    pub(crate) least: f64,
}

/// What a goal is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// Our median.
    Median,
    /// What at most one in twenty of ours is worse than.
    Worst,
    /// The ratio to the first of these peers that is there, by their names without the version.
    Ratio(&'static [&'static str]),
    /// The ratio to the sandbox that is the fastest of those that are there.
    Fastest,
    /// The same, of what at most one in twenty is worse than.
    FastestWorst,
}

impl Measurement {
    /// Nothing measured yet.
    pub(crate) fn new(name: impl Into<String>, unit: Unit) -> Self {
        Self {
            name: name.into(),
            unit,
            ours: Samples::default(),
            peers: BTreeMap::new(),
            goals: Vec::new(),
        }
    }

    /// Adds what is asked for.
    pub(crate) fn goal(mut self, of: Of, least: f64) -> Self {
        self.goals.push(Goal { of, least });
        self
    }

    /// Adds a value of a peer.
    pub(crate) fn peer(&mut self, name: &str, value: f64) {
        self.peers.entry(name.to_owned()).or_default().push(value);
    }
}

impl Goal {
    /// Whether it is about our value alone.
    pub(crate) fn is_of_ours(self) -> bool {
        matches!(self.of, Of::Median | Of::Worst)
    }

    /// The peer that it is about, of these.
    pub(crate) fn against<'n>(self, names: &[&'n str], fastest: Option<&'n str>) -> Option<&'n str> {
        match self.of {
            Of::Ratio(wanted) => wanted
                .iter()
                .find_map(|wanted| names.iter().copied().find(|name| is_named(name, wanted))),
            Of::Fastest | Of::FastestWorst => fastest,
            Of::Median | Of::Worst => None,
        }
    }
}

/// Whether a peer has this name, with a version or without.
fn is_named(peer: &str, name: &str) -> bool {
    peer.strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// A span in milliseconds.
pub(crate) fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// Bytes in MiB.
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "sizes of memory are far below 2^52")]
    let bytes = bytes as f64;
    bytes / f64::from(1 << 20)
}

/// How many a second.
pub(crate) fn per_second(count: usize, span: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a bench makes far fewer than 2^52 sessions")]
    let count = count as f64;
    count / span.as_secs_f64()
}

/// How fast bytes went, in MB/s.
pub(crate) fn rate(bytes: u64, span: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "sizes of files are far below 2^52")]
    let bytes = bytes as f64;
    bytes / 1e6 / span.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank_and_p95_is_the_bad_end() {
        let samples: Samples = (1..=100).rev().map(f64::from).collect();
        assert_eq!((samples.n(), samples.p50(), samples.mean()), (100, 50.0, 50.5));
        assert_eq!(samples.p95(Unit::Milliseconds), 95.0);
        assert_eq!(samples.p95(Unit::MegabytesPerSecond), 5.0);
        let one = Samples::from_iter([7.0]);
        assert_eq!((one.p50(), one.p95(Unit::Mebibytes)), (7.0, 7.0));
    }
}
