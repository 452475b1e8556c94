//! When something is to be done without a peer having asked for it.

use core::sync::atomic::{AtomicU64, Ordering};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;

use crate::lock::lock;

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// The queue pair at this place goes on.
    Part(u32),
    /// A request in some ring has waited its time.
    Rings,
}

/// The timers of a process. All times are nanoseconds of the monotonic clock.
pub struct Timers {
    queue: Mutex<BinaryHeap<Reverse<(u64, Due)>>>,
    /// When the first one is due; [`u64::MAX`] for none.
    next: AtomicU64,
    /// When the first held request is looked at again; 0: none is held.
    next_look: AtomicU64,
    /// Until when the engine thread sleeps.
    asleep_until: AtomicU64,
}

impl Timers {
    pub fn new() -> Self {
        Self {
            queue: Mutex::default(),
            next: AtomicU64::new(u64::MAX),
            next_look: AtomicU64::new(0),
            asleep_until: AtomicU64::new(0),
        }
    }

    /// `what` is due at `when_ns`. True: the engine thread sleeps for longer and must be woken.
    #[must_use]
    pub fn set(&self, when_ns: u64, what: Due) -> bool {
        {
            let mut queue = lock(&self.queue);
            queue.push(Reverse((when_ns, what)));
            if let Some(Reverse((first, _))) = queue.peek() {
                self.next.store(*first, Ordering::SeqCst);
            }
        }
        when_ns < self.asleep_until.load(Ordering::SeqCst)
    }

    /// A request is held until `when_ns`. One timer serves all that are held, however often
    /// that happens. True as of [`Timers::set`].
    #[must_use]
    pub fn set_look(&self, when_ns: u64) -> bool {
        let before = self.next_look.load(Ordering::SeqCst);
        if before == 0 || when_ns < before {
            self.next_look.store(when_ns, Ordering::SeqCst);
            return self.set(when_ns, Due::Rings);
        }
        false
    }

    /// The rings are about to be looked at: a request that is held from now on sets a timer.
    pub fn looking(&self) {
        self.next_look.store(0, Ordering::SeqCst);
    }

    /// Whether there is any. Another thread's may not be seen yet.
    pub fn is_any_set(&self) -> bool {
        self.next.load(Ordering::Relaxed) != u64::MAX
    }

    /// When the first is due; [`u64::MAX`] for none.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

    /// Takes the first one that is due.
    pub fn take_due(&self, now_ns: u64) -> Option<Due> {
        if self.next.load(Ordering::Relaxed) > now_ns {
            return None;
        }
        let mut queue = lock(&self.queue);
        let due = match queue.peek() {
            Some(Reverse((when, what))) if *when <= now_ns => Some(*what),
            _ => None,
        };
        if due.is_some() {
            queue.pop();
        }
        let next = queue.peek().map_or(u64::MAX, |Reverse((when, _))| *when);
        self.next.store(next, Ordering::SeqCst);
        due
    }

    /// The engine thread is about to sleep until then. False: a timer was set in between, which did
    /// not see for how long.
    #[must_use]
    pub fn may_sleep(&self, until_ns: u64) -> bool {
        self.asleep_until.store(until_ns, Ordering::SeqCst);
        self.next.load(Ordering::SeqCst) >= until_ns
    }

    /// It has slept.
    pub fn awake(&self) {
        self.asleep_until.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_due_in_their_order() {
        let timers = Timers::new();
        assert!(!timers.is_any_set() && timers.take_due(u64::MAX - 1).is_none());
        for (when, what) in [(30, Due::Part(1)), (10, Due::Part(2)), (20, Due::Rings)] {
            assert!(!timers.set(when, what), "nobody sleeps");
        }
        assert_eq!(timers.next(), 10);
        assert_eq!(timers.take_due(9), None);
        assert_eq!(timers.take_due(25), Some(Due::Part(2)));
        assert_eq!(timers.take_due(25), Some(Due::Rings));
        assert_eq!(timers.take_due(25), None);
        assert_eq!(timers.take_due(30), Some(Due::Part(1)));
        assert!(!timers.is_any_set());
    }

    #[test]
    fn who_sleeps_past_a_timer_is_woken() {
        let timers = Timers::new();
        assert!(timers.may_sleep(100));
        assert!(!timers.set(100, Due::Part(1)));
        assert!(timers.set(99, Due::Part(1)));
        timers.awake();
        assert!(!timers.set(98, Due::Part(1)));
        assert!(!timers.may_sleep(100), "there is an earlier one");
    }

    #[test]
    fn one_timer_serves_all_that_are_held() {
        let timers = Timers::new();
        assert!(timers.may_sleep(1000));
        assert!(timers.set_look(500));
        assert!(!timers.set_look(600), "the first one sees it too");
        assert!(timers.set_look(400), "an earlier one is one more");
        timers.looking();
        assert!(timers.set_look(600));
    }
}
