//! What a requester does with responses (IBTA 9.7.5.2, 9.7.6.1).
//!
//! | response to packet `n` | what it says of earlier ones |
//! |---|---|
//! | ACK, any NAK, READ data, atomic | SENDs and WRITEs before `n` are done (implied ACK, 9.7.5.1.4) |
//! | the same | a READ or atomic before `n` without its data has lost it (implied NAK): ask again |
//! | to what is done already | nothing: dropped |
//! | to what was not sent yet | the peer is broken or hostile: dropped |

use sluice_wire::Packet;
use sluice_wire::extended::{NakCode, Syndrome};
use sluice_wire::opcode::Operation as Op;

use super::early::Early;
use super::requester::{Entry, Requester};
use crate::counters::Counters;
use crate::memory::Memory;
use crate::request::{Operation, Status};
use crate::time::Instant;

impl Requester {
    /// A packet whose opcode is a response's.
    pub fn response(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        memory: &mut impl Memory,
        counters: &mut Counters,
    ) {
        if self.failed {
            counters.stale_responses += 1;
            return;
        }
        let index = match self.sequence.index(packet.bth().psn, self.oldest) {
            Some(index) if index >= self.sent => {
                counters.future_responses += 1;
                return;
            }
            Some(index) if index >= self.oldest => index,
            _ => {
                counters.stale_responses += 1;
                return;
            }
        };
        let before = self.oldest;
        let headers = packet.headers();
        match (headers.bth.opcode.operation(), headers.aeth) {
            (Op::Acknowledge, Some(aeth)) => {
                self.acknowledgement(now, index, aeth.syndrome, counters);
            }
            (Op::ReadResponseMiddle, _) => self.read_data(index, packet, memory, counters),
            (operation, Some(aeth)) if matches!(aeth.syndrome, Syndrome::Ack(_)) => {
                match (operation, headers.atomic_ack_eth) {
                    (Op::AtomicAcknowledge, Some(old)) => {
                        self.atomic_data(index, old.original, memory, counters);
                    }
                    _ => self.read_data(index, packet, memory, counters),
                }
            }
            // NAKs are plain acknowledgements (IBTA 9.7.5.2.1).
            _ => counters.bad_responses += 1,
        }
        if self.oldest > before && !self.failed {
            self.progressed(now);
        }
    }

    fn acknowledgement(
        &mut self,
        now: Instant,
        index: u64,
        syndrome: Syndrome,
        counters: &mut Counters,
    ) {
        let reached = match syndrome {
            Syndrome::Ack(_) => self.reach(index + 1),
            // A NAK says that all before it is done (IBTA 9.7.5.1.4).
            Syndrome::RnrNak(_) | Syndrome::Nak(_) => self.reach(index),
        };
        if !reached {
            return self.implied_nak(index, counters);
        }
        match syndrome {
            Syndrome::Ack(_) => {}
            Syndrome::RnrNak(timer) => {
                // Another copy of the one that we are waiting for, or from before we went back.
                if self.rnr_until.is_some() || self.next <= index {
                    counters.stale_responses += 1;
                    return;
                }
                counters.rnr_naks += 1;
                self.receiver_not_ready(now.after(timer.duration()));
            }
            Syndrome::Nak(NakCode::SequenceError) => self.sequence_nak(index, counters),
            Syndrome::Nak(NakCode::InvalidRequest) => self.fail(Status::RemoteInvalidRequest),
            Syndrome::Nak(NakCode::RemoteAccess) => self.fail(Status::RemoteAccess),
            Syndrome::Nak(NakCode::RemoteOperational) => self.fail(Status::RemoteOperation),
        }
    }

    /// The peer misses packet `index`, which is the oldest now (IBTA 9.7.5.2.2).
    fn sequence_nak(&mut self, index: u64, counters: &mut Counters) {
        // The peer says it once for each gap, so this is a copy that the network made. If what
        // we sent again was lost as well, the probe will tell.
        if self.nak_at == Some(index) || self.rnr_until.is_some() {
            counters.stale_responses += 1;
            return;
        }
        counters.sequence_naks += 1;
        self.nak_at = Some(index);
        let next = self.next;
        self.retry();
        if !self.failed
            && let Some(kept) = self.kept_by_peer(index)
        {
            self.again = Some(index);
            self.next = next.min(kept).max(index);
        }
    }

