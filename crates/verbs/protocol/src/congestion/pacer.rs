//! Packets spread over time.

use core::time::Duration;

use crate::time::{Instant, nanos};

const SECOND: u128 = 1_000_000_000;

/// Says when the next packet may leave so that a rate is kept. What was not sent in time may be
/// made up for, but no more than [`Pacer::SLACK`] of it.
#[derive(Clone, Debug, Default)]
pub struct Pacer {
    ready_at: Instant,
}

impl Pacer {
    /// A driver that looks around this often loses nothing: as long as a thread that slept takes to
    /// be there. So much at line rate is in the order of what NICs send in one go.
    pub const SLACK: Duration = Duration::from_micros(50);

    /// When the next packet may leave.
    pub const fn ready_at(&self) -> Instant {
        self.ready_at
    }

    /// A packet left, of that many bytes on the link, at a rate in bytes per second.
    pub fn sent(&mut self, now: Instant, bytes: u32, rate: u64) {
        let earliest = now.nanos().saturating_sub(nanos(Self::SLACK));
        let from = self.ready_at.max(Instant::from_nanos(earliest));
        let takes = (u128::from(bytes) * SECOND).div_ceil(u128::from(rate.max(1)));
        self.ready_at = from.after_nanos(u64::try_from(takes).unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the packets and the driver's pauses, no more leaves than rate and slack
        /// allow; and with a driver that does not pause, no less either.
        /// Catches: slack without bound, or a debt that is forgotten.
        #[test]
        fn the_rate_is_kept(
            rate in 1_000_000u64..10_000_000_000,
            steps in prop::collection::vec((1u32..5000, 0u64..100_000), 1..200),
            pauses: bool,
        ) {
            let mut pacer = Pacer::default();
            let mut now = Instant::from_nanos(1_000_000_000);
            let (begin, mut bytes) = (now, 0u64);
            for (length, pause) in steps {
                now = now.max(pacer.ready_at());
                now = now.after_nanos(if pauses { pause } else { 0 });
                let elapsed = u128::from(now.nanos_since(begin) + nanos(Pacer::SLACK));
                let allowed = elapsed * u128::from(rate) / SECOND;
                prop_assert!(u128::from(bytes) <= allowed + 1, "{} > {}", bytes, allowed);
                pacer.sent(now, length, rate);
                bytes += u64::from(length);
                if !pauses {
                    // One nanosecond of rounding for each packet.
                    let least = u128::from(now.nanos_since(begin)) * u128::from(rate) / SECOND;
                    prop_assert!(u128::from(bytes) + 200 * u128::from(rate) / SECOND + 200 >= least);
                }
            }
        }
    }
}
