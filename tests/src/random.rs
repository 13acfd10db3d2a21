//! Moments and choices that a seed repeats, for tests that are killed at random.

use std::time::{SystemTime, UNIX_EPOCH};

/// Numbers of a seed. Source: Marsaglia, "Xorshift RNGs", 2003.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// From `BRIG_SEED`, or a new one; what it is, with the number of rounds, is told where a failure is.
    pub fn of_environment(rounds: u64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let seed = number("BRIG_SEED", u64::from(now.subsec_nanos()) + 1);
        eprintln!("BRIG_ROUNDS={rounds} BRIG_SEED={seed}");
        Self(seed)
    }

    /// A number below another.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// A number of the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}
