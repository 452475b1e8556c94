//! When something is to be done without a peer having asked for it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// The timers of a transport, for things `T`. All times are nanoseconds of the monotonic clock.
///
/// Who sets one and the thread that sleeps each write first and look then, both in one order
/// (`SeqCst`): either the thread sees the timer ([`Timers::may_sleep`]), or who set it sees for how
/// long the thread sleeps ([`Timers::set`]).
pub struct Timers<T> {
    queue: Mutex<BinaryHeap<Reverse<(u64, T)>>>,
    /// When the first one is due; [`u64::MAX`] for none.
    next: AtomicU64,
    /// Until when the thread sleeps.
    asleep_until: AtomicU64,
}

impl<T: Copy + Ord> Default for Timers<T> {
    fn default() -> Self {
        Self {
            queue: Mutex::new(BinaryHeap::new()),
            next: AtomicU64::new(u64::MAX),
            asleep_until: AtomicU64::new(0),
        }
    }
}

impl<T: Copy + Ord> Timers<T> {
    /// `what` is due at `when_ns`. True: the thread sleeps for longer and must be woken.
    #[must_use]
    pub fn set(&self, when_ns: u64, what: T) -> bool {
        {
            let mut queue = lock(&self.queue);
            queue.push(Reverse((when_ns, what)));
            if let Some(Reverse((first, _))) = queue.peek() {
                self.next.store(*first, Ordering::SeqCst);
            }
        }
        when_ns < self.asleep_until.load(Ordering::SeqCst)
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
    pub fn take_due(&self, now_ns: u64) -> Option<T> {
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

    /// The thread is about to sleep until then. False: a timer was set in between, which did not see
    /// for how long.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn timers_are_due_in_their_order() {
        let timers = Timers::default();
        assert!(!timers.is_any_set() && timers.take_due(u64::MAX - 1).is_none());
        for (when, what) in [(30, 'a'), (10, 'b'), (20, 'c')] {
            assert!(!timers.set(when, what), "nobody sleeps");
        }
        assert_eq!(timers.next(), 10);
        assert_eq!(timers.take_due(9), None);
        assert_eq!(timers.take_due(25), Some('b'));
        assert_eq!(timers.take_due(25), Some('c'));
        assert_eq!(timers.take_due(25), None);
        assert_eq!(timers.take_due(30), Some('a'));
        assert!(!timers.is_any_set());
    }

    #[test]
    fn who_sleeps_past_a_timer_is_woken() {
        let timers = Timers::default();
        assert!(timers.may_sleep(100));
        assert!(!timers.set(100, 1));
        assert!(timers.set(99, 1));
        timers.awake();
        assert!(!timers.set(98, 1));
        assert!(!timers.may_sleep(100), "there is an earlier one");
    }
}
