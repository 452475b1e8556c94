//! The responder of a reliable connection (IBTA 9.7.4, 9.7.5).
//!
//! A request packet is looked at in the order of IBTA 9.7.4.1 (figure 80): its number, whether
//! its opcode may come here, whether there are resources, its length, its key.
//!
//! | packet | what becomes of it | clause |
//! |---|---|---|
//! | expected | carried out; acknowledged if it asks for that | 9.7.4 |
//! | expected, wrong | NAK with the reason, nothing is carried out from then on | 9.7.5.2.3 to 5 |
//! | expected, no receive | RNR NAK; what follows is dropped until it comes again | 9.7.5.2.8 |
//! | before it, SEND or WRITE | not carried out again, acknowledged again | 9.7.5.1.2 |
//! | before it, READ or atomic | answered again, from what is remembered; else dropped | 9.7.5.1.5, 9.7.5.1.9 |
//! | after it | NAK for the missing one, once; the packet is dropped or kept until its turn comes | 9.7.5.1.3 |
//!
//! To a requester, what is kept looks like what a network has held back, so that any requester may
//! have its packets kept. Only Sluice is told which they are ([`sluice_wire::selective`]).

use sluice_wire::extended::{Aeth, AtomicAckEth, NakCode, RnrTimer, Syndrome};
use sluice_wire::opcode::{Operation as Op, Position};
use sluice_wire::{Headers, Packet, Psn, Qpn, selective};

use super::Config;
use super::early::Kept;
use super::resources::{Deed, Reply, Resource, Resources};
use crate::assembly::{Assembly, Stop};
use crate::counters::Counters;
use crate::memory::{Access, Atomic, Memory, Refusal};
use crate::request::Remote;
use crate::segment::{Kind, Path, kind};
use crate::sequence::Sequence;
use crate::transmit::{Payload, Transmit};

/// What is said without data, after all responses with data that are owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nothing to say.
    Silence,
    /// All is done up to what is expected: one acknowledgement for any number of requests.
    Ack,
    /// The expected packet is missing.
    Missing,
    /// There is no receive for the expected packet.
    NotReady,
    /// This packet was refused.
    Refused(u64, NakCode),
}

/// Packets that are kept before the peer hears of them, unless there is another reason.
const REPORT_EVERY: u32 = 32;

#[derive(Debug)]
pub(super) struct Responder {
    path: Path,
    sequence: Sequence,
    rnr_timer: RnrTimer,
    /// The packet that comes next.
    expected: u64,
    /// After the last packet that was carried out of a message that acknowledgements are for.
    acknowledgeable: u64,
    /// Messages completed, modulo 2²⁴ (IBTA 9.7.7.1).
    msn: Psn,
    assembly: Assembly,
    /// Which shared receive queue the message names, of an extended connection.
    srq: Option<Qpn>,
    resources: Resources,
    verdict: Verdict,
    /// The requester was told that the expected packet is missing, or that there is no receive
    /// for it. That is said once (IBTA 9.7.5.1.3).
    gap_reported: bool,
    /// After the last packet that was dropped behind a gap.
    dropped_until: u64,
    /// Packets that come early are kept, and the requester hears that we are Sluice.
    keeps_early: bool,
    kept: Kept,
    /// There was no receive for the expected packet, and it has not come again.
    not_ready: bool,
    /// The peer is Sluice, so that it understands reports.
    pub peer_is_sluice: bool,
    /// More is to be said of what is kept than the peer has been told.
    report_due: bool,
    /// Packets that were kept since the last report.
    unreported: u32,
    /// The packet that was refused, and why.
    refused: Option<(u64, NakCode)>,
}

