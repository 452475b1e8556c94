//! The gaps of late between the start of a waiter's waits and what it waited for: whether the next one polls.

use crate::limits::Limits;

/// What is known of them. Zeroes are one who has not waited yet, and polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// Their mean, nanoseconds.
    pub mean_ns: u32,
    /// Waits left without polling (low half) and how many there are between two tries (high).
    pub pause: u32,
}

impl Gaps {
    /// Accounts for one wait. Long ones count as a few ceilings, so that one pause is soon forgotten.
    #[inline]
    pub fn record(self, limits: &Limits, gap_ns: u64, ceiling_ns: u64) -> Self {
        let gap = gap_ns.min(limits.gap_ceilings * ceiling_ns) as u32;
        if gap_ns <= ceiling_ns && self.pause != 0 {
            // A try paid: polling is on again at once.
            return Self {
                mean_ns: gap,
                pause: 0,
            };
        }
        let waits = limits.gap_waits as u32;
        Self {
            mean_ns: self.mean_ns - self.mean_ns / waits + gap / waits,
            ..self
        }
    }

    /// Whether they were so short that polling pays.
    #[inline]
    pub fn are_short(self, limits: &Limits, ceiling_ns: u64) -> bool {
        u64::from(self.mean_ns) <= ceiling_ns + ceiling_ns / limits.short_part
    }

    /// Whether the next wait may poll, as far as they tell.
    #[inline]
    pub fn may_poll(self, limits: &Limits, ceiling_ns: u64) -> bool {
        ceiling_ns > 0 && (self.are_short(limits, ceiling_ns) || self.left() == 0)
    }

    /// A wait begins, and `polls` or not. Of those that do not, some are counted until one tries.
    #[inline]
    pub fn begins(self, limits: &Limits, polls: bool, ceiling_ns: u64) -> Self {
        if self.are_short(limits, ceiling_ns) {
            return self;
        }
        let between = (self.pause >> 16).max(limits.pause_min as u32);
        let pause = match self.left() {
            0 if polls => (between * 2).min(limits.pause_max as u32) << 16 | between,
            0 => self.pause,
            left => between << 16 | (left - 1),
        };
        Self { pause, ..self }
    }

    #[inline]
    fn left(self) -> u32 {
        self.pause & 0xffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LIMITS;

    const CEILING_NS: u64 = 100_000;

    /// The numbers of those of so many waits that poll, where polling never pays.
    fn tries(gaps: &mut Gaps, waits: u32) -> std::vec::Vec<u32> {
        let mut tries = std::vec::Vec::new();
        for wait in 0..waits {
            let polls = gaps.may_poll(&LIMITS, CEILING_NS);
            *gaps = gaps.begins(&LIMITS, polls, CEILING_NS);
            if polls {
                tries.push(wait);
            }
            *gaps = gaps.record(&LIMITS, u64::MAX, CEILING_NS);
        }
        tries
    }

    #[test]
    fn where_polling_does_not_pay_it_is_tried_ever_less_often() {
        let mut gaps = Gaps::default();
        let tries = tries(&mut gaps, 300);
        // The mean is long after two waits.
        let apart: std::vec::Vec<u32> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(apart, [1, 1, 5, 9, 17, 33, 65, 65, 65]);
        assert_eq!(tries[0], 0);
    }

    #[test]
    fn one_try_that_paid_turns_polling_on() {
        let mut gaps = Gaps::default();
        tries(&mut gaps, 100);
        assert!(!gaps.are_short(&LIMITS, CEILING_NS));
        gaps = gaps.record(&LIMITS, 5_000, CEILING_NS);
        assert_eq!(
            gaps,
            Gaps {
                mean_ns: 5_000,
                pause: 0
            }
        );
    }

    #[test]
    fn one_long_wait_among_short_ones_is_forgotten() {
        let mut gaps = Gaps::default();
        for _ in 0..10 {
            gaps = gaps.record(&LIMITS, 10_000, CEILING_NS);
        }
        gaps = gaps.record(&LIMITS, u64::MAX, CEILING_NS);
        assert!(gaps.are_short(&LIMITS, CEILING_NS));
    }

    #[test]
    fn with_a_ceiling_of_nothing_nobody_polls() {
        assert!(!Gaps::default().may_poll(&LIMITS, 0));
        let gaps = Gaps::default().record(&LIMITS, u64::MAX, 0);
        assert_eq!(gaps, Gaps::default());
    }
}
