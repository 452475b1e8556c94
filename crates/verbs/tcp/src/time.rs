//! Time, as the driver tells it.

/// A moment: nanoseconds on a clock of the driver's that never goes back. 64 bits last 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub u64);

impl Instant {
    /// Later by `nanos`; the end of time if that is later still.
    #[must_use]
    pub const fn after(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds since `earlier`; 0 if that is not earlier.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Nanoseconds of a millisecond.
pub const MILLISECOND: u64 = 1_000_000;
/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000 * MILLISECOND;
