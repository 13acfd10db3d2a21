//! Starts on demand while other sessions live.

use crate::ours::Ours;
use crate::samples::{Measurement, Of, Unit, millis};
use crate::works::PRINT;

/// How many live meanwhile, least first.
const LEVELS: [usize; 4] = [1, 8, 64, 512];
/// Starts at each level, in each round.
const STARTS: usize = 10;
/// Beside the most, a start must take at most twice as long as beside one.
const LEAST: f64 = 0.5;

/// Measures, round by round, at each level in turn; `say` is told how far it is.
pub(crate) fn live(
    ours: &Ours,
    most: usize,
    rounds: usize,
    say: impl Fn(&str) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Measurement>> {
    let levels: Vec<usize> = LEVELS.into_iter().filter(|level| *level <= most).collect();
    let mut measured: Vec<Measurement> = levels.iter().map(|level| measurement(*level)).collect();
    for round in 0..rounds {
        let mut sessions = Vec::new();
        for (number, level) in levels.iter().enumerate() {
            say(&format!(
                "\r\x1b[Kstarts beside {level} sessions, round {} of {rounds}",
                round + 1
            ))?;
            while sessions.len() < *level {
                sessions.push(ours.keep_small());
            }
            for _ in 0..STARTS {
                let span = millis(ours.made(PRINT)?.first_output);
                measured[number].ours.push(span);
                if number == 0 {
                    let others = measured.iter_mut().skip(1);
                    others.for_each(|row| row.peer(&beside(LEVELS[0]), span));
                }
            }
        }
        for session in &sessions {
            ours.services().close(session);
        }
    }
    Ok(measured)
}

fn measurement(level: usize) -> Measurement {
    let name = format!("start on demand beside {level} live sessions, print(1), to first output");
    let row = Measurement::new(name, Unit::Milliseconds);
    if LEVELS.last() == Some(&level) {
        return row.goal(Of::Ratio(&["beside 1"]), LEAST);
    }
    row
}

fn beside(level: usize) -> String {
    format!("beside {level}")
}
