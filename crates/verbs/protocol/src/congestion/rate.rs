//! The reaction point of DCQCN: how fast a connection may send.
//!
//! Names and equations are those of the paper, §3.1:
//!
//! ```text
//! notification (1):  R_T = R_C,  R_C = R_C (1 - α/2),  α = (1 - g) α + g
//! every K without (2): α = (1 - g) α
//! increase, after each period T and after each B bytes; i is the number of such since the cut:
//!   both counts ≤ F  fast recovery (3):     R_C = (R_T + R_C) / 2
//!   one count > F    additive (4):          R_T = R_T + R_AI,       then as above
//!   both counts > F  hyper increase:        R_T = R_T + i R_HAI,    then as above
//! ```
//!
//! Where the paper's sender begins, at line rate, ours begins with what it has sent of late, if that
//! is less: software seldom has the link's rate, and a limit above what is sent anyway limits
//! nothing.

use core::time::Duration;

use crate::time::{Instant, nanos};

/// Constants of the reaction point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateConfig {
    /// What the link can do at most, bytes per second. A connection is not limited when it is there
    /// again.
    pub line_rate: u64,
    /// The least, bytes per second: 100 Mb/s. ConnectX has 1 Mb/s (`rpg_min_rate`), at which 64 KiB
    /// take longer than programs wait.
    pub min_rate: u64,
    /// R_AI, bytes per second. The paper: 40 Mb/s.
    pub additive_increase: u64,
    /// R_HAI, bytes per second. The paper leaves it open; 10 R_AI, as IEEE 802.1Qau and
    /// ConnectX (`rpg_hai_rate`) have it.
    pub hyper_increase: u64,
    /// g, in 1/65536. The paper, figure 14: 1/256. (ConnectX: 5/1024, `dce_tcp_g`.)
    pub gain: u32,
    /// K. The paper, §5.2: 55 µs, longer than [`super::NOTIFICATION_INTERVAL`].
    pub alpha_period: Duration,
    /// T. The paper, figure 14: 55 µs.
    pub increase_period: Duration,
    /// B. The paper, figure 14: 10 MB.
    pub increase_bytes: u64,
    /// F. The paper, §3.1: 5.
    pub fast_recovery: u32,
}

/// Mb/s in bytes per second.
const MEGABIT: u64 = 1_000_000 / 8;

impl RateConfig {
    /// The constants above, for a link of so many bytes per second.
    pub const fn for_link(line_rate: u64) -> Self {
        Self {
            line_rate,
            min_rate: 100 * MEGABIT,
            additive_increase: 40 * MEGABIT,
            hyper_increase: 400 * MEGABIT,
            gain: ONE / 256,
            alpha_period: Duration::from_micros(55),
            increase_period: Duration::from_micros(55),
            increase_bytes: 10_000_000,
            fast_recovery: 5,
        }
    }
}

impl RateConfig {
    /// The same for ends in software, whose threads see marks and notifications milliseconds late:
    /// what the paper's times make of a cut would be undone before the next notification can come.
    pub const fn for_software(line_rate: u64) -> Self {
        Self {
            alpha_period: Duration::from_millis(2),
            increase_period: Duration::from_millis(2),
            gain: ONE / 16,
            ..Self::for_link(line_rate)
        }
    }
}

/// 1 as a fraction of 16 bits.
const ONE: u32 = 1 << 16;

/// Periods without a notification after which α is as good as 0: (1 - 1/256)⁴⁰⁹⁶ < 2⁻²³.
const ALPHA_PERIODS_MAX: u64 = 4096;

/// Increases in one step. More are not lost but come in the next one, so that a driver that
/// was away for long does not stand still.
const INCREASES_MAX: u32 = 1024;

/// How fast a connection may send.
#[derive(Clone, Debug)]
pub struct Rate {
    config: RateConfig,
    /// None before the first notification and after full recovery.
    state: Option<State>,
    /// Kept while there is no limit: a connection that meets congestion again soon is cut less.
    alpha: u32,
    alpha_since: Instant,
    measured: Measured,
}

/// What was sent of late.
#[derive(Clone, Debug, Default)]
struct Measured {
    since: Instant,
    bytes: u64,
    /// Bytes per second, of the last time span that was neither too short nor idle.
    rate: Option<u64>,
}

