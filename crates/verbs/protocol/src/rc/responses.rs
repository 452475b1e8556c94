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

use super::early::Arrived;
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
            self.progressed(before, now);
        }
    }

    fn acknowledgement(
        &mut self,
        now: Instant,
        index: u64,
        syndrome: Syndrome,
        counters: &mut Counters,
    ) {
        // A NAK says that all before it is done (IBTA 9.7.5.1.4).
        let done = index + u64::from(matches!(syndrome, Syndrome::Ack(_)));
        self.acknowledged = self.acknowledged.max(done);
        if !self.reach(done) {
            // Data of a READ or an atomic is missing.
            return match syndrome {
                Syndrome::Ack(_) => self.implied_nak(done, counters),
                Syndrome::Nak(NakCode::SequenceError) if self.peer_is_sluice => {
                    self.implied_nak(index, counters);
                    self.missing(index, counters);
                }
                // It will be said again, when all before it has its data.
                _ if self.nak_at == Some(index) => counters.stale_responses += 1,
                _ => {
                    counters.implied_naks += 1;
                    self.nak_at = Some(index);
                    self.retry();
                }
            };
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
        if self.rnr_until.is_some() {
            counters.stale_responses += 1;
        } else if self.peer_is_sluice {
            self.missing(index, counters);
        } else if self.nak_at == Some(index) {
            // The peer says it once for each gap, so this is a copy that the network made. If what
            // we sent again was lost as well, the probe will tell.
            counters.stale_responses += 1;
        } else {
            counters.sequence_naks += 1;
            self.nak_at = Some(index);
            self.retry();
        }
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
        self.acknowledged = self.acknowledged.max(entry.first);
        self.data(&entry, index, packet.payload(), memory, counters);
    }

    /// Data of a response, in its turn or before it: only memory of our own is concerned.
    fn data(
        &mut self,
        entry: &Entry,
        index: u64,
        bytes: &[u8],
        memory: &mut impl Memory,
        counters: &mut Counters,
    ) {
        self.advance();
        let Some(distance) = index.checked_sub(self.oldest) else {
            counters.stale_responses += 1;
            return;
        };
        if distance >= Arrived::SPAN {
            return self.implied_nak(self.oldest + Arrived::SPAN, counters);
        }
        self.recovery.came(index, self.peer_is_sluice);
        if self.early.contains(index) {
            counters.stale_responses += 1;
            return;
        }
        if !self.place(entry, index, bytes, memory) {
            return;
        }
        if distance == 0 {
            self.came(index);
        } else {
            self.early.insert(index);
            counters.early_responses += 1;
            self.implied_nak(index, counters);
            self.examined = self.examined.max(index + 1);
        }
        self.advance();
    }

    /// Goes on to the oldest packet without an answer.
    fn advance(&mut self) {
        // Each turn answers a packet at least.
        loop {
            let before = self.oldest;
            self.reach(self.acknowledged);
            while self.early.take(self.oldest) {
                self.came(self.oldest);
            }
            if self.oldest == before {
                return;
            }
        }
    }

    /// The oldest packet has its data.
    fn came(&mut self, index: u64) {
        self.oldest = index + 1;
        self.alive();
        self.complete_front();
    }

    /// Whether that packet can be a response to that request: opcode and length (IBTA 9.7.6.1.4).
    fn is_data_of(&self, entry: &Entry, index: u64, packet: &Packet<'_>) -> bool {
        let mtu = self.path.mtu.bytes() as u64;
        let offset = (index - entry.first) * mtu;
        let rest = u64::from(entry.request.length).saturating_sub(offset);
        let last = index + 1 == entry.end();
        // A READ that was asked for again begins anew somewhere inside, so that which of the two
        // it is depends on the request that the peer answers. A piece that Sluice was asked for
        // may end inside as well.
        let opcode = match packet.bth().opcode.operation() {
            Op::ReadResponseFirst | Op::ReadResponseMiddle => !last,
            Op::ReadResponseLast | Op::ReadResponseOnly => last || self.peer_is_sluice,
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
        self.acknowledged = self.acknowledged.max(index);
        let bytes = original.to_ne_bytes();
        self.data(&entry, index, &bytes, memory, counters);
    }
}
