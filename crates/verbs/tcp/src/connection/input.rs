//! What arrives.

use sluice_wire::Ecn;
use sluice_wire::tcp::{Flags, Options};

use super::{CHALLENGES_PER_SECOND, Connection, End, MSS_DEFAULT, MSS_MIN, State};
use crate::congestion::Algorithm;
use crate::segment::{Place, Received, Segment, refuse};
use crate::sequence::Numbers;
use crate::time::{Instant, SECOND};

/// Timestamps older than this say nothing (RFC 7323 §5.5): 24 days.
const TIMESTAMP_AGE: u64 = 24 * 86_400 * SECOND;

impl Connection {
    /// Takes a segment of this connection, its checksum found right.
    pub fn receive(&mut self, now: Instant, segment: &Segment) -> Received {
        if let Some(received) = self.receive_fast(now, segment) {
            return received;
        }
        self.receive_slow(now, segment)
    }

    /// Takes a segment if it is of the usual kind: established, nothing lost or reordered on either
    /// side, the next bytes or an acknowledgement. None if it is not, and nothing has changed.
    pub fn receive_fast(&mut self, now: Instant, segment: &Segment) -> Option<Received> {
        let header = &segment.header;
        let bytes = u64::from(segment.bytes);
        let (send, receive) = (&self.send, &self.receive);
        if self.state != State::Established
            || header.flags.without(Flags::PSH) != Flags::ACK
            || header.sequence != receive.numbers.wire(receive.next)
            || bytes > receive.edge - receive.next
            || !header.options.sack().is_empty()
            || segment.ecn == Ecn::Congestion
            || self.echo
            || self.recover.is_some()
            || self.tail.is_some()
            || self.board.not_in_network() > 0
            || !receive.reassembly.is_empty()
            || receive.fin.is_some()
            || self.timers.reordering.is_some()
        {
            return None;
        }
        let una = send.numbers.position(header.acknowledgement, send.una)?;
        let edge = una + (u64::from(header.window) << send.scale);
        // Without data and without progress it is a duplicate or an update of the window.
        let progress = una > send.una || una == send.una && bytes > 0;
        // A window that was said further on in the stream is the newer one (RFC 9293 §3.10.7.4).
        let stale = (receive.next, una) < send.updated;
        if !progress || stale || una > send.nxt || edge < send.edge || send.edge < send.nxt {
            return None;
        }
        match (&mut self.timestamps, header.options.timestamps) {
            (None, _) => {}
            (Some(known), Some((value, _)))
                if value.wrapping_sub(known.recent).cast_signed() >= 0 =>
            {
                if self.receive.next <= self.receive.said {
                    (known.recent, known.recent_at) = (value, now);
                }
            }
            _ => return None,
        }
        self.counters.fast += 1;
        self.send.edge = edge;
        self.send.window_max = self.send.window_max.max(edge - una);
        self.send.updated = (self.receive.next, una);
        self.edge_moved(now);
        let before = self.send.una;
        if una > before {
            self.progressed(now, una, false);
        }
        if self.ecn {
            self.congestion
                .observed(una - before, false, una, self.send.nxt);
        }
        let place = (bytes > 0).then(|| {
            let offset = self.receive.next - 1;
            self.receive.next += bytes;
            self.owe(now, bytes);
            Place {
                payload: 0..segment.bytes,
                offset,
            }
        });
        Some(self.received(place))
    }

    fn received(&self, place: Option<Place>) -> Received {
        Received {
            place,
            readable: self.readable(),
            acknowledged: self.acknowledged(),
        }
    }

    /// An acknowledgement is owed: at once for the second full segment (RFC 9293 §3.8.6.3).
    fn owe(&mut self, now: Instant, bytes: u64) {
        self.receive.unsaid += bytes;
        // What the peer can put into a segment beside a timestamp.
        let full = u64::from(self.send.mss) - if self.timestamps.is_some() { 12 } else { 0 };
        if self.receive.unsaid >= 2 * full {
            self.acknowledge_now = true;
        } else if self.timers.acknowledge.is_none() {
            self.timers.acknowledge = Some(now.after(self.config.delayed_ack));
        }
    }

    /// The same for any segment in any state. What [`Self::receive_fast`] takes, this takes with
    /// the same outcome.
    pub fn receive_slow(&mut self, now: Instant, segment: &Segment) -> Received {
        self.counters.slow += 1;
        let place = match self.state {
            State::Closed => {
                self.reset = refuse(segment);
                None
            }
            State::SynSent => {
                self.in_syn_sent(now, segment);
                None
            }
            _ => self.synchronized(now, segment),
        };
        self.received(place)
    }

