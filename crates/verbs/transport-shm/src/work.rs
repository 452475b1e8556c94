//! Whether a thread does the transport's work: what it then calls in the engine may come back to
//! the transport, which must not wait for work that this thread itself has begun.

use std::cell::Cell;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// This thread does the transport's work while this value lives.
#[must_use]
pub struct Work(());

impl Work {
    pub fn begin() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self(())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Whether there is one on this thread.
pub fn is_under_way() -> bool {
    DEPTH.get() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_within_work_ends_with_the_outer_one() {
        assert!(!is_under_way());
        let outer = Work::begin();
        drop(Work::begin());
        assert!(is_under_way());
        std::thread::scope(|scope| {
            let other = scope.spawn(is_under_way);
            assert!(!other.join().unwrap());
        });
        drop(outer);
        assert!(!is_under_way());
    }
}
