//! Queue pair 1: management datagrams, in and out.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, RwLock};

use sluice_packet::{Leaving, Path, Port, Received};
use sluice_verbs::transport::{MAD_BYTES, MadPath, MadReceiver};
use sluice_wire::bth::Bth;
use sluice_wire::extended::Deth;
use sluice_wire::opcode::{Operation, Service};
use sluice_wire::{Ecn, Headers, Opcode, Packet, Psn, Qpn};

use crate::locks::{lock, read, write};

/// The key of queue pair 1 (IBTA 10.2.5).
const QKEY: u32 = 0x8001_0000;
/// Datagrams that wait for the port. More are lost, as on a network.
const WAITING_MAX: usize = 256;

type Mad = [u8; MAD_BYTES];

/// What other threads want to send, and who wants what comes.
#[derive(Default)]
pub struct Gsi {
    waiting: Mutex<VecDeque<(Path, Mad)>>,
    /// How many, to look without the lock.
    count: AtomicUsize,
    receiver: RwLock<Option<Arc<dyn MadReceiver>>>,
}

impl Gsi {
    /// A datagram came. Without any lock of a shard: the receiver may send.
    pub fn came(&self, path: &MadPath, mad: &Mad, passed_on: bool) {
        let receiver = read(&self.receiver).clone();
        if let Some(receiver) = receiver {
            receiver.received(path, mad, passed_on);
        }
    }

    pub fn set_receiver(&self, receiver: Arc<dyn MadReceiver>) {
        *write(&self.receiver) = Some(receiver);
    }

    /// Puts a datagram where the shard's next round finds it.
    pub fn post(&self, path: Path, mad: &Mad) {
        let mut waiting = lock(&self.waiting);
        if waiting.len() < WAITING_MAX {
            waiting.push_back((path, *mad));
            self.count.store(waiting.len(), Ordering::Release);
        }
    }

    /// Whether there is something to send.
    pub fn has_waiting(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    fn next(&self) -> Option<(Path, Mad)> {
        let mut waiting = lock(&self.waiting);
        let next = waiting.pop_front();
        self.count.store(waiting.len(), Ordering::Release);
        next
    }
}

/// The sending half, which belongs to a shard.
#[derive(Default)]
pub struct Sender {
    psn: u32,
}

impl Sender {
    /// Sends what waits.
    pub fn send(&mut self, gsi: &Gsi, port: &mut dyn Port) {
        while gsi.has_waiting() && port.room() > 0 {
            let Some((path, mad)) = gsi.next() else {
                return;
            };
            let Some(headers) = headers(Psn::new(self.psn)) else {
                return;
            };
            self.psn = self.psn.wrapping_add(1);
            let length = headers.bytes() + MAD_BYTES;
            // What does not go is lost; its sender asks again.
            let leaving = Leaving::alone(&path, Ecn::NotCapable, length);
            let _ = port.put(&leaving, &mut |into| headers.emit(&mad, into).is_ok());
        }
    }
}

fn headers(psn: Psn) -> Option<Headers> {
    let opcode = Opcode::new(Service::Ud, Operation::SendOnly)?;
    let mut headers = Headers::new(Bth::new(opcode, Qpn::GSI, psn));
    headers.deth = Some(Deth {
        qkey: QKEY,
        source: Qpn::GSI,
    });
    Some(headers)
}

/// The datagram in a packet for queue pair 1. None: it is none.
pub fn datagram(packet: &Packet<'_>, received: &Received<'_>) -> Option<(MadPath, Mad)> {
    let headers = packet.headers();
    let from_gsi = headers
        .deth
        .is_some_and(|deth| deth.qkey == QKEY && deth.source == Qpn::GSI);
    if headers.bth.opcode.service() != Service::Ud || !from_gsi {
        return None;
    }
    let path = MadPath {
        source: received.source.into(),
        destination: received.destination.into(),
        interface: received.interface,
    };
    Some((path, packet.payload().try_into().ok()?))
}
