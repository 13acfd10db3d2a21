//! The report: a row for each thing and each peer, as `benches/README.md` describes it.

use serde::Serialize;

use crate::machine::Machine;
use crate::peers::BARE;
use crate::samples::{Goal, Measurement, Of, Samples, Unit};

/// All that a run of the bench found out.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) rows: Vec<Row>,
}

/// One thing, of Brig and of at most one peer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) ours: Figures,
    pub(crate) peer: Option<Peer>,
    /// How many times better ours is, by the medians unless `of` says otherwise.
    pub(crate) ratio: Option<f64>,
    /// What is asked for.
    pub(crate) least: Option<f64>,
    /// What that is asked of: `ratio`, `ratio of p95`, or `p50` or `p95` of ours.
    pub(crate) of: Option<&'static str>,
    pub(crate) met: Option<bool>,
    /// For people: the report has medians.
    #[serde(skip)]
    pub(crate) mean: f64,
}

/// Of one series.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Figures {
    pub(crate) p50: f64,
    /// At most one in twenty is worse.
    pub(crate) p95: f64,
    pub(crate) n: usize,
}

/// Somebody to compare with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Peer {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) figures: Figures,
}

/// The rows of a measurement: one for each peer, and one for each bound of the value itself.
pub(crate) fn rows(measurement: &Measurement) -> Vec<Row> {
    let fastest = fastest(measurement);
    let goals = &measurement.goals;
    let of_ours: Vec<Goal> = goals.iter().filter(|goal| goal.is_of_ours()).copied().collect();
    let mut rows = Vec::new();
    if of_ours.is_empty() && measurement.peers.is_empty() {
        rows.push(row(measurement, None, None));
    }
    rows.extend(of_ours.into_iter().map(|goal| row(measurement, None, Some(goal))));
    let names: Vec<&str> = measurement.peers.keys().map(String::as_str).collect();
    for peer in &measurement.peers {
        let about = |goal: &&Goal| goal.against(&names, fastest) == Some(peer.0);
        let asked: Vec<Goal> = goals.iter().filter(about).copied().collect();
        if asked.is_empty() {
            rows.push(row(measurement, Some(peer), None));
        }
        rows.extend(asked.into_iter().map(|goal| row(measurement, Some(peer), Some(goal))));
    }
    rows
}

fn row(measurement: &Measurement, peer: Option<(&String, &Samples)>, goal: Option<Goal>) -> Row {
    let (unit, ours) = (measurement.unit, &measurement.ours);
    let of = goal.map(|goal| goal.of);
    let ratio = peer.map(|(_, theirs)| match of {
        Some(Of::FastestWorst) => ratio(unit, ours.p95(unit), theirs.p95(unit)),
        _ => ratio(unit, ours.p50(), theirs.p50()),
    });
    let (of, value) = match of {
        Some(Of::Median) => (Some("p50"), Some(ours.p50())),
        Some(Of::Worst) => (Some("p95"), Some(ours.p95(unit))),
        Some(Of::Ratio(_) | Of::Fastest) => (Some("ratio"), ratio),
        Some(Of::FastestWorst) => (Some("ratio of p95"), ratio),
        None => (None, None),
    };
    let least = goal.map(|goal| goal.least);
    let met = value.zip(least).map(|(value, least)| {
        if ratio.is_some() || unit.more_is_better() {
            value >= least
        } else {
            value <= least
        }
    });
    Row {
        name: measurement.name.clone(),
        unit: unit.name(),
        ours: figures(ours, unit),
        peer: peer.map(|(name, theirs)| Peer {
            name: name.clone(),
            figures: figures(theirs, unit),
        }),
        ratio,
        least,
        of,
        met,
        mean: ours.mean(),
    }
}

/// The sandbox with the best median.
fn fastest(measurement: &Measurement) -> Option<&str> {
    let unit = measurement.unit;
    let sandboxes = measurement.peers.iter().filter(|(name, _)| *name != BARE);
    let best = sandboxes.min_by(|(_, one), (_, other)| {
        let order = one.p50().total_cmp(&other.p50());
        if unit.more_is_better() { order.reverse() } else { order }
    });
    best.map(|(name, _)| name.as_str())
}

