//! Counters that are added up when somebody asks ([`sluice_verbs::Transport::counters`]): some are
//! where a thread is at work.

use sluice_sys::clock::now_ns;

/// How long is waited, in all, for what others are working on when the process ends, and other threads
/// may hold a lock for ever.
pub const PATIENCE_AT_END_NS: u64 = 20_000_000;
/// The same while it is at work, and they may have it most of the time.
pub const PATIENCE_AT_WORK_NS: u64 = 300_000_000;

/// Somebody adds up counters, and waits for others so long in all.
#[derive(Debug)]
pub struct Count {
    until_ns: u64,
    is_partial: bool,
}

impl Count {
    /// Begins now.
    pub fn with_patience(ns: u64) -> Self {
        Self {
            until_ns: now_ns().saturating_add(ns),
            is_partial: false,
        }
    }

    /// Tries to look until it works, or the time is over. What somebody does not let go of is left
    /// out.
    pub fn in_time<R>(&mut self, mut look: impl FnMut() -> Option<R>) -> Option<R> {
        loop {
            let seen = look();
            if seen.is_some() {
                return seen;
            }
            if now_ns() > self.until_ns {
                self.is_partial = true;
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Whether something was left out.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_lets_go_of_is_left_out() {
        let mut count = Count::with_patience(60_000_000_000);
        let mut tries = 0;
        let third = || {
            tries += 1;
            (tries == 3).then_some(tries)
        };
        assert_eq!(count.in_time(third), Some(3));
        assert!(!count.is_partial());
        // Without patience each gets one try.
        let mut count = Count::with_patience(0);
        assert_eq!(count.in_time(|| None::<u32>), None);
        assert_eq!(count.in_time(|| Some(1)), Some(1));
        assert!(count.is_partial());
    }
}
