//! What a connection does, as far as it decides whether a lane is worth its cost
//! (docs/decisions/0006).

use super::End;
use core::sync::atomic::Ordering;

/// Bit of [`End::turns`]: the last operation was a write.
const WROTE_LAST: u32 = 1;
/// One turn in [`End::turns`].
const TURN: u32 = 2;

/// What a connection did since it was tracked, or announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Reads behind a write and writes behind a read, and the first of either.
    pub turns: u32,
    /// All other reads and writes.
    pub repeats: u32,
    /// Whether the last one was a turn.
    pub is_turn: bool,
}

impl End {
    /// Accounts for one read or write; what there was so far, with it. Racing threads may lose
    /// one.
    pub fn count_operation(&self, is_write: bool) -> Traffic {
        let turns = self.turns.load(Ordering::Relaxed);
        let last = turns & WROTE_LAST != 0;
        let mut repeats = self.repeats.load(Ordering::Relaxed);
        let mut count = turns / TURN;
        let is_turn = count == 0 || last != is_write;
        if is_turn {
            count = (count + 1).min(u32::MAX / TURN);
            let last = if is_write { WROTE_LAST } else { 0 };
            self.turns.store((count * TURN) | last, Ordering::Relaxed);
        } else {
            repeats = repeats.saturating_add(1);
            self.repeats.store(repeats, Ordering::Relaxed);
        }
        Traffic {
            turns: count,
            repeats,
            is_turn,
        }
    }

    /// Starts to count anew.
    pub fn restart_traffic(&self) {
        self.turns.store(0, Ordering::Relaxed);
        self.repeats.store(0, Ordering::Relaxed);
    }
}
