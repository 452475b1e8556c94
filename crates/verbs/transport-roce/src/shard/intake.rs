//! Where the packets go that a shard's ports bring.

use core::sync::atomic::AtomicU64;

use sluice_packet::{Kept, Received};
use sluice_planner::Planner;
use sluice_protocol::Instant;
use sluice_verbs::Aftermath;
use sluice_verbs::transport::{MAD_BYTES, MadPath};
use sluice_wire::udp::ROCE_PORT;
use sluice_wire::{Packet, Qpn};

use crate::counters::{ShardCounters, count};
use crate::gsi;
use crate::keyed::Key;
use crate::queue_pair::part::Part;
use crate::queue_pair::table::Table;
use crate::shard::common::Common;
use crate::shard::gate::Gate;
use crate::shard_set::Set;

/// Why a packet was dropped.
enum Dropped {
    Malformed,
    UnknownQp,
    NotTaken,
}

impl Dropped {
    fn counter<'a>(&self, counters: &'a ShardCounters) -> &'a AtomicU64 {
        match self {
            Self::Malformed => &counters.malformed,
            Self::UnknownQp => &counters.unknown_qp,
            Self::NotTaken => &counters.not_taken,
        }
    }
}

/// Where packets go that come in a round.
pub struct Intake<'a> {
    pub gate: &'a Gate,
    pub common: &'a Common,
    /// Opens the machines of the shard's queue pairs.
    pub key: &'a mut Key,
    /// The packets are those that were brought from elsewhere.
    pub brought: bool,
    pub table: &'a Table,
    pub planner: &'a mut Planner<Kept>,
    pub mads: &'a mut Vec<(MadPath, [u8; MAD_BYTES])>,
    pub handed: &'a mut Set,
    pub after: &'a mut Aftermath,
    /// Packets that the XDP program would steer: those that UDP sockets have sent stay with sockets.
    pub steerable: usize,
}

impl Intake<'_> {
    pub fn packet(&mut self, now: Instant, received: &Received<'_>) {
        self.steerable += usize::from(received.source_port != ROCE_PORT);
        if let Some(reason) = self.take(now, received) {
            count(reason.counter(&self.gate.counters));
        }
    }

    /// Takes in one packet.
    fn take(&mut self, now: Instant, received: &Received<'_>) -> Option<Dropped> {
        let Ok(packet) = Packet::parse(received.packet) else {
            return Some(Dropped::Malformed);
        };
        let destination = packet.bth().destination;
        if destination == Qpn::GSI {
            return match gsi::datagram(&packet, received) {
                Some(mad) => {
                    self.mads.push(mad);
                    None
                }
                None => Some(Dropped::Malformed),
            };
        }
        if destination == Qpn::MULTICAST {
            self.give_to_group(now, &packet, received);
            return None;
        }
        let qpn = destination.get();
        match self.table.by_qpn.get(&qpn) {
            Some(part) if part.shard == self.gate.number => {
                let taken = self.give(part, now, &packet, received);
                (!taken).then_some(Dropped::NotTaken)
            }
            Some(part) => {
                self.common.gates[part.shard].hand_over(self.gate.number, received);
                self.handed.insert(part.shard);
                None
            }
            None => {
                let Common { forward, names, .. } = self.common;
                let passed_on = forward.pass_on(names, qpn, received);
                (!passed_on).then_some(Dropped::UnknownQp)
            }
        }
    }

    /// A datagram to a group. Other shards' members get it from these.
    fn give_to_group(&mut self, now: Instant, packet: &Packet<'_>, received: &Received<'_>) {
        let mut others = Set::default();
        for part in self.common.groups.members(received) {
            if part.shard == self.gate.number {
                self.give(&part, now, packet, received);
            } else {
                others.insert(part.shard);
            }
        }
        // What another shard has brought it has given to its own, and to the others.
        if !self.brought {
            for shard in others {
                self.common.gates[shard].hand_over(self.gate.number, received);
                self.handed.insert(shard);
            }
        }
    }

    fn give(
        &mut self,
        part: &Part,
        now: Instant,
        packet: &Packet<'_>,
        received: &Received<'_>,
    ) -> bool {
        let machine = part.machine(self.key);
        let taken = machine.receive(now, packet, received, self.after);
        // Another shard's has got a datagram, behind which nothing is to be sent.
        if part.shard == self.gate.number {
            self.planner.came(part.index, machine.owes(), now);
        }
        // Completions are in the order of their packets, also between send and receive queue:
        // programs that sleep on one channel for both count on an acknowledgement being first.
        if machine.has_news() {
            machine.report(self.after);
        }
        taken
    }
}
