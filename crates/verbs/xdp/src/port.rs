//! One queue of an interface as a [`Port`].
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::Arc;

use sluice_packet::{Facts, Kept, Leaving, Path, Port, PortCounters, Received, SendError};
use sluice_sys::errno::Errno;
use sluice_wire::ethernet::{self, EtherType, Mac};
use sluice_wire::frame::{Outer, Prefix};
use sluice_wire::piggyback::{self, Piggyback};
use sluice_wire::{Ecn, Envelope, Error, Ip, bth, icrc};

use crate::flows::Flows;
use crate::left::Left;
use crate::order::Order;
use crate::ring::Descriptor;
use crate::socket::{Layout, Socket};

/// Pieces that one call of [`Port::receive`] takes at most.
const BATCH: u32 = 64;

/// Kinds of packets whose headers are kept.
const KNOWN_MAX: usize = 8;

/// One receive queue of an interface, with an AF_XDP socket.
#[derive(Debug)]
pub struct XdpPort {
    interface: u32,
    queue: u32,
    socket: Socket,
    layout: Layout,
    packet_bytes_max: usize,
    /// Slots that may be written; the last one given back is used first, as it is in the cache.
    free: Vec<u32>,
    /// Of each slot: how many pieces the kernel has.
    pieces: Box<[u8]>,
    /// Chunks of packets that were taken in, on their way back to the kernel. They wait for the
    /// next look or flush: the words that tell the kernel are in the cache of the processor that
    /// brought the packet, and whoever was just given that should not have to wait for them.
    taken: Vec<u64>,
    order: Order,
    /// Put into the ring since the last flush.
    staged: u64,
    flows: Flows,
    /// Headers of the last few kinds of packets. A connection has few: its acknowledgements, its
    /// full packets, its last ones.
    known: Vec<Known>,
    oldest: usize,
    left: Arc<Left>,
    /// The interface is down or gone: sends fail until a flush succeeds.
    down: bool,
    assembly: Assembly,
    counters: PortCounters,
}

/// Headers that were made.
#[derive(Debug)]
struct Known {
    path: Path,
    ecn: Ecn,
    /// Bytes of the transport packet.
    length: usize,
    /// Bytes in front of it.
    front: usize,
    prefix: Prefix,
}

impl Known {
    fn is(&self, path: &Path, ecn: Ecn, length: usize) -> bool {
        self.length == length && self.ecn == ecn && self.path == *path
    }
}

/// A packet that comes in several pieces.
#[derive(Debug, Default)]
struct Assembly {
    bytes: Vec<u8>,
    /// A packet is under way.
    started: bool,
    /// It is longer than any that we take.
    too_long: bool,
}

/// What the kernel counts of a socket (`XDP_STATISTICS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets that came for us and were dropped for other reasons than the next two.
    pub dropped: u64,
    /// Packets that were dropped because the receive ring was full.
    pub ring_full: u64,
    /// Packets that were dropped because there was no memory for them.
    pub no_memory: u64,
}

impl XdpPort {
    pub(crate) fn new(
        interface: u32,
        queue: u32,
        socket: Socket,
        layout: Layout,
        packet_bytes_max: usize,
        left: Arc<Left>,
    ) -> Self {
        Self {
            interface,
            queue,
            socket,
            layout,
            packet_bytes_max,
            free: (0..layout.send_slots as u32).rev().collect(),
            pieces: vec![0; layout.send_slots].into_boxed_slice(),
            taken: Vec::with_capacity(BATCH as usize),
            order: Order::new(layout.receive_chunks, layout.chunk_bytes),
            staged: 0,
            flows: Flows::default(),
            known: Vec::with_capacity(KNOWN_MAX),
            oldest: 0,
            left,
            down: false,
            assembly: Assembly::default(),
            counters: PortCounters::default(),
        }
    }

    /// The interface's index.
    pub const fn interface(&self) -> u32 {
        self.interface
    }

    /// The queue's number.
    pub const fn queue(&self) -> u32 {
        self.queue
    }

    /// Longest IP packet, in bytes.
    pub const fn packet_bytes_max(&self) -> usize {
        self.packet_bytes_max
    }

    /// Whether the kernel said that the interface is down or gone when it was last asked to send.
    pub const fn is_down(&self) -> bool {
        self.down
    }

    /// What was lost on the way into the socket.
    pub fn statistics(&self) -> Result<Statistics, Errno> {
        let kernel = self.socket.statistics()?;
        Ok(Statistics {
            dropped: kernel.rx_dropped,
            ring_full: kernel.rx_ring_full,
            no_memory: kernel.rx_fill_ring_empty_descs,
        })
    }