impl Responder {
    pub fn new(config: &Config) -> Self {
        Self {
            path: config.path(),
            sequence: Sequence::new(config.receive_psn),
            rnr_timer: config.min_rnr_timer,
            expected: 0,
            acknowledgeable: 0,
            msn: Psn::new(0),
            assembly: Assembly::new(config.mtu),
            srq: None,
            resources: Resources::new(config.max_dest_rd_atomic),
            verdict: Verdict::Silence,
            gap_reported: false,
            dropped_until: 0,
            keeps_early: config.early,
            kept: Kept::default(),
            not_ready: false,
            peer_is_sluice: false,
            report_due: false,
            unreported: 0,
            refused: None,
        }
    }

    /// Why a request was refused.
    pub fn refusal(&self) -> Option<NakCode> {
        self.refused.map(|(_, code)| code)
    }

    pub fn set_rnr_timer(&mut self, timer: RnrTimer) {
        self.rnr_timer = timer;
    }

    /// A message under way is dropped, and its receive is given back.
    pub fn stop(&mut self, memory: &mut impl Memory) {
        self.assembly.abort(memory);
        self.kept.clear();
    }

    /// A packet whose opcode is a request's.
    pub fn request(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut impl Memory,
        counters: &mut Counters,
    ) {
        let Some(index) = self.sequence.index(packet.bth().psn, self.expected) else {
            counters.bad_duplicates += 1;
            return;
        };
        match self.refused {
            // Said again in case that it was lost, so that the requester learns the reason.
            Some((at, code)) if index >= at => {
                counters.after_refusal += 1;
                self.verdict = Verdict::Refused(at, code);
            }
            _ if index < self.expected => self.duplicate(index, packet, counters),
            _ if index > self.expected => self.after_a_gap(index, packet, counters),
            _ => {
                self.in_turn(index, packet, memory, counters);
                if !self.kept.is_empty() {
                    self.go_on(memory, counters);
                }
            }
        }
    }

    /// What was kept and whose turn has come is carried out. At most as many as were kept.
    fn go_on(&mut self, memory: &mut impl Memory, counters: &mut Counters) {
        while self.refused.is_none()
            && !self.not_ready
            && let Some((headers, payload)) = self.kept.take(self.expected)
        {
            let Ok(packet) = Packet::again(headers, &payload) else {
                break;
            };
            self.in_turn(self.expected, &packet, memory, counters);
            // Who waits for an answer has waited for long.
            let answered = asked(&headers).is_some() || self.verdict != Verdict::Silence;
            if !answered {
                self.verdict = Verdict::Ack;
            }
        }
        if self.refused.is_some() || self.not_ready {
            // It is sent again from there, or not at all.
            self.kept.clear();
        }
        if !self.kept.is_empty() {
            self.report_gap(counters);
        }
    }

    /// A request that was carried out before.
    fn duplicate(&mut self, index: u64, packet: &Packet<'_>, counters: &mut Counters) {
        let headers = packet.headers();
        counters.duplicate_requests += 1;
        let known = match asked(headers) {
            Some((remote, Asked::Read(length))) => {
                self.resources
                    .repeat_read(index, remote, length, self.path.mtu)
            }
            Some((remote, Asked::Atomic(atomic))) => {
                self.resources.repeat_atomic(index, remote, atomic)
            }
            None => {
                if self.verdict == Verdict::Silence {
                    self.verdict = Verdict::Ack;
                }
                true
            }
        };
        counters.bad_duplicates += u64::from(!known);
    }

    /// Packets before this one are missing.
    fn after_a_gap(&mut self, index: u64, packet: &Packet<'_>, counters: &mut Counters) {
        let keeps = self.keeps_early && !self.not_ready;
        let last = self.gap_end();
        if keeps && self.kept.insert(index, index - self.expected, packet) {
            counters.early_packets += 1;
            self.unreported += 1;
            // Another hole; or enough to show that what was sent again in between is lost.
            self.report_due |= index != last || self.unreported >= REPORT_EVERY;
        } else if self.kept.contains(index) {
            counters.duplicate_requests += 1;
        } else {
            counters.out_of_sequence += 1;
            // What is farther ahead is a stranger's, or not said: no report could name it.
            if index - self.expected < Kept::SPAN {
                self.dropped_until = self.dropped_until.max(index + 1);
            }
            self.report_due |= keeps;
        }
        self.report_due |= packet.bth().ack_request;
        if !self.gap_reported {
            self.report_gap(counters);
        }
    }

