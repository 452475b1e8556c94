//! For how long a thread that is woken for packets looks for the next one before it sleeps (decision 0023).

use crate::limits::Limits;
use crate::oversubscription::Off;

/// As long as packets come within a time that is worth it, sleeping costs more than looking; some
/// that come later end that. So a rate below one packet in [`Window::most_ns`] costs nothing but its
/// packets. One alone does not: each of the next ones would wake the thread until the window has grown
/// again.
#[derive(Clone, Debug)]
pub struct Window {
    window_ns: u64,
    most_ns: u64,
    /// To yield the processor takes longer only if somebody else wants it.
    yield_ns_max: u64,
    /// Yields in a row that took longer.
    lost: u32,
    moved_ns: u64,
    /// It has moved, and no yield has been short since.
    moved_in_vain: bool,
    /// Behind a move in vain it does not look for a while.
    off: Off,
}

impl Window {
    /// `call_ns`: what a system call takes that does nothing. `processors`: on how many threads of the process can
    /// run at the same time.
    pub fn new(limits: &Limits, call_ns: u64, processors: u32) -> Self {
        let most = call_ns.saturating_mul(limits.window_calls);
        let most = most.clamp(limits.window_min_ns, limits.window_max_ns);
        let yield_ns = call_ns.saturating_mul(limits.window_yield_calls);
        Self {
            window_ns: 0,
            // Who looks keeps the only processor from whoever sends.
            most_ns: if processors > 1 { most } else { 0 },
            yield_ns_max: yield_ns.max(limits.window_yield_min_ns),
            lost: 0,
            moved_ns: 0,
            moved_in_vain: false,
            off: Off::default(),
        }
    }

    /// For how long it looks behind a packet at most, however they come.
    pub const fn most_ns(&self) -> u64 {
        self.most_ns
    }

    /// For how long it looks behind a packet that it has found now.
    pub const fn window_ns(&self, now_ns: u64) -> u64 {
        if self.off.is_off(now_ns) {
            return 0;
        }
        self.window_ns
    }

    /// It has yielded the processor, which took so long. Whether somebody else wants it, and not for a
    /// moment only.
    pub fn yielded(&mut self, limits: &Limits, ns: u64) -> bool {
        if ns <= self.yield_ns_max {
            self.lost = 0;
            self.moved_in_vain = false;
            return false;
        }
        self.lost += 1;
        u64::from(self.lost) >= limits.lost_max
    }

    /// Somebody else wants the processor that it looks on, perhaps the one who waits for our answer.
    /// Whether it may look for another: who is woken by packets is woken on the processor of whoever
    /// sends them, and stays there however idle others are. Not if there is none either, and not again
    /// if the last move has led to no idle one: two yields can take longer than the time between moves.
    pub fn may_move(&mut self, limits: &Limits, now_ns: u64) -> bool {
        let is_due = now_ns.saturating_sub(self.moved_ns) >= limits.move_ns;
        let may = !self.moved_in_vain && is_due;
        if may {
            self.moved_ns = now_ns;
            self.moved_in_vain = true;
            self.lost = 0;
        }
        may
    }

    /// Others want this processor and all that it has tried. It does not look for a while: a yield there
    /// may take as long as the slices of all who want to run, and packets that come meanwhile wait.
    pub fn starved(&mut self, limits: &Limits, now_ns: u64) {
        self.off = self.off.starved(limits, now_ns);
        self.window_ns = 0;
        self.lost = 0;
        self.moved_in_vain = false;
    }

    /// A packet woke it, so long after the last one.
    pub fn woken(&mut self, limits: &Limits, gap_ns: u64) {
        let least = self.most_ns / limits.window_part;
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
    use crate::limits::LIMITS;

    #[test]
    fn only_packets_that_come_soon_are_looked_for() {
        let mut window = Window::new(&LIMITS, 300, 2);
        let most = window.most_ns;
        assert_eq!((most, window.window_ns(0)), (75_000, 0));
        // An hour of one packet each millisecond costs no look.
        window.woken(&LIMITS, 1_000_000);
        assert_eq!(window.window_ns, 0);
        let windows = [10_000; 6].map(|gap| {
            window.woken(&LIMITS, gap);
            window.window_ns
        });
        assert_eq!(
            windows,
            [most / 8, most / 8 * 2, most / 8 * 4, most, most, most]
        );
        let windows = [most + 1; 4].map(|gap| {
            window.woken(&LIMITS, gap);
            window.window_ns
        });
        assert_eq!(windows, [most / 2, most / 4, most / 8, 0]);
        // One processor is left to whoever sends, however slow it is.
        let mut window = Window::new(&LIMITS, 5_000, 1);
        window.woken(&LIMITS, 10);
        assert_eq!(window.window_ns, 0);
    }

    #[test]
    fn where_all_processors_are_wanted_it_sleeps() {
        let mut window = Window::new(&LIMITS, 300, 2);
        let moves = [10, 11, 12, 13].map(|ms| {
            window.yielded(&LIMITS, 1_000);
            window.may_move(&LIMITS, ms * MS)
        });
        assert_eq!(moves, [true, false, true, false]);
        // However long ago: it has led nowhere.
        assert!(window.may_move(&LIMITS, 20 * MS));
        assert!(!window.yielded(&LIMITS, 500 * MS) && window.yielded(&LIMITS, 500 * MS));
        assert!(!window.may_move(&LIMITS, 1_013 * MS));
    }

    #[test]
    fn where_all_processors_are_wanted_again_and_again_it_looks_ever_less_often() {
        let mut window = Window::new(&LIMITS, 300, 2);
        let mut now = 0;
        let mut looks_after = |window: &mut Window, pause: u64| {
            now += pause;
            window.starved(&LIMITS, now);
            let before = now;
            while window.window_ns(now) == 0 {
                window.woken(&LIMITS, 10_000);
                now += MS;
            }
            (now - before) / MS
        };
        let pauses = [0; 10].map(|_| looks_after(&mut window, MS));
        assert_eq!(
            pauses,
            [11, 21, 41, 81, 161, 321, 641, 1281, 2561, 2561].map(|ms| ms - 1)
        );
        // Long after the last time it begins anew.
        assert_eq!(looks_after(&mut window, 11_000 * MS), 10);
    }

    const MS: u64 = 1_000_000;
}
