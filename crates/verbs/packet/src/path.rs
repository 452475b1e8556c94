//! Where a packet goes.

use std::net::IpAddr;

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
