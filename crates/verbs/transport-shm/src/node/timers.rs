//! What is done without a peer having asked for it.

use core::sync::atomic::{AtomicU64, Ordering};

use sluice_transport::timers::Timers;

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// The queue pair at this place goes on.
    Part(u32),
    /// A request in some ring has waited its time.
    Rings,
}

/// When requests that are held in rings are looked at: one timer serves all of them, however often
/// that happens.
#[derive(Default)]
pub struct Looks {
    /// When the first is looked at again, nanoseconds; 0: none is held.
    next: AtomicU64,
}

impl Looks {
    /// A request is held until `when_ns`. True as of [`Timers::set`].
    #[must_use]
    pub fn set(&self, timers: &Timers<Due>, when_ns: u64) -> bool {
        let before = self.next.load(Ordering::SeqCst);
        if before == 0 || when_ns < before {
            self.next.store(when_ns, Ordering::SeqCst);
            return timers.set(when_ns, Due::Rings);
        }
        false
    }

    /// The rings are about to be looked at: a request that is held from now on sets a timer.
    pub fn begin(&self) {
        self.next.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_timer_serves_all_that_are_held() {
        let (timers, looks) = (Timers::default(), Looks::default());
        assert!(timers.may_sleep(1000));
        assert!(looks.set(&timers, 500));
        assert!(!looks.set(&timers, 600), "the first one sees it too");
        assert!(looks.set(&timers, 400), "an earlier one is one more");
        looks.begin();
        assert!(looks.set(&timers, 600));
    }
}
