//! What a connection does, as far as it decides whether a lane is worth its cost
//! (docs/decisions/0006).

use super::End;
use super::flags::Flags;
use core::sync::atomic::{AtomicU32, Ordering};

/// Bit of [`Turnarounds`]: the last operation was a write.
const WROTE_LAST: u32 = 1;
/// One turnaround in [`Turnarounds`].
const TURNAROUND: u32 = 2;

/// A program that polls by reading finds nothing so many times in so short a time. No program
/// does that which sleeps, in whatever way, between two reads.
const POLLING_READS: u32 = 16;
const POLLING_US: u32 = 100;

/// What a connection did since it was tracked, or announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Reads behind a write and writes behind a read, and the first of either.
    pub turnarounds: u32,
    /// All other reads and writes.
    pub repeats: u32,
    /// Whether the last one was a turnaround.
    pub is_turnaround: bool,
}

/// Reads behind a write and writes behind a read, and which of both the last operation was. Racing threads may lose
/// one.
#[repr(transparent)]
pub(super) struct Turnarounds(AtomicU32);

impl Turnarounds {
    /// Accounts for one operation: how many there are with it, and whether it is one.
    fn count(&self, is_write: bool) -> (u32, bool) {
        let seen = self.0.load(Ordering::Relaxed);
        let last_wrote = seen & WROTE_LAST != 0;
        let mut count = seen / TURNAROUND;
        let is_one = count == 0 || last_wrote != is_write;
        if is_one {
            count = (count + 1).min(u32::MAX / TURNAROUND);
            let last = if is_write { WROTE_LAST } else { 0 };
            self.0.store((count * TURNAROUND) | last, Ordering::Relaxed);
        }
        (count, is_one)
    }

    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// Reads in a row that found nothing. Racing threads may lose one.
#[repr(C)]
pub(super) struct EmptyReads {
    /// When the first of them was: the lower half of a clock of microseconds.
    since_us: AtomicU32,
    count: AtomicU32,
}

impl EmptyReads {
    pub fn reset(&self) {
        self.count.store(0, Ordering::Relaxed);
    }

    /// A read found nothing, or something. Whether the program polls by reading.
    fn note(&self, is_empty: bool, now_ns: impl Fn() -> u64) -> bool {
        let now_us = || (now_ns() / 1000) as u32;
        let reads = self.count.load(Ordering::Relaxed);
        match (is_empty, reads) {
            (false, 0) => {}
            (false, _) => self.reset(),
            (true, 0) => {
                self.since_us.store(now_us(), Ordering::Relaxed);
                self.count.store(1, Ordering::Relaxed);
            }
            (true, _) if reads < POLLING_READS => {
                self.count.store(reads + 1, Ordering::Relaxed);
            }
            (true, _) => {
                self.reset();
                let since = self.since_us.load(Ordering::Relaxed);
                return now_us().wrapping_sub(since) < POLLING_US;
            }
        }
        false
    }
}

impl End {
    /// Accounts for one read or write; what there was so far, with it. Racing threads may lose
    /// one.
    pub fn count_operation(&self, is_write: bool) -> Traffic {
        let mut repeats = self.repeats.load(Ordering::Relaxed);
        let (turnarounds, is_turnaround) = self.turnarounds.count(is_write);
        if !is_turnaround {
            repeats = repeats.saturating_add(1);
            self.repeats.store(repeats, Ordering::Relaxed);
        }
        Traffic {
            turnarounds,
            repeats,
            is_turnaround,
        }
    }

    /// Starts to count anew.
    pub fn restart_traffic(&self) {
        self.turnarounds.reset();
        self.repeats.store(0, Ordering::Relaxed);
    }

    /// Whether there was a read or write since the count was started.
    pub fn has_traffic(&self) -> bool {
        self.turnarounds.is_any()
    }

    /// The program waits for this connection by a call that Sluice sees.
    pub fn note_wait(&self) {
        if !self.flag(Flags::WAIT_SEEN) {
            self.flags.set(Flags::WAIT_SEEN);
        }
    }

    /// A read that does not block found nothing, or something. Racing threads may lose one.
    pub fn note_empty_read(&self, is_empty: bool, now_ns: impl Fn() -> u64) {
        if self.empty_reads.note(is_empty, now_ns) {
            self.note_wait();
        }
    }

    /// Whether a program whose calls do not block was seen to wait for this connection, or to
    /// poll it by reading. One that was not may sleep where nobody would wake it for ring bytes.
    pub fn is_wait_seen(&self) -> bool {
        self.flag(Flags::WAIT_SEEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turnarounds_stop_at_the_most_that_fits() {
        let turnarounds = Turnarounds(AtomicU32::new(0));
        assert!(!turnarounds.is_any());
        assert_eq!(turnarounds.count(false), (1, true), "the first is one");
        assert_eq!(turnarounds.count(false), (1, false));
        assert_eq!(turnarounds.count(true), (2, true));
        assert!(turnarounds.is_any());
        let most = u32::MAX / TURNAROUND;
        turnarounds.0.store(most * TURNAROUND, Ordering::Relaxed);
        assert_eq!(turnarounds.count(true), (most, true));
        assert_eq!(
            turnarounds.count(true),
            (most, false),
            "which was last is known"
        );
        assert_eq!(turnarounds.count(false), (most, true));
        turnarounds.reset();
        assert_eq!(turnarounds.count(true), (1, true));
    }

    #[test]
    fn many_empty_reads_at_once_are_polling() {
        // The clock's lower half begins anew in between.
        let begin_us = u64::from(u32::MAX) - 50;
        let reads = EmptyReads {
            since_us: AtomicU32::new(0),
            count: AtomicU32::new(0),
        };
        let polls = |step_us: u64| {
            let mut now_us = begin_us;
            (0..=POLLING_READS).any(|_| {
                now_us += step_us;
                reads.note(true, || now_us * 1000)
            })
        };
        let step_us = u64::from(POLLING_US / POLLING_READS);
        assert!(polls(step_us));
        assert!(!polls(step_us + 1), "it may have slept in between");
        for _ in 0..POLLING_READS {
            assert!(!reads.note(true, || begin_us * 1000));
        }
        assert!(!reads.note(false, || unreachable!()));
        assert!(!reads.note(true, || begin_us * 1000), "something was there");
        reads.reset();
    }
}