    /// What has happened so far.
    pub fn counters(&self) -> PortCounters {
        let kernel = self.statistics().unwrap_or_default();
        PortCounters {
            ring_full: kernel.ring_full,
            fill_ring_empty: kernel.no_memory,
            ring_drops: kernel.dropped,
            ..self.counters
        }
    }

    /// What the program leaves to UDP sockets on this interface.
    pub fn left(&self) -> Arc<Left> {
        self.left.clone()
    }

    /// Every descriptor, for a child of fork to close.
    pub fn all_descriptors(&self) -> Vec<RawFd> {
        vec![self.socket.raw()]
    }

    pub(crate) const fn raw(&self) -> RawFd {
        self.socket.raw()
    }

    /// Takes back the slots of what was sent.
    fn reap(&mut self) {
        if self.free.len() == self.layout.send_slots {
            return;
        }
        let done = self.socket.completion.waiting();
        if done == 0 {
            return;
        }
        for _ in 0..done {
            let address = self.socket.completion.take() as usize;
            let slot = address
                .checked_sub(self.layout.receive_bytes())
                .map(|offset| offset / self.layout.slot_bytes());
            let Some((slot, pieces)) =
                slot.and_then(|slot| Some((slot, self.pieces.get_mut(slot)?)))
            else {
                continue;
            };
            if *pieces == 1 {
                self.free.push(slot as u32);
            }
            *pieces = pieces.saturating_sub(1);
        }
        self.socket.completion.release();
    }

    /// Gives the kernel the memory of what was taken in.
    fn give_back(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        for chunk in self.taken.drain(..) {
            self.order.give(chunk);
            let room = self.socket.fill.push(chunk);
            debug_assert!(room, "an entry for every chunk");
        }
        self.socket.receive.release();
        self.socket.fill.publish();
        if self.socket.fill.needs_wakeup() {
            self.socket.kick_receive();
        }
    }

    /// One call to send what is in the transmit ring. It may send a part only.
    fn kick(&mut self) {
        self.counters.send_calls += 1;
        let result = self.socket.kick_send();
        self.down = match result {
            // Some is left: no memory, or too much on the way.
            Ok(()) | Err(Errno(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM)) => false,
            // One packet was dropped, and the rest is left.
            Err(Errno(libc::EBUSY)) => {
                self.counters.refused += 1;
                false
            }
            // ENETDOWN or ENXIO.
            Err(_) => true,
        };
    }

    /// Puts the frame in a slot into the transmit ring. The ring has an entry for every chunk.
    fn stage(&mut self, slot: u32, start: usize, len: usize) {
        let chunk = self.layout.chunk_bytes;
        let pieces = len.div_ceil(chunk);
        for piece in 0..pieces {
            let offset = piece * chunk;
            let last = piece + 1 == pieces;
            let descriptor = Descriptor {
                address: (start + offset) as u64,
                len: (len - offset).min(chunk) as u32,
                options: if last { 0 } else { libc::XDP_PKT_CONTD },
            };
            let room = self.socket.send.push(descriptor);
            debug_assert!(room, "an entry for every chunk");
        }
        if let Some(count) = self.pieces.get_mut(slot as usize) {
            *count = pieces as u8;
        }
        self.staged += 1;
    }

    /// Puts a packet into the transmit ring, with an acknowledgement in its padding.
    fn put_frame(
        &mut self,
        packet: &Leaving<'_>,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
        piggyback: Option<Piggyback<'_>>,
    ) -> Result<(), SendError> {
        let Leaving {
            path, ecn, length, ..
        } = *packet;
        if length < bth::Bth::BYTES {
            return Err(SendError::Nothing);
        }
        let known = self
            .known
            .iter()
            .position(|known| known.is(path, ecn, length));
        let known = match known {
            Some(known) => known,
            None => self.know(path, ecn, length)?,
        };
        if self.free.is_empty() {
            self.reap();
        }
        let slot = self.free.pop().ok_or(SendError::NoRoom)?;
        let start = self.layout.receive_bytes() + slot as usize * self.layout.slot_bytes();
        let Some(Known { prefix, front, .. }) = self.known.get(known) else {
            return Err(SendError::Unreachable);
        };
        let front = *front;
        let frame_bytes = front + length + icrc::BYTES;
        let behind = piggyback.map_or(0, |piggyback| piggyback::bytes(piggyback.packet.len()));
        // SAFETY: a free slot is ours: the kernel never had it, or gave it back in the completion
        // ring.
        let frame = unsafe { self.socket.umem.bytes_mut(start, frame_bytes + behind) };
        let written = frame.is_some_and(|frame| {
            let (frame, padding) = frame.split_at_mut(frame_bytes);
            let whole = frame.get_mut(front..front + length).is_some_and(fill)
                && prefix.wrap(frame) == Ok(frame_bytes);
            whole
                && match (piggyback, frame.last_chunk()) {
                    (Some(piggyback), Some(icrc)) => {
                        piggyback::emit(icrc, piggyback, padding).is_ok()
                    }
                    (piggyback, _) => piggyback.is_none(),
                }
        });
        if !written {
            self.free.push(slot);
            return Err(SendError::Nothing);
        }
        self.stage(slot, start, frame_bytes + behind);
        self.counters.sent += 1;
        self.counters.sent_bytes += length as u64;
        Ok(())
    }