    /// Takes over what a SYN says.
    pub(super) fn synchronize(&mut self, syn: &Segment, now: Instant) {
        let Options {
            mss,
            window_scale,
            sack_permitted,
            timestamps,
            ..
        } = syn.header.options;
        self.receive.numbers = Numbers(syn.header.sequence);
        (self.receive.next, self.receive.said) = (1, 0);
        self.receive.edge = self.right_edge();
        self.send.mss = mss.unwrap_or(MSS_DEFAULT).max(MSS_MIN).min(self.config.mss);
        self.congestion =
            crate::congestion::Congestion::new(self.config.algorithm, u64::from(self.send.mss));
        self.sack &= sack_permitted;
        match window_scale {
            Some(scale) => self.send.scale = scale,
            None => (self.receive.scale, self.scaling) = (0, false),
        }
        let both = self.timestamps.and(timestamps);
        self.timestamps = both.map(|(recent, _)| super::Timestamps {
            recent,
            recent_at: now,
        });
        // A window in a SYN is not shifted (RFC 7323 §2.2).
        let window = u64::from(syn.header.window);
        self.send.edge = 1 + window;
        self.send.window_max = window;
        self.send.updated = (0, 1);
    }

    /// RFC 9293 §3.10.7.3.
    fn in_syn_sent(&mut self, now: Instant, segment: &Segment) {
        let flags = segment.header.flags;
        let acknowledges = flags.has(Flags::ACK);
        if acknowledges
            && (self.send.nxt == 0 || segment.header.acknowledgement != self.send.numbers.wire(1))
        {
            self.reset = refuse(segment);
            return;
        }
        if flags.has(Flags::RST) {
            if acknowledges {
                self.finish(End::Refused);
            }
            return;
        }
        if !flags.has(Flags::SYN) {
            return;
        }
        self.synchronize(segment, now);
        let marks = flags.has(Flags::ECE);
        if acknowledges {
            // A SYN-ACK with ECE alone agrees (RFC 3168 §6.1.1).
            self.ecn &= marks && !flags.has(Flags::CWR);
            self.state = State::Established;
            self.progressed(now, 1, false);
            self.acknowledge_now = true;
        } else {
            self.ecn &= marks && flags.has(Flags::CWR);
            self.state = State::SynReceived;
            self.board.lose_first();
        }
    }

    /// RFC 9293 §3.10.7.4, with RFC 5961 §3 to §5 and RFC 7323 §5.3.
    fn synchronized(&mut self, now: Instant, segment: &Segment) -> Option<Place> {
        let header = &segment.header;
        let mut flags = header.flags;
        let mut bytes = u64::from(segment.bytes);
        let Some(mut start) = self
            .receive
            .numbers
            .position(header.sequence, self.receive.next)
        else {
            if !flags.has(Flags::RST) {
                self.challenge(now);
            }
            return None;
        };
        if self.state == State::SynReceived && flags.has(Flags::SYN) && start == 0 {
            if !flags.has(Flags::ACK) {
                // The answer to the SYN was lost.
                self.board.lose_first();
                return None;
            }
            // Both opened at once, and this is the other's answer (RFC 9293 figure 8).
            flags = flags.without(Flags::SYN);
            start = 1;
            self.acknowledge_now = true;
        }
        let is_reset = flags.has(Flags::RST);
        let mut newest = self.timestamps;
        if let Some(known) = self.timestamps
            && !is_reset
        {
            // RFC 7323 §3.2: without one it is dropped in silence.
            let (value, _) = header.options.timestamps?;
            if value.wrapping_sub(known.recent).cast_signed() < 0
                && now.since(known.recent_at) < TIMESTAMP_AGE
            {
                self.unacceptable(now, start, bytes);
                return None;
            }
            if value.wrapping_sub(known.recent).cast_signed() >= 0 && start <= self.receive.said
                || now.since(known.recent_at) >= TIMESTAMP_AGE
            {
                newest = Some(super::Timestamps {
                    recent: value,
                    recent_at: now,
                });
            }
        }
        let (next, edge) = (self.receive.next, self.receive.edge);
        let length = bytes + u64::from(flags.has(Flags::FIN));
        let acceptable = if length == 0 {
            (next..=edge).contains(&start)
        } else {
            // A FIN has no place in the buffer.
            start + length > next && start <= edge
        };
        if !acceptable {
            if !is_reset {
                if self.state == State::TimeWait && flags.has(Flags::FIN) {
                    self.timers.time_wait = Some(now.after(self.config.time_wait));
                }
                self.unacceptable(now, start, length);
            }
            return None;
        }
        if is_reset {
            if self.state == State::TimeWait {
                // Answers to old duplicates must not end it early (RFC 1337 §3, F1).
            } else if start == next {
                let refused = self.state == State::SynReceived;
                self.finish(if refused { End::Refused } else { End::Reset });
            } else {
                self.challenge(now);
            }
            return None;
        }
        if flags.has(Flags::SYN) {
            self.challenge(now);
            return None;
        }
        if !flags.has(Flags::ACK) {
            return None;
        }
        let una = self
            .send
            .numbers
            .position(header.acknowledgement, self.send.una);
        if self.state == State::SynReceived {
            if una != Some(1) || self.send.nxt == 0 {
                self.reset = refuse(segment);
                return None;
            }
            self.state = State::Established;
            self.send.updated = (0, 0);
        }
        // RFC 5961 §5.
        let oldest = self.send.una.saturating_sub(self.send.window_max);
        let Some(una) = una.filter(|una| (oldest..=self.send.nxt).contains(una)) else {
            self.challenge(now);
            return None;
        };
        // Not before all else is found right: a stranger could make all that the peer says old.
        self.timestamps = newest;
        self.congestion_echo(segment, bytes);
        self.acknowledgement(now, segment, start, una);
        if self.end.is_some() {
            return None;
        }
        if start == edge && start == next && bytes > 0 {
            // A probe of a closed window: heard, not taken.
            self.acknowledge_now = true;
            bytes = 0;
            flags = flags.without(Flags::FIN);
        }
        let place = self.data(now, start, bytes);
        if flags.has(Flags::FIN) {
            self.fin(now, start + bytes);
        }
        place
    }

