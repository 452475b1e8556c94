//! What the engines of one daemon say together of a machine on which far more threads want to run than it has
//! processors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use sluice_shmem::parking::ParkingTable;

/// Programs that wait for TCP heed the word in the daemon's parking table. It stands as long as an engine
/// with lanes finds the machine so, and none has a ring in use. All engines that have the same parking table
/// have the same value of this.
#[derive(Clone, Debug, Default)]
pub struct Oversubscribed(Arc<AtomicU64>);

/// What one engine adds to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opinion {
    /// It finds the machine oversubscribed, and has lanes.
    pub is_oversubscribed: bool,
    /// A ring of its is in use.
    pub is_standing: bool,
}

/// Engines; each has a bit of each half of the word.
const ENGINES_MAX: u32 = 32;

impl Opinion {
    fn bits(self, slot: u32) -> u64 {
        let slot = slot % ENGINES_MAX;
        u64::from(self.is_oversubscribed) << slot
            | u64::from(self.is_standing) << (ENGINES_MAX + slot)
    }
}

impl Oversubscribed {
    /// The engine with this slot thinks otherwise than before. Does not block.
    pub fn say(&self, slot: u32, opinion: Opinion, parking: &ParkingTable) {
        let all = Opinion {
            is_oversubscribed: true,
            is_standing: true,
        };
        self.0.fetch_and(!all.bits(slot), Ordering::SeqCst);
        self.0.fetch_or(opinion.bits(slot), Ordering::SeqCst);
        let mut said = self.0.load(Ordering::SeqCst);
        loop {
            parking.set_oversubscribed(stands(said));
            // Another engine may have said something else in between, and may have been heard before.
            fence(Ordering::SeqCst);
            let now = self.0.load(Ordering::SeqCst);
            if stands(now) == stands(said) {
                return;
            }
            said = now;
        }
    }
}

fn stands(said: u64) -> bool {
    said != 0 && said >> ENGINES_MAX == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stands_while_one_finds_it_so_and_no_ring_is_in_use() {
        let mut said = 0_u64;
        let mut say = |slot: u32, is_oversubscribed, is_standing| {
            let opinion = Opinion {
                is_oversubscribed,
                is_standing,
            };
            let own = 1_u64 << slot | 1 << (ENGINES_MAX + slot);
            said = said & !own | opinion.bits(slot);
            stands(said)
        };
        assert!(!say(0, false, false));
        assert!(say(2, true, false));
        assert!(!say(0, false, true), "a ring of another engine is in use");
        assert!(say(0, false, false));
        assert!(say(0, true, false));
        assert!(say(2, false, false));
        assert!(!say(0, true, true));
        assert!(!say(0, false, false));
    }
}
