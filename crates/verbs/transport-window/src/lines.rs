//! How many lines a program says of one other host. Who can have a line said by what it writes could fill the disk
//! behind standard error.

use sluice_transport::notice::Notices;

/// Lines at once.
const BURST: u32 = 4;
/// One more line comes for each such time.
const REFILL_NS: u64 = 60_000_000_000;

/// Of one other host.
#[derive(Debug)]
pub struct Lines {
    left: u32,
    /// When there was one more last.
    filled_ns: u64,
    /// Left out since the last that was said.
    left_out: u64,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines {
            left: BURST,
            filled_ns: 0,
            left_out: 0,
        }
    }
}

impl Lines {
    /// Says a line, or leaves it out. `now` is in nanoseconds of a clock that does not go back.
    pub fn say(&mut self, notices: &Notices, now: u64, text: &str) {
        match self.allow(now) {
            None => {}
            Some(0) => {
                notices.say(text);
            }
            Some(more) => {
                notices.say(&format!("{text} ({more} lines of this host were left out)"));
            }
        }
    }

    /// Whether a line may be said now, and how many were left out before it.
    fn allow(&mut self, now: u64) -> Option<u64> {
        if self.left == BURST {
            self.filled_ns = now;
        }
        let come = now.saturating_sub(self.filled_ns) / REFILL_NS;
        let room = u64::from(BURST - self.left);
        self.left += come.min(room) as u32;
        self.filled_ns = self
            .filled_ns
            .saturating_add(come.saturating_mul(REFILL_NS));
        if self.left == 0 {
            self.left_out += 1;
            return None;
        }
        self.left -= 1;
        Some(core::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F8: a million lines in 12 s.
    #[test]
    fn a_flood_is_a_few_lines_and_one_a_minute() {
        let mut lines = Lines::default();
        let began = 77 * REFILL_NS;
        let said = |lines: &mut Lines, from: u64| {
            (0..1_000_000_u64)
                .filter_map(|at| lines.allow(from + 12_000 * at))
                .collect::<Vec<_>>()
        };
        assert_eq!(said(&mut lines, began), [0, 0, 0, 0]);
        // Half an hour later there are no more at once than at first.
        let later = began + 30 * REFILL_NS;
        assert_eq!(said(&mut lines, later), [999_996, 0, 0, 0]);
        let allowed = (1..=3_u64).map(|at| lines.allow(later + at * REFILL_NS));
        assert_eq!(
            allowed.collect::<Vec<_>>(),
            [Some(999_996), Some(0), Some(0)]
        );
    }

    #[test]
    fn a_clock_at_its_end_is_no_fault() {
        let mut lines = Lines::default();
        for now in [0, u64::MAX, u64::MAX, 0, u64::MAX] {
            lines.allow(now);
        }
    }
}
