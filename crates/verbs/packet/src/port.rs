//! What a way in and out is to the one who drives it.

use core::ops::AddAssign;
use std::net::IpAddr;
use std::os::fd::RawFd;

use sluice_sys::errno::Errno;
use sluice_wire::Ecn;

/// The next hop's Ethernet addresses, where they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// Of the interface by which the packet leaves.
    pub source: [u8; 6],
    /// Of the neighbour that takes it.
    pub destination: [u8; 6],
}

/// How a packet goes to its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// An address of this host.
    pub source: IpAddr,
    /// The peer's address.
    pub destination: IpAddr,
    /// The interface by which it leaves; also the scope of link-local addresses.
    pub interface: u32,
    /// None: the kernel must find the neighbour, so that only a UDP port can send.
    pub ethernet: Option<Ethernet>,
    /// UDP source port, the same for all packets of a flow ([`sluice_wire::udp::ENTROPY_PORTS`]).
    pub source_port: u16,
    /// The upper six bits of the IPv4 type of service or the IPv6 traffic class, as a byte whose
    /// lower two bits are 0. ECN comes with the packet.
    pub dscp: u8,
    /// IPv4 time to live or IPv6 hop limit, not 0.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
}

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

/// Why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// Nothing more fits now. Call [`Port::flush`], and try again when the port is writable
    /// or after [`Port::receive`].
    NoRoom,
    /// This port cannot reach the destination (no neighbour, no route, interface down). The
    /// packet is gone, as one that a network lost.
    Unreachable,
    /// Longer than the interface takes. The packet is gone.
    TooLong,
    /// `fill` gave nothing: nothing was sent.
    Nothing,
}

/// A way in and out: a UDP socket, an AF_XDP queue. It belongs to one thread at a time, and no
/// call waits.
pub trait Port: Send {
    /// Gets the batch from the kernel that the next [`Port::receive`] gives, so that packets of other ports
    /// can be given in between: those that came there before these are there by then. Without it `receive`
    /// does that. Where that costs no call of the kernel nothing is done.
    fn fetch(&mut self) {}

    /// Gives one batch of what has come to `each`, one packet at a time. How many packets came,
    /// whether they were good or not: 0 says that there is nothing now.
    ///
    /// What is not RoCEv2, too long, cut short or has a wrong ICRC is counted
    /// ([`Port::counters`]) and dropped.
    fn receive(&mut self, each: &mut dyn FnMut(&Received<'_>)) -> usize;

    /// How many packets for this host the port has seen go to UDP sockets instead, ever. Reading it
    /// costs no call of the kernel. None: any number may, unseen.
    fn left_to_sockets(&self) -> Option<u64> {
        None
    }

    /// Puts a packet of `length` bytes (base transport header to pad) into the next batch.
    /// `fill` gets exactly as many bytes, whose content is undefined, and writes all of them;
    /// if it gives false nothing is sent ([`SendError::Nothing`]). It is called at most once, and
    /// not on the other errors.
    fn send(
        &mut self,
        path: &Path,
        ecn: Ecn,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), SendError>;

    /// Sends the batch. To be called after a series of [`Port::send`], and again as long as it
    /// gives false: the kernel took only a part, the rest goes with a later call.
    fn flush(&mut self) -> bool;

    /// More packets follow at once: sends of the batch what gains nothing by waiting for them. The
    /// rest waits for [`Port::flush`]. False: as there.
    fn hand_on(&mut self) -> bool {
        self.flush()
    }

    /// Packets that [`Port::send`] takes now without [`SendError::NoRoom`].
    fn room(&self) -> usize;

    /// Readable when something has come (level-triggered); what [`Port::receive`] has given may
    /// count until the next call of that or of [`Port::flush`]. More than one where a port is made
    /// of several sockets.
    fn descriptors(&self) -> Vec<RawFd>;

    /// Takes part in a multicast group on an interface, or no longer. Packets to groups that
    /// only other programs have joined do not come. `EOPNOTSUPP` where the port takes no part in
    /// groups.
    fn join(&self, _group: IpAddr, _interface: u32, _join: bool) -> Result<(), Errno> {
        Err(Errno(libc::EOPNOTSUPP))
    }

    /// What has happened so far. It may cost a call of the kernel.
    fn counters(&self) -> PortCounters;
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
