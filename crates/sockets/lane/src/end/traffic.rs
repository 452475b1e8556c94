//! What a connection does, as far as it decides whether a lane is worth its cost
//! (docs/decisions/0006).

use super::{End, FLAG_WAIT_SEEN};
use core::sync::atomic::Ordering;

/// Bit of [`End::turns`]: the last operation was a write.
const WROTE_LAST: u32 = 1;
/// One turn in [`End::turns`].
const TURN: u32 = 2;

/// A program that polls by reading finds nothing so many times in so short a time. No program
/// does that which sleeps, in whatever way, between two reads.
const POLLING_READS: u32 = 16;
const POLLING_US: u32 = 100;

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

    /// Whether there was a read or write since the count was started.
    pub fn has_traffic(&self) -> bool {
        self.turns.load(Ordering::Relaxed) != 0
    }

    /// The program waits for this connection by a call that Sluice sees.
    pub fn note_wait(&self) {
        if !self.flag(FLAG_WAIT_SEEN) {
            self.flags.fetch_or(FLAG_WAIT_SEEN, Ordering::Relaxed);
        }
    }

    /// A read that does not block found nothing, or something. Racing threads may lose one.
    pub fn note_empty_read(&self, is_empty: bool, now_ns: impl Fn() -> u64) {
        let now_us = || (now_ns() / 1000) as u32;
        let reads = self.empty_reads.load(Ordering::Relaxed);
        match (is_empty, reads) {
            (false, 0) => {}
            (false, _) => self.empty_reads.store(0, Ordering::Relaxed),
            (true, 0) => {
                self.empty_since_us.store(now_us(), Ordering::Relaxed);
                self.empty_reads.store(1, Ordering::Relaxed);
            }
            (true, _) if reads < POLLING_READS => {
                self.empty_reads.store(reads + 1, Ordering::Relaxed);
            }
            (true, _) => {
                self.empty_reads.store(0, Ordering::Relaxed);
                let since = self.empty_since_us.load(Ordering::Relaxed);
                if now_us().wrapping_sub(since) < POLLING_US {
                    self.note_wait();
                }
            }
        }
    }

    /// Whether a program whose calls do not block was seen to wait for this connection, or to
    /// poll it by reading. One that was not may sleep where nobody would wake it for ring bytes.
    pub fn is_wait_seen(&self) -> bool {
        self.flag(FLAG_WAIT_SEEN)
    }
}
