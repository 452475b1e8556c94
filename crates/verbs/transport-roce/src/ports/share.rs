//! How the queues of an interface are dealt to the shards: each shard gets one port, so that the
//! ports of all shards have the same numbers ([`crate::network::path::Way::port`]).
//!
//! With at least as many queues as shards each shard has queues of its own, shares nothing with
//! others, and sends by the first. With fewer some shards share a queue: the first of them receives,
//! all send.
//!
//! A shared queue has a lock that nobody waits for. Who flushes puts the packets where they wait,
//! and tries the lock; who does not get it leaves them to the holder, who looks once more when he
//! has let go. Packets wait to be sent as they do between shards ([`crate::shard::brought`]), for a copy
//! each.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use sluice_packet::{Facts, Kept, Leaving, Path, Port, Received, SendError};
use sluice_wire::Ecn;

use crate::baton::Baton;
use crate::locks::{Rank, lock};

/// Packets that a shard puts together until it flushes them.
const GATHERED_MAX: usize = 64;
/// Packets of all shards that wait for a queue. Behind that many its shards have no room.
const WAITING_MAX: usize = 512;

type Boxed = Box<dyn Port>;

/// One port for each of so many shards, from those of an interface's queues, at least one.
pub fn deal(ports: Vec<Boxed>, shards: usize) -> Vec<Boxed> {
    let queues = ports.len();
    if queues >= shards {
        let mut hands: Vec<Vec<Boxed>> = (0..shards).map(|_| Vec::new()).collect();
        for (port, shard) in ports.into_iter().zip((0..shards).cycle()) {
            hands[shard].push(port);
        }
        return hands.into_iter().filter_map(bundle).collect();
    }
    let ports: Vec<_> = ports.into_iter().map(Queue::new).collect();
    (0..shards)
        .zip(ports.iter().cycle())
        .map(|(shard, queue)| -> Boxed {
            Box::new(Shared {
                queue: queue.clone(),
                gathered: Packets::default(),
                receives: shard < queues,
            })
        })
        .collect()
}

fn bundle(mut ports: Vec<Boxed>) -> Option<Boxed> {
    match ports.len() {
        0 | 1 => ports.pop(),
        _ => Some(Box::new(Bundle { ports })),
    }
}

/// Several queues as one port.
struct Bundle {
    /// At least one, which sends.
    ports: Vec<Boxed>,
}

impl Port for Bundle {
    fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize {
        self.ports.iter_mut().map(|port| port.receive(each)).sum()
    }

    fn put(
        &mut self,
        packet: &Leaving<'_>,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        self.ports[0].put(packet, fill)
    }

    fn flush(&mut self) -> bool {
        self.ports[0].flush()
    }

    fn room(&self) -> usize {
        self.ports[0].room()
    }

    fn facts(&self) -> Facts {
        let mut all = Facts::default();
        for port in &self.ports {
            let facts = port.facts();
            all.descriptors.extend(facts.descriptors);
            all.counters += facts.counters;
        }
        all
    }
}

/// Packets on their way out.
#[derive(Default)]
struct Packets {
    each: Vec<Outgoing>,
    bytes: Vec<u8>,
}

/// One, with its place among the bytes, and what leaves beside it.
struct Outgoing {
    path: Path,
    ecn: Ecn,
    place: Range<usize>,
    beside: Option<Kept>,
}

impl Packets {
    /// Puts one in that `fill` writes. False: it wrote none.
    fn push(&mut self, packet: &Leaving<'_>, fill: &mut dyn FnMut(&mut [u8]) -> bool) -> bool {
        let start = self.bytes.len();
        self.bytes.resize(start + packet.length, 0);
        let filled = self.bytes.get_mut(start..).is_some_and(fill);
        if filled {
            self.each.push(Outgoing {
                path: *packet.path,
                ecn: packet.ecn,
                place: start..start + packet.length,
                beside: packet.beside.copied(),
            });
        } else {
            self.bytes.truncate(start);
        }
        filled
    }

    /// Takes over all of another's.
    fn append(&mut self, other: &mut Self) {
        let start = self.bytes.len();
        self.bytes.append(&mut other.bytes);
        self.each
            .extend(other.each.drain(..).map(|packet| Outgoing {
                place: packet.place.start + start..packet.place.end + start,
                ..packet
            }));
    }

    fn clear(&mut self) {
        self.each.clear();
        self.bytes.clear();
    }
}

/// A queue that several shards send by.
struct Queue {
    sending: Baton<Sending>,
    /// What shards have flushed.
    waiting: Mutex<Packets>,
    /// How much that is, to look without the lock.
    count: AtomicUsize,
}

