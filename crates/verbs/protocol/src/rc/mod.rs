//! Reliable connections (IBTA 9.7), and extended ones (annex A14).

mod early;
mod granted;
mod losses;
mod order;
mod recovery;
mod requester;
mod resources;
mod responder;
mod responses;
mod timers;

use sluice_wire::extended::{NakCode, RnrTimer};
use sluice_wire::opcode::Service;
use sluice_wire::selective::Report;
use sluice_wire::{Ecn, Mtu, Packet, Psn, Qpn};

use crate::congestion::{Congestion, RateConfig};
use crate::counters::Counters;
use crate::memory::{Memory, Refusal};
use crate::request::{Completion, PostError, Request, Status};
use crate::segment::Path;
use crate::time::{Instant, earlier};
use crate::transmit::Transmit;
use requester::{Entry, Requester};
use responder::Responder;

/// What the two ends have agreed on and the program has chosen (`ibv_modify_qp`).
///
/// What is marked with (RTS) is of the sending half only, and not known before that state: see
/// [`Connection::ready_to_send`].
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The peer's queue pair.
    pub destination: Qpn,
    /// The partition.
    pub pkey: u16,
    /// Of the path; the same at both ends.
    pub mtu: Mtu,
    /// (RTS) Number of the first packet that we send (`sq_psn`).
    pub send_psn: Psn,
    /// Number of the first packet that the peer sends (`rq_psn`).
    pub receive_psn: Psn,
    /// (RTS) Requests that may be posted before a completion is taken.
    pub depth: usize,
    /// (RTS) Request packets on their way without an answer. Bounds what is sent again after a loss.
    pub window: u32,
    /// (RTS) READs and atomics of ours under way; no more than the peer's `max_dest_rd_atomic`.
    pub max_rd_atomic: u8,
    /// READs and atomics of the peer under way, and remembered.
    pub max_dest_rd_atomic: u8,
    /// (RTS) Local ACK timeout, 4.096 µs · 2ⁿ, 0 to 31; 0 is none.
    pub timeout: u8,
    /// (RTS) Timeouts and sequence errors in a row before the peer is given up, 0 to 7.
    pub retry_cnt: u8,
    /// (RTS) RNR NAKs in a row before the peer is given up, 0 to 6; 7 is never.
    pub rnr_retry: u8,
    /// How long the peer is to wait when there is no receive.
    pub min_rnr_timer: RnrTimer,
    /// An extended reliable connection (annex A14): the initiator only asks, the target only
    /// answers, and requests name the peer's shared receive queue.
    pub extended: bool,
    /// Requests that come early are kept until their turn comes, and a peer that does the same,
    /// as it says itself, is told which they are and sends only the others again. Peers that do
    /// not know this notice nothing of it ([`sluice_wire::selective`]).
    pub early: bool,
    /// How to react to congestion. None: not at all.
    pub rate: Option<RateConfig>,
    /// Every packet of a WRITE without immediate data is a WRITE of its own, so that all are of
    /// one length and one form: good where equal packets travel together. Only where the peer has
    /// let us write before: a WRITE that it refuses writes nothing.
    pub single_writes: bool,
}

impl Config {
    const fn service(&self) -> Service {
        if self.extended {
            Service::Xrc
        } else {
            Service::Rc
        }
    }

    const fn path(&self) -> Path {
        Path {
            service: self.service(),
            destination: self.destination,
            pkey: self.pkey,
            mtu: self.mtu,
            single_writes: self.single_writes,
        }
    }
}

/// A connected queue pair: requester, responder and congestion control. See the crate for how a
/// driver uses it.
#[derive(Debug)]
pub struct Connection {
    service: Service,
    destination: Qpn,
    pkey: u16,
    requester: Requester,
    responder: Responder,
    congestion: Congestion,
    counters: Counters,
    /// As [`Config::early`].
    early: bool,
    /// When both have data, the requester is next.
    requester_next: bool,
}

/// Who sends.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// This packet of that request.
    Requester(u64, Entry),
    Responder,
}

impl Connection {
    /// In the state RTR: it answers, and as soon as something is posted it asks.
    pub fn new(config: &Config) -> Self {
        Self {
            service: config.service(),
            destination: config.destination,
            pkey: config.pkey,
            requester: Requester::new(config),
            responder: Responder::new(config),
            congestion: Congestion::new(config.rate),
            counters: Counters::default(),
            early: config.early,
            requester_next: false,
        }
    }

    /// In the state RTS, if the attributes of the sending half were not known before: the sending
    /// half begins anew with these. To be called before anything is posted.
    pub fn ready_to_send(&mut self, config: &Config) {
        self.requester = Requester::new(config);
        self.requester.peer_is_sluice = self.responder.peer_is_sluice;
    }

    /// The program changes what it may change later (`ibv_modify_qp` in RTS and SQD): timeout,
    /// retry counts, RNR timer, and READs and atomics of ours under way.
    pub fn change(&mut self, config: &Config) {
        self.requester.change(config);
        self.responder.set_rnr_timer(config.min_rnr_timer);
    }

    /// Takes a request, which will be sent after all that came before.
    pub fn post(&mut self, request: Request) -> Result<(), PostError> {
        self.requester.post(request)
    }