impl Measured {
    /// As long as is measured, nanoseconds.
    const SPAN: u64 = nanos(Duration::from_micros(500));

    fn sent(&mut self, now: Instant, bytes: u32) {
        let elapsed = now.nanos_since(self.since);
        if elapsed >= Self::SPAN {
            let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(elapsed);
            // After a pause it says nothing.
            self.rate = (elapsed < 8 * Self::SPAN).then_some(rate as u64);
            self.bytes = 0;
            self.since = now;
        }
        self.bytes += u64::from(bytes);
    }
}

#[derive(Clone, Debug)]
struct State {
    /// R_C and R_T.
    current: u64,
    target: u64,
    /// When the last period T ended, and bytes since the last B.
    since: Instant,
    bytes: u64,
    /// Ends of T and of B since the cut.
    periods: u32,
    byte_counts: u32,
}

impl Rate {
    /// Not limited. α begins with 1, as the paper has it.
    pub const fn new(config: RateConfig) -> Self {
        Self {
            config,
            state: None,
            alpha: ONE,
            alpha_since: Instant::from_nanos(0),
            measured: Measured {
                since: Instant::from_nanos(0),
                bytes: 0,
                rate: None,
            },
        }
    }

    /// Bytes per second. None: as fast as the link.
    pub fn limit(&self) -> Option<u64> {
        self.state.as_ref().map(|state| state.current)
    }

    /// A notification came: slow down.
    pub fn notified(&mut self, now: Instant) {
        self.advance(now);
        self.decay_alpha(now);
        let line_rate = self.config.line_rate;
        let least = self.config.min_rate.min(line_rate);
        let measured = self.measured.rate.unwrap_or(line_rate);
        let fresh = measured.clamp(least, line_rate);
        let current = self.limit().unwrap_or(fresh);
        let cut = u128::from(current) * u128::from(self.alpha) / u128::from(2 * ONE);
        // Less than `current`.
        let cut = cut as u64;
        self.state = Some(State {
            current: (current - cut).max(least),
            target: current,
            since: now,
            bytes: 0,
            periods: 0,
            byte_counts: 0,
        });
        let gain = self.config.gain.min(ONE);
        self.alpha = fraction(self.alpha, ONE - gain) + gain;
        self.alpha_since = now;
    }

    /// So many bytes were sent.
    pub fn sent(&mut self, now: Instant, bytes: u32) {
        self.measured.sent(now, bytes);
        self.advance(now);
        if let Some(state) = &mut self.state {
            state.bytes += u64::from(bytes);
            if state.bytes >= self.config.increase_bytes {
                state.bytes = 0;
                state.byte_counts += 1;
                self.increase();
            }
        }
    }

    /// Equation (2), for all periods that have gone by.
    fn decay_alpha(&mut self, now: Instant) {
        let period = nanos(self.config.alpha_period).max(1);
        let periods = now.nanos_since(self.alpha_since) / period;
        let gain = self.config.gain.min(ONE);
        for _ in 0..periods.min(ALPHA_PERIODS_MAX) {
            self.alpha = fraction(self.alpha, ONE - gain);
        }
        self.alpha_since = self.alpha_since.after_nanos(periods * period);
    }

    /// The increases of all periods T that have gone by.
    fn advance(&mut self, now: Instant) {
        let period = nanos(self.config.increase_period).max(1);
        for _ in 0..INCREASES_MAX {
            let Some(state) = &mut self.state else { return };
            if now.nanos_since(state.since) < period {
                return;
            }
            state.since = state.since.after_nanos(period);
            state.periods += 1;
            self.increase();
        }
    }

    fn increase(&mut self) {
        let Some(state) = &mut self.state else { return };
        let many = self.config.fast_recovery;
        let (low, high) = (
            state.periods.min(state.byte_counts),
            state.periods.max(state.byte_counts),
        );
        if low > many {
            let steps = u64::from(low - many);
            let more = self.config.hyper_increase.saturating_mul(steps);
            state.target = state.target.saturating_add(more);
        } else if high > many {
            state.target = state.target.saturating_add(self.config.additive_increase);
        }
        state.target = state.target.min(self.config.line_rate);
        state.current = state.current.midpoint(state.target);
        // Halves never get there.
        if state.target - state.current <= self.config.line_rate / 1024 {
            state.current = state.target;
        }
        if state.current >= self.config.line_rate {
            self.state = None;
        }
    }
}

