//! Polls of a completion queue that find nothing.

use core::sync::atomic::{AtomicU32, Ordering};

/// Polls in a row that find nothing before the processor is offered to others, and how often it
/// is offered from then on. The one that the program waits for may be waiting for this very
/// processor, where a device would not. About 50 and 10 microseconds; an offer that nobody
/// takes costs 0.3.
const PATIENT: u32 = 1024;
const BETWEEN_OFFERS: u32 = 256;

/// Polls of one queue in a row that found nothing to do. Threads that poll the same queue may lose
/// some, which does no harm.
#[derive(Debug, Default)]
pub struct VainPolls(AtomicU32);

impl VainPolls {
    /// One has found something.
    #[inline]
    pub fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// One more has found nothing. Offers the processor to others if it is time. Not with a lock held.
    #[inline]
    pub fn add(&self) {
        if self.is_time() {
            std::thread::yield_now();
        }
    }

    fn is_time(&self) -> bool {
        let polls = self.0.load(Ordering::Relaxed).wrapping_add(1);
        self.0.store(polls, Ordering::Relaxed);
        polls >= PATIENT && polls.is_multiple_of(BETWEEN_OFFERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_offered_behind_many_polls_in_vain() {
        let polls = VainPolls::default();
        assert!((1..PATIENT).all(|_| !polls.is_time()));
        assert!(polls.is_time());
        assert!((1..BETWEEN_OFFERS).all(|_| !polls.is_time()));
        assert!(polls.is_time());
        polls.end();
        assert!((1..PATIENT).all(|_| !polls.is_time()));
    }
}