    /// Whether a piggybacked acknowledgement fits behind a packet of that length on the path.
    fn has_padding(&self, path: &Path, length: usize) -> bool {
        let front = if path.destination.is_ipv4() { 28 } else { 48 };
        let whole = front + length + icrc::BYTES + piggyback::bytes(piggyback::PACKET_MAX);
        whole <= self.packet_bytes_max
    }

    /// Puts a packet into the transmit ring, and an acknowledgement into its padding; or in front, where
    /// there is none, and for a peer who may not look there.
    fn put_with(
        &mut self,
        kept: &Kept,
        packet: &Leaving<'_>,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        if self.free.len() < 2 {
            self.reap();
        }
        if self.free.len() < 2 {
            return Err(SendError::NoRoom);
        }
        let path = packet.path;
        let rides = kept.path == *path && self.has_padding(path, packet.length);
        let flow = self.flows.of(path.destination, path.source_port);
        let got = flow.got;
        let relies = rides && flow.relies();
        if !relies {
            let _ = self.put_alone(kept);
        }
        let piggyback = rides.then(|| Piggyback {
            packet: kept.packet(),
            got,
        });
        let put = self.put_frame(packet, fill, piggyback);
        if relies && put.is_err() {
            let _ = self.put_alone(kept);
        }
        if relies && put.is_ok() {
            self.counters.sent += 1;
            self.counters.sent_bytes += kept.packet().len() as u64;
        }
        put
    }

    /// A packet that was kept back, in a frame of its own.
    fn put_alone(&mut self, kept: &Kept) -> Result<(), SendError> {
        self.put_frame(&kept.leaving(), &mut |into| kept.put(into), None)
    }

    /// Makes the headers for packets of that length. Their place among those that are known.
    fn know(&mut self, path: &Path, ecn: Ecn, length: usize) -> Result<usize, SendError> {
        let outer = outer(path, ecn).ok_or(SendError::Unreachable)?;
        let front = outer.bytes();
        let ip_bytes = front - outer.ethernet.len() + icrc::BYTES;
        if length.saturating_add(ip_bytes) > self.packet_bytes_max {
            return Err(SendError::TooLong);
        }
        let known = Known {
            path: *path,
            ecn,
            length,
            front,
            prefix: outer.prefix(length).map_err(|_| SendError::TooLong)?,
        };
        if self.known.len() < KNOWN_MAX {
            self.known.push(known);
            return Ok(self.known.len() - 1);
        }
        self.oldest = (self.oldest + 1) % KNOWN_MAX;
        if let Some(place) = self.known.get_mut(self.oldest) {
            *place = known;
        }
        Ok(self.oldest)
    }
}

fn outer(path: &Path, ecn: Ecn) -> Option<Outer> {
    let hop = path.ethernet?;
    if path.source.is_ipv4() != path.destination.is_ipv4() {
        return None;
    }
    let ip = Ip::new(
        path.source,
        path.destination,
        path.dscp,
        ecn,
        path.hop_limit,
        path.flow_label,
    );
    Some(Outer {
        ethernet: ethernet::Header {
            destination: Mac(hop.destination),
            source: Mac(hop.source),
            vlan: None,
            ethertype: EtherType::Ipv4,
        },
        ip,
        source_port: path.source_port,
    })
}

impl Port for XdpPort {
    fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize {
        self.give_back();
        let count = self.socket.receive.waiting().min(BATCH);
        if count == 0 {
            self.reap();
            if self.socket.fill.still_needs_wakeup() {
                self.socket.kick_receive();
            }
            return 0;
        }
        if let Some(at) = self.order.next() {
            self.socket.umem.prefetch(at);
        }
        let mut packets = 0;
        for _ in 0..count {
            let piece = self.socket.receive.take();
            let (at, len) = (piece.address as usize, piece.len as usize);
            self.order.come(at);
            let more = piece.options & libc::XDP_PKT_CONTD != 0;
            // SAFETY: the receive ring gave the chunk to us, and it goes back with the next call, when
            // nothing refers to it any more.
            let bytes = unsafe { self.socket.umem.bytes(at, len) }.unwrap_or_default();
            if more || self.assembly.started {
                self.assembly.add(bytes, more);
            }
            if !more {
                packets += 1;
                let whole = match self.assembly.finish() {
                    None => Some(bytes),
                    Some(assembled) => assembled,
                };
                deliver(
                    self.interface,
                    whole,
                    &mut self.counters,
                    &mut self.flows,
                    each,
                );
            }
            let chunk = at - at % self.layout.chunk_bytes;
            self.taken.push(chunk as u64);
        }
        // A packet of which only the first pieces are there is something, too.
        packets.max(1)
    }