    fn report_gap(&mut self, counters: &mut Counters) {
        counters.sequence_naks_sent += 1;
        self.gap_reported = true;
        self.report_due = true;
        self.verdict = Verdict::Missing;
    }

    /// The packet that was expected.
    fn in_turn(
        &mut self,
        index: u64,
        packet: &Packet<'_>,
        memory: &mut impl Memory,
        counters: &mut Counters,
    ) {
        self.gap_reported = false;
        self.not_ready = false;
        let headers = packet.headers();
        let result = match asked(headers) {
            _ if !self.assembly.may_come(packet) || !self.select(headers, memory) => {
                Err(Refusal::InvalidRequest.into())
            }
            Some((remote, asked)) => self.answer(index, remote, asked, memory).map(|()| true),
            None => self.assembly.add(packet, memory),
        };
        match result {
            Ok(complete) => self.executed(headers, complete),
            Err(Stop::NotReady) => {
                counters.rnr_naks_sent += 1;
                self.verdict = Verdict::NotReady;
                // What comes behind it is dropped without a word.
                self.gap_reported = true;
                self.not_ready = true;
            }
            Err(Stop::Refuse(refusal)) => {
                counters.refused += 1;
                self.assembly.abort(memory);
                self.refuse(index, refusal);
            }
        }
    }

    /// Extended connections: the shared receive queue is the one that the message began with.
    fn select(&mut self, headers: &Headers, memory: &mut impl Memory) -> bool {
        let srq = headers.xrceth.map(|header| header.srq);
        let goes_on = matches!(
            headers.bth.opcode.position(),
            Position::Middle | Position::Last
        );
        if !goes_on {
            self.srq = srq;
        }
        if let Some(srq) = srq {
            memory.select(srq);
        }
        self.srq == srq
    }

    /// A READ or an atomic.
    fn answer(
        &mut self,
        index: u64,
        remote: Remote,
        asked: Asked,
        memory: &mut impl Memory,
    ) -> Result<(), Stop> {
        if !self.resources.has_room() {
            return Err(Refusal::InvalidRequest.into());
        }
        let (deed, packets) = match asked {
            Asked::Read(length) => {
                if length > 0 {
                    memory.check(Access::Read, remote, length)?;
                }
                // At most 2³¹ / 256.
                let packets = self.path.mtu.packets(u64::from(length)) as u32;
                (Deed::Read { remote, length }, packets)
            }
            Asked::Atomic(atomic) => {
                if !remote.address.is_multiple_of(8) {
                    return Err(Refusal::InvalidRequest.into());
                }
                let original = memory.atomic(remote, atomic)?;
                let deed = Deed::Atomic {
                    remote,
                    atomic,
                    original,
                };
                (deed, 1)
            }
        };
        self.resources.add(Resource {
            deed,
            first: index,
            packets,
            srq: self.srq,
            msn: self.msn.after(1),
        });
        // One less for `executed`.
        self.expected += u64::from(packets) - 1;
        Ok(())
    }

    /// The expected packet was carried out, and was the last of its message or not.
    fn executed(&mut self, headers: &Headers, complete: bool) {
        self.expected += 1;
        if asked(headers).is_none() {
            self.acknowledgeable = self.expected;
        }
        if complete {
            self.msn = self.msn.after(1);
        }
        self.verdict = match self.verdict {
            // Not yet said, and true of the packet that is expected now.
            Verdict::Missing if self.expected < self.dropped_until => {
                self.gap_reported = true;
                Verdict::Missing
            }
            // The response does it.
            _ if asked(headers).is_some() => Verdict::Silence,
            Verdict::Missing | Verdict::NotReady => Verdict::Ack,
            _ if headers.bth.ack_request => Verdict::Ack,
            verdict => verdict,
        };
    }