/// The queue, in the hands of who sends.
struct Sending {
    port: Boxed,
    /// What waits for room in the port, from `next` on.
    taken: Packets,
    next: usize,
}

impl Sending {
    /// Puts what was taken into the port and sends it. False: not all of it.
    fn send(&mut self) -> bool {
        let Self { port, taken, next } = self;
        let mut tried = false;
        while let Some(packet) = taken.each.get(*next) {
            let bytes = taken.bytes.get(packet.place.clone()).unwrap_or_default();
            let leaving = Leaving {
                path: &packet.path,
                ecn: packet.ecn,
                length: bytes.len(),
                beside: packet.beside.as_ref(),
            };
            let sent = port.put(&leaving, &mut |into| {
                let fits = into.len() == bytes.len();
                if fits {
                    into.copy_from_slice(bytes);
                }
                fits
            });
            if sent == Err(SendError::NoRoom) {
                if tried || !port.flush() {
                    return false;
                }
                tried = true;
                continue;
            }
            // What cannot go is lost, and the port has counted it.
            tried = false;
            *next += 1;
        }
        taken.clear();
        *next = 0;
        port.flush()
    }
}

impl Queue {
    fn new(port: Boxed) -> Arc<Self> {
        Arc::new(Self {
            sending: Baton::new(
                Rank::Queue,
                Sending {
                    port,
                    taken: Packets::default(),
                    next: 0,
                },
            ),
            waiting: Mutex::default(),
            count: AtomicUsize::new(0),
        })
    }

    /// Whether somebody has put something there since it was taken. To be asked after the queue
    /// was let go.
    fn has_waiting(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }

    /// Looks at the port, behind whoever is at it.
    fn look<R>(&self, look: impl FnOnce(&dyn Port) -> R) -> R {
        let sending = self.sending.take();
        let result = look(&*sending.port);
        drop(sending);
        self.send_left();
        result
    }

    /// What somebody put there while the queue was taken for something else: he relies on who had it. What
    /// cannot go now goes with the next flush, or when something is received.
    fn send_left(&self) {
        if self.has_waiting() {
            self.send();
        }
    }

    /// Sends what waits, unless somebody is at it, who does. False: not all of it could be sent.
    fn send(&self) -> bool {
        loop {
            let Some(mut sending) = self.sending.try_take() else {
                return true;
            };
            // In front of the rest, so that a port without room does not get ever more.
            if !sending.taken.each.is_empty() && !sending.send() {
                return false;
            }
            {
                let mut waiting = lock(&self.waiting);
                self.count.store(0, Ordering::SeqCst);
                core::mem::swap(&mut sending.taken, &mut *waiting);
            }
            if !sending.send() {
                return false;
            }
            drop(sending);
            if !self.has_waiting() {
                return true;
            }
        }
    }
}

/// A shard's part of a queue that it shares.
struct Shared {
    queue: Arc<Queue>,
    /// What the shard has not flushed.
    gathered: Packets,
    /// What comes is this shard's to take.
    receives: bool,
}

impl Port for Shared {
    fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize {
        if !self.receives {
            return 0;
        }
        // Who has it sends; what has come is still there afterwards.
        let Some(mut sending) = self.queue.sending.try_take() else {
            return 0;
        };
        let came = sending.port.receive(each);
        drop(sending);
        if self.queue.has_waiting() && !self.queue.send() {
            // Somebody has to flush again, and whoever left it to us does not know.
            return came.max(1);
        }
        came
    }

    fn put(
        &mut self,
        packet: &Leaving<'_>,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        if self.room() < 1 + usize::from(packet.beside.is_some()) {
            return Err(SendError::NoRoom);
        }
        if self.gathered.push(packet, fill) {
            return Ok(());
        }
        if let Some(kept) = packet.beside {
            self.gathered
                .push(&kept.leaving(), &mut |into| kept.put(into));
        }
        Err(SendError::Nothing)
    }

    fn flush(&mut self) -> bool {
        if !self.gathered.each.is_empty() {
            let mut waiting = lock(&self.queue.waiting);
            waiting.append(&mut self.gathered);
            self.queue.count.store(waiting.each.len(), Ordering::SeqCst);
        }
        self.queue.send()
    }

    fn room(&self) -> usize {
        let behind = WAITING_MAX.saturating_sub(self.queue.count.load(Ordering::Relaxed));
        let own = GATHERED_MAX.saturating_sub(self.gathered.each.len());
        own.min(behind)
    }

    fn facts(&self) -> Facts {
        match self.receives {
            true => self.queue.look(|port| port.facts()),
            // Told once.
            false => Facts::default(),
        }
    }
}

#[cfg(test)]
mod tests;