fn figures(samples: &Samples, unit: Unit) -> Figures {
    Figures {
        p50: round(samples.p50()),
        p95: round(samples.p95(unit)),
        n: samples.n(),
    }
}

fn ratio(unit: Unit, ours: f64, theirs: f64) -> f64 {
    round(if unit.more_is_better() {
        ours / theirs
    } else {
        theirs / ours
    })
}

/// To what a clock and a reader can tell apart.
fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_says_how_many_times_better_ours_is_and_whether_that_is_enough() {
        let mut cell = Measurement::new("cell", Unit::Milliseconds).goal(Of::Ratio(&["ipykernel"]), 5.0);
        cell.ours = [1.0, 0.5, 0.6].into_iter().collect();
        cell.peer("ipykernel", 4.0);
        let found = serde_json::to_value(rows(&cell)).unwrap();
        let expected = json!([{
            "name": "cell", "unit": "ms", "ours": {"p50": 0.6, "p95": 1.0, "n": 3},
            "peer": {"name": "ipykernel", "p50": 4.0, "p95": 4.0, "n": 1}, "ratio": 6.667, "least": 5.0, "of": "ratio", "met": true,
        }]);
        assert_eq!(found, expected);
    }

    #[test]
    fn bounds_of_the_value_are_at_least_or_at_most_as_the_unit_has_it() {
        let row = |unit, value, least| {
            let mut measurement = Measurement::new("x", unit).goal(Of::Median, least);
            measurement.ours.push(value);
            measurement.peer("cp", 2.0 * value);
            rows(&measurement)
        };
        let fast = row(Unit::MegabytesPerSecond, 400.0, 300.0);
        assert_eq!(
            (fast[0].met, fast[0].ratio, fast[1].met, fast[1].ratio),
            (Some(true), None, None, Some(0.5))
        );
        assert_eq!(row(Unit::Mebibytes, 5.0, 4.0)[0].met, Some(false));
        assert_eq!(row(Unit::Mebibytes, 4.0, 4.0)[0].met, Some(true));
    }

    #[test]
    fn the_fastest_sandbox_is_asked_about_and_bare_python_is_none() {
        let mut rate = Measurement::new("rate", Unit::SessionsPerSecond).goal(Of::Fastest, 15.0);
        rate.ours.push(30.0);
        for (name, value) in [(BARE, 9.0), ("bubblewrap 0.8.0", 3.0), ("nsjail", 2.0)] {
            rate.peer(name, value);
        }
        let asked: Vec<(String, bool)> = rows(&rate)
            .into_iter()
            .filter_map(|row| Some((row.peer?.name, row.met?)))
            .collect();
        assert_eq!(asked, [("bubblewrap 0.8.0".to_owned(), false)]);
    }

    #[test]
    fn of_peers_that_are_named_the_first_that_is_there_is_asked_about_and_p95_has_a_row_of_its_own() {
        let mut span = Measurement::new("span", Unit::Milliseconds)
            .goal(Of::Ratio(&["nsjail", "crun"]), 3.0)
            .goal(Of::FastestWorst, 2.0);
        span.ours = [1.0, 10.0].into_iter().collect();
        for name in ["crun 1.8", "runc 1.1"] {
            span.peer(name, if name.starts_with('c') { 4.0 } else { 15.0 });
        }
        let asked: Vec<_> = rows(&span)
            .into_iter()
            .map(|row| (row.peer.unwrap().name, row.of, row.ratio, row.met))
            .collect();
        let expected = [
            ("crun 1.8".to_owned(), Some("ratio"), Some(4.0), Some(true)),
            ("crun 1.8".to_owned(), Some("ratio of p95"), Some(0.4), Some(false)),
            ("runc 1.1".to_owned(), None, Some(15.0), None),
        ];
        assert_eq!(asked, expected);
    }

    #[test]
    fn a_goal_of_the_worst_is_judged_by_p95() {
        let mut span = Measurement::new("span", Unit::Milliseconds).goal(Of::Worst, 10.0);
        span.ours = [1.0, 11.0].into_iter().collect();
        let row = &rows(&span)[0];
        assert_eq!((row.of, row.met, row.ours.p50), (Some("p95"), Some(false), 1.0));
    }
}
