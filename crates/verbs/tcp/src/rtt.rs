//! Round trips and the retransmission timeout (RFC 6298).

use crate::time::{MILLISECOND, SECOND};

/// 200 ms, not the second of RFC 6298 §2.4: what the kernels of today have.
pub const RTO_MIN: u64 = 200 * MILLISECOND;
/// RFC 6298 §2.5 allows a maximum of 60 s or more.
pub const RTO_MAX: u64 = 60 * SECOND;

/// The estimate, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rtt {
    smoothed: Option<u64>,
    variation: u64,
    /// Doublings since something was acknowledged (RFC 6298 §5.5).
    pub backoff: u32,
}

impl Rtt {
    pub fn new() -> Self {
        Self {
            smoothed: None,
            variation: 0,
            backoff: 0,
        }
    }

    /// RFC 6298 §2.2, §2.3.
    pub fn sample(&mut self, rtt: u64) {
        match self.smoothed {
            None => {
                self.smoothed = Some(rtt);
                self.variation = rtt / 2;
            }
            Some(smoothed) => {
                self.variation = self.variation - self.variation / 4 + smoothed.abs_diff(rtt) / 4;
                self.smoothed = Some(smoothed - smoothed / 8 + rtt / 8);
            }
        }
    }

    /// 0 before the first sample.
    pub fn smoothed(&self) -> u64 {
        self.smoothed.unwrap_or(0)
    }

    /// With its doublings. A second before the first sample (RFC 6298 §2.1).
    pub fn timeout(&self) -> u64 {
        let plain = match self.smoothed {
            None => SECOND,
            Some(smoothed) => smoothed.saturating_add((4 * self.variation).max(MILLISECOND)),
        };
        let doubled = plain.max(RTO_MIN).checked_shl(self.backoff.min(16));
        doubled.unwrap_or(RTO_MAX).min(RTO_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_the_samples_and_doubles() {
        let mut rtt = Rtt::new();
        assert_eq!(rtt.timeout(), SECOND);
        rtt.sample(400 * MILLISECOND);
        assert_eq!(rtt.timeout(), 1200 * MILLISECOND);
        rtt.backoff = 2;
        assert_eq!(rtt.timeout(), 4800 * MILLISECOND);
        rtt.backoff = u32::MAX;
        assert_eq!(rtt.timeout(), RTO_MAX);
        rtt.backoff = 0;
        for _ in 0..200 {
            rtt.sample(MILLISECOND);
        }
        assert_eq!(rtt.timeout(), RTO_MIN);
    }
}
