//! For how long a thread looks for the next packet before it sleeps (decision 0023).

/// As long as packets come within a time that is worth it, sleeping costs more than looking; some
/// that come later end that. So a rate below one packet in [`Patience::most_ns`] costs nothing but its
/// packets. One alone does not: each of the next ones would wake the thread until the window has grown
/// again.
pub struct Patience {
    window_ns: u64,
    most_ns: u64,
    /// To yield the processor takes longer only if somebody else wants it.
    yield_ns_max: u64,
    /// Yields in a row that took longer.
    lost: u32,
    moved_ns: u64,
}

impl Patience {
    /// What looking may cost at most for one packet, in system calls that do nothing: to be put to
    /// sleep and woken costs some tens, and delays the packet by more.
    const CALLS: u64 = 250;
    /// The same, whatever a system call takes.
    const LIMITS_NS: core::ops::RangeInclusive<u64> = 20_000..=1_000_000;
    /// What yielding the processor to nobody may cost, in such calls, and in any case.
    const YIELD_CALLS: u64 = 10;
    const YIELD_NS_MIN: u64 = 3_000;
    /// So many yields in a row that took longer are no accident.
    const LOST_MIN: u32 = 2;
    /// Time between two moves to another processor.
    const MOVE_NS: u64 = 2_000_000;

    /// `call_ns`: what a system call takes that does nothing.
    pub fn new(call_ns: u64, processors: usize) -> Self {
        let most = (call_ns * Self::CALLS).clamp(*Self::LIMITS_NS.start(), *Self::LIMITS_NS.end());
        Self {
            window_ns: 0,
            // Who looks keeps the only processor from whoever sends.
            most_ns: if processors > 1 { most } else { 0 },
            yield_ns_max: (call_ns * Self::YIELD_CALLS).max(Self::YIELD_NS_MIN),
            lost: 0,
            moved_ns: 0,
        }
    }

    /// For how long it looks behind a packet.
    pub fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// It has yielded the processor, which took so long. Whether somebody else wants it, and not for a
    /// moment only.
    pub fn yielded(&mut self, ns: u64) -> bool {
        self.lost = if ns > self.yield_ns_max {
            self.lost + 1
        } else {
            0
        };
        self.lost >= Self::LOST_MIN
    }

    /// Somebody else wants the processor that it looks on, perhaps the one who waits for our answer.
    /// Whether it may look for another: who is woken by packets is woken on the processor of whoever
    /// sends them, and stays there however idle others are. Not if there is none either.
    pub fn may_move(&mut self, now: u64) -> bool {
        let may = now.saturating_sub(self.moved_ns) >= Self::MOVE_NS;
        if may {
            self.moved_ns = now;
            self.lost = 0;
        }
        may
    }

    /// Others want this processor and all that it has tried.
    pub fn crowded(&mut self) {
        self.window_ns = 0;
        self.lost = 0;
    }

    /// A packet woke it, so long after the last one.
    pub fn woken(&mut self, gap_ns: u64) {
        let least = self.most_ns / 8;
        self.window_ns = if gap_ns <= self.most_ns {
            (2 * self.window_ns).clamp(least, self.most_ns)
        } else if self.window_ns > least {
            self.window_ns / 2
        } else {
            0
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packets_that_come_soon_are_looked_for() {
        let mut patience = Patience::new(300, 2);
        let most = patience.most_ns;
        assert_eq!((most, patience.window_ns), (75_000, 0));
        // An hour of one packet each millisecond costs no look.
        patience.woken(1_000_000);
        assert_eq!(patience.window_ns, 0);
        let windows = [10_000; 6].map(|gap| {
            patience.woken(gap);
            patience.window_ns
        });
        assert_eq!(
            windows,
            [most / 8, most / 8 * 2, most / 8 * 4, most, most, most]
        );
        let windows = [most + 1; 4].map(|gap| {
            patience.woken(gap);
            patience.window_ns
        });
        assert_eq!(windows, [most / 2, most / 4, most / 8, 0]);
        // One processor is left to whoever sends, however slow it is.
        let mut patience = Patience::new(5_000, 1);
        patience.woken(10);
        assert_eq!(patience.window_ns, 0);
    }

    #[test]
    fn where_all_processors_are_wanted_it_sleeps() {
        let mut patience = Patience::new(300, 2);
        let moves = [10, 11, 12, 13].map(|ms| patience.may_move(ms * 1_000_000));
        assert_eq!(moves, [true, false, true, false]);
    }
}
