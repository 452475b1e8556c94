//! Time, as the driver tells it.

use core::time::Duration;

/// A moment: nanoseconds since any moment that the driver chose, on a clock that never goes back
/// (`CLOCK_MONOTONIC`). 64 bits last 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(u64);

impl Instant {
    /// That many nanoseconds after the beginning.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the beginning.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Later by `duration`; the end of time if that is later still.
    #[must_use]
    pub const fn after(self, duration: Duration) -> Self {
        self.after_nanos(nanos(duration))
    }

    /// Later by `nanos`; the end of time if that is later still.
    #[must_use]
    pub const fn after_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds since `earlier`; 0 if that is not earlier.
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A duration in nanoseconds, at most 584 years.
pub(crate) const fn nanos(duration: Duration) -> u64 {
    let nanos = duration.as_nanos();
    if nanos > u64::MAX as u128 {
        u64::MAX
    } else {
        nanos as u64
    }
}

/// The earlier of two deadlines, if there are any.
pub(crate) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
