//! Whether others want the processor, by what yields took, and for how long nobody polls behind one that was
//! starved (decisions 0004 and 0023).

use crate::limits::Limits;
use crate::polling::Yielded;

/// Whether yields of late let others run: then more threads want to run than there are processors, perhaps the
/// very peer on this one, and polling hard only keeps it from answering. Of a whole process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Oversubscription(pub u32);

impl Oversubscription {
    /// Behind a yield.
    #[inline]
    pub fn after(self, limits: &Limits, yielded: Yielded) -> Self {
        Self(match yielded {
            Yielded::Alone => self.0.saturating_sub(1),
            _ => (self.0 + limits.oversubscribed_step as u32).min(limits.oversubscribed_max as u32),
        })
    }

    /// Whether nobody polls hard.
    #[inline]
    pub const fn is_oversubscribed(self, limits: &Limits) -> bool {
        self.0 as u64 >= limits.oversubscribed_from
    }
}

/// Until when nobody polls, and for how long that is or was the last time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Off {
    /// Nanoseconds of the clock.
    pub until_ns: u64,
    /// Nanoseconds.
    pub last_ns: u64,
}

impl Off {
    /// Whether that is so.
    #[inline]
    pub const fn is_off(self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }

    /// Others want all processors. Who says so while it is known already adds nothing.
    pub fn starved(self, limits: &Limits, now_ns: u64) -> Self {
        if self.is_off(now_ns) {
            return self;
        }
        let last_ns = self.next_ns(limits, now_ns - self.until_ns);
        Self {
            until_ns: now_ns + last_ns,
            last_ns,
        }
    }

    /// Twice the last one, if that was over only `since_ns` ago and so not long; else, or if there was none, the
    /// shortest.
    fn next_ns(self, limits: &Limits, since_ns: u64) -> u64 {
        if since_ns <= limits.off_soon * self.last_ns {
            (2 * self.last_ns).clamp(limits.off_min_ns, limits.off_max_ns)
        } else {
            limits.off_min_ns
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LIMITS;

    #[test]
    fn times_without_polling_grow_while_they_are_soon_needed_again() {
        const MS: u64 = 1_000_000;
        let mut off = Off::default();
        let lasts = [0; 10].map(|_| {
            off = off.starved(&LIMITS, off.until_ns + 5 * MS);
            off.last_ns / MS
        });
        assert_eq!(lasts, [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 2560]);
        assert_eq!(off.starved(&LIMITS, off.until_ns - 1), off, "known already");
        // Long after the last time it begins anew.
        off = off.starved(&LIMITS, off.until_ns + 10_241 * MS);
        assert_eq!(off.last_ns, 10 * MS);
    }

    #[test]
    fn a_process_is_oversubscribed_after_two_switches_and_not_after_one() {
        let mut oversubscription = Oversubscription::default();
        let mut see = |yielded| {
            oversubscription = oversubscription.after(&LIMITS, yielded);
            oversubscription.is_oversubscribed(&LIMITS)
        };
        assert!(!see(Yielded::Switched));
        assert!(see(Yielded::Starved));
        assert!(!see(Yielded::Alone));
        assert!(see(Yielded::Switched));
        for _ in 0..10 {
            see(Yielded::Switched);
        }
        let alone = [0; 6].map(|_| see(Yielded::Alone));
        assert_eq!(alone, [true, true, true, true, false, false]);
    }
}
