//! How fast a thread goes about its connections: whether it is still awake when the next bytes come.
//!
//! One that is not sleeps in the kernel between them, and TCP wakes it. The rules of a lane would be
//! in its way, and bring nothing.

/// Time between operations of a lively thread, nanoseconds, at most, on average over [`WINDOW`] of
/// them.
const LIVELY_NS: u64 = 400_000;
const WINDOW: u32 = 8;
/// So many bytes count as one operation.
const OPERATION_BYTES: usize = 4096;

/// What one thread did of late. Zero is one that has done nothing.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pace {
    operations: u32,
    /// How many there were, and when, at the last look that decided.
    looked_at: u32,
    looked_ns: u64,
    is_lively: bool,
}

impl Pace {
    /// A read or a write of so many bytes.
    pub fn note(&mut self, bytes: usize) {
        let operations = 1 + bytes / OPERATION_BYTES;
        self.operations = self.operations.wrapping_add(operations as u32);
    }

    /// Whether operations follow one another quickly.
    pub fn is_lively(&mut self, now_ns: impl FnOnce() -> u64) -> bool {
        let done = self.operations.wrapping_sub(self.looked_at);
        if done >= WINDOW {
            let now_ns = now_ns();
            let passed_ns = now_ns.saturating_sub(self.looked_ns);
            self.is_lively = passed_ns <= u64::from(done) * LIVELY_NS;
            self.looked_at = self.operations;
            self.looked_ns = now_ns;
        }
        self.is_lively
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    /// Eight operations of so many bytes, so far apart; whether they were lively.
    fn eight(pace: &mut Pace, from_ns: u64, bytes: usize, apart_ns: u64) -> bool {
        let mut is_lively = false;
        for step in 1..=u64::from(WINDOW) {
            pace.note(bytes);
            is_lively = pace.is_lively(|| from_ns + step * apart_ns);
        }
        is_lively
    }

    #[test]
    fn requests_in_quick_succession_are_lively() {
        let mut pace = Pace::default();
        assert!(
            !eight(&mut pace, 1 << 40, 64, US),
            "nobody knows since when"
        );
        assert!(eight(&mut pace, (1 << 40) + 8 * US, 64, 400 * US));
        let from = (1 << 40) + 8 * US + 8 * 400 * US;
        assert!(!eight(&mut pace, from, 64, 401 * US));
    }

    #[test]
    fn much_at_a_time_is_as_good_as_often() {
        let mut pace = Pace::default();
        eight(&mut pace, 0, 65_536, 6000 * US);
        assert!(eight(&mut pace, 8 * 6000 * US, 65_536, 6000 * US));
    }
}
