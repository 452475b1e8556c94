//! What a way in and out is to the one who drives it.

use core::ops::AddAssign;
use std::net::IpAddr;
use std::os::fd::RawFd;

use sluice_wire::Ecn;

use crate::leaving::{Leaving, SendError};

/// A packet that came, and whose ICRC was right.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Who sent it, as the IP header says.
    pub source: IpAddr,
    /// Which of our addresses (or which group) it came to.
    pub destination: IpAddr,
    /// The interface on which it came.
    pub interface: u32,
    /// UDP source port.
    pub source_port: u16,
    /// IPv4 type of service or IPv6 traffic class, all eight bits.
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit.
    pub hop_limit: u8,
    /// From base transport header to pad: what [`sluice_wire::Packet::parse`] takes.
    pub packet: &'a [u8],
}

impl Received<'_> {
    /// The congestion notification of the IP header.
    pub fn ecn(&self) -> Ecn {
        Ecn::from_bits(self.traffic_class)
    }
}

/// A way in and out: a UDP socket, an AF_XDP queue. It belongs to one thread at a time, and no
/// call waits. What leaves next, and when the kernel is told, its owner decides.
pub trait Port: Send {
    /// Gives one batch of what has come to `each`, one packet at a time. How many packets came,
    /// whether they were good or not: 0 says that there is nothing now. The batch is complete when the
    /// first packet is given: what comes after that is not in it.
    ///
    /// What is not RoCEv2, too long, cut short or has a wrong ICRC is counted
    /// ([`PortCounters`]) and dropped.
    fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize;

    /// Puts a packet behind the others of the next batch. `fill` gets as many bytes as it is long, whose
    /// content is undefined, and writes all of them; if it gives false nothing leaves
    /// ([`SendError::Nothing`]). It is called at most once, and not on the other errors. A part of the
    /// batch that nothing can be added to may leave at once.
    fn put(
        &mut self,
        packet: &Leaving<'_>,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError>;

    /// Sends the batch. To be called after a series of [`Port::put`], and again as long as it
    /// gives false: the kernel took only a part, the rest goes with a later call.
    fn flush(&mut self) -> bool;

    /// Packets that [`Port::put`] takes now without [`SendError::NoRoom`].
    fn room(&self) -> usize;

    /// What it is. It may cost a call of the kernel.
    fn facts(&self) -> Facts;
}

/// What is to be known of a port besides packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Readable when something has come (level-triggered); what [`Port::receive`] has given may
    /// count until the next call of that or of [`Port::flush`]. More than one where a port is made
    /// of several sockets.
    pub descriptors: Vec<RawFd>,
    /// What has happened so far.
    pub counters: PortCounters,
}

/// What a port has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Good packets.
    pub received: u64,
    /// Bytes of these, base transport header to pad.
    pub received_bytes: u64,
    /// Dropped: the ICRC was wrong.
    pub bad_icrc: u64,
    /// Dropped: not RoCEv2, malformed or cut short.
    pub malformed: u64,
    /// Packets that were handed to the kernel.
    pub sent: u64,
    /// Bytes of these.
    pub sent_bytes: u64,
    /// Calls of the kernel to send.
    pub send_calls: u64,
    /// Packets that the kernel or the network interface refused.
    pub refused: u64,
    /// Dropped by the kernel before a UDP socket: too many waited in it, or the UDP checksum was
    /// wrong.
    pub socket_drops: u64,
    /// Dropped by the kernel before an AF_XDP socket: its receive ring was full
    /// (`rx_ring_full` of `struct xdp_statistics`).
    pub ring_full: u64,
    /// The same: its fill ring had no memory to offer (`rx_fill_ring_empty_descs`).
    pub fill_ring_empty: u64,
    /// The same, for any other reason (`rx_dropped`).
    pub ring_drops: u64,
}

impl AddAssign for PortCounters {
    fn add_assign(&mut self, other: Self) {
        let Self {
            received,
            received_bytes,
            bad_icrc,
            malformed,
            sent,
            sent_bytes,
            send_calls,
            refused,
            socket_drops,
            ring_full,
            fill_ring_empty,
            ring_drops,
        } = other;
        self.received += received;
        self.received_bytes += received_bytes;
        self.bad_icrc += bad_icrc;
        self.malformed += malformed;
        self.sent += sent;
        self.sent_bytes += sent_bytes;
        self.send_calls += send_calls;
        self.refused += refused;
        self.socket_drops += socket_drops;
        self.ring_full += ring_full;
        self.fill_ring_empty += fill_ring_empty;
        self.ring_drops += ring_drops;
    }
}