    /// Tells a peer that is out of step what is expected; data always, for it may be a probe or
    /// mean that our acknowledgement was lost.
    fn unacceptable(&mut self, now: Instant, start: u64, length: u64) {
        if length == 0 {
            self.challenge(now);
            return;
        }
        let end = start.saturating_add(length).min(self.receive.next);
        if self.sack && start < end && start > 0 {
            self.receive.duplicate = Some((start, end));
        }
        self.acknowledge_now = true;
    }

    /// RFC 5961 §7: so many in a second and no more.
    fn challenge(&mut self, now: Instant) {
        if now.since(self.challenges.0) >= SECOND {
            self.challenges = (now, 0);
        }
        if self.challenges.1 < CHALLENGES_PER_SECOND {
            self.challenges.1 += 1;
            self.counters.challenges += 1;
            self.acknowledge_now = true;
        }
    }

    /// What the IP header says of congestion, for the peer (RFC 3168 §6.1.3, RFC 8257 §3.2).
    fn congestion_echo(&mut self, segment: &Segment, bytes: u64) {
        if !self.ecn {
            return;
        }
        let marked = segment.ecn == Ecn::Congestion;
        self.counters.marked += u64::from(marked);
        if self.config.algorithm == Algorithm::Dctcp {
            if bytes > 0 && marked != self.echo {
                // At once, for the acknowledgement says of all its bytes the same.
                self.acknowledge_now = true;
                self.echo = marked;
            }
        } else {
            if segment.header.flags.has(Flags::CWR) {
                self.echo = false;
            }
            self.echo |= marked;
        }
    }

    /// The peer has said what its window is.
    fn edge_moved(&mut self, now: Instant) {
        if self.send.edge <= self.send.una {
            // A closed window that is confirmed is no silence (RFC 9293 §3.8.6.1).
            self.progress = now;
        }
    }

    fn acknowledgement(&mut self, now: Instant, segment: &Segment, start: u64, una: u64) {
        let header = &segment.header;
        let mut same_window = true;
        if una >= self.send.una && (start, una) >= self.send.updated {
            // That of a SYN is not shifted (RFC 7323 §2.2).
            let shift = if header.flags.has(Flags::SYN) {
                0
            } else {
                self.send.scale
            };
            let window = u64::from(header.window) << shift;
            let edge = una + window;
            same_window = edge == self.send.edge;
            if edge > self.send.edge && self.send.edge < self.send.nxt {
                // What was sent beyond the window was thrown away.
                self.board.lose_from(self.send.edge, now);
            }
            self.send.edge = edge;
            self.send.window_max = self.send.window_max.max(window);
            self.send.updated = (start, una);
        }
        self.edge_moved(now);
        if una < self.send.una {
            return;
        }
        let mut duplicate = false;
        if self.sack {
            for &(left, right) in header.options.sack() {
                let numbers = self.send.numbers;
                let left = numbers.position(left, una);
                let right = numbers.position(right, una);
                let (Some(left), Some(right)) = (left, right) else {
                    continue;
                };
                // One that says what was not sent is a lie.
                if left < right && left >= una && right <= self.send.nxt {
                    self.board.sack(left..right, now);
                } else if left < right && right <= una {
                    duplicate = true;
                }
            }
        }
        let before = self.send.una;
        let echo = self.ecn && header.flags.has(Flags::ECE);
        if una > before {
            self.progressed(now, una, duplicate);
        } else {
            let nothing_new = segment.bytes == 0 && header.options.sack().is_empty();
            self.tail_acknowledged(duplicate, nothing_new);
        }
        if una == before && segment.bytes == 0 && same_window && !self.board.is_empty() {
            self.duplicates = self
                .duplicates
                .saturating_add(1)
                .min(crate::SEGMENTS_MAX as u32);
            if !self.sack && self.duplicates == 3 {
                self.board.lose_first();
                self.recovering();
            }
        }
        if self.ecn {
            let (una, nxt) = (self.send.una, self.send.nxt);
            if self.congestion.observed(una - before, echo, una, nxt) {
                self.slowed |= echo;
            } else if echo && self.recover.is_none() && una > self.slowed_at {
                self.congestion.reduce();
                (self.slowed_at, self.slowed) = (nxt, true);
            }
        }
        if self.sack && (self.board.any_sacked() || self.recover.is_some() || una > before) {
            self.detect(now);
        }
    }

