//! Packets that came elsewhere, to another process or by another shard's ports, until the shard's
//! holder takes them in. The thread that brings them does not wait for the shard: a program that
//! polls would hardly let it.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::net::IpAddr;
use std::sync::Mutex;

use sluice_packet::Received;

use crate::locks::lock;

/// Packets that wait. More are lost, as on a network.
const WAITING_MAX: usize = 4096;
/// Bytes of a batch that are kept for the next one.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// What waits.
#[derive(Default)]
pub struct Brought {
    waiting: Mutex<Batch>,
    /// How many, to look without the lock.
    count: AtomicUsize,
    /// The memory of the batch that was taken last.
    spare: Mutex<Batch>,
}

/// Packets, and the bytes of all of them.
#[derive(Default)]
struct Batch {
    packets: Vec<Owned>,
    bytes: Vec<u8>,
}

/// A packet, with its place among the bytes.
struct Owned {
    source: IpAddr,
    destination: IpAddr,
    interface: u32,
    source_port: u16,
    traffic_class: u8,
    hop_limit: u8,
    place: Range<usize>,
}

impl Brought {
    /// A packet came. Behind it the shard is to be tried. False: too many wait, it is lost.
    pub fn put(&self, received: &Received<'_>) -> bool {
        let mut waiting = lock(&self.waiting);
        let Batch { packets, bytes } = &mut *waiting;
        if packets.len() >= WAITING_MAX {
            return false;
        }
        let start = bytes.len();
        bytes.extend_from_slice(received.packet);
        packets.push(Owned {
            source: received.source,
            destination: received.destination,
            interface: received.interface,
            source_port: received.source_port,
            traffic_class: received.traffic_class,
            hop_limit: received.hop_limit,
            place: start..bytes.len(),
        });
        self.count.store(packets.len(), Ordering::SeqCst);
        true
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Gives everything that waits to `each`; how many packets that were.
    pub fn take(&self, mut each: impl FnMut(&Received<'_>)) -> usize {
        let spare = core::mem::take(&mut *lock(&self.spare));
        let mut batch = {
            let mut waiting = lock(&self.waiting);
            self.count.store(0, Ordering::SeqCst);
            core::mem::replace(&mut *waiting, spare)
        };
        for owned in &batch.packets {
            each(&Received {
                source: owned.source,
                destination: owned.destination,
                interface: owned.interface,
                source_port: owned.source_port,
                traffic_class: owned.traffic_class,
                hop_limit: owned.hop_limit,
                packet: batch.bytes.get(owned.place.clone()).unwrap_or_default(),
            });
        }
        let count = batch.packets.len();
        batch.packets.clear();
        batch.bytes.clear();
        batch.bytes.shrink_to(KEPT_BYTES_MAX);
        *lock(&self.spare) = batch;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(packet: &[u8]) -> Received<'_> {
        Received {
            source: "192.0.2.1".parse().unwrap(),
            destination: "192.0.2.2".parse().unwrap(),
            interface: 3,
            source_port: 0xc001,
            traffic_class: 2,
            hop_limit: 9,
            packet,
        }
    }

    #[test]
    fn what_is_put_in_comes_out_in_its_order() {
        let brought = Brought::default();
        // The second time with memory that was used before.
        for turn in 0..3u8 {
            for number in 0..10 {
                assert!(brought.put(&received(&vec![number ^ turn; usize::from(number)])));
            }
            assert!(!brought.is_empty());
            let mut number = 0;
            let count = brought.take(|found| {
                let wanted = vec![number ^ turn; usize::from(number)];
                assert_eq!(format!("{found:?}"), format!("{:?}", received(&wanted)));
                number += 1;
            });
            assert_eq!((count, brought.is_empty()), (10, true));
        }
        assert_eq!(brought.take(|_| unreachable!()), 0);
    }

    #[test]
    fn no_more_wait_than_may() {
        let brought = Brought::default();
        for _ in 0..WAITING_MAX {
            assert!(brought.put(&received(b"x")));
        }
        assert!(!brought.put(&received(b"x")));
        assert_eq!(brought.take(|_| {}), WAITING_MAX);
        assert!(brought.put(&received(b"x")));
    }
}
