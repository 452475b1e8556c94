//! A datagram that is sent until it is answered.
//!
//! Linux waits for the whole time that the peer may take (4.6 s) before it sends again. Over a
//! path that loses packets that makes every lost datagram a long wait, so the first repetitions
//! come sooner, in doubling intervals. How often and how long in all stay as the messages say; a
//! peer answers an early repetition like any other one, or not at all.

use std::time::{Duration, Instant};

use sluice_wire::mad;

/// The first repetition comes after this time.
const FIRST_INTERVAL: Duration = Duration::from_millis(250);
/// MRAs cannot keep a message alive for longer than this.
const PATIENCE_MAX: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub struct Resend {
    pub mad: Box<[u8; mad::BYTES]>,
    /// How often it may still be sent.
    left: u8,
    interval: Duration,
    interval_max: Duration,
    give_up: Instant,
    give_up_max: Instant,
    next: Instant,
}

/// What is to be done when [`Resend::next`] has come.
#[derive(Debug, PartialEq, Eq)]
pub enum Due {
    Send,
    GiveUp,
}

impl Resend {
    /// A datagram that was sent at `now` and will be sent `retries` times more, and given up when
    /// the last one has had its `interval_max` too.
    pub fn new(mad: [u8; mad::BYTES], now: Instant, retries: u8, interval_max: Duration) -> Resend {
        let interval = FIRST_INTERVAL.min(interval_max);
        Resend {
            mad: Box::new(mad),
            left: retries,
            interval,
            interval_max,
            give_up: now + interval_max * (u32::from(retries) + 1),
            give_up_max: now + PATIENCE_MAX,
            next: match retries {
                0 => now + interval_max,
                _ => now + interval,
            },
        }
    }

    /// When something is to be done.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Call when [`Resend::next`] has come.
    pub fn due(&mut self, now: Instant) -> Due {
        if self.left == 0 || now >= self.give_up {
            return Due::GiveUp;
        }
        self.left -= 1;
        self.interval = (self.interval * 2).min(self.interval_max);
        self.next = match self.left {
            0 => self.give_up,
            _ => (now + self.interval).min(self.give_up),
        };
        Due::Send
    }

    /// MRA: the peer has it and takes `time` to answer (IBTA 12.6.6).
    pub fn be_patient(&mut self, now: Instant, time: Duration) {
        let until = (now + time).min(self.give_up_max).max(self.next);
        // What was left of tries and time before is left afterwards.
        self.give_up += until - self.next;
        self.next = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// When it is sent again, and when it is given up, after the first time.
    fn times(mut resend: Resend, start: Instant) -> (Vec<Duration>, Duration) {
        let mut sent = Vec::new();
        loop {
            let now = resend.next();
            match resend.due(now) {
                Due::Send => sent.push(now - start),
                Due::GiveUp => return (sent, now - start),
            }
        }
    }

    #[test]
    fn the_first_repetitions_come_early_and_the_end_when_the_message_says() {
        let start = Instant::now();
        let (sent, end) = times(Resend::new([0; mad::BYTES], start, 15, 4 * SECOND), start);
        assert_eq!(sent.len(), 15);
        let quarters = |times: u32| Duration::from_millis(250) * times;
        assert_eq!(sent[..5], [1, 3, 7, 15, 31].map(quarters));
        assert_eq!(end, 4 * SECOND * 16);
    }

    #[test]
    fn a_peer_that_asks_for_patience_gets_it_but_not_for_ever() {
        let start = Instant::now();
        let mut resend = Resend::new([0; mad::BYTES], start, 15, 4 * SECOND);
        resend.be_patient(start, 69 * SECOND);
        assert_eq!(resend.next(), start + 69 * SECOND);
        assert_eq!(resend.due(resend.next()), Due::Send);
        let (sent, end) = times(resend, start);
        assert_eq!((sent.len(), end.as_secs()), (14, 69 + 63));
        let mut resend = Resend::new([0; mad::BYTES], start, 15, 4 * SECOND);
        for _ in 0..1000 {
            let now = resend.next();
            resend.be_patient(now, 69 * SECOND);
        }
        let (_, end) = times(resend, start);
        assert!(end <= PATIENCE_MAX + 64 * SECOND, "{end:?}");
    }

    #[test]
    fn no_retries_means_sent_once() {
        let start = Instant::now();
        let (sent, end) = times(Resend::new([0; mad::BYTES], start, 0, SECOND), start);
        assert_eq!((sent.len(), end), (0, SECOND));
    }
}
