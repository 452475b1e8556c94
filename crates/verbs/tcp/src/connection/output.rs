//! What leaves.

use core::ops::Range;

use sluice_wire::Ecn;
use sluice_wire::tcp::{Flags, Header, Options};

use super::{Connection, State};
use crate::segment::Transmit;
use crate::time::Instant;

impl Connection {
    /// The next segment to send. To be called until there is none: after each call that may have
    /// changed something.
    pub fn transmit(&mut self, now: Instant) -> Option<Transmit> {
        if let Some(reset) = self.reset.take() {
            return Some(reset);
        }
        if self.state == State::Closed {
            return None;
        }
        self.advance_state();
        let options = self.options(now);
        // Options take their room from the payload (RFC 6691 §2).
        let room = u64::from(self.send.mss) - options.bytes() as u64;
        let range = self.lost(room, now).or_else(|| self.fresh(room, now));
        let range = range.or_else(|| self.probes(room, now));
        match range {
            Some(range) => Some(self.segment(range, options)),
            None if self.acknowledge_now => {
                let next = self.acceptable();
                Some(self.segment(next..next, options))
            }
            None => None,
        }
    }

    /// The stream's end is decided: the state says so once it may be sent.
    fn advance_state(&mut self) {
        if self.send.closed {
            match self.state {
                State::Established => self.state = State::FinWait1,
                State::CloseWait => self.state = State::LastAck,
                _ => {}
            }
        }
    }

    /// Whether the congestion window takes `bytes` more.
    fn fits(&mut self, bytes: u64) -> bool {
        let flying = self.in_network();
        let fits = flying == 0 || flying + bytes <= self.congestion.window();
        if !fits {
            self.limited_at = self.send.nxt;
        }
        fits
    }

    fn lost(&mut self, room: u64, now: Instant) -> Option<Range<u64>> {
        if !self.board.any_lost() || !self.fits(room) {
            return None;
        }
        let range = self.board.resend(room, self.send.edge, now)?;
        self.counters.retransmitted += 1;
        if self.timers.retransmission.is_none() {
            self.timers.retransmission = Some(now.after(self.rtt.timeout()));
        }
        Some(range)
    }

    /// What was never sent (RFC 9293 §3.8.6.2.1).
    fn fresh(&mut self, room: u64, now: Instant) -> Option<Range<u64>> {
        let nxt = self.send.nxt;
        if nxt == 0 {
            return Some(self.sent(0..1, now));
        }
        if self.send.una == 0 || self.board.is_full() {
            return None;
        }
        let fin = self.send.fin();
        let waiting = fin.saturating_sub(nxt);
        let bytes = waiting.min(room).min(self.send.edge.saturating_sub(nxt));
        let ends = self.send.closed && nxt <= fin && bytes == waiting;
        if bytes == 0 && !ends {
            if waiting > 0 && self.board.is_empty() {
                self.arm_persist(now);
            }
            return None;
        }
        // A piece because of the window must be worth a segment.
        let worth = bytes == waiting || bytes == room || 2 * bytes >= self.send.window_max;
        if !worth {
            if self.board.is_empty() {
                self.arm_persist(now);
            }
            return None;
        }
        if self.board.is_empty() && now.since(self.last_sent) > self.rtt.timeout() {
            self.congestion.idle();
        }
        if !self.fits(bytes) {
            return None;
        }
        self.timers.persist = None;
        (self.persisted, self.persist_now) = (0, false);
        Some(self.sent(nxt..nxt + bytes + u64::from(ends), now))
    }

    /// What a timer asks for: the tail once more, or a byte for a closed window.
    fn probes(&mut self, room: u64, now: Instant) -> Option<Range<u64>> {
        if core::mem::take(&mut self.probe_now) && !self.board.is_empty() {
            let range = self.board.probe(room, now)?;
            self.tail = Some((self.send.nxt, true));
            self.counters.retransmitted += 1;
            return Some(range);
        }
        let nxt = self.send.nxt;
        if core::mem::take(&mut self.persist_now) && self.board.is_empty() && nxt < self.send.fin()
        {
            let open = self.send.edge.saturating_sub(nxt);
            let bytes = open.clamp(1, room).min(self.send.fin() - nxt);
            return Some(self.sent(nxt..nxt + bytes, now));
        }
        None
    }

