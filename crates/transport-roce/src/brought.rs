//! Packets that other processes got and brought, until the lane's holder takes them in. The thread
//! that gets them does not wait for the lane: a program that polls would hardly let it.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::net::IpAddr;
use std::sync::Mutex;

use sluice_packet::Received;

use crate::node::lock;

/// Packets that wait. More are lost, as on a network.
const WAITING_MAX: usize = 4096;

/// What waits.
#[derive(Default)]
pub struct Brought {
    waiting: Mutex<Vec<Owned>>,
    /// How many, to look without the lock.
    count: AtomicUsize,
}

/// A packet with its bytes.
struct Owned {
    source: IpAddr,
    destination: IpAddr,
    interface: u32,
    source_port: u16,
    traffic_class: u8,
    hop_limit: u8,
    packet: Vec<u8>,
}

impl Brought {
    /// A packet came. Behind it the lane is to be tried.
    pub fn put(&self, received: &Received<'_>) {
        let mut waiting = lock(&self.waiting);
        if waiting.len() >= WAITING_MAX {
            return;
        }
        waiting.push(Owned {
            source: received.source,
            destination: received.destination,
            interface: received.interface,
            source_port: received.source_port,
            traffic_class: received.traffic_class,
            hop_limit: received.hop_limit,
            packet: received.packet.to_vec(),
        });
        self.count.store(waiting.len(), Ordering::SeqCst);
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Gives everything that waits to `each`; how many packets that were.
    pub fn take(&self, mut each: impl FnMut(&Received<'_>)) -> usize {
        let all = {
            let mut waiting = lock(&self.waiting);
            self.count.store(0, Ordering::SeqCst);
            core::mem::take(&mut *waiting)
        };
        for owned in &all {
            each(&Received {
                source: owned.source,
                destination: owned.destination,
                interface: owned.interface,
                source_port: owned.source_port,
                traffic_class: owned.traffic_class,
                hop_limit: owned.hop_limit,
                packet: &owned.packet,
            });
        }
        all.len()
    }
}
