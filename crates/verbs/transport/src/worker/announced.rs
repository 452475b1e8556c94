//! What a thread that waits for descriptors says of its sleep.
//!
//! Whoever wants it awake writes first what it is to find, and looks here then; the thread writes
//! here first, and looks for that then. All of it is in one order (`SeqCst`), so that one of the two
//! sees the other.

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// A thread that sleeps no longer than this is not woken for a deadline.
const NAP_NS: u64 = 1_000_000;

/// What it says.
#[derive(Debug, Default)]
pub struct Announced {
    /// Until when it sleeps, nanoseconds; 0: it is awake. The lowest bit is set if that was more
    /// than a nap when it began, so that nobody else has to look at the clock.
    until: AtomicU64,
    /// It is woken by every packet, or is about to look.
    hears: AtomicBool,
}

/// What others ask.
impl Announced {
    /// Whether packets wake it. If not, it looks before they do whether somebody waits for them
    /// without polling.
    pub fn hears(&self) -> bool {
        self.hears.load(Ordering::SeqCst)
    }

    /// Whether it sleeps, and for longer than a nap: until it is woken.
    pub fn is_asleep(&self) -> bool {
        self.until.load(Ordering::SeqCst) & 1 == 1
    }

    /// Whether it must be woken to be there not long behind a deadline.
    pub fn sleeps_past(&self, deadline: u64) -> bool {
        if deadline == u64::MAX {
            return false;
        }
        let until = self.until.load(Ordering::SeqCst);
        until > deadline && until & 1 == 1
    }
}

/// What the thread itself says.
impl Announced {
    /// It is awake. In front of its look at who waits.
    pub fn awakes(&self) {
        self.until.store(0, Ordering::SeqCst);
        self.hears.store(false, Ordering::SeqCst);
    }

    /// Whether packets wake it from now on.
    pub fn listens(&self, heard: bool) {
        self.hears.store(heard, Ordering::SeqCst);
    }

    /// It sleeps until then. In front of its last look at deadlines.
    pub fn sleeps_until(&self, until: u64, now: u64) {
        let long = until > now.saturating_add(NAP_NS);
        let until = if long { until | 1 } else { until & !1 };
        self.until.store(until, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_who_sleeps_for_long_is_woken_for_a_deadline() {
        let announced = Announced::default();
        assert!(!announced.sleeps_past(1) && !announced.is_asleep());
        announced.sleeps_until(u64::MAX, 0);
        assert!(announced.is_asleep());
        assert!(announced.sleeps_past(7) && !announced.sleeps_past(u64::MAX));
        announced.sleeps_until(NAP_NS, 0);
        assert!(!announced.sleeps_past(7) && !announced.is_asleep());
        announced.sleeps_until(3 * NAP_NS, 0);
        assert!(announced.sleeps_past(NAP_NS) && !announced.sleeps_past(4 * NAP_NS));
        announced.listens(true);
        announced.awakes();
        assert!(!announced.hears() && !announced.sleeps_past(0));
    }
}