    fn refuse(&mut self, index: u64, refusal: Refusal) {
        // The first reason is the reason: a queue pair that has failed for it refuses everything,
        // also READ data that is asked for again and lies before what was refused.
        let (at, code) = *self.refused.get_or_insert((index, refusal.nak()));
        self.verdict = Verdict::Refused(index.min(at), code);
        self.kept.clear();
    }

    /// The READ data that was to be sent last cannot be had any more.
    pub fn refuse_read(&mut self, psn: Psn, refusal: Refusal, counters: &mut Counters) {
        // It has just been sent, so that it is before what is expected.
        if let Some(index) = self.sequence.index(psn, self.expected)
            && index < self.expected
        {
            counters.refused += 1;
            self.resources.forget_replies_from(index);
            self.refuse(index, refusal);
        }
    }

    pub fn is_ready(&self) -> bool {
        self.verdict != Verdict::Silence || self.resources.reply().is_some() || self.has_report()
    }

    /// The requester is to be told which packets are kept. It hears that before anything else: a
    /// NAK that comes first would be all that it knows.
    fn has_report(&self) -> bool {
        self.report_due && self.peer_is_sluice && self.gap_end() > self.expected
    }

    /// After the last packet that has come, as far as the gap in front of it is still there.
    fn gap_end(&self) -> u64 {
        let kept = self.kept.end().unwrap_or(0);
        if self.not_ready {
            0
        } else {
            kept.max(self.dropped_until)
        }
    }

    /// An acknowledgement is all there is to say.
    pub fn owes_acknowledgement_only(&self) -> bool {
        self.verdict == Verdict::Ack && self.resources.reply().is_none() && !self.has_report()
    }

    /// The next packet is one with READ data, of which there may be a lot.
    pub fn has_data(&self) -> bool {
        !self.has_report()
            && self
                .resources
                .reply()
                .is_some_and(|reply| matches!(reply.resource.deed, Deed::Read { .. }))
    }

    /// See [`super::Connection::reply_packets`].
    pub fn reply_packets(&self) -> u64 {
        self.resources
            .reply()
            .filter(|reply| matches!(reply.resource.deed, Deed::Read { .. }))
            .map_or(0, |reply| reply.end - reply.next)
    }

    pub fn transmit(&mut self, counters: &mut Counters) -> Option<Transmit> {
        let packet = match self.resources.reply() {
            _ if self.has_report() => {
                self.report_due = false;
                self.unreported = 0;
                counters.reports_sent += 1;
                Some(self.report())
            }
            Some(reply) => {
                let packet = self.reply(reply);
                self.resources.advance();
                packet
            }
            None => self.verdict(),
        };
        counters.response_packets += u64::from(packet.is_some());
        packet
    }

    fn report(&self) -> Transmit {
        let base = self.sequence.psn(self.expected);
        let headers = selective::headers(self.path.destination, self.path.pkey, base);
        let bits = self.kept.end().map_or(0, |end| end - self.expected);
        // At most `Kept::SPAN`.
        let length = selective::bytes(bits as usize) as u32;
        Transmit {
            payload: Payload::Report { length },
            ..Transmit::reply(headers)
        }
    }

    /// Writes the payload of the report that was handed out last.
    pub fn write_report(&self, into: &mut [u8]) -> bool {
        let extent = self.gap_end().saturating_sub(self.expected);
        let extent = u16::try_from(extent).unwrap_or(u16::MAX);
        let held = self.kept.indices().map(|index| index - self.expected);
        selective::emit(extent, held.map(|distance| distance as usize), into).is_ok()
    }

