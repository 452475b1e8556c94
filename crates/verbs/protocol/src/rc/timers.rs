//! When a requester stops waiting: the local ACK timeout that the program chose, and before it,
//! a probe.

use core::time::Duration;

use crate::time::{Instant, earlier, nanos};

/// How a response's delay is estimated: smoothed mean and deviation, RFC 6298 §2.
#[derive(Clone, Copy, Debug, Default)]
struct RoundTrip {
    /// None before the first sample.
    smoothed: Option<u64>,
    deviation: u64,
}

impl RoundTrip {
    fn sample(&mut self, nanos: u64) {
        match self.smoothed {
            None => {
                self.smoothed = Some(nanos);
                self.deviation = nanos / 2;
            }
            Some(smoothed) => {
                let error = smoothed.abs_diff(nanos);
                self.deviation = self.deviation - self.deviation / 4 + error / 4;
                self.smoothed = Some(smoothed - smoothed / 8 + nanos / 8);
            }
        }
    }
}

/// The timers of a requester. Times are nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Timers {
    /// None: wait for ever (IBTA 9.7.6.1.3).
    timeout: Option<u64>,
    /// Timeouts in a row without a sign of the peer.
    silences: u32,
    round_trip: RoundTrip,
    /// Doubles the probe's delay, until an undisturbed sample comes (RFC 6298 §5.5).
    backoff: u32,
    ack: Option<Instant>,
    probe: Option<Instant>,
    /// A packet on its way that was sent once only, and when (Karn's rule).
    timed: Option<(u64, Instant)>,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    Timeout,
    Probe,
}

impl Timers {
    /// The least that a probe waits: shorter than the time in which an engine thread that was
    /// not running gets the processor back, it would only double the load.
    const PROBE_MIN: u64 = nanos(Duration::from_micros(200));
    /// Before anything is known of the path.
    const PROBE_FIRST: u64 = nanos(Duration::from_millis(1));
    /// The most.
    const PROBE_MAX: u64 = nanos(Duration::from_secs(1));

    /// `code`: the local ACK timeout, 4.096 µs · 2ᶜᵒᵈᵉ, 0 for none (IBTA 9.7.6.1.3).
    pub fn new(code: u8) -> Self {
        Self {
            timeout: (code != 0).then(|| 4096 << (code & 31)),
            silences: 0,
            round_trip: RoundTrip::default(),
            backoff: 0,
            ack: None,
            probe: None,
            timed: None,
        }
    }

    /// Another timeout, from the next start on.
    pub fn set_timeout(&mut self, code: u8) {
        self.timeout = Self::new(code).timeout;
    }

    fn probe_delay(&self) -> u64 {
        let delay = match self.round_trip.smoothed {
            Some(smoothed) => smoothed + 4 * self.round_trip.deviation,
            None => Self::PROBE_FIRST,
        };
        let delay = delay.clamp(Self::PROBE_MIN, Self::PROBE_MAX);
        // The shift is at most 20: see `probed`.
        (delay << self.backoff).min(Self::PROBE_MAX)
    }

    /// For how long the peer may be silent now, in timeouts that the program chose. A requester may
    /// take up to four of them for one (IBTA 9.7.6.1.3). It does from the third on: a lost answer is
    /// asked for soon, and a peer whose thread waits for a processor is not given up for it.
    fn stretch(&self) -> u64 {
        match self.silences {
            0 | 1 => 1,
            2 => 2,
            _ => 4,
        }
    }

    /// The timeout has passed without a sign of the peer.
    pub fn silent(&mut self) {
        self.silences = self.silences.saturating_add(1);
    }

    /// The peer has done something new.
    pub fn heard(&mut self) {
        self.silences = 0;
    }

    /// The oldest packet on its way is another one now, or was sent again.
    pub fn restart(&mut self, now: Instant) {
        let timeout = self.timeout.map(|timeout| timeout * self.stretch());
        self.ack = timeout.map(|timeout| now.after_nanos(timeout));
        self.probe = Some(now.after_nanos(self.probe_delay()));
    }

