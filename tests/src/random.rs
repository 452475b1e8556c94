//! What the environment says about random numbers: how often the kill suites kill, and which run is
//! to be repeated.

use std::time::{SystemTime, UNIX_EPOCH};

pub use sluice_lab::random::Random;

/// How often a kill suite kills, and at which moments.
#[derive(Clone, Copy, Debug)]
pub struct Kills {
    /// In each row.
    pub each: u64,
    seed: u64,
}

impl Kills {
    /// `SLUICE_KILLS=N` makes about N kills instead of one for each row; `SLUICE_SEED=S` repeats the
    /// moments of an earlier run, as far as a scheduler lets one.
    pub fn from_environment(rows: usize) -> Kills {
        let kills = number("SLUICE_KILLS").unwrap_or(0);
        let seed = number("SLUICE_SEED").unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.map_or(1, |now| now.as_nanos() as u64)
        });
        Kills {
            each: kills.div_ceil(rows.max(1) as u64).max(1),
            seed,
        }
    }

    /// Moments of the row with that place in the table.
    pub fn moments(self, row: usize) -> Random {
        Random::new(self.seed ^ (row as u64 + 1) << 32)
    }

    /// To be called when a row has failed.
    pub fn say_seed(self) {
        println!("SLUICE_SEED={}", self.seed);
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_moments_of_their_own() {
        let kills = Kills { each: 1, seed: 7 };
        let first = |row| kills.moments(row).next();
        assert_eq!(first(3), first(3));
        assert_ne!(first(3), first(4));
    }
}