    fn reply(&self, reply: &Reply) -> Option<Transmit> {
        let aeth = Aeth {
            syndrome: Syndrome::Ack(None),
            msn: reply.resource.msn,
        };
        let psn = self.sequence.psn(reply.next);
        match reply.resource.deed {
            Deed::Atomic { original, .. } => {
                let mut headers = Headers::new(self.path.bth(Op::AtomicAcknowledge, psn)?);
                headers.aeth = Some(aeth);
                headers.atomic_ack_eth = Some(AtomicAckEth { original });
                Some(Transmit::reply(headers))
            }
            Deed::Read { remote, .. } => {
                let mtu = self.path.mtu.bytes() as u64;
                let sent = (reply.next - reply.begin) * mtu;
                let skipped = (reply.begin - reply.resource.first) * mtu;
                let length = u64::from(reply.length).saturating_sub(sent).min(mtu);
                let operation = match (reply.next == reply.begin, reply.next + 1 == reply.end) {
                    (true, true) => Op::ReadResponseOnly,
                    (true, false) => Op::ReadResponseFirst,
                    (false, true) => Op::ReadResponseLast,
                    (false, false) => Op::ReadResponseMiddle,
                };
                let mut headers = Headers::new(self.path.bth(operation, psn)?);
                headers.aeth = headers.bth.opcode.following().aeth.then_some(aeth);
                // Who has told us is told; it may ask for pieces then.
                headers.bth.sluice = self.keeps_early && self.peer_is_sluice;
                let remote = Remote {
                    address: remote.address.wrapping_add(skipped + sent),
                    ..remote
                };
                let payload = match length {
                    0 => Payload::None,
                    _ => Payload::Region {
                        remote,
                        // At most the path MTU.
                        length: length as u32,
                        srq: reply.resource.srq,
                    },
                };
                Some(Transmit::data(headers, payload))
            }
        }
    }

    fn verdict(&mut self) -> Option<Transmit> {
        let (index, syndrome) = match core::mem::replace(&mut self.verdict, Verdict::Silence) {
            Verdict::Silence => return None,
            // A READ or atomic is acknowledged by its response alone (IBTA 9.7.5.1.1): `rdma_rxe`
            // takes an acknowledgement with its number for the end of it, data or not.
            // No credits: they are for receivers that cannot say RNR (IBTA 9.7.7.2.5).
            Verdict::Ack => (self.acknowledgeable.checked_sub(1)?, Syndrome::Ack(None)),
            Verdict::Missing => (self.expected, Syndrome::Nak(NakCode::SequenceError)),
            Verdict::NotReady => (self.expected, Syndrome::RnrNak(self.rnr_timer)),
            Verdict::Refused(index, code) => (index, Syndrome::Nak(code)),
        };
        let psn = self.sequence.psn(index);
        let mut headers = Headers::new(self.path.bth(Op::Acknowledge, psn)?);
        // Who is asked to send again is told with whom it has to do, and so is who has told us.
        let missing = syndrome == Syndrome::Nak(NakCode::SequenceError);
        headers.bth.sluice = self.keeps_early && (missing || self.peer_is_sluice);
        headers.aeth = Some(Aeth {
            syndrome,
            msn: self.msn,
        });
        Some(Transmit::reply(headers))
    }
}

/// A request that is answered with data.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// That many bytes.
    Read(u32),
    Atomic(Atomic),
}

fn asked(headers: &Headers) -> Option<(Remote, Asked)> {
    let operation = headers.bth.opcode.operation();
    match (kind(operation)?, headers.reth, headers.atomic_eth) {
        (Kind::Read, Some(reth), _) => Some((
            Remote {
                address: reth.address,
                rkey: reth.rkey,
            },
            Asked::Read(reth.length),
        )),
        (Kind::Atomic, _, Some(eth)) => Some((
            Remote {
                address: eth.address,
                rkey: eth.rkey,
            },
            Asked::Atomic(match operation {
                Op::CompareSwap => Atomic::CompareSwap {
                    compare: eth.compare,
                    swap: eth.swap_add,
                },
                _ => Atomic::FetchAdd(eth.swap_add),
            }),
        )),
        _ => None,
    }
}