    fn put(
        &mut self,
        packet: &Leaving<'_>,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError> {
        if self.down {
            // Perhaps it is up again, and takes what waits in the ring.
            self.kick();
        }
        let usable = !self.down && packet.path.interface == self.interface;
        if !usable {
            self.counters.refused += u64::from(self.down);
            return Err(SendError::Unreachable);
        }
        match packet.beside {
            Some(kept) => self.put_with(kept, packet, fill),
            None => self.put_frame(packet, fill, None),
        }
    }

    fn flush(&mut self) -> bool {
        if self.staged > 0 {
            self.socket.send.publish();
            self.staged = 0;
        }
        let mut waiting = self.socket.send.waiting();
        // In copy mode one call sends a bounded number of packets.
        while waiting > 0 && self.socket.send.needs_wakeup() {
            self.kick();
            if self.down {
                // What waits goes when the interface is up again: see `send`.
                return true;
            }
            let before = waiting;
            waiting = self.socket.send.waiting();
            if waiting == before {
                return false;
            }
        }
        self.give_back();
        self.reap();
        true
    }

    fn room(&self) -> usize {
        self.free.len()
    }

    fn facts(&self) -> Facts {
        Facts {
            descriptors: self.all_descriptors(),
            counters: self.counters(),
        }
    }
}

impl Assembly {
    /// Longer than any packet of ours, by far.
    const BYTES_MAX: usize = 16 * 1024;

    fn add(&mut self, bytes: &[u8], more: bool) {
        if !self.started {
            self.bytes.clear();
            self.too_long = false;
        }
        // After the last piece `finish` ends it.
        self.started = more || self.started;
        self.too_long |= self.bytes.len() + bytes.len() > Self::BYTES_MAX;
        if !self.too_long {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// None: the packet has one piece only. Some(None): it is too long.
    fn finish(&mut self) -> Option<Option<&[u8]>> {
        let started = core::mem::take(&mut self.started);
        started.then(|| (!self.too_long).then_some(self.bytes.as_slice()))
    }
}

/// None: too long to look at.
fn deliver(
    interface: u32,
    frame: Option<&[u8]>,
    counters: &mut PortCounters,
    flows: &mut Flows,
    each: &mut dyn FnMut(&Received<'_>),
) {
    let frame = match frame.ok_or(Error::Length).and_then(Envelope::parse) {
        Ok(frame) => frame,
        Err(Error::Checksum) => {
            counters.bad_icrc += 1;
            return;
        }
        Err(_) => {
            counters.malformed += 1;
            return;
        }
    };
    let (dscp, ecn, hop_limit) = match frame.ip() {
        Ip::V4(ip) => (ip.dscp, ip.ecn, ip.ttl),
        Ip::V6(ip) => (ip.dscp, ip.ecn, ip.hop_limit),
    };
    let packet = frame.transport();
    counters.received += 1;
    counters.received_bytes += packet.len() as u64;
    let received = Received {
        source: frame.ip().source(),
        destination: frame.ip().destination(),
        interface,
        source_port: frame.udp().source_port,
        traffic_class: dscp << 2 | ecn as u8,
        hop_limit,
        packet,
    };
    // In front: programs that sleep on one channel for both count on an acknowledgement to be
    // there before the answer.
    if let Some(Piggyback { packet, got }) = frame.piggyback() {
        flows.of(received.source, received.source_port).came(got);
        each(&Received { packet, ..received });
    }
    each(&received);
}

#[cfg(test)]
mod tests {
    use super::Assembly;

    #[test]
    fn pieces_are_joined_and_a_single_one_is_not() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.finish(), None);
        assembly.add(b"one ", true);
        assembly.add(b"and ", true);
        assembly.add(b"all", false);
        assert_eq!(assembly.finish(), Some(Some(&b"one and all"[..])));
        assert_eq!(assembly.finish(), None);
        assembly.add(b"another", true);
        assembly.add(b"", false);
        assert_eq!(assembly.finish(), Some(Some(&b"another"[..])));
    }

    #[test]
    fn endless_pieces_are_not_kept() {
        let mut assembly = Assembly::default();
        for _ in 0..1000 {
            assembly.add(&[1; 4096], true);
            assert!(assembly.bytes.len() <= Assembly::BYTES_MAX);
        }
        assembly.add(&[], false);
        assert_eq!(assembly.finish(), Some(None));
        assembly.add(&[2], true);
        assembly.add(&[3], false);
        assert_eq!(assembly.finish(), Some(Some(&[2, 3][..])));
    }
}