fn fraction(value: u32, of_one: u32) -> u32 {
    // Both at most 2¹⁶.
    (u64::from(value) * u64::from(of_one) / u64::from(ONE)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: u64 = 1000 * MEGABIT;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn the_first_notification_halves() {
        let mut rate = Rate::new(RateConfig::for_link(10 * GIGABIT));
        assert_eq!(rate.limit(), None);
        rate.notified(at(10));
        assert_eq!(rate.limit(), Some(5 * GIGABIT));
    }

    /// Equations (1) and (3), by hand: after the cut to a half, five fast recoveries leave 1/64 of
    /// the way. Catches: a wrong factor, or additive increase that begins too early.
    #[test]
    fn fast_recovery_halves_the_way_five_times() {
        let mut rate = Rate::new(RateConfig::for_link(10 * GIGABIT));
        rate.notified(at(0));
        rate.notified(at(1));
        // α is 1 still but for rounding: 10 → 5 → 2.5 Gb/s, target 5.
        let wanted = [2500, 3750, 4375, 4687, 4843, 4921];
        for (periods, wanted) in wanted.into_iter().enumerate() {
            rate.sent(at(1 + 55 * periods as u64), 0);
            let megabits = rate.limit().unwrap() / MEGABIT;
            assert!(megabits.abs_diff(wanted) <= 2, "{periods}: {megabits}");
        }
        // Then the target moves by 40 Mb/s a period: 4980, its midpoint and so on.
        rate.sent(at(1 + 55 * 6), 0);
        let megabits = rate.limit().unwrap() / MEGABIT;
        assert!(megabits.abs_diff(4980) <= 2, "{megabits}");
    }

    /// Microseconds until a connection that was cut to an eighth has the link again.
    fn recovery(config: RateConfig) -> u64 {
        let mut rate = Rate::new(config);
        for _ in 0..3 {
            rate.notified(at(0));
        }
        assert_eq!(rate.limit(), Some(10 * GIGABIT / 8));
        let mut micros = 0;
        while let Some(limit) = rate.limit() {
            micros += 10;
            rate.sent(at(micros), (limit / 100_000) as u32);
            assert!(micros < 60_000, "{limit}");
        }
        micros
    }

    /// Catches: no additive increase (it never gets there), no hyper increase (more counts of
    /// bytes make it twice as fast at most).
    #[test]
    fn a_connection_alone_gets_the_link_back() {
        let slow = RateConfig::for_link(10 * GIGABIT);
        let fast = RateConfig {
            increase_bytes: 20_000,
            ..slow
        };
        let (fast, slow) = (recovery(fast), recovery(slow));
        assert!(fast * 5 < slow, "{fast} {slow}");
    }

    /// Catches: a cut that does not reach what is sent.
    #[test]
    fn the_first_cut_is_of_what_was_sent() {
        let mut rate = Rate::new(RateConfig::for_link(100 * GIGABIT));
        // 1 Gb/s, which is 125 bytes in a microsecond.
        for micros in 1..=2000 {
            rate.sent(at(micros), 125);
        }
        // Long ago is nothing known.
        let mut idle = rate.clone();
        idle.sent(at(10_000_000), 125);
        idle.notified(at(10_000_000));
        assert!(idle.limit().unwrap() > 40 * GIGABIT);
        rate.notified(at(2000));
        let megabits = rate.limit().unwrap() / MEGABIT;
        // α is a little less than 1 by then.
        assert!((500..600).contains(&megabits), "{megabits}");
    }

    #[test]
    fn alpha_fades_and_rates_have_a_floor() {
        let config = RateConfig::for_link(10 * GIGABIT);
        let mut rate = Rate::new(config);
        rate.notified(at(0));
        // A second later there is no limit any more, and α is almost gone.
        rate.sent(at(1_000_000), 0);
        assert_eq!(rate.limit(), None);
        rate.notified(at(1_000_000));
        assert!(rate.limit().unwrap() > 9_990 * MEGABIT);
        for _ in 0..100_000 {
            rate.notified(at(1_000_001));
        }
        assert_eq!(rate.limit(), Some(config.min_rate));
    }
}