    fn sent(&mut self, range: Range<u64>, now: Instant) -> Range<u64> {
        if self.board.is_empty() {
            self.progress = now;
        }
        self.board.sent(range.clone(), now);
        self.send.nxt = range.end;
        self.last_sent = now;
        if self.timers.retransmission.is_none() {
            self.timers.retransmission = Some(now.after(self.rtt.timeout()));
        }
        if core::mem::take(&mut self.probe_now) {
            self.tail = Some((self.send.nxt, false));
        }
        self.rearm_probe(now);
        range
    }

    fn options(&mut self, now: Instant) -> Options {
        let mut options = Options::default();
        options.timestamps = self.timestamps.map(|known| (self.clock(now), known.recent));
        if self.state == State::SynSent || self.send.nxt == 0 || self.send.una == 0 {
            options.mss = Some(self.config.mss);
            // Zero says that shifts are understood (RFC 7323 §2.2); an answer only to one.
            let answered = self.state != State::SynReceived || self.scaling;
            options.window_scale = answered.then_some(self.receive.scale);
            options.sack_permitted = self.sack;
            return options;
        }
        if self.sack {
            let numbers = self.receive.numbers;
            if let Some((left, right)) = self.receive.duplicate {
                options.push_sack(numbers.wire(left), numbers.wire(right));
            }
            for range in self.receive.reassembly.report() {
                options.push_sack(numbers.wire(range.start), numbers.wire(range.end));
            }
        }
        options
    }

    /// What the window field says, and from then on is promised.
    fn window(&mut self, shift: u8) -> u16 {
        let right = self.right_edge();
        let receive = &mut self.receive;
        let buffer = u64::from(self.config.receive_buffer);
        let least = (buffer / 2).min(u64::from(self.send.mss));
        if right >= receive.edge + least {
            receive.edge = receive.edge.max(right);
        }
        let field = (receive.edge.saturating_sub(receive.next) >> shift).min(0xffff);
        field as u16
    }

    fn segment(&mut self, range: Range<u64>, options: Options) -> Transmit {
        let is_syn = range.start == 0 && range.end > 0;
        let fin = self.send.fin();
        let ends = self.send.closed && !range.is_empty() && range.end > fin;
        let payload = range.start.min(fin).max(1) - 1..range.end.min(fin).max(1) - 1;
        let mut flags = Flags::default();
        let mut header = Header {
            sequence: self.send.numbers.wire(range.start),
            options,
            ..Header::default()
        };
        if is_syn {
            flags = flags.with(Flags::SYN);
            if self.ecn {
                let asks = self.state == State::SynSent;
                flags = flags.with(Flags::ECE);
                // A SYN that was lost may have been lost for asking (RFC 3168 §6.1.1.1).
                if asks && self.counters.timeouts == 0 {
                    flags = flags.with(Flags::CWR);
                } else if asks {
                    flags = flags.without(Flags::ECE);
                }
            }
        }
        if self.state != State::SynSent {
            flags = flags.with(Flags::ACK);
            header.acknowledgement = self.receive.numbers.wire(self.receive.next);
            self.receive.said = self.receive.next;
            self.receive.unsaid = 0;
            self.receive.duplicate = None;
            self.acknowledge_now = false;
            self.timers.acknowledge = None;
            if self.echo && !is_syn {
                flags = flags.with(Flags::ECE);
            }
        }
        header.window = self.window(if is_syn { 0 } else { self.receive.scale });
        let is_new = range.end == self.send.nxt;
        if !payload.is_empty() {
            if range.end >= fin {
                flags = flags.with(Flags::PSH);
            }
            if self.ecn && is_new && core::mem::take(&mut self.slowed) {
                flags = flags.with(Flags::CWR);
            }
        }
        if ends {
            flags = flags.with(Flags::FIN);
        }
        header.flags = flags;
        // Neither acknowledgements nor what is sent again is marked (RFC 3168 §6.1.4, §6.1.5).
        let capable = self.ecn && is_new && !payload.is_empty();
        let ecn = if capable {
            Ecn::Capable0
        } else {
            Ecn::NotCapable
        };
        Transmit {
            header,
            payload,
            ecn,
        }
    }
}
