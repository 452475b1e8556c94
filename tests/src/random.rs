//! Numbers that look random, and what the environment says about them: how often the kill suites
//! kill, and which run is to be repeated.

use std::time::{SystemTime, UNIX_EPOCH};

/// SplitMix64 (Steele, Lea, Flood 2014): a few lines, the same numbers everywhere.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Whether something happens that has that probability, from 0 to 1.
    pub fn chance(&mut self, probability: f64) -> bool {
        // 53 bits are what a float holds.
        ((self.next() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }

    /// Less than the limit; 0 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

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

    /// The first numbers of the reference implementation (Vigna, splitmix64.c) for this seed.
    #[test]
    fn numbers_are_those_of_splitmix() {
        let mut random = Random::new(1_234_567);
        let numbers = [(); 3].map(|()| random.next());
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn rows_have_moments_of_their_own() {
        let kills = Kills { each: 1, seed: 7 };
        let first = |row| kills.moments(row).next();
        assert_eq!(first(3), first(3));
        assert_ne!(first(3), first(4));
    }
}