    /// With `index` missing, the packets after it and before the one returned were kept by a peer
    /// that keeps what comes early: those of the same WRITE ([`super::Config::early`]).
    fn kept_by_peer(&self, index: u64) -> Option<u64> {
        let entry = self.entry(index).filter(|_| self.peer_keeps_early)?;
        let end = match entry.request.operation {
            Operation::Write(_) => entry.end(),
            // The last one takes a receive, which has to happen in order.
            Operation::WriteImmediate(..) => entry.end() - 1,
            _ => return None,
        };
        (index > entry.first && index < end).then(|| end.min(index + Early::SPAN))
    }

    /// Responses up to `index` are on their way or here, and the oldest one is missing.
    fn implied_nak(&mut self, index: u64, counters: &mut Counters) {
        if self.oldest < self.implied_until {
            // Already asked for again.
            counters.stale_responses += 1;
            return;
        }
        counters.implied_naks += 1;
        self.implied_until = index + 1;
        self.retry();
    }

    /// Data of a READ (IBTA 9.4.4, 9.7.5.2.9).
    fn read_data(
        &mut self,
        index: u64,
        packet: &Packet<'_>,
        memory: &mut impl Memory,
        counters: &mut Counters,
    ) {
        let Some(entry) = self.entry(index).copied() else {
            return;
        };
        if !self.is_data_of(&entry, index, packet) {
            counters.bad_responses += 1;
            return;
        }
        self.reach(entry.first);
        let missing = self.oldest != index;
        if missing {
            let distance = index - self.oldest;
            if self.oldest >= entry.first && distance < Early::SPAN {
                if self.early.insert(distance) {
                    counters.early_responses += 1;
                    self.place(&entry, index, packet.payload(), memory);
                } else {
                    counters.stale_responses += 1;
                }
            }
            if !self.failed {
                self.implied_nak(index, counters);
            }
            return;
        }
        if !self.place(&entry, index, packet.payload(), memory) {
            return;
        }
        self.alive();
        // At most as many as were kept.
        loop {
            self.oldest += 1;
            if !self.early.advance() {
                break;
            }
        }
        self.complete_front();
    }

    /// Whether that packet can be a response to that request: opcode and length (IBTA 9.7.6.1.4).
    fn is_data_of(&self, entry: &Entry, index: u64, packet: &Packet<'_>) -> bool {
        let mtu = self.path.mtu.bytes() as u64;
        let offset = (index - entry.first) * mtu;
        let rest = u64::from(entry.request.length).saturating_sub(offset);
        let last = index + 1 == entry.end();
        // A READ that was asked for again begins anew somewhere inside, so that which of the two
        // it is depends on the request that the peer answers.
        let opcode = match packet.bth().opcode.operation() {
            Op::ReadResponseFirst | Op::ReadResponseMiddle => !last,
            Op::ReadResponseLast | Op::ReadResponseOnly => last,
            _ => false,
        };
        matches!(entry.request.operation, Operation::Read(_))
            && opcode
            && packet.payload().len() as u64 == rest.min(mtu)
    }

    /// Whether the data was placed; if not, the request has failed.
    fn place(&mut self, entry: &Entry, index: u64, bytes: &[u8], memory: &mut impl Memory) -> bool {
        // Less than the request's length.
        let offset = (index - entry.first) * self.path.mtu.bytes() as u64;
        let seq = entry.request.seq;
        let placed = bytes.is_empty() || memory.place(seq, offset as u32, bytes).is_ok();
        if !placed {
            self.fail_request(seq, Status::LocalProtection);
        }
        placed
    }

    /// What was there before an atomic operation (IBTA 9.4.5).
    fn atomic_data(
        &mut self,
        index: u64,
        original: u64,
        memory: &mut impl Memory,
        counters: &mut Counters,
    ) {
        let Some(entry) = self
            .entry(index)
            .copied()
            .filter(|entry| entry.request.operation.is_atomic())
        else {
            counters.bad_responses += 1;
            return;
        };
        if !self.reach(index) {
            return self.implied_nak(index, counters);
        }
        if self.place(&entry, index, &original.to_ne_bytes(), memory) {
            self.alive();
            self.oldest += 1;
            self.complete_front();
        }
    }
}