    /// The oldest packet was sent again, and the timeout runs on.
    pub fn postpone(&mut self, now: Instant) {
        self.probe = Some(now.after_nanos(self.probe_delay()));
    }

    /// A probe was sent; the timeout runs on.
    pub fn probed(&mut self, now: Instant) {
        self.backoff = (self.backoff + 1).min(20);
        self.probe = Some(now.after_nanos(self.probe_delay()));
    }

    /// Nothing is on its way, or what is there will be sent again.
    pub fn stop(&mut self) {
        self.ack = None;
        self.probe = None;
    }

    pub fn is_running(&self) -> bool {
        self.probe.is_some()
    }

    /// A packet was sent for the first time, and asked for a response.
    pub fn sent(&mut self, index: u64, now: Instant) {
        if self.timed.is_none() {
            self.timed = Some((index, now));
        }
    }

    /// Everything is sent again after a silence, or after the peer wanted us to wait: that says
    /// nothing about the path. What is sent again one by one does not disturb a measurement: the
    /// time from the first sending on is too long at worst. (Karn's rule is against times that are
    /// too short; and a path that always loses something would never be measured by it.)
    pub fn repeats(&mut self) {
        self.timed = None;
    }

    /// All before `index` is answered.
    pub fn answered(&mut self, index: u64, now: Instant) {
        if let Some((timed, then)) = self.timed
            && timed < index
        {
            self.timed = None;
            self.backoff = 0;
            self.round_trip.sample(now.nanos_since(then));
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        earlier(self.ack, self.probe)
    }

    pub fn due(&self, now: Instant) -> Due {
        let past = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if past(self.ack) {
            Due::Timeout
        } else if past(self.probe) {
            Due::Probe
        } else {
            Due::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_is_that_of_the_specification() {
        for (code, wanted) in [(1, 8_192), (14, 67_108_864), (31, 4096u64 << 31)] {
            let mut timers = Timers::new(code);
            timers.restart(Instant::from_nanos(5));
            assert_eq!(timers.ack, Some(Instant::from_nanos(5 + wanted)));
        }
        let mut timers = Timers::new(0);
        timers.restart(Instant::default());
        assert_eq!(timers.ack, None);
        assert!(timers.probe.is_some());
    }

    #[test]
    fn a_peer_that_stays_silent_is_given_more_time() {
        let mut timers = Timers::new(1);
        let mut waits = [0; 6];
        for wait in &mut waits {
            timers.restart(Instant::default());
            *wait = timers.ack.unwrap().nanos_since(Instant::default()) / 8_192;
            timers.silent();
        }
        assert_eq!(waits, [1, 1, 2, 4, 4, 4]);
        timers.heard();
        timers.restart(Instant::default());
        assert_eq!(timers.ack, Some(Instant::from_nanos(8_192)));
        // The longest of all, as often as may be.
        let mut timers = Timers::new(31);
        (0..8).for_each(|_| timers.silent());
        timers.restart(Instant::default());
        assert_eq!(timers.ack, Some(Instant::from_nanos(4 * (4096 << 31))));
    }

    #[test]
    fn probes_follow_the_round_trip() {
        let mut timers = Timers::new(20);
        let at = Instant::from_nanos;
        for round in 0..50 {
            timers.sent(round, at(round * 10_000_000));
            timers.answered(round + 1, at(round * 10_000_000 + 2_000_000));
        }
        let delay = timers.probe_delay();
        assert!((2_000_000..3_000_000).contains(&delay), "{delay}");
        timers.probed(at(0));
        assert_eq!(timers.probe_delay(), 2 * delay);
        // What was sent twice says nothing.
        timers.sent(60, at(0));
        timers.repeats();
        timers.answered(70, at(900_000_000));
        assert_eq!(timers.probe_delay(), 2 * delay);
    }
}
