use super::*;

/// A peer says NOT_YET and READY in turn, without end: each NOT_YET has a time until which it is waited for.
#[test]
fn a_peer_that_is_ready_and_is_not_has_one_timer() {
    let mut state = State::default();
    let set = (0..1_000_000_u64).filter(|at| state.arm(1_000_000 + at));
    assert_eq!(set.count(), 1);
    // The last one is waited for when that one has been.
    state.disarm(999_999);
    assert!(!state.arm(2_000_000));
    state.disarm(1_000_000);
    assert!(state.arm(2_000_000));
    // One that is due sooner is set, and one that never is is none.
    assert!(!state.arm(u64::MAX));
    assert!(state.arm(1_500_000));
}