    /// A packet came for this queue pair, whose ICRC, partition and source address are right.
    /// `ecn` is from its IP header.
    pub fn receive(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        ecn: Ecn,
        memory: &mut impl Memory,
    ) {
        if ecn == Ecn::Congestion {
            self.counters.marked_packets += 1;
            self.congestion.notifier.received(now, ecn);
        }
        let opcode = packet.bth().opcode;
        if packet.bth().sluice && self.early {
            self.requester.peer_is_sluice = true;
            self.responder.peer_is_sluice = true;
        }
        let counters = &mut self.counters;
        match opcode.service() {
            Service::Manufacturer => match Report::parse(packet) {
                Ok(report) if self.early => self.requester.report(&report, counters),
                _ => counters.misdirected += 1,
            },
            Service::Cnp => {
                counters.notifications += 1;
                self.congestion.notified(now);
            }
            service if service != self.service => counters.misdirected += 1,
            _ if opcode.is_response() => self.requester.response(now, packet, memory, counters),
            _ => self.responder.request(packet, memory, counters),
        }
    }

    /// The next packet to send. To be called until there is none, after every other call.
    pub fn transmit(&mut self, now: Instant) -> Option<Transmit> {
        if let Some(packet) = self
            .congestion
            .notifier
            .transmit(self.destination, self.pkey)
        {
            self.counters.notifications_sent += 1;
            return Some(packet);
        }
        let turn = self.turn(now)?;
        let counters = &mut self.counters;
        let packet = match turn {
            Turn::Responder => self.responder.transmit(counters),
            Turn::Requester(index, entry) => {
                let slow = self.congestion.limit().is_some();
                self.requester.transmit(index, &entry, now, slow, counters)
            }
        }?;
        if packet.ecn != Ecn::NotCapable {
            self.congestion.sent(now, packet.link_bytes());
        }
        Some(packet)
    }

    fn turn(&mut self, now: Instant) -> Option<Turn> {
        let responder = self.responder.is_ready();
        // Replies without data are few, and the peer's progress hangs on them. They go in front, also
        // because programs that sleep count on an acknowledgement to come before the answer.
        if responder && !self.responder.has_data() {
            return Some(Turn::Responder);
        }
        let turn = match self.requester.candidate() {
            Some((index, entry)) if self.requester_next || !responder => {
                Turn::Requester(index, *entry)
            }
            _ if responder => Turn::Responder,
            _ => return None,
        };
        if !self.congestion.may_send(now) {
            return None;
        }
        self.requester_next = matches!(turn, Turn::Responder);
        Some(turn)
    }

    /// Whether [`Connection::transmit`] has something, now or when the pace allows it. No: what
    /// came since the last call needs no packet.
    pub fn is_ready(&self) -> bool {
        self.congestion.notifier.is_due() || self.responder.is_ready() || self.requester.is_ready()
    }

    /// Whether all that it has to send is an acknowledgement, which may wait a little: the next
    /// packet, a request of the program's or an answer with data, may take it along.
    pub fn owes_acknowledgement_only(&self) -> bool {
        self.responder.owes_acknowledgement_only()
            && !self.requester.is_ready()
            && !self.congestion.notifier.is_due()
    }

    /// When to call [`Connection::expire`] or [`Connection::transmit`] at the latest, if nothing
    /// else happens. May be in the past.
    pub fn deadline(&self) -> Option<Instant> {
        let waits = self.responder.is_ready() || self.requester.is_ready();
        let pace = waits.then(|| self.congestion.ready_at());
        earlier(self.requester.deadline(), pace)
    }

    /// Time has passed. Call it at the deadline; calls at other times do no harm.
    pub fn expire(&mut self, now: Instant) {
        self.requester.expire(now, &mut self.counters);
    }

    /// The next request that has ended.
    pub fn completion(&mut self) -> Option<Completion> {
        self.requester.completion()
    }

    /// Whether [`Connection::completion`] has one.
    pub fn has_completion(&self) -> bool {
        self.requester.has_completion()
    }

    /// A request of the peer was refused for that reason: the queue pair is to go to the error
    /// state. Keep the connection for a while and give it packets still, so that a peer that did
    /// not hear of it is told again.
    pub fn refusal(&self) -> Option<NakCode> {
        self.responder.refusal()
    }

    /// The requester has failed: the queue pair is to go to the error state.
    pub fn has_failed(&self) -> bool {
        self.requester.failed
    }

    /// The payload of the request packet that [`Connection::transmit`] gave cannot be had: the
    /// request fails with [`Status::LocalProtection`] when all before it are done.
    pub fn fail_request(&mut self, seq: u64) {
        self.requester.fail_request(seq, Status::LocalProtection);
    }

    /// The READ data of the packet that [`Connection::transmit`] gave, which has that number,
    /// cannot be had: the peer's request is refused.
    pub fn refuse_read(&mut self, psn: Psn, refusal: Refusal) {
        self.responder.refuse_read(psn, refusal, &mut self.counters);
    }

    /// Writes the payload of the packet that [`Connection::transmit`] gave, if that is
    /// [`crate::Payload::Report`]. Whether it did.
    pub fn write_report(&self, into: &mut [u8]) -> bool {
        self.responder.write_report(into)
    }

    /// The queue pair has left RTS: what was posted is flushed.
    pub fn stop(&mut self) {
        if !self.requester.failed {
            self.requester.fail(Status::Flushed);
        }
    }

    /// The queue pair receives no more: a message under way is dropped and its receive flushed.
    /// Drop the connection, or at least give it no more requests.
    pub fn stop_receiving(&mut self, memory: &mut impl Memory) {
        self.responder.stop(memory);
    }

    /// What has happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How fast it may send, bytes per second on the link; None without a limit.
    pub fn rate_limit(&self) -> Option<u64> {
        self.congestion.limit()
    }
}