    /// Everything before `una` has arrived.
    fn progressed(&mut self, now: Instant, una: u64, duplicate: bool) {
        let bytes = una - self.send.una;
        if let Some(rtt) = self.board.acknowledge(una, now) {
            self.rtt.sample(rtt);
        }
        let limited = self.send.una < self.limited_at;
        self.send.una = una;
        self.rtt.backoff = 0;
        self.duplicates = 0;
        self.progress = now;
        match self.recover {
            Some(recover) if una >= recover => self.recover = None,
            // The next hole (RFC 6582 §3.2).
            Some(_) if !self.sack && !self.board.any_lost() => self.board.lose_first(),
            _ => {}
        }
        // Recovering from a timeout the window is below the threshold, and grows (RFC 5681 §3.1).
        let slow_start_after_timeout = self.recover.is_some() && self.congestion.is_slow_start();
        if (self.recover.is_none() && limited) || slow_start_after_timeout {
            self.congestion
                .acknowledged(now, bytes, self.rtt.smoothed());
        }
        self.tail_acknowledged(duplicate, false);
        self.rearm(now);
        if self.send.fin_is_sent() && self.send.una > self.send.fin() {
            match self.state {
                State::FinWait1 => self.state = State::FinWait2,
                State::Closing => self.wait(now),
                State::LastAck => self.finish(End::Finished),
                _ => {}
            }
        }
    }

    /// RFC 8985 §7.4.2: whether a tail loss probe mended a loss, which counts as one.
    fn tail_acknowledged(&mut self, duplicate: bool, nothing_new: bool) {
        let Some((end, again)) = self.tail.filter(|(end, _)| self.send.una >= *end) else {
            return;
        };
        // It was new, or the peer has got it twice.
        if !again || duplicate || nothing_new {
            self.tail = None;
        } else if self.send.una > end {
            self.tail = None;
            if self.recover.is_none() {
                self.congestion.reduce();
            }
        }
    }

    /// Puts bytes of the peer's stream where they go.
    fn data(&mut self, now: Instant, start: u64, bytes: u64) -> Option<Place> {
        if bytes == 0 || !self.is_receiving() {
            return None;
        }
        let receive = &mut self.receive;
        let next = receive.next;
        let from = start.max(next);
        let to = (start + bytes)
            .min(receive.edge)
            .min(receive.fin.unwrap_or(u64::MAX));
        if self.sack && start < next {
            receive.duplicate = Some((start, next.min(start + bytes)));
            self.acknowledge_now = true;
        }
        if from >= to {
            self.acknowledge_now = true;
            return None;
        }
        if from > next || !receive.reassembly.is_empty() {
            // At once, so that the peer learns of the hole or of its end (RFC 5681 §4.2).
            self.acknowledge_now = true;
        }
        if from > next {
            if !receive.reassembly.insert(from..to) {
                return None;
            }
        } else {
            receive.next = receive.reassembly.advance(to);
            let more = receive.next - next;
            self.owe(now, more);
            if let Some(fin) = self.receive.fin
                && self.receive.next == fin
            {
                self.fin(now, fin);
            }
        }
        let payload = (from - start) as u32..(to - start) as u32;
        Some(Place {
            payload,
            offset: from - 1,
        })
    }

    /// The peer's stream ends at this position.
    fn fin(&mut self, now: Instant, position: u64) {
        self.acknowledge_now = true;
        let beyond = self.receive.reassembly.end() > position;
        if !self.is_receiving()
            || self.receive.fin.is_some_and(|fin| fin != position)
            || position < self.receive.next
            || beyond
        {
            return;
        }
        self.receive.fin = Some(position);
        if self.receive.next < position {
            return;
        }
        self.receive.next = position + 1;
        self.receive.edge = self.receive.edge.max(position + 1);
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.wait(now),
            _ => {}
        }
    }

    fn wait(&mut self, now: Instant) {
        self.state = State::TimeWait;
        self.timers = super::Timers {
            time_wait: Some(now.after(self.config.time_wait)),
            ..super::Timers::default()
        };
    }
}
