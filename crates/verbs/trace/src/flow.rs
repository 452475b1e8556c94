//! Who talks to whom, and what the outer headers of their packets are.

use std::net::{IpAddr, Ipv6Addr};

use sluice_wire::capture::Direction;
use sluice_wire::ethernet::{self, EtherType, Mac};
use sluice_wire::frame::Outer;
use sluice_wire::opcode::Service;
use sluice_wire::{Ecn, Ip, Mtu, Qpn, udp};

/// Hops of packets whose address handle names none.
const HOPS: u8 = 64;

/// One end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Its GID as an address.
    pub address: IpAddr,
    /// Its queue pair.
    pub qpn: Qpn,
}

impl End {
    /// By GID, as verbs programs know it: IPv4 addresses are mapped into IPv6 (IBTA annex
    /// A17.4.4).
    pub fn new(gid: [u8; 16], qpn: u32) -> Self {
        let address = Ipv6Addr::from(gid);
        Self {
            address: address
                .to_ipv4_mapped()
                .map_or(IpAddr::V6(address), IpAddr::V4),
            qpn: Qpn::new(qpn),
        }
    }
}

/// What all packets between two queue pairs have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The transport service.
    pub service: Service,
    /// Of the path.
    pub mtu: Mtu,
    /// The end whose process writes the file.
    pub local: End,
    /// The other one.
    pub remote: End,
    /// As in the address handle.
    pub traffic_class: u8,
    /// 20 bits, for IPv6.
    pub flow_label: u32,
    /// As in the address handle; 0 stands for a usual value.
    pub hop_limit: u8,
}

impl Flow {
    /// Sender and receiver of packets in a direction.
    pub fn ends(&self, direction: Direction) -> (&End, &End) {
        match direction {
            Direction::Outbound => (&self.local, &self.remote),
            Direction::Inbound => (&self.remote, &self.local),
        }
    }

    /// The headers in front of the transport packet. Where no wire is, there are no Ethernet
    /// addresses: they are made from the IP addresses, with the bit that says that nobody
    /// assigned them.
    pub(crate) fn outer(&self, direction: Direction) -> Outer {
        let (from, to) = self.ends(direction);
        let ecn = Ecn::from_bits(self.traffic_class);
        let hops = if self.hop_limit == 0 {
            HOPS
        } else {
            self.hop_limit
        };
        let ip = Ip::new(
            from.address,
            to.address,
            self.traffic_class,
            ecn,
            hops,
            self.flow_label,
        );
        // Spread over the ports by the queue pairs; the constant is 2³² over the golden ratio.
        let spread = (from.qpn.get() ^ to.qpn.get().rotate_left(12)).wrapping_mul(0x9e37_79b9);
        Outer {
            ethernet: ethernet::Header {
                destination: mac(to.address),
                source: mac(from.address),
                vlan: None,
                ethertype: EtherType::Ipv4,
            },
            ip,
            source_port: udp::ENTROPY_PORTS.start() | (spread >> 18) as u16,
        }
    }
}

/// An Ethernet address for an IP address whose own is not known: made from it, with the bit that
/// says that nobody assigned it. Groups have theirs from RFC 1112 §6.4 and RFC 2464 §7.
pub fn mac(address: IpAddr) -> Mac {
    Mac(match address {
        IpAddr::V4(address) => match address.octets() {
            [_, b, c, d] if address.is_multicast() => [0x01, 0x00, 0x5e, b & 0x7f, c, d],
            [a, b, c, d] => [0x02, 0x00, a, b, c, d],
        },
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            if address.is_multicast() {
                [0x33, 0x33, a, b, c, d]
            } else {
                [0x02, 0x06, a, b, c, d]
            }
        }
    })
}
