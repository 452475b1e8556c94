//! Congestion control: CUBIC (RFC 9438), and DCTCP (RFC 8257) where both ends take part in ECN.
//! All windows in bytes.

use crate::Instant;
use crate::time::SECOND;

/// Which rules a connection follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 9438. Marks count as losses (RFC 3168 §6.1.2).
    #[default]
    Cubic,
    /// RFC 8257, for networks that mark early. Without ECN it is CUBIC.
    Dctcp,
}

/// The constant C of RFC 9438 §5.1, segments per second cubed.
const C: f64 = 0.4;
/// The factor of RFC 9438 §4.6.
const BETA: f64 = 0.7;
/// The gain g of RFC 8257 §4.2.
const GAIN: f64 = 1.0 / 16.0;

#[derive(Clone, Debug, PartialEq)]
pub struct Congestion {
    algorithm: Algorithm,
    mss: f64,
    window: f64,
    threshold: f64,
    /// The window before the last reduction, W_max.
    before: f64,
    /// The window when the present growth began, its time K to reach W_max, and its beginning.
    epoch: Option<(Instant, f64)>,
    /// What Reno would have by now, W_est.
    reno: f64,
    /// The marked share, alpha of RFC 8257, and the bytes that the next share is made of.
    alpha: f64,
    acknowledged: u64,
    marked: u64,
    observed_until: u64,
}

impl Congestion {
    pub fn new(algorithm: Algorithm, mss: u64) -> Self {
        let mss = mss as f64;
        Self {
            algorithm,
            mss,
            window: initial_window(mss),
            threshold: f64::MAX,
            before: 0.0,
            epoch: None,
            reno: 0.0,
            alpha: 1.0,
            acknowledged: 0,
            marked: 0,
            observed_until: 0,
        }
    }

    pub fn window(&self) -> u64 {
        self.window as u64
    }

    pub fn is_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    pub fn set_mss(&mut self, mss: u64) {
        self.mss = mss as f64;
    }

    /// So much was acknowledged, while the window was what held the sender back.
    pub fn acknowledged(&mut self, now: Instant, bytes: u64, srtt: u64) {
        let bytes = bytes as f64;
        if self.window < self.threshold {
            // As much as arrived: acknowledgements in small pieces gain nothing (RFC 3465 §2.2).
            self.window = (self.window + bytes).min(self.threshold.max(self.window));
            return;
        }
        let (since, k) = *self.epoch.get_or_insert_with(|| {
            let below = (self.before - self.window).max(0.0) / self.mss;
            self.before = self.before.max(self.window);
            self.reno = self.window;
            (now, cube_root(below / C))
        });
        let seconds = (now.since(since) + srtt) as f64 / SECOND as f64 - k;
        let cubic = self.before + C * seconds * seconds * seconds * self.mss;
        // RFC 9438 §4.3, equation 4; alpha is that of Reno once W_est has reached W_max.
        let alpha = if self.reno < self.before {
            3.0 * (1.0 - BETA) / (1.0 + BETA)
        } else {
            1.0
        };
        self.reno += alpha * self.mss * bytes / self.window;
        if cubic < self.reno {
            self.window = self.window.max(self.reno);
        } else {
            // At most half as much again in a round trip (RFC 9438 §4.4).
            let target = cubic.clamp(self.window, 1.5 * self.window);
            self.window += (target - self.window) * (bytes / self.window).min(1.0);
        }
    }

    /// Something was lost, or marked under CUBIC: once in a round trip.
    pub fn reduce(&mut self) {
        // Fast convergence (RFC 9438 §4.7).
        self.before = if self.window < self.before {
            self.window * (1.0 + BETA) / 2.0
        } else {
            self.window
        };
        self.set_threshold(self.window * BETA);
    }

    /// The retransmission timer has run out (RFC 5681 §3.1, equation 4; RFC 9438 §4.8).
    pub fn timed_out(&mut self, first: bool) {
        if first {
            self.reduce();
        }
        self.window = self.mss;
        self.epoch = None;
    }

    /// Nothing was sent for a timeout: what is known of the path is old (RFC 5681 §4.1).
    pub fn idle(&mut self) {
        self.window = self.window.min(initial_window(self.mss));
        self.epoch = None;
    }

    fn set_threshold(&mut self, threshold: f64) {
        self.threshold = threshold.max(2.0 * self.mss);
        self.window = self.threshold;
        self.epoch = None;
    }

    /// DCTCP's bookkeeping of an acknowledgement (RFC 8257 §3.3). True if this is DCTCP, and marks
    /// are dealt with.
    pub fn observed(&mut self, bytes: u64, marked: bool, una: u64, nxt: u64) -> bool {
        if self.algorithm != Algorithm::Dctcp {
            return false;
        }
        self.acknowledged += bytes;
        if marked {
            self.marked += bytes;
        }
        if una > self.observed_until && self.acknowledged > 0 {
            let share = self.marked as f64 / self.acknowledged as f64;
            self.alpha = self.alpha * (1.0 - GAIN) + GAIN * share;
            if self.marked > 0 {
                self.before = self.window;
                self.set_threshold(self.window * (1.0 - self.alpha / 2.0));
            }
            (self.acknowledged, self.marked) = (0, 0);
            self.observed_until = nxt;
        }
        true
    }
}

/// RFC 6928 §2.
fn initial_window(mss: f64) -> f64 {
    (10.0 * mss).min(14_600.0_f64.max(2.0 * mss))
}

/// By Newton's method; `core` has none.
fn cube_root(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let mut root = value.max(1.0);
    // Far above the root each round takes a third away: 64 rounds are for 10³⁰.
    for _ in 0..64 {
        root = (2.0 * root + value / (root * root)) / 3.0;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MILLISECOND;

    #[test]
    fn cube_roots_are_right() {
        for root in [0.01, 1.0, 7.0, 1234.5] {
            assert!((cube_root(root * root * root) / root - 1.0).abs() < 1e-9);
        }
        assert_eq!(cube_root(0.0), 0.0);
    }

    #[test]
    fn cubic_is_back_where_it_was_after_k() {
        let mut control = Congestion::new(Algorithm::Cubic, 1000);
        control.window = 1_000_000.0;
        control.reduce();
        assert_eq!(control.window(), 700_000);
        // K = cube root of 300 segments / 0.4 = 9.09 s.
        let mut now = Instant(0);
        while now < Instant(9 * SECOND) {
            let window = control.window();
            control.acknowledged(now, window, 50 * MILLISECOND);
            now = now.after(50 * MILLISECOND);
        }
        assert!(
            (990_000..1_010_000).contains(&control.window()),
            "{}",
            control.window()
        );
    }

    #[test]
    fn dctcp_yields_by_half_the_marked_share() {
        let mut control = Congestion::new(Algorithm::Dctcp, 1000);
        (control.window, control.alpha, control.threshold) = (100_000.0, 0.0, 0.0);
        assert!(control.observed(50_000, true, 1, 100_001));
        assert_eq!(
            control.window(),
            96_875,
            "alpha is 1/16 after a window that was all marked"
        );
        assert!(control.observed(50_000, true, 50_000, 150_000));
        assert_eq!(control.window(), 96_875, "once in a window");
    }

    #[test]
    fn the_first_window_is_ten_segments_and_not_more_than_the_rfc_says() {
        let windows = [100, 1460, 9000].map(|mss| Congestion::new(Algorithm::Cubic, mss).window());
        assert_eq!(windows, [1000, 14_600, 18_000]);
    }
}
