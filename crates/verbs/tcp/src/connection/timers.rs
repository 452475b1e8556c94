//! Time.

use super::{Connection, End};
use crate::rtt::RTO_MAX;
use crate::time::{Instant, MILLISECOND};

/// How long the peer may wait before it acknowledges a single segment (RFC 8985 §7.2).
const DELAYED_MAX: u64 = 200 * MILLISECOND;

impl Connection {
    /// When [`Self::timed_out`] is to be called, if nothing happens before.
    pub fn timeout(&self) -> Option<Instant> {
        let timers = &self.timers;
        [
            timers.retransmission,
            timers.probe,
            timers.reordering,
            timers.persist,
            timers.acknowledge,
            timers.time_wait,
            self.patience(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// When the peer has been silent for too long.
    fn patience(&self) -> Option<Instant> {
        let waits = self.end.is_none() && (!self.board.is_empty() || self.timers.persist.is_some());
        waits.then(|| self.progress.after(self.config.user_timeout))
    }

    /// It is `now`: does what was due. Afterwards there may be something to send.
    pub fn timed_out(&mut self, now: Instant) {
        if self.patience().is_some_and(|due| due <= now) {
            self.reset_with(End::TimedOut);
            return;
        }
        let due = |timer: &mut Option<Instant>| timer.take_if(|due| *due <= now).is_some();
        if due(&mut self.timers.time_wait) {
            self.finish(End::Finished);
            return;
        }
        if due(&mut self.timers.acknowledge) {
            self.acknowledge_now = true;
        }
        if due(&mut self.timers.reordering) {
            self.detect(now);
        }
        if due(&mut self.timers.probe) {
            self.probe_now = true;
            self.counters.probes += 1;
        }
        if due(&mut self.timers.persist) {
            self.persist_now = true;
            self.persisted = self.persisted.saturating_add(1);
        }
        if due(&mut self.timers.retransmission) {
            self.retransmission_timeout(now);
        }
    }

    /// RFC 6298 §5.4 to §5.7.
    fn retransmission_timeout(&mut self, now: Instant) {
        self.rtt.backoff = self.rtt.backoff.saturating_add(1);
        self.counters.timeouts += 1;
        (self.tail, self.probe_now, self.timers.probe) = (None, false, None);
        self.duplicates = 0;
        if self.send.edge <= self.send.una && self.send.una > 0 {
            // It is the receiver that is slow, not the network.
            self.board.lose_all();
        } else {
            // Losses of the same flight count once.
            self.congestion.timed_out(self.recover.is_none());
            self.board.lose_all();
            self.recover = Some(self.send.nxt);
        }
        self.timers.retransmission = Some(now.after(self.rtt.timeout()));
    }

    /// Something was acknowledged: the timers begin anew (RFC 6298 §5.2, §5.3).
    pub(super) fn rearm(&mut self, now: Instant) {
        if self.board.is_empty() {
            (self.timers.retransmission, self.timers.probe) = (None, None);
            self.timers.reordering = None;
            return;
        }
        self.timers.retransmission = Some(now.after(self.rtt.timeout()));
        self.rearm_probe(now);
    }

    /// RFC 8985 §7.2.
    pub(super) fn rearm_probe(&mut self, now: Instant) {
        self.timers.probe = None;
        if !self.sack
            || self.send.una == 0
            || self.recover.is_some()
            || self.tail.is_some()
            || self.board.any_sacked()
            || self.rtt.smoothed() == 0
        {
            return;
        }
        let alone = if self.board.len() == 1 {
            DELAYED_MAX
        } else {
            0
        };
        let due = now.after(2 * self.rtt.smoothed() + alone);
        if self.timers.retransmission.is_some_and(|timer| due < timer) {
            self.timers.probe = Some(due);
        }
    }

    /// Something waits for the peer's window, and nothing is in flight: when to try all the same.
    /// A peer that was not asked is not silent: its silence counts from now on.
    pub(super) fn arm_persist(&mut self, now: Instant) {
        if self.timers.persist.is_none() && !self.persist_now {
            self.progress = now;
            let doubled = self.rtt.timeout().checked_shl(self.persisted.min(16));
            self.timers.persist = Some(now.after(doubled.unwrap_or(RTO_MAX).min(RTO_MAX)));
        }
    }

    /// Looks for losses by time (RFC 8985 §6.2).
    pub(super) fn detect(&mut self, now: Instant) {
        let recovering = self.recover.is_some();
        let (lost, again) = self.board.detect(now, self.rtt.smoothed(), recovering);
        self.timers.reordering = again;
        if lost {
            self.recovering();
        }
    }

    pub(super) fn recovering(&mut self) {
        if self.recover.is_none() {
            self.congestion.reduce();
            self.recover = Some(self.send.nxt);
            self.slowed |= self.ecn;
            (self.timers.probe, self.probe_now) = (None, false);
        }
    }
}
