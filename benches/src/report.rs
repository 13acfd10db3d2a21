//! The report: a row for each thing and each peer, as `benches/README.md` describes it.

use serde::Serialize;

use crate::machine::Machine;
use crate::samples::{Goal, Measurement, Samples, Unit};

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
    /// How many times better ours is, by the medians.
    pub(crate) ratio: Option<f64>,
    /// What is asked for: of the ratio where there is one, else of our median.
    pub(crate) least: Option<f64>,
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
    let (unit, ours) = (measurement.unit, &measurement.ours);
    let row = |peer: Option<(&String, &Samples)>, goal: Option<Goal>| {
        let ratio = peer.map(|(_, theirs)| ratio(unit, ours.p50(), theirs.p50()));
        let least = goal.map(|goal| goal.least);
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
            met: least.map(|least| match ratio {
                Some(ratio) => ratio >= least,
                None if unit.more_is_better() => ours.p50() >= least,
                None => ours.p50() <= least,
            }),
            mean: ours.mean(),
        }
    };
    let goal_of = |name: Option<&str>| measurement.goals.iter().find(|goal| goal.against == name).copied();
    let alone = goal_of(None);
    let mut rows = Vec::new();
    if alone.is_some() || measurement.peers.is_empty() {
        rows.push(row(None, alone));
    }
    let compared = measurement.peers.iter();
    rows.extend(compared.map(|peer| row(Some(peer), goal_of(Some(peer.0.as_str())))));
    rows
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
        let mut cell = Measurement::new("cell", Unit::Milliseconds).goal(Some("ipykernel"), 5.0);
        cell.ours = [1.0, 0.5, 0.6].into_iter().collect();
        cell.peer("ipykernel", 4.0);
        let found = serde_json::to_value(rows(&cell)).unwrap();
        let expected = json!([{
            "name": "cell", "unit": "ms", "ours": {"p50": 0.6, "p95": 1.0, "n": 3},
            "peer": {"name": "ipykernel", "p50": 4.0, "p95": 4.0, "n": 1}, "ratio": 6.667, "least": 5.0, "met": true,
        }]);
        assert_eq!(found, expected);
    }

    #[test]
    fn bounds_of_the_value_are_at_least_or_at_most_as_the_unit_has_it() {
        let row = |unit, value, least| {
            let mut measurement = Measurement::new("x", unit).goal(None, least);
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
}
