//! The rules of the planner, on many seeds, and that each rule is broken by whoever bends it.

mod flow;
mod random;
mod world;

use world::{Bend, Happened, World};

/// Runs; each takes a millisecond or two.
const SEEDS: u64 = 3000;

#[test]
fn no_rule_is_broken() {
    let mut all = Happened::default();
    for seed in 0..SEEDS {
        let (broken, happened) = World::new(seed, Bend::Nothing).run();
        assert!(broken.is_empty(), "seed {seed}: {broken:?}");
        all += happened;
    }
    // That much the rules were held against.
    assert!(all.least() > SEEDS / 10, "{all:?}");
}

/// A rule that nothing can break says nothing.
#[test]
fn each_rule_is_broken_by_who_bends_it() {
    let bends: [(Bend, &[u32]); 11] = [
        (Bend::Behind, &[1, 3]),
        (Bend::LeavesKept, &[4]),
        (Bend::TwoWays, &[1]),
        (Bend::AtOnce, &[2]),
        (Bend::NoLinger, &[2]),
        (Bend::Backwards, &[2, 3]),
        (Bend::Forgotten, &[4]),
        (Bend::Unflushed, &[4]),
        (Bend::Overbooked, &[5]),
        (Bend::Greedy, &[6]),
        (Bend::SocketsFirst, &[1]),
    ];
    for (bend, rules) in bends {
        for rule in rules {
            let caught = (0..SEEDS).any(|seed| {
                let (broken, _) = World::new(seed, bend).run();
                broken.iter().any(|(broken, _)| broken == rule)
            });
            assert!(caught, "{bend:?} breaks no rule {rule}");
        }
    }
}
