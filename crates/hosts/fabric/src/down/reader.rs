//! What the local program takes of its stream, by whatever way the bytes came.

/// Bytes that move on TCP within this time of one another are worth a ring, nanoseconds.
const LIVELY_NS: u64 = 500_000;
/// That often in a row.
const LIVELY_MOVES: u32 = 3;
/// Who has taken bytes within this time is not done, nanoseconds.
const MOVING_NS: u64 = 10_000_000;

/// The local program, as the reader of one direction.
#[derive(Debug)]
pub struct Reader {
    /// Its progress at the last look, when it changed, and how often it did so quickly.
    progress: u64,
    moved_ns: u64,
    lively: u32,
    /// Its progress that was counted.
    counted: u64,
    /// It has closed or ended, and whether the far daemon was told of that or of a connection that it closed.
    pub is_gone: bool,
    pub is_close_said: bool,
}

impl Reader {
    /// One who has taken `progress` bytes, of which nothing is to be counted.
    pub fn new(progress: u64) -> Self {
        Self {
            progress: 0,
            moved_ns: 0,
            lively: 0,
            counted: progress,
            is_gone: false,
            is_close_said: false,
        }
    }

    /// Bytes that it has taken since they were counted last.
    pub fn count(&mut self, progress: u64) -> u64 {
        progress.wrapping_sub(core::mem::replace(&mut self.counted, progress))
    }

    /// Whether it has taken bytes lately.
    pub fn is_moving(&self, progress: u64, now_ns: u64) -> bool {
        progress != self.counted || now_ns.saturating_sub(self.moved_ns) < MOVING_NS
    }

    /// When it took bytes last, nanoseconds.
    pub fn moved_ns(&self) -> u64 {
        self.moved_ns
    }

    /// Looks at how far it is.
    pub fn look(&mut self, progress: u64, now_ns: u64) {
        if progress != self.progress {
            self.progress = progress;
            let gap = now_ns.saturating_sub(self.moved_ns);
            self.lively = if gap < LIVELY_NS { self.lively + 1 } else { 0 };
            self.moved_ns = now_ns;
        }
    }

    /// Whether it takes bytes one soon after the other, and has just taken some: an answer may be on its way, and the next
    /// request will find the grant.
    pub fn is_lively(&self, now_ns: u64) -> bool {
        self.lively >= LIVELY_MOVES && self.moved_ns == now_ns
    }

    /// A grant was of no use: it has to show that it is lively once more.
    pub fn is_to_show_again(&mut self) {
        self.lively = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_lively_when_it_takes_bytes_soon_after_one_another() {
        let mut reader = Reader::new(0);
        let at = |nth: u64| 1_000_000_000 + nth * (LIVELY_NS - 1);
        for nth in 0..=u64::from(LIVELY_MOVES) {
            assert!(!reader.is_lively(at(nth)));
            reader.look(10 + nth, at(nth));
            reader.look(10 + nth, at(nth) + 1);
        }
        let last = at(u64::from(LIVELY_MOVES));
        assert!(reader.is_lively(last) && !reader.is_lively(last + 1));
        reader.is_to_show_again();
        assert!(!reader.is_lively(last));
        reader.look(100, last + LIVELY_NS);
        assert!(!reader.is_lively(last + LIVELY_NS));
    }

    #[test]
    fn what_was_counted_is_not_counted_again() {
        let mut reader = Reader::new(5);
        assert!(reader.is_moving(6, MOVING_NS) && !reader.is_moving(5, MOVING_NS));
        assert_eq!(
            [reader.count(9), reader.count(9), reader.count(10)],
            [4, 0, 1]
        );
        reader.look(10, 7);
        assert!(reader.is_moving(10, 7 + MOVING_NS - 1) && !reader.is_moving(10, 7 + MOVING_NS));
    }
}
