//! The harness with bytes by chance.

use super::harness::{self, Chance, World};

/// SplitMix64.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    };
    (0..length).map(|_| next() as u8).collect()
}

#[test]
fn any_turn_of_events() {
    for seed in 0..1500 {
        harness::run(&bytes(seed, 200 + (seed as usize % 7) * 300));
    }
}

/// That the runs above are not of nothing.
#[test]
fn all_of_it_happens() {
    let (mut direct, mut copied, mut stalls, mut requests) = (0, 0, 0, 0);
    for seed in 0..60 {
        let bytes = bytes(seed, 1500);
        let mut chance = Chance::new(&bytes);
        let mut world = World::new(&mut chance);
        while chance.fresh {
            world.step(&mut chance, false);
        }
        world.settle();
        world.verify();
        for end in &world.ends {
            let counters = end.connection.counters();
            direct += counters.bytes_direct;
            copied += counters.bytes_copied;
            stalls += counters.stalls;
            requests += end.completed.len();
        }
    }
    assert!(direct > 10_000 && copied > 10_000, "{direct} {copied}");
    assert!(stalls > 50 && requests > 2000, "{stalls} {requests}");
}
