//! How much of sluiced one user may have, where it serves several.
//!
//! Each user other than root and sluiced's own has a bound, the same for all, on programs, lanes
//! and chunks. A lane counts for the user of either end, as both hold its memory.

use std::collections::HashMap;

/// Percent of everything that one user may have when nobody says otherwise.
pub const SHARE_PERCENT_DEFAULT: u32 = 25;

/// Whom something counts for: a user with a bound, or nobody.
pub type Payer = Option<u32>;

/// What users have of one thing, and how much each may have.
#[derive(Debug)]
pub struct Shares {
    max: usize,
    taken: HashMap<u32, usize>,
}

impl Shares {
    /// Every user may have `percent` of `all`, and one of it in any case.
    pub fn new(all: usize, percent: u32) -> Shares {
        let max = all.saturating_mul(percent as usize) / 100;
        Shares {
            max: max.max(1),
            taken: HashMap::new(),
        }
    }

    /// Whether each of `payers` may have one more.
    pub fn have_room(&self, payers: &[Payer]) -> bool {
        let taken = |user: &u32| self.taken.get(user).copied().unwrap_or(0);
        payers.iter().flatten().all(|user| taken(user) < self.max)
    }

    /// Counts one more for each of `payers`, and once for one that is named twice.
    pub fn take(&mut self, payers: &[Payer]) {
        for user in distinct(payers) {
            *self.taken.entry(user).or_default() += 1;
        }
    }

    /// Undoes [`Shares::take`] with the same payers.
    pub fn give_back(&mut self, payers: &[Payer]) {
        for user in distinct(payers) {
            if let Some(taken) = self.taken.get_mut(&user) {
                *taken = taken.saturating_sub(1);
                if *taken == 0 {
                    self.taken.remove(&user);
                }
            }
        }
    }
}

fn distinct(payers: &[Payer]) -> impl Iterator<Item = u32> {
    let first = |at: usize| !payers[..at].contains(&payers[at]);
    (0..payers.len())
        .filter(move |at| first(*at))
        .filter_map(|at| payers[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_share_and_nobody_has_none() {
        let mut shares = Shares::new(8, 25);
        let (one, other, root) = (Some(1000), Some(1001), None);
        shares.take(&[one, one]);
        assert!(shares.have_room(&[one, root]));
        shares.take(&[one, root]);
        assert!(!shares.have_room(&[one, root]));
        assert!(!shares.have_room(&[other, one]));
        assert!(shares.have_room(&[other, root]));
        for _ in 0..100 {
            shares.take(&[root, root]);
        }
        assert!(shares.have_room(&[root]));
        shares.give_back(&[one, one]);
        assert!(shares.have_room(&[one]));
        shares.give_back(&[one]);
        assert!(shares.taken.is_empty());
    }

    #[test]
    fn a_share_is_never_nothing() {
        assert!(Shares::new(1, 1).have_room(&[Some(7)]));
    }
}
