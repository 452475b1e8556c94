//! Who may not: daemons with another key or of another version, words of a former session said
//! again, and users who claim what is somebody else's.

use libtest_mimic::Trial;
use sluice_tests::suite::{Verdict, ensure, trial};

use crate::matrix::complete;
use crate::programs::WAYS;

pub fn trials() -> Vec<Trial> {
    vec![trial("wrong-key", wrong_key)]
}

/// Daemons that do not know each other's key have nothing to do with one another.
fn wrong_key() -> Verdict {
    let two = WAYS[0].with_different_keys()?;
    complete(&two, "thread", [true; 2])?;
    let totals = two.totals()?;
    ensure(totals.lane_bytes() == 0, || format!("{totals:?}"))
}
