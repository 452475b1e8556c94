//! The harness of the fuzz target over random bytes.

#[path = "hostile/harness.rs"]
mod harness;

use proptest::prelude::*;

/// Both ends end their stream behind the window that they know of, and each has taken the other's
/// end: acknowledgements with a number in that window are none.
#[test]
fn both_ends_lie_behind_the_windows() {
    harness::stranger(&[0x0e, 0x06, 1, 2, 3, 4, 0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn a_lying_peer_gets_nothing(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        harness::lying_peer(&bytes);
    }

    #[test]
    fn a_stranger_changes_nothing(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        harness::stranger(&bytes);
    }
}
